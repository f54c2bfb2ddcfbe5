"""`grpo-variants translate`: the printed settings, quoted for a shell; the YAML comes back as the same variant."""

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

import grpo_variants as gv
from grpo_variants.cli.translate import translate
from grpo_variants.objective.surrogate import Reinforce, SurrogateOutput
from grpo_variants.trainers.trl.translate import trl_lines
from grpo_variants.trainers.verl import words
from grpo_variants.trainers.verl.limits import homogeneous
from grpo_variants.trainers.verl.translate import run_settings, verl_lines

SPECS = [
    *gv.names(),
    "grpo,scale=none,baseline=leave_one_out",
    "dapo,surrogate.high=0.3,kl=k3,kl.beta=0.01",
    "dapo,aggregation=prompt_mean",
    "aspo,surrogate.fraction=none",
    "grpo,kl=abs,kl.beta=0.1,kl.gradient=k2",
    "grpo,conventions=verl,surrogate.low=0.1",
    "rloo,correction=token_truncate+geometric_mask,correction.cap=3,correction.low=0.9,correction.high=1.1",
    "dr_grpo,aggregation.length=512",
    "grpo,overlong=penalty,overlong.buffer=128",
]


# What verl cannot run; `test_refused_by_name` holds each to its reason.
REFUSED = {
    "gdpo": "hands the values of single reward functions to its own estimator only",
    "gtpo_entropy": "gives an estimator no entropies",
    "grpo_s": "gives an estimator no entropies",
    "otb": "extend_host=True",
    "cppo": "verl trains on every response",
    "pods": "verl trains on every response",
    "unlikeliness": "transform=unlikeliness needs old_logp=.*extend_host=True",
    "spo": "gives every prompt a new uid",
    "dcpo": "gives every prompt a new uid",
    "forking_tokens": "needs entropy=",
    "archer": "needs entropy=",
    "aspo": "aspo: surrogate.fraction=0.2 needs entropies, .* Set surrogate.fraction=none",
    "minirl": "reads the trainer's old policy and its ratio the engine's, .* Set ratio.anchor=old,correction=tok",
    "kpop": "no such rollout correction",
    "deepseek_v32": "cannot weigh it by the ratio",
}


def command(spec, trainer):
    app = typer.Typer()
    app.command()(translate)
    return CliRunner().invoke(app, [spec, "--to", trainer])


def settings(spec):
    return run_settings(gv.get(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_the_yaml_for_trl_says_the_same_variant(spec):
    if spec == "otb":
        with pytest.raises(ValueError, match="otb: credit=optimal_token needs the sum of squared probabilities"):
            list(trl_lines(gv.get(spec)))
        return
    loaded = yaml.safe_load("\n".join(trl_lines(gv.get(spec))))
    assert gv.get(loaded["loss_type"].removeprefix("gv_")) == gv.get(spec)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell")
@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in REFUSED])
def test_a_shell_hands_the_overrides_on_as_they_are(spec):
    lines = [line for line in verl_lines(gv.get(spec)) if not line.startswith("# ")]
    script = "printf '%s\\n' \\\n" + "\n".join(lines)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == words.overrides(settings(spec))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    with pytest.raises(ValueError, match=REFUSED[name]):
        settings(name)


def test_grpo_in_full():
    """Every setting of verl that the variant grpo speaks about, and no other."""
    assert words.overrides(settings("grpo")) == [
        "algorithm.adv_estimator=gv_grpo",
        "actor_rollout_ref.actor.policy_loss.loss_mode=gv_grpo",
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_type=k3",
        "actor_rollout_ref.actor.kl_loss_coef=0.04",
        "algorithm.use_kl_in_reward=False",
        "actor_rollout_ref.actor.clip_ratio_low=0.2",
        "actor_rollout_ref.actor.clip_ratio_high=0.2",
        "algorithm.filter_groups.enable=False",
    ]


LINES = {
    "grpo,scale=none": '+algorithm.grpo_variants.options="scale=none"',
    "dapo,surrogate.high=0.3": '+actor_rollout_ref.actor.policy_loss.options="surrogate.high=0.3"',
    "dapo": "actor_rollout_ref.actor.clip_ratio_high=0.28",
    "gspo": "actor_rollout_ref.actor.clip_ratio_low=0.0003",
    "rloo": "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
    "dr_grpo": "actor_rollout_ref.actor.loss_scale_factor=${data.max_response_length}",
    "dr_grpo,aggregation.length=512": "actor_rollout_ref.actor.loss_scale_factor=512",
    "grpo,kl.gradient=k2": 'actor_rollout_ref.actor.kl_loss_type="k3+"',
    "reinforce_pp": "algorithm.kl_ctrl.kl_coef=0.01",
    "grpo_process": "+algorithm.grpo_variants.step_rewards=nonzero",
    "remax": "algorithm.adv_estimator=remax",
    "dapo,aggregation=prompt_mean": '+algorithm.grpo_variants.options="aggregation=prompt_mean"',
    "psr": '+algorithm.grpo_variants.options="aggregation=token_mean,aggregation.rows=signal"',
    "psr,aggregation.rows=all": '+algorithm.grpo_variants.options="aggregation=token_mean"',
    "nsr,aggregation=sequence_mean": '+algorithm.grpo_variants.options="aggregation=sequence_mean"',
    "dapo,aggregation.rows=signal": (
        '+algorithm.grpo_variants.options="aggregation=token_mean,aggregation.rows=signal"'
    ),
    "delta_l,aggregation=constant": '+algorithm.grpo_variants.options="aggregation=constant"',
    "grpo,kl=none,aggregation=token_mean,aggregation.rows=signal": (
        '+algorithm.grpo_variants.options="kl=none,aggregation=token_mean,aggregation.rows=signal"'
    ),
    "dapo,filter.metric=acc": "algorithm.filter_groups.metric=acc",
    "dapo,overlong=penalty,overlong.buffer=128,overlong.factor=0.5": (
        "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5"
    ),
    "rloo,correction=token_mask,correction.low=0.5,correction.high=5": (
        'algorithm.rollout_correction.rollout_is_threshold="0.5_5.0"'
    ),
    "rloo,correction=sequence_mask,correction.low=none,correction.high=3": (
        'algorithm.rollout_correction.rollout_is_threshold="1e-09_3.0"'
    ),
    "rloo,correction=geometric_mask,correction.low=0.5,correction.high=2": (
        'algorithm.rollout_correction.rollout_rs_threshold="0.5_2.0"'
    ),
    "grpo,ratio.anchor=rollout": "algorithm.rollout_correction.bypass_mode=True",
}


@pytest.mark.parametrize("spec", LINES)
def test_the_line_for_an_option(spec):
    assert LINES[spec] in words.overrides(settings(spec))


ROLLOUT_LINES = {
    "dapo": ["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward"],
    "dapo,filter.metric=acc,overlong=penalty,overlong.buffer=128,overlong.factor=0.5": [
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
        "reward.reward_manager.name=dapo",
        "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
        "+reward.reward_kwargs.overlong_buffer_cfg.len=128",
        "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5",
        "+reward.reward_kwargs.overlong_buffer_cfg.log=False",
        "+reward.reward_kwargs.max_resp_len=${data.max_response_length}",
    ],
    "rloo,correction=token_truncate+geometric_mask,correction.cap=3,correction.low=0.5,correction.high=2": [
        "algorithm.rollout_correction.rollout_is=token",
        "algorithm.rollout_correction.rollout_is_threshold=3.0",
        "algorithm.rollout_correction.rollout_rs=seq_mean_k1",
        'algorithm.rollout_correction.rollout_rs_threshold="0.5_2.0"',
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "algorithm.filter_groups.enable=False",
    ],
    "grpo,ratio.anchor=rollout": [
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "algorithm.rollout_correction.bypass_mode=True",
        "algorithm.filter_groups.enable=False",
    ],
    "remax": ["algorithm.adv_estimator=remax", "trainer.use_v1=False", "algorithm.filter_groups.enable=False"],
}


@pytest.mark.parametrize("spec", ROLLOUT_LINES)
def test_every_line_about_the_rollouts(spec):
    about = ("filter_groups", "reward.", "rollout", "adv_estimator=remax", "use_v1")
    lines = [line for line in words.overrides(settings(spec)) if any(word in line.split("=gv_")[0] for word in about)]
    own = ("policy_loss", "loss_agg_mode", "clip_ratio", "kl_loss")
    assert [line for line in lines if not any(word in line for word in own)] == ROLLOUT_LINES[spec]


def test_remax_takes_verls_own_estimator_on_the_trainer_that_has_it():
    lines = words.overrides(settings("remax"))
    assert lines[:3] == [
        "algorithm.adv_estimator=remax",
        "trainer.use_v1=False",
        "actor_rollout_ref.actor.policy_loss.loss_mode=gv_remax",
    ]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("grpo,tokens=top_entropy", "tokens=top_entropy needs entropy="),
        ("grpo,aggregation.empty_rows=exclude", "Set aggregation.empty_rows=count"),
        ("grpo,kl.weighted=ratio", "Set kl.weighted=none"),
        ("rloo,correction=geometric_truncate", "verl has no such rollout correction"),
        ("rloo,correction=token_truncate,correction.floor=0.5", "verl truncates from above only"),
        ("rloo,correction=token_truncate+sequence_truncate", "one rollout weight and one rejection at a time"),
        ("dapo,filter.max_rounds=3", "its V1 trainer ignores algorithm.filter_groups.max_num_gen_batches"),
        ("remax,filter=zero_variance", "groups filtered by its V1 trainer. Set filter=none"),
        ("grpo,overlong.statistics=drop", "does not tell an estimator. Set overlong.statistics=keep"),
        ("remax,scale=batch_std", "verl draws greedy responses for its own estimator only"),
    ],
)
def test_what_verl_cannot_is_refused_with_the_reason(spec, reason):
    with pytest.raises(ValueError, match=reason):
        settings(spec)


@pytest.mark.parametrize(
    ("spec", "note"),
    [
        ("dapo", "# verl does not mask truncated responses"),
        ("dapo", "# verl's V1 trainer draws new prompts until the batch is full, without a bound on rounds."),
        ("dapo,overlong=penalty,overlong.buffer=8", "# verl's metric reward holds the overlong punishment"),
        ("grpo", "# verl clamps each token's k3 at 10."),
        ("psr", "# aggregation.rows=signal is exact where ppo_mini_batch_size equals train_batch_size"),
        ("dapo,aggregation=prompt_mean", "# prompt_mean is exact where ppo_mini_batch_size equals train_batch_size"),
        ("rloo,correction=geometric_mask,correction.low=0.5,correction.high=2", "# verl's rejection also takes"),
    ],
)
def test_what_verl_does_otherwise_is_noted(spec, note):
    assert any(line.startswith(note) for line in verl_lines(gv.get(spec)))


def test_a_weight_moves_into_the_advantages_of_a_homogeneous_surrogate():
    """PPO's clip, with dual clip or without, and the score function scale with A."""
    for spec in ("dapo", "dapo,surrogate.dual=3", "gspo", "rloo"):
        assert homogeneous(gv.get(spec))


def test_the_documentation_shows_what_is_printed():
    page = (Path(__file__).parents[2] / "docs" / "verl.md").read_text()
    shown = page.split("$ grpo-variants translate '", 1)[1]
    spec, rest = shown.split("' --to verl\n", 1)
    assert rest.split("\n```", 1)[0] == "\n".join(verl_lines(gv.get(spec)))


@dataclass(frozen=True, kw_only=True)
class Squared(Reinforce):
    """A surrogate that does not scale with A."""

    def __call__(self, log_ratio, x, counts):
        return SurrogateOutput(-x.advantages.square() * x.logp)


def test_another_surrogate_keeps_its_weights():
    squared = replace(gv.get("rloo,aggregation=prompt_mean"), surrogate=Squared())
    assert not homogeneous(squared)
    with pytest.raises(ValueError, match="and its surrogate does not scale with A"):
        run_settings(squared)


@pytest.mark.parametrize("trainer", ["trl", "verl"])
def test_the_command_takes_a_name_with_its_prefix_too(trainer):
    plain, prefixed = command("rloo", trainer), command("gv_rloo", trainer)
    assert plain.exit_code == 0
    assert plain.output == prefixed.output
    assert "gv_rloo" in plain.output


def test_an_unknown_trainer_is_an_error():
    result = command("rloo", "slime")
    assert isinstance(result.exception, ValueError)
    assert "--to='slime' is unknown; allowed: trl, verl, openrlhf, ms-swift" in str(result.exception)


def test_a_surrogate_that_reads_the_old_policy_beside_the_engine_has_a_way_out_that_works():
    """A loss is handed one of the two: DCPO's goes back to the old policy, MiniRL's keeps the engine's weight apart."""
    spec = "grpo,kl=none,surrogate=dcpo"
    with pytest.raises(ValueError, match=r"hands a policy loss one of the two\. Set ratio\.anchor=old\.$"):
        settings(f"{spec},ratio.anchor=rollout")
    assert settings(f"{spec},ratio.anchor=old")["actor_rollout_ref.actor.policy_loss.loss_mode"] == "gv_grpo"
    near = settings("minirl,ratio.anchor=old,correction=token_truncate,correction.cap=5")
    assert near["algorithm.rollout_correction.rollout_is_threshold"] == 5
