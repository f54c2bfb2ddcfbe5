"""Configurations: what is refused before a model loads, what is reported once, what is filled in."""

import logging

import pytest
from grpo_variants_verl import VariantPolicyLossConfig, remove_checks, watch_config
from grpo_variants_verl.launch import CALLBACK, DRIVER_VARIABLE
from grpo_variants_verl.settings import estimator_choice, loss_choice
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl_configs import composed, validated

import grpo_variants as gv

ESTIMATOR = "algorithm.adv_estimator"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
TARGET = "actor_rollout_ref.actor.policy_loss._target_=grpo_variants_verl.VariantPolicyLossConfig"
AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"


def options(text):
    return f'+algorithm.grpo_variants.options="{text}"'


def loss_options(text):
    return (TARGET, f'+actor_rollout_ref.actor.policy_loss.options="{text}"')


@pytest.fixture
def reported(caplog):
    """What the adapter reported, one line each."""
    caplog.set_level(logging.WARNING, logger="grpo_variants_verl")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "grpo_variants_verl"]


def test_one_flag_is_enough_for_an_estimator():
    config = validated(f"{ESTIMATOR}=gv_rloo")
    assert estimator_choice("rloo", config.algorithm).variant.baseline == gv.get("rloo").baseline


def test_one_flag_is_enough_for_a_loss():
    config = validated(f"{LOSS}=gv_gspo")
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    variant = loss_choice("gspo", actor).variant
    assert (variant.surrogate.low, variant.surrogate.high) == (3e-4, 4e-4)


def test_names_are_written_as_verl_has_them_registered():
    """verl looks them up letter by letter."""
    config = validated(f"{ESTIMATOR}='gv_Dr. GRPO'", f"{LOSS}=GV-GSPO")
    assert config.algorithm.adv_estimator == "gv_dr_grpo"
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "gv_gspo"
    policy_loss = VariantPolicyLossConfig(loss_mode="gv_Dr-GRPO", options="surrogate.high=0.3")
    assert policy_loss.loss_mode == "gv_dr_grpo"


def test_options_reach_each_end():
    config = validated(
        f"{ESTIMATOR}=gv_grpo",
        options("scale=none,baseline=leave_one_out"),
        f"{LOSS}=gv_grpo",
        *loss_options("surrogate.high=0.28,aggregation=token_mean"),
    )
    rule = estimator_choice("grpo", config.algorithm).variant
    objective = loss_choice("grpo", omega_conf_to_dataclass(config.actor_rollout_ref.actor)).variant
    wanted = gv.get("grpo,scale=none,baseline=leave_one_out,surrogate.high=0.28,aggregation=token_mean")
    assert (rule.scale, rule.baseline) == (wanted.scale, wanted.baseline)
    assert (objective.surrogate, objective.aggregation) == (wanted.surrogate, wanted.aggregation)


TOKEN_WEIGHTS = (
    "algorithm.rollout_correction.rollout_is=token",
    "actor_rollout_ref.rollout.calculate_log_probs=True",
)

REFUSED = {
    "unknown estimator": ([f"{ESTIMATOR}=gv_rlo"], r"adv_estimator='gv_rlo' is unknown.*Did you mean 'gv_rloo'\?"),
    "unknown loss": ([f"{LOSS}=gv_gsp"], r"loss_mode='gv_gsp' is unknown.*Did you mean 'gv_gspo'\?"),
    "an estimator without gv_": (
        [f"{ESTIMATOR}=dr_grpo"],
        "adv_estimator='dr_grpo' is none of verl's own; write algorithm.adv_estimator=gv_dr_grpo",
    ),
    "an estimator without gv_ as its paper writes it": (
        [f"{ESTIMATOR}='Dr. GRPO'"],
        "adv_estimator='Dr. GRPO' is none of verl's own; write algorithm.adv_estimator=gv_dr_grpo",
    ),
    "a loss without gv_": (
        [f"{LOSS}=dapo"],
        "loss_mode='dapo' is none of verl's own; write .*policy_loss.loss_mode=gv_dapo",
    ),
    "loss options without their class": (
        [f"{LOSS}=gv_dapo", loss_options("surrogate.high=0.3")[1]],
        "options is not known to verl.workers.config.PolicyLossConfig; add .*_target_=grpo_variants_verl.Variant",
    ),
    "options in an estimator's name": (
        [f"{ESTIMATOR}='gv_grpo,scale=none'"],
        r"algorithm.adv_estimator=gv_grpo '\+algorithm.grpo_variants.options=\"scale=none\"'",
    ),
    "options in a loss's name": (
        [f"{LOSS}='gv_dapo,surrogate.high=0.3'"],
        r"loss_mode=gv_dapo .*_target_=grpo_variants_verl.* '\+.*policy_loss.options=\"surrogate.high=0.3\"'",
    ),
    "unknown axis": ([f"{ESTIMATOR}=gv_grpo", options("scal=none")], r"unknown axis 'scal'.*Did you mean 'scale'"),
    "unknown field": (
        [f"{LOSS}=gv_grpo", *loss_options("surrogate.hihg=0.3")],
        r"surrogate=clip has no field 'hihg'.*Did you mean 'high'",
    ),
    "a loss's axis at the estimator": (
        [f"{ESTIMATOR}=gv_grpo", options("surrogate.high=0.3")],
        r"surrogate.high is an option of the other end; write .*policy_loss.options=\"surrogate.high=0.3\"",
    ),
    "an estimator's axis at the loss": (
        [f"{LOSS}=gv_grpo", *loss_options("scale=none")],
        r"scale is an option of the other end; write '\+algorithm.grpo_variants.options=\"scale=none\"'",
    ),
    "a rollout axis at an end": (
        [f"{ESTIMATOR}=gv_grpo", options("filter=zero_variance")],
        "filter acts while responses are sampled, which verl does",
    ),
    "unknown setting": (
        [f"{ESTIMATOR}=gv_grpo", '+algorithm.grpo_variants.option="scale=none"'],
        r"algorithm.grpo_variants.option is unknown. Did you mean 'options'\? Allowed: options, step_rewards",
    ),
    "a section given as text": (
        [f"{ESTIMATOR}=gv_grpo", '+algorithm.grpo_variants="scale=none"'],
        r"algorithm.grpo_variants is a section; write '\+algorithm.grpo_variants.options",
    ),
    "options without an estimator": ([options("scale=none")], "options has no effect on algorithm.adv_estimator=gae"),
    "options without a loss": (
        [f"{ESTIMATOR}=gv_grpo", *loss_options("surrogate.high=0.3")],
        "options has no effect on .*loss_mode=vanilla; use a gv_ loss",
    ),
    "greedy rewards": (
        [f"{ESTIMATOR}=gv_remax"],
        r"verl draws greedy responses for its own estimator only. Use algorithm.adv_estimator=remax",
    ),
    "token credit without token rewards": (
        [f"{ESTIMATOR}=gv_grpo_process"],
        r"one reward a response.*set '\+algorithm.grpo_variants.step_rewards=nonzero'",
    ),
    "an unknown rule for steps": (
        [f"{ESTIMATOR}=gv_grpo_process", "+algorithm.grpo_variants.step_rewards=all"],
        "step_rewards='all' is unknown; allowed: nonzero",
    ),
    "entropies": (
        [f"{LOSS}=gv_grpo", *loss_options("tokens=top_entropy")],
        r"verl does not hand this over to a plugin. tokens=top_entropy needs entropy=",
    ),
    "empty rows left out": (
        [f"{LOSS}=gv_grpo", *loss_options("aggregation.empty_rows=exclude")],
        "Set aggregation.empty_rows=count",
    ),
    "a KL weighted by the ratio": (
        [f"{LOSS}=gv_grpo", *loss_options("kl.weighted=ratio")],
        "cannot weigh it by the ratio. Set kl.weighted=none",
    ),
    "prompt_mean at the loss alone": (
        [f"{LOSS}=gv_dapo", *loss_options("aggregation=prompt_mean")],
        r"options=\"aggregation=prompt_mean\"' .*options=\"aggregation=token_mean\"'",
    ),
    "prompt_mean at the estimator alone": (
        [f"{ESTIMATOR}=gv_grpo", options("aggregation=prompt_mean"), f"{LOSS}=gv_grpo"],
        r"on top of a token mean, which the loss does not take. Mend: .*options=\"aggregation=token_mean\"'",
    ),
    "another aggregation at the estimator": (
        [f"{ESTIMATOR}=gv_grpo", options("aggregation=token_mean")],
        "aggregation is an option of the other end",
    ),
    "a correction that the host does not apply": (
        [f"{LOSS}=gv_grpo", *loss_options("correction=token_truncate")],
        r"verl computes the rollout correction.*Mend: algorithm.rollout_correction.rollout_is=token "
        r"algorithm.rollout_correction.rollout_is_threshold=2.0 actor_rollout_ref.rollout.calculate_log_probs=True",
    ),
    "a correction that the host does not have": (
        [f"{LOSS}=gv_grpo", *loss_options("correction=geometric_truncate")],
        "correction=geometric_truncate: verl has no such rollout correction",
    ),
    "an anchor that needs bypass mode": (
        [f"{LOSS}=gv_grpo", *loss_options("ratio.anchor=rollout")],
        r"needs verl's bypass mode.*Mend: .*algorithm.rollout_correction.bypass_mode=True",
    ),
    "bypass mode in the legacy trainer": (
        [f"{LOSS}=gv_grpo", "algorithm.rollout_correction.bypass_mode=True", "trainer.use_v1=False"],
        "the legacy trainer replaces loss_mode by its own bypass_mode. Mend: trainer.use_v1=True",
    ),
    "two lengths": (
        [
            f"{LOSS}=gv_dr_grpo",
            *loss_options("aggregation.length=100"),
            "actor_rollout_ref.actor.loss_scale_factor=200",
        ],
        "loss_scale_factor=200 and aggregation.length=100.0 disagree",
    ),
    "a clip field and an option": (
        [f"{LOSS}=gv_grpo", *loss_options("surrogate.high=0.3"), "actor_rollout_ref.actor.clip_ratio_high=0.25"],
        "clip_ratio_high=0.25 and surrogate.high=0.3 in .* disagree",
    ),
    "weights normalised over the batch": (
        [
            f"{LOSS}=gv_grpo",
            *loss_options("correction=token_truncate"),
            *TOKEN_WEIGHTS,
            "algorithm.rollout_correction.rollout_is_batch_normalize=True",
        ],
        "weights are not normalised over the batch.*Mend: .*rollout_is_batch_normalize=False",
    ),
    "a truncated distribution under a product of weights": (
        [
            f"{LOSS}=gv_grpo",
            *loss_options("correction=sequence_truncate"),
            "algorithm.rollout_correction.rollout_is=sequence",
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            "actor_rollout_ref.rollout.top_p=0.9",
            "actor_rollout_ref.rollout.top_k=20",
        ],
        r"rollout.top_p=0.9, .*rollout.top_k=20 the engine reports .*correction=sequence_truncate takes the difference "
        r"for mismatch.*Mend: actor_rollout_ref.rollout.top_p=1 actor_rollout_ref.rollout.top_k=-1, or",
    ),
    "ends that do not go together": (
        [f"{ESTIMATOR}=gv_reinforce_pp", f"{LOSS}=gv_gspo"],
        "ratio=sequence has one value a response and takes one advantage a response, not one a token",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_a_model_loads(case):
    overrides, message = REFUSED[case]
    with pytest.raises(Exception, match="(?s)" + message):
        validated(*overrides)


DAPO = (f"{ESTIMATOR}=gv_dapo", f"{LOSS}=gv_dapo")
FILTERING = (*DAPO, "algorithm.filter_groups.enable=True")
PUNISHING = (
    "reward.reward_manager.name=dapo",
    "+reward.reward_kwargs.overlong_buffer_cfg.enable=True",
    "+reward.reward_kwargs.overlong_buffer_cfg.len=64",
    "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0",
)
REPORTED = {
    "aggregation": (
        [f"{LOSS}=gv_gspo"],
        "loss_agg_mode=token-mean is not gspo's aggregation",
        f"Mend: {AGGREGATION}=seq-mean-token-mean",
    ),
    "a KL term that is missing": (
        [f"{LOSS}=gv_grpo"],
        "grpo has k3 with beta 0.04 in its loss, this configuration has no KL term",
        "Mend: actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=k3 "
        "actor_rollout_ref.actor.kl_loss_coef=0.04",
    ),
    "another KL coefficient": (
        [f"{LOSS}=gv_grpo", "actor_rollout_ref.actor.use_kl_loss=True"],
        "grpo has k3 with beta 0.04 in its loss, this configuration has k3 with beta 0.001",
        "actor_rollout_ref.actor.kl_loss_coef=0.04",
    ),
    "a KL term that the variant has not": (
        [f"{LOSS}=gv_dapo", "actor_rollout_ref.actor.use_kl_loss=True"],
        "dapo has no KL term in its loss, this configuration has k3 with beta 0.001",
        "Mend: actor_rollout_ref.actor.use_kl_loss=False",
    ),
    "a KL penalty that is missing": (
        [f"{ESTIMATOR}=gv_reinforce_pp"],
        "reinforce_pp has k1 with beta 0.01 in its rewards, this configuration has no KL term",
        "Mend: algorithm.use_kl_in_reward=True algorithm.kl_penalty=k1 algorithm.kl_ctrl.type=fixed "
        "algorithm.kl_ctrl.kl_coef=0.01",
    ),
    "dual clip": (
        [f"{LOSS}=gv_dapo"],
        "clip_ratio_c=3.0, the dual clip that verl's own loss always applies, is not part of dapo",
        "'+actor_rollout_ref.actor.policy_loss.options=\"surrogate.dual=3.0\"'",
    ),
    "a clip field without effect": (
        [f"{LOSS}=gv_rloo", "actor_rollout_ref.actor.clip_ratio_high=0.3"],
        "clip_ratio_high=0.3 has no effect on rloo",
        "Leave it out.",
    ),
    "a discount without effect": (
        [f"{ESTIMATOR}=gv_grpo", "algorithm.gamma=0.9"],
        "algorithm.gamma=0.9 has no effect on grpo",
        "Mend: algorithm.gamma=1.0",
    ),
    "verl's own switch for the scale": (
        [f"{ESTIMATOR}=gv_grpo", "algorithm.norm_adv_by_std_in_grpo=False"],
        "norm_adv_by_std_in_grpo=False is read by verl's own grpo only",
        "'+algorithm.grpo_variants.options=\"scale=none\"'",
    ),
    "dynamic sampling": (
        DAPO,
        "dapo draws new groups for those without signal, but verl's filter is off",
        "Mend: algorithm.filter_groups.enable=True algorithm.filter_groups.metric=reward",
    ),
    "a bound on rounds": (
        [*FILTERING, "algorithm.filter_groups.max_num_gen_batches=4"],
        "algorithm.filter_groups.max_num_gen_batches=4 has no effect in verl 0.9.1",
        "drawn until the batch is full",
    ),
    "a filter in the legacy trainer": (
        [*FILTERING, "trainer.use_v1=False"],
        "verl's legacy trainer filters no groups",
        "Mend: trainer.use_v1=True",
    ),
    "a filter by punished rewards": (
        [*FILTERING, *PUNISHING],
        "the filter's metric reward holds the overlong punishment",
        "Mend: algorithm.filter_groups.metric=acc",
    ),
    "a truncated distribution": (
        [f"{ESTIMATOR}=gv_grpo", "actor_rollout_ref.rollout.top_p=0.9"],
        "actor_rollout_ref.rollout.top_p=0.9: verl trains the log-probabilities of the whole distribution",
        "Mend: actor_rollout_ref.rollout.top_p=1",
    ),
    "overlong responses": (
        DAPO,
        "dapo masks truncated responses, verl trains on them",
        "reward.reward_manager.name=dapo +reward.reward_kwargs.overlong_buffer_cfg.enable=True "
        "+reward.reward_kwargs.overlong_buffer_cfg.len=102",
    ),
    "bypass mode": (
        [f"{LOSS}=gv_dapo", "algorithm.rollout_correction.bypass_mode=True"],
        "the old log-probabilities are the rollout engine's",
        "no rollout weight is applied",
    ),
    "rejection": (
        [
            f"{LOSS}=gv_dapo",
            "algorithm.rollout_correction.rollout_rs=token_k2",
            "algorithm.rollout_correction.rollout_rs_threshold=0.1",
        ],
        "rollout_rs takes tokens out of the loss",
        "the step's token count still has them",
    ),
    "several updates a batch": (
        [
            f"{ESTIMATOR}=gv_dapo",
            options("aggregation=prompt_mean"),
            f"{LOSS}=gv_dapo",
            "data.train_batch_size=8",
        ],
        "prompt_mean is exact for one update a batch only",
        "Mend: actor_rollout_ref.actor.ppo_mini_batch_size=8",
    ),
    "an agent loop of one's own": (
        [f"{ESTIMATOR}=gv_grpo", "actor_rollout_ref.rollout.agent.default_agent_loop=mine"],
        "an agent loop that gives several outputs a session",
        "needs '+algorithm.grpo_variants.extend_host=True'",
    ),
}


@pytest.mark.parametrize("case", REPORTED)
def test_reported_once_with_the_line_that_mends_it(case, reported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the legacy trainer's card is written where its checkpoints would be
    overrides, text, mend = REPORTED[case]
    validated(*overrides)
    found = [line for line in reported() if text in line]
    assert len(found) == 1, reported()
    assert mend in found[0]


def test_a_configuration_that_says_what_the_variant_says_has_nothing_to_report(reported):
    validated(
        f"{ESTIMATOR}=gv_rloo",
        f"{LOSS}=gv_rloo",
        f"{AGGREGATION}=seq-mean-token-sum",
    )
    assert reported() == []


def test_verls_own_configurations_are_left_alone(reported):
    before = composed(f"{ESTIMATOR}=grpo")
    assert validated(f"{ESTIMATOR}=grpo") == before
    assert reported() == []


def test_the_constant_is_the_longest_response_unless_something_is_said():
    factor = "actor_rollout_ref.actor.loss_scale_factor"
    assert OmegaConf.select(validated(f"{LOSS}=gv_dr_grpo", "data.max_response_length=321"), factor) == 321
    assert OmegaConf.select(validated(f"{LOSS}=gv_dr_grpo", f"{factor}=99"), factor) == 99
    said = validated(f"{LOSS}=gv_dr_grpo", *loss_options("aggregation.length=77"))
    assert OmegaConf.select(said, factor) is None


def test_workers_are_told_of_the_driver_and_of_a_users_own_modules(monkeypatch):
    monkeypatch.setenv("GRPO_VARIANTS_MODULES", "json")
    config = validated(f"{ESTIMATOR}=gv_rloo")
    told = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env)["env_vars"]
    assert told == {DRIVER_VARIABLE: gv.__version__, "GRPO_VARIANTS_MODULES": "json"}
    assert config.trainer.checkpoint_callback_class == CALLBACK


def test_a_users_own_callback_stays_and_is_told_how_to_write_the_card(reported):
    own = "verl.trainer.ppo.checkpoint_callback.CheckpointCallback"
    config = validated(f"{ESTIMATOR}=gv_rloo", f"trainer.checkpoint_callback_class={own}")
    assert config.trainer.checkpoint_callback_class == own
    assert any(f"Mend: derive it from {CALLBACK}" in line for line in reported())


def test_a_second_check_of_the_same_run_says_nothing_again(reported, capsys):
    """The legacy trainer validates in its driver and in its task runner."""
    from verl.utils import config as verl_config

    config = validated(f"{LOSS}=gv_gspo")
    first, shown = len(reported()), capsys.readouterr().out
    verl_config.validate_config(config, use_reference_policy=False, use_critic=False)
    assert first == len(reported()) == 1
    assert "variant gspo" in shown
    assert "variant gspo" not in capsys.readouterr().out


def test_the_checks_can_be_taken_off_and_put_back():
    remove_checks()
    try:
        validated(f"{ESTIMATOR}=gv_rlo")  # verl itself finds out after the first rollout
    finally:
        watch_config()
        watch_config()
    with pytest.raises(ValueError, match="gv_rlo"):
        validated(f"{ESTIMATOR}=gv_rlo")
