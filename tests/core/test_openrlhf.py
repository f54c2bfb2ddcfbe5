"""`translate --to openrlhf`: the printed flags of OpenRLHF 0.11, and what they cannot express, by name."""

import pytest
from support.command_line import flags, lines, refused_keys
from typer.testing import CliRunner

import grpo_variants as gv
from grpo_variants.cli.app import app
from grpo_variants.trainers.openrlhf.words import ESTIMATORS

# The keys that each member is refused for; the others run.
REFUSED = {
    "reinforce": ("baseline=none, scale=none", "aggregation=sequence_sum"),
    "rloo": ("aggregation=sequence_sum",),
    "grpo": ("kl.placement=loss",),
    "grpo_process": ("credit=process", "kl.placement=loss"),
    "dr_grpo": ("aggregation=constant",),
    "dapo": ("overlong=mask",),
    "remax": ("baseline=greedy, scale=none", "aggregation=sequence_sum"),
    "opo": ("baseline=length_weighted, scale=none",),
    "lite_ppo": ("scale.ddof=1", "scale.of=raw", "scale.over=responses", "scale.eps_in=std"),
    "maxrl": ("baseline=group_mean, scale=group_mean",),
    "gpg": ("baseline=group_mean, scale=signal_share",),
    "mc_grpo": ("baseline=group_median, scale=group_mad", "kl.placement=loss"),
    "qae": ("baseline=group_quantile, scale=group_std",),
    "bnpo": ("baseline=group_mean, scale=beta_density", "aggregation=sequence_sum"),
    "gdpo": ("credit=decoupled",),
    "krpo": ("baseline=kalman, scale=kalman_std", "kl.placement=loss"),
    "passk": ("baseline=second_best, scale=none",),
    "passk_analytic": ("transform=pass_at_k", "baseline=group_mean, scale=bernoulli"),
    "w_reinforce": ("transform=signed", "baseline=none, scale=none"),
    "psr": ("transform=signed", "baseline=none, scale=none", "aggregation.rows=signal"),
    "nsr": ("transform=signed", "baseline=none, scale=none", "aggregation.rows=signal"),
    "raft_pp": ("transform=signed", "baseline=none, scale=none"),
    "reinforce_rej": ("selection=mixed", "baseline=none, scale=none"),
    "cppo": ("selection=largest_advantage",),
    "pods": ("selection=max_variance",),
    "unlikeliness": ("transform=unlikeliness",),
    "gfpo": ("selection=shortest", "scale.ddof=0"),
    "otb": ("baseline=none, scale=none", "credit=optimal_token"),
    "spo": (
        "baseline=tracked, scale=batch_std",
        "scale.ddof=1",
        "scale.over=responses",
        "scale.eps_in=std",
        "scale.mean=subtract",
    ),
    "dcpo": ("baseline=group_mean, scale=smoothed_std", "surrogate=dcpo"),
    "luspo": ("aggregation=sequence_sum",),
    "delta_l": ("aggregation=length_power",),
    "forking_tokens": ("tokens=top_entropy", "overlong=mask"),
    "seq_mis": ("aggregation=constant", "correction=sequence_mask"),
    "cispo": ("surrogate=cispo",),
    "scalerl": (
        "scale.ddof=1",
        "scale.over=responses",
        "scale.eps_in=std",
        "ratio.anchor=rollout",
        "surrogate=cispo",
        "aggregation=prompt_mean",
    ),
    "topr": ("baseline=none, scale=none", "ratio=sequence_product", "surrogate=topr", "aggregation=sequence_sum"),
    "vespo": ("ratio=sequence_product", "surrogate=vespo"),
    "dppo_tv": ("ratio.anchor=rollout", "surrogate=dppo_tv", "aggregation=constant"),
    "dppo_kl": ("ratio.anchor=rollout", "surrogate=dppo_kl", "aggregation=constant"),
    "prime_rl": ("ratio.anchor=rollout", "surrogate=dppo_tv"),
    "minirl": ("ratio.anchor=rollout", "surrogate=ppo_mask", "aggregation=sequence_sum"),
    "sapo": ("surrogate=sapo",),
    "gmpo": ("surrogate=gmpo",),
    "hmpo": ("surrogate=gmpo",),
    "pmd_mean": ("ratio=sequence_product", "surrogate=dro"),
    "pmd_partition": ("baseline=partition, scale=none", "ratio=sequence_product", "surrogate=dro"),
    "aspo": ("surrogate=aspo", "kl.placement=loss"),
    "archer": ("surrogate=entropy_clip", "kl.exempt=0.2", "kl.placement=loss", "filter.max_rounds=0"),
    "ce_gppo": ("surrogate=ce_gppo",),
    "fipo": ("surrogate=fipo",),
    "bapo": ("surrogate=bapo",),
    "m2po": ("surrogate=m2po",),
    "clip_cov": ("surrogate=clip_cov",),
    "kl_cov": ("surrogate=kl_cov",),
    "agapo": (
        "baseline=leave_one_out, scale=batch_std",
        "scale.ddof=1",
        "scale.over=responses",
        "scale.eps_in=std",
        "aggregation=sequence_sum",
    ),
    "gtpo_entropy": ("baseline=none, scale=none", "credit=entropy_tokens"),
    "grpo_s": ("baseline=none, scale=none", "credit=entropy_responses", "ratio=sequence_arithmetic"),
    "tis": ("overlong=mask",),
    "glm5_agentic": ("ratio.anchor=rollout", "surrogate=band"),
    "kpop": ("correction=kpop",),
    "deepseek_v32": ("kl.weighted=ratio", "kl.placement=loss", "correction=off_policy_mask"),
    "simple_policy_optimization": ("surrogate=quadratic",),
    "kimi_k15": ("ratio=sequence_product", "surrogate=dro", "aggregation=sequence_sum"),
}
RUNS = {"gspo", "gspo_token", "reinforce_pp", "reinforce_pp_baseline", "two_sided", "icepop", "glm5"}


@pytest.mark.parametrize("name", gv.names())
def test_every_member_runs_or_is_refused_for_these_keys(name):
    assert refused_keys("openrlhf", name) == REFUSED.get(name, ())
    assert (name in RUNS) == (name not in REFUSED)


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (
            "gspo",
            "--algo.advantage.estimator group_norm --actor.policy_loss_type gspo "
            "--actor.eps_clip_low_high 0.0003 0.0004 --algo.kl.init_coef 0",
        ),
        (
            "grpo,kl=none",
            "--algo.advantage.estimator group_norm --actor.loss_agg_mode seq-mean-token-mean "
            "--actor.eps_clip_low_high 0.2 0.2 --algo.kl.init_coef 0",
        ),
        (
            "grpo,aggregation=token_mean",
            "--algo.advantage.estimator group_norm --actor.loss_agg_mode token-mean --actor.eps_clip_low_high 0.2 0.2 "
            "--algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.init_coef 0.04",
        ),
        (
            "reinforce_pp,credit.gamma=0.9",
            "--algo.advantage.estimator reinforce --algo.advantage.gamma 0.9 --actor.loss_agg_mode token-mean "
            "--actor.eps_clip_low_high 0.2 0.2 --algo.kl.estimator k1 --algo.kl.init_coef 0.01",
        ),
        (
            "reinforce_pp_baseline",
            "--algo.advantage.estimator reinforce_baseline --actor.loss_agg_mode token-mean "
            "--actor.eps_clip_low_high 0.2 0.2 --algo.kl.use_loss --algo.kl.estimator k2 --algo.kl.init_coef 1e-05",
        ),
        (
            "two_sided",
            "--algo.advantage.estimator group_norm --actor.loss_agg_mode token-mean --actor.eps_clip_low_high 0.2 0.2 "
            "--actor.dual_clip 4.0 --algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.init_coef 0.001",
        ),
        (
            "rloo,aggregation=token_mean",
            "--algo.advantage.estimator rloo --actor.loss_agg_mode token-mean --train.max_epochs 1 "
            "--algo.kl.init_coef 0",
        ),
        (
            "icepop",
            "--algo.advantage.estimator group_norm --actor.loss_agg_mode seq-mean-token-mean "
            "--actor.eps_clip_low_high 0.2 0.2 --algo.kl.init_coef 0 --algo.advantage.is_correction_level token "
            "--algo.advantage.is_correction_mode mask --algo.advantage.is_correction_threshold 0.5 5.0",
        ),
        (
            "tis,overlong=penalty,overlong.buffer=128",
            "--algo.advantage.estimator group_norm --actor.loss_agg_mode token-mean --actor.eps_clip_low_high 0.2 0.28 "
            "--algo.kl.init_coef 0 --algo.advantage.is_correction_level token --algo.advantage.is_correction_mode clip "
            "--algo.advantage.is_correction_threshold 0.0 2.0 --algo.dynamic_filtering_enable "
            "--algo.dynamic_filtering_range 0 1 --reward.overlong_buffer_len 128 --reward.overlong_penalty_factor 1.0",
        ),
        (
            "gspo,ratio.anchor=rollout",
            "--algo.advantage.estimator group_norm --actor.policy_loss_type gspo "
            "--actor.eps_clip_low_high 0.0003 0.0004 --algo.kl.init_coef 0 --algo.advantage.is_correction_level token",
        ),
    ],
)
def test_the_flags_of(spec, wanted):
    assert flags("openrlhf", spec) == wanted


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ("grpo,kl=none,selection=shortest", "selection=shortest"),
        ("grpo,kl=none,transform=pass_at_k", "transform=pass_at_k"),
        ("grpo,kl=none,baseline=batch_mean", "baseline=batch_mean, scale=group_std"),
        ("grpo,kl=none,scale.ddof=0", "scale.ddof=0"),
        ("grpo,kl=none,scale.eps=0.1", "scale.eps=0.1"),
        ("grpo,kl=none,credit=reward_to_go", "credit=reward_to_go"),
        ("grpo,kl=none,singleton=raw", "singleton=raw"),
        ("grpo,kl=none,ratio.anchor=rollout", "ratio.anchor=rollout"),
        ("grpo,kl=none,ratio.bound_high=5", "ratio.bound_high=5.0"),
        ("grpo,kl=none,ratio=sequence_product", "ratio=sequence_product"),
        ("grpo,kl=none,surrogate=sapo", "surrogate=sapo"),
        ("two_sided,kl=abs,kl.beta=0.1", "kl=abs"),
        ("two_sided,kl.gradient=k2", "kl.gradient=k2"),
        ("two_sided,kl.weighted=ratio", "kl.weighted=ratio"),
        ("two_sided,kl.exempt=0.2", "kl.exempt=0.2"),
        ("two_sided,kl.placement=reward", "kl.placement=reward"),
        ("two_sided,kl.value_bound=3", "kl.value_bound=3.0"),
        ("grpo,kl=none,correction=sequence_truncate", "correction=sequence_truncate"),
        ("gspo,correction=token_truncate", "correction=token_truncate"),
        ("gspo,aggregation=token_mean", "aggregation=token_mean"),
        ("grpo,kl=none,aggregation=token_mean,aggregation.rows=signal", "aggregation.rows=signal"),
        ("grpo,kl=none,tokens=top_entropy", "tokens=top_entropy"),
        ("grpo,kl=none,filter=zero_variance,filter.metric=acc", "filter.metric=acc"),
        ("grpo,kl=none,filter=zero_variance,filter.max_rounds=2", "filter.max_rounds=2"),
        ("grpo,kl=none,overlong=mask", "overlong=mask"),
        ("grpo,kl=none,overlong.statistics=drop", "overlong.statistics=drop"),
    ],
)
def test_what_it_cannot_express_is_refused_by_name(spec, key):
    assert refused_keys("openrlhf", spec) == (key,)
    with pytest.raises(ValueError, match=f"{gv.get(spec).name}: {key}"):
        lines("openrlhf", spec)


def test_the_notes_say_what_it_does_otherwise():
    text = "\n".join(lines("openrlhf", "rloo,aggregation=sequence_mean,filter=zero_variance"))
    for note in ("on policy only", "clipped at 10", "without a token is left out", "0 < mean score < 1"):
        assert note in text


def test_the_command_prints_them():
    done = CliRunner().invoke(app, ["translate", "gspo", "--to", "openrlhf"])
    assert done.exit_code == 0
    assert done.output.splitlines() == lines("openrlhf", "gspo")
    refused = CliRunner().invoke(app, ["translate", "dr_grpo", "--to", "openrlhf"])
    assert str(refused.exception) == (
        "dr_grpo: aggregation=constant: OpenRLHF averages over tokens or over responses. Set aggregation=token_mean or "
        "aggregation=sequence_mean."
    )


def test_each_estimator_has_a_word_of_its_own():
    assert len(set(ESTIMATORS.values())) == len(ESTIMATORS) == 6
