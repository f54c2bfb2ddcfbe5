"""`translate --to ms-swift`: the printed flags of ms-swift 4.6, and what they cannot express, by name."""

import pytest
from support.command_line import flags, lines, refused_keys
from typer.testing import CliRunner

import grpo_variants as gv
from grpo_variants.cli.app import app

# The keys that each member is refused for; the others run.
REFUSED = {
    "reinforce": ("baseline=none", "surrogate=reinforce, aggregation=sequence_sum"),
    "rloo": ("surrogate=reinforce, aggregation=sequence_sum",),
    "grpo_process": ("credit=process",),
    "reinforce_pp": (
        "baseline=none",
        "scale.ddof=0",
        "scale.over=tokens",
        "scale.eps_in=floor",
        "scale.of=centred",
        "credit=reward_to_go",
    ),
    "reinforce_pp_baseline": ("scale.ddof=0", "scale.over=tokens", "scale.eps_in=floor", "kl=k2"),
    "remax": ("baseline=greedy", "surrogate=reinforce, aggregation=sequence_sum"),
    "opo": ("baseline=length_weighted",),
    "maxrl": ("scale=group_mean",),
    "gpg": ("scale=signal_share",),
    "mc_grpo": ("baseline=group_median", "scale=group_mad"),
    "qae": ("baseline=group_quantile",),
    "bnpo": ("scale=beta_density", "surrogate=clip, aggregation=sequence_sum"),
    "krpo": ("baseline=kalman", "scale=kalman_std"),
    "passk": ("baseline=second_best",),
    "passk_analytic": ("transform=pass_at_k", "scale=bernoulli"),
    "w_reinforce": ("transform=signed", "baseline=none"),
    "psr": ("transform=signed", "baseline=none", "aggregation.rows=signal"),
    "nsr": ("transform=signed", "baseline=none", "aggregation.rows=signal"),
    "raft_pp": ("transform=signed", "baseline=none"),
    "reinforce_rej": ("selection=mixed", "baseline=none"),
    "cppo": ("selection=largest_advantage",),
    "pods": ("selection=max_variance",),
    "unlikeliness": ("transform=unlikeliness",),
    "gfpo": ("selection=shortest", "scale.ddof=0"),
    "otb": ("baseline=none", "credit=optimal_token"),
    "spo": ("baseline=tracked", "scale.mean=subtract", "scale.of=centred"),
    "dcpo": ("scale=smoothed_std", "surrogate=dcpo, aggregation=sequence_mean"),
    "luspo": ("surrogate=clip, aggregation=sequence_sum",),
    "delta_l": ("surrogate=clip, aggregation=length_power",),
    "seq_mis": ("correction=sequence_mask",),
    "icepop": ("correction.low=0.5",),
    "glm5": ("correction.low=0.5",),
    "scalerl": ("ratio.anchor=rollout", "surrogate=cispo, aggregation=prompt_mean"),
    "topr": ("baseline=none", "ratio=sequence_product", "surrogate=topr, aggregation=sequence_sum"),
    "vespo": ("ratio=sequence_product", "surrogate=vespo, aggregation=token_mean"),
    "dppo_tv": ("ratio.anchor=rollout", "surrogate=dppo_tv, aggregation=constant"),
    "dppo_kl": ("ratio.anchor=rollout", "surrogate=dppo_kl, aggregation=constant"),
    "prime_rl": ("ratio.anchor=rollout", "surrogate=dppo_tv, aggregation=token_mean"),
    "minirl": ("ratio.anchor=rollout", "surrogate=ppo_mask, aggregation=sequence_sum"),
    "gmpo": ("surrogate=gmpo, aggregation=sequence_mean",),
    "hmpo": ("surrogate=gmpo, aggregation=sequence_mean",),
    "pmd_mean": ("ratio=sequence_product", "surrogate=dro, aggregation=sequence_mean"),
    "pmd_partition": ("baseline=partition", "ratio=sequence_product", "surrogate=dro, aggregation=sequence_mean"),
    "aspo": ("surrogate=aspo, aggregation=sequence_mean",),
    "archer": ("surrogate=entropy_clip, aggregation=sequence_mean", "kl.exempt=0.2"),
    "ce_gppo": ("surrogate=ce_gppo, aggregation=token_mean",),
    "bapo": ("surrogate=bapo, aggregation=token_mean",),
    "m2po": ("surrogate=m2po, aggregation=token_mean",),
    "clip_cov": ("surrogate=clip_cov, aggregation=token_mean",),
    "kl_cov": ("surrogate=kl_cov, aggregation=token_mean",),
    "agapo": ("scale.of=centred", "surrogate=reinforce, aggregation=sequence_sum"),
    "gtpo_entropy": ("baseline=none", "credit=entropy_tokens"),
    "grpo_s": ("baseline=none", "credit=entropy_responses", "ratio=sequence_arithmetic"),
    "glm5_agentic": ("ratio.anchor=rollout", "surrogate=band, aggregation=token_mean"),
    "kpop": ("correction=kpop",),
    "deepseek_v32": ("kl.weighted=ratio", "kl.placement=loss"),
    "simple_policy_optimization": ("surrogate=quadratic, aggregation=sequence_mean",),
    "kimi_k15": ("ratio=sequence_product", "surrogate=dro, aggregation=sequence_sum"),
}
RUNS = {
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "gspo_token",
    "lite_ppo",
    "gdpo",
    "two_sided",
    "forking_tokens",
    "cispo",
    "sapo",
    "tis",
    "fipo",
}
START = "--rlhf_type grpo --advantage_estimator grpo --scale_rewards group --kl_in_reward false "
RESAMPLED = " --dynamic_sample true --max_resample_times 11"


@pytest.mark.parametrize("name", gv.names())
def test_every_member_runs_or_is_refused_for_these_keys(name):
    assert refused_keys("ms-swift", name) == REFUSED.get(name, ())
    assert (name in RUNS) == (name not in REFUSED)


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (
            "grpo",
            START + "--beta 0.04 --loss_type grpo --importance_sampling_level token --epsilon 0.2 --epsilon_high 0.2",
        ),
        (
            "dapo,overlong=penalty,overlong.buffer=64",
            START
            + "--beta 0 --loss_type dapo --importance_sampling_level token --epsilon 0.2 --epsilon_high 0.28"
            + RESAMPLED
            + " --soft_cache_length 64",
        ),
        (
            "dr_grpo",
            START.replace("group", "none")
            + "--beta 0 --loss_type dr_grpo --importance_sampling_level token --epsilon 0.2 --epsilon_high 0.2",
        ),
        (
            "rloo,aggregation=constant",
            START.replace("group", "none").replace("estimator grpo", "estimator rloo")
            + "--beta 0 --loss_type dr_grpo --num_iterations 1",
        ),
        (
            "gspo",
            START
            + "--beta 0 --loss_type grpo --importance_sampling_level sequence --epsilon 0.0003 --epsilon_high 0.0004",
        ),
        (
            "gspo_token",
            START + "--beta 0 --loss_type grpo --importance_sampling_level sequence_token "
            "--epsilon 0.0003 --epsilon_high 0.0004",
        ),
        (
            "cispo",
            START + "--beta 0 --loss_type cispo --importance_sampling_level token --epsilon_high 5.0" + RESAMPLED,
        ),
        (
            "sapo",
            START + "--beta 0 --loss_type sapo --importance_sampling_level token --tau_pos 1.0 --tau_neg 1.05",
        ),
        (
            "lite_ppo",
            START.replace("group", "batch")
            + "--beta 0 --loss_type dapo --importance_sampling_level token --epsilon 0.2 --epsilon_high 0.2",
        ),
        (
            "gdpo",
            START.replace("group", "gdpo")
            + "--beta 0 --loss_type grpo --importance_sampling_level token --epsilon 0.2 --epsilon_high 0.2",
        ),
        (
            "two_sided",
            START + "--beta 0.001 --loss_type dapo --importance_sampling_level token "
            "--epsilon 0.2 --epsilon_high 0.2 --delta 4.0",
        ),
        (
            "tis",
            START
            + "--beta 0 --loss_type dapo --importance_sampling_level token --epsilon 0.2 --epsilon_high 0.28 "
            + "--use_vllm true --vllm_mode colocate --rollout_importance_sampling_mode token_truncate "
            + "--rollout_importance_sampling_threshold 2.0"
            + RESAMPLED
            + " --overlong_filter true",
        ),
        (
            "icepop,correction.low=none",
            START
            + "--beta 0 --loss_type grpo --importance_sampling_level token --epsilon 0.2 --epsilon_high 0.2 "
            + "--use_vllm true --vllm_mode colocate --rollout_importance_sampling_mode token_mask "
            + "--rollout_importance_sampling_threshold 5.0",
        ),
        (
            "forking_tokens",
            START
            + "--beta 0 --loss_type dapo --importance_sampling_level token --epsilon 0.2 --epsilon_high 0.28 "
            + "--top_entropy_quantile 0.2"
            + RESAMPLED
            + " --overlong_filter true",
        ),
        (
            "fipo",
            START
            + "--beta 0 --loss_type fipo --importance_sampling_level token --epsilon 0.2 --epsilon_high 0.28 "
            + "--delta 10.0 --fipo_decay_rate 32.0 --fipo_clip_range 0.2 --fipo_clip_high_only true "
            + "--fipo_safety_threshold 10.0"
            + RESAMPLED,
        ),
        (
            "grpo,kl=k1,kl.placement=reward,kl.beta=0.01,scale=none",
            START.replace("group", "none").replace("reward false", "reward true")
            + "--beta 0.01 --loss_type grpo --importance_sampling_level token --epsilon 0.2 --epsilon_high 0.2",
        ),
    ],
)
def test_the_flags_of(spec, wanted):
    assert flags("ms-swift", spec) == wanted


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ("grpo,selection=shortest", "selection=shortest"),
        ("grpo,transform=pass_at_k", "transform=pass_at_k"),
        ("grpo,baseline=batch_mean", "baseline=batch_mean"),
        ("grpo,scale=group_mad", "scale=group_mad"),
        ("grpo,scale.ddof=0", "scale.ddof=0"),
        ("grpo,scale.eps=0.1", "scale.eps=0.1"),
        ("grpo,credit=reward_to_go", "credit=reward_to_go"),
        ("grpo,singleton=raw", "singleton=raw"),
        ("grpo,ratio.anchor=rollout", "ratio.anchor=rollout"),
        ("grpo,ratio.bound_high=5", "ratio.bound_high=5.0"),
        ("grpo,ratio=sequence_product", "ratio=sequence_product"),
        ("grpo,surrogate=gmpo", "surrogate=gmpo, aggregation=sequence_mean"),
        ("grpo,surrogate=reinforce", "surrogate=reinforce"),
        ("grpo,surrogate.dual=1.1", "surrogate.dual=1.1"),
        ("cispo,surrogate.low=0.5", "surrogate.low=0.5"),
        ("cispo,aggregation=sequence_mean", "surrogate=cispo, aggregation=sequence_mean"),
        ("two_sided,kl=k2,kl.beta=0.1", "kl=k2"),
        ("grpo,kl.placement=reward", "kl=k3"),
        ("grpo,kl.gradient=k2", "kl.gradient=k2"),
        ("grpo,kl.weighted=ratio", "kl.weighted=ratio"),
        ("grpo,kl.exempt=0.2", "kl.exempt=0.2"),
        ("grpo,kl.value_bound=3", "kl.value_bound=3.0"),
        ("grpo,correction=token_truncate", "kl.placement=loss"),
        ("gspo,correction=kpop", "correction=kpop"),
        ("gspo,correction=token_mask,correction.low=0.5,correction.high=2", "correction.low=0.5"),
        ("grpo,aggregation=constant,aggregation.length=64", "aggregation.length=64.0"),
        ("lite_ppo,aggregation.rows=signal", "aggregation.rows=signal"),
        ("grpo,filter=zero_variance,filter.metric=acc", "filter.metric=acc"),
        ("grpo,filter=zero_variance,filter.max_rounds=none", "filter.max_rounds=none"),
        ("grpo,overlong.statistics=drop", "overlong.statistics=drop"),
    ],
)
def test_what_it_cannot_express_is_refused_by_name(spec, key):
    assert refused_keys("ms-swift", spec) == (key,)
    with pytest.raises(ValueError, match=f"{gv.get(spec).name}: {key}"):
        lines("ms-swift", spec)


def test_the_notes_say_what_it_does_otherwise():
    text = "\n".join(lines("ms-swift", "tis"))
    for note in ("1e-4 is added", "--temperature is 0.9", "truncated tokens stay", "vLLM 0.10.2", "first batch"):
        assert note in text
    penalty = "dapo,overlong=penalty,overlong.buffer=64,overlong.factor=0.5"
    assert "with weight 0.5 in" in "\n".join(lines("ms-swift", penalty))
    assert "clamped at 10" in "\n".join(lines("ms-swift", "grpo"))
    assert "of each micro-batch" in "\n".join(lines("ms-swift", "forking_tokens"))
    assert "on policy only" in "\n".join(lines("ms-swift", "rloo,aggregation=constant"))


def test_the_command_prints_them():
    done = CliRunner().invoke(app, ["translate", "gspo", "--to", "ms-swift"])
    assert done.exit_code == 0
    assert done.output.splitlines() == lines("ms-swift", "gspo")
    refused = CliRunner().invoke(app, ["translate", "rloo", "--to", "ms-swift"])
    assert str(refused.exception) == (
        "rloo: surrogate=reinforce, aggregation=sequence_sum: no loss type of ms-swift has the two together. "
        "Set surrogate=clip,aggregation=token_mean."
    )
