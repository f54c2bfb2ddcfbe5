"""TRL's own flags on a variant: what each sets, that an explicit default is seen, and what is refused and how."""

import re

import pytest
from grpo_variants_trl import VariantGRPOConfig
from grpo_variants_trl.config.flags import FLAGS

import grpo_variants as gv
from grpo_variants.spelling import resolved_values


def choose(loss_type, **flags):
    return VariantGRPOConfig(output_dir="unused", use_cpu=True, bf16=False, loss_type=loss_type, **flags).choice


# (loss type, flags, what the variant has then). A value that equals TRL's own default is marked: it must be seen.
EFFECTS = {
    "beta, TRL's default 0.0": ("gv_grpo", {"beta": 0.0}, {"kl": "none"}),
    "beta tunes the KL term": ("gv_grpo", {"beta": 0.1}, {"kl": "k3", "kl.beta": 0.1}),
    "beta adds a KL term": ("gv_dapo", {"beta": 0.02}, {"kl": "k3", "kl.beta": 0.02, "kl.placement": "loss"}),
    "beta on a KL in the reward": (
        "gv_reinforce_pp",
        {"beta": 0.5},
        {"kl": "k1", "kl.placement": "reward", "kl.beta": 0.5},
    ),
    "beta completes the spec's KL": ("gv_dapo,kl=k2", {"beta": 0.3}, {"kl": "k2", "kl.beta": 0.3}),
    "epsilon sets both bounds": ("gv_grpo", {"epsilon": 0.1}, {"surrogate.low": 0.1, "surrogate.high": 0.1}),
    "epsilon, TRL's default 0.2, beside epsilon_high": (
        "gv_gspo",
        {"epsilon": 0.2, "epsilon_high": 0.3},
        {"surrogate.low": 0.2, "surrogate.high": 0.3},
    ),
    "epsilon_high alone": ("gv_grpo", {"epsilon_high": 0.28}, {"surrogate.low": 0.2, "surrogate.high": 0.28}),
    "epsilon_high caps cispo's weight, TRL's default 0.2 given": (
        "gv_cispo",
        {"epsilon_high": 0.2},
        {"surrogate.cap": 0.2, "surrogate.high": None},
    ),
    "epsilon sets gmpo's bounds, in log space": (
        "gv_gmpo",
        {"epsilon": 0.3},
        {"surrogate.low": 0.3, "surrogate.high": 0.3},
    ),
    "epsilon_high of gmpo": ("gv_gmpo", {"epsilon_high": 0.5}, {"surrogate.low": 0.4, "surrogate.high": 0.5}),
    "sapo's temperatures": (
        "gv_sapo",
        {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 1.05},
        {"surrogate.tau_pos": 2.0, "surrogate.tau_neg": 1.05},
    ),
    "vespo's exponents and decays": (
        "gv_vespo",
        {"vespo_k_pos": 1.0, "vespo_k_neg": 4.0, "vespo_lambda_pos": 1.5, "vespo_lambda_neg": 2.5},
        {"surrogate.k_pos": 1.0, "surrogate.k_neg": 4.0, "surrogate.lambda_pos": 1.5, "surrogate.lambda_neg": 2.5},
    ),
    "sapo's temperature on another variant's sapo": (
        "gv_dapo,surrogate=sapo",
        {"sapo_temperature_neg": 3.0},
        {"surrogate.tau_neg": 3.0, "surrogate.tau_pos": 1.0},
    ),
    "delta": ("gv_dapo", {"delta": 4.0}, {"surrogate.dual": 4.0, "surrogate.high": 0.28}),
    "delta at the upper bound": ("gv_grpo", {"delta": 1.5, "epsilon_high": 0.5}, {"surrogate.dual": 1.5}),
    "scale_rewards none": ("gv_grpo", {"scale_rewards": "none"}, {"scale": "none"}),
    "scale_rewards False": ("gv_grpo", {"scale_rewards": False}, {"scale": "none"}),
    "scale_rewards True": ("gv_dr_grpo", {"scale_rewards": True}, {"scale": "group_std", "scale.eps": 1e-6}),
    "scale_rewards, TRL's default group": ("gv_dr_grpo", {"scale_rewards": "group"}, {"scale": "group_std"}),
    "scale_rewards batch": ("gv_grpo", {"scale_rewards": "batch"}, {"scale": "batch_std", "scale.of": "raw"}),
    "scale_rewards keeps the fields of a scale that is there": (
        "gv_reinforce_pp",
        {"scale_rewards": "batch"},
        {"scale": "batch_std", "scale.over": "tokens", "scale.eps": 1e-8},
    ),
    "importance_sampling_level sequence": ("gv_grpo", {"importance_sampling_level": "sequence"}, {"ratio": "sequence"}),
    "importance_sampling_level, TRL's default token": (
        "gv_gspo",
        {"importance_sampling_level": "token"},
        {"ratio": "token", "surrogate.low": 3e-4},
    ),
    "multi_objective_aggregation, TRL's default": (
        "gv_grpo",
        {"multi_objective_aggregation": "sum_then_normalize"},
        {"scale": "group_std"},
    ),
    "multi_objective_aggregation": (
        "gv_grpo",
        {"multi_objective_aggregation": "normalize_then_sum"},
        {"credit": "decoupled", "scale": "group_std"},
    ),
    "multi_objective_aggregation of gdpo": (
        "gv_gdpo",
        {"multi_objective_aggregation": "sum_then_normalize"},
        {"credit": "outcome"},
    ),
    "mask_truncated_completions": ("gv_grpo", {"mask_truncated_completions": True}, {"overlong": "mask"}),
    "mask_truncated_completions, TRL's default False": (
        "gv_dapo",
        {"mask_truncated_completions": False},
        {"overlong": "keep"},
    ),
    "mask_truncated_completions False leaves a penalty": (
        "gv_dapo,overlong=penalty,overlong.buffer=4",
        {"mask_truncated_completions": False},
        {"overlong": "penalty", "overlong.buffer": 4},
    ),
    "top_entropy_quantile": (
        "gv_grpo",
        {"top_entropy_quantile": 0.3},
        {"tokens": "top_entropy", "tokens.fraction": 0.3},
    ),
    "top_entropy_quantile, TRL's default 1.0": ("gv_grpo", {"top_entropy_quantile": 1.0}, {"tokens": "all"}),
    "use_bias_correction_kl, TRL's default True": (
        "gv_grpo",
        {"use_bias_correction_kl": True},
        {"kl.weighted": "ratio", "kl.beta": 0.04},
    ),
    "use_bias_correction_kl False": ("gv_grpo", {"use_bias_correction_kl": False}, {"kl.weighted": "none"}),
    "use_bias_correction_kl False without KL": ("gv_dapo", {"use_bias_correction_kl": False}, {"kl": "none"}),
    "use_bias_correction_kl beside beta": (
        "gv_dapo",
        {"use_bias_correction_kl": True, "beta": 0.1},
        {"kl.weighted": "ratio", "kl.beta": 0.1},
    ),
    "off_policy_mask_threshold": (
        "gv_grpo",
        {"off_policy_mask_threshold": 0.5},
        {"correction": "off_policy_mask", "correction.threshold": 0.5},
    ),
    "vllm_importance_sampling_correction, TRL's default True": (
        "gv_grpo",
        {"vllm_importance_sampling_correction": True},
        {"correction": "sequence_mask", "correction.low": None, "correction.high": 3.0},
    ),
    "vllm_importance_sampling_correction False": (
        "gv_grpo",
        {"vllm_importance_sampling_correction": False},
        {"correction": "none"},
    ),
    "vllm_importance_sampling_mode, with TRL's cap 3.0": (
        "gv_grpo",
        {"vllm_importance_sampling_mode": "token_truncate"},
        {"correction": "token_truncate", "correction.cap": 3.0, "correction.floor": 0.0},
    ),
    "vllm_importance_sampling_mode sequence_truncate": (
        "gv_grpo",
        {"vllm_importance_sampling_mode": "sequence_truncate", "vllm_importance_sampling_clip_max": 2.0},
        {"correction": "sequence_truncate", "correction.cap": 2.0},
    ),
    "vllm_importance_sampling_clip_max": (
        "gv_grpo",
        {"vllm_importance_sampling_clip_max": 2.0},
        {"correction": "sequence_mask", "correction.high": 2.0},
    ),
    "vllm_importance_sampling_clip_max None is no bound, unset is TRL's 3.0": (
        "gv_grpo",
        {
            "vllm_importance_sampling_mode": "token_mask",
            "vllm_importance_sampling_clip_max": None,
            "vllm_importance_sampling_clip_min": 0.5,
        },
        {"correction": "token_mask", "correction.low": 0.5, "correction.high": None},
    ),
    "vllm_importance_sampling_clip_min": (
        "gv_grpo",
        {"vllm_importance_sampling_clip_min": 0.5},
        {"correction": "sequence_mask", "correction.low": 0.5, "correction.high": 3.0},
    ),
    "vllm_importance_sampling_clip_min of a truncation": (
        "gv_grpo",
        {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_min": 0.5},
        {"correction": "token_truncate", "correction.cap": 3.0, "correction.floor": 0.5},
    ),
    "both kinds of correction": (
        "gv_grpo",
        {"vllm_importance_sampling_correction": True, "off_policy_mask_threshold": 0.5},
        {
            "correction": "sequence_mask+off_policy_mask",
            "correction.sequence_mask.high": 3.0,
            "correction.off_policy_mask.threshold": 0.5,
        },
    ),
}


@pytest.mark.parametrize("case", EFFECTS)
def test_a_flag_sets_its_values(case):
    loss_type, flags, expected = EFFECTS[case]
    values = resolved_values(choose(loss_type, **flags).variant)
    assert {key: values[key] for key in expected} == expected


@pytest.mark.parametrize("case", EFFECTS)
def test_a_flag_sets_nothing_else(case):
    loss_type, flags, expected = EFFECTS[case]
    before = resolved_values(choose(loss_type.partition(",")[0]).variant)
    after = resolved_values(choose(loss_type, **flags).variant)
    changed = {key.partition(".")[0] for key in after if after[key] != before.get(key)}
    assert changed <= {key.partition(".")[0] for key in expected}


# (loss type, flags, text): settings that cannot be honoured, and what the message has to say.
REFUSALS = {
    "epsilon alone on unequal bounds": (
        "gv_gspo",
        {"epsilon": 0.2},
        "epsilon=0.2 alone sets both clip bounds in TRL, but gv_gspo clips at -0.0003 and +0.0004. "
        "Set epsilon_high too (for example epsilon_high=0.0004).",
    ),
    "epsilon without clip": (
        "gv_rloo",
        {"epsilon": 0.2},
        "epsilon=0.2 has no effect: gv_rloo has surrogate=reinforce, which does not clip as TRL does. "
        "Remove it, or set the surrogate's own fields, or choose surrogate=clip,ratio=token.",
    ),
    "epsilon on a clip of another kind": (
        "gv_fipo",
        {"epsilon": 0.2},
        "epsilon=0.2 has no effect: gv_fipo has surrogate=fipo, which does not clip as TRL does.",
    ),
    "epsilon on cispo": (
        "gv_cispo",
        {"epsilon": 0.2},
        "epsilon=0.2 has no effect on gv_cispo, whose weights have no lower bound in TRL. Set epsilon_high, the "
        "largest "
        "weight itself, or surrogate.low.",
    ),
    "epsilon_high and a spec that caps by an offset": (
        "gv_cispo,surrogate.high=4,surrogate.cap=none",
        {"epsilon_high": 4.0},
        "epsilon_high=4.0 and loss_type='gv_cispo,surrogate.high=4,surrogate.cap=none' disagree about surrogate.cap",
    ),
    "delta on gmpo": ("gv_gmpo", {"delta": 4.0}, "delta=4.0 has no effect: gv_gmpo has surrogate=gmpo"),
    "a temperature of 0": (
        "gv_sapo",
        {"sapo_temperature_pos": 0.0},
        "sapo_temperature_pos=0.0: sapo: surrogate.tau_pos=0.0 is out of range; allowed: a finite number above 0.",
    ),
    "epsilon_high without clip": ("gv_rloo", {"epsilon_high": 0.2}, "epsilon_high=0.2 has no effect: gv_rloo has"),
    "delta without clip": ("gv_remax", {"delta": 4.0}, "delta=4.0 has no effect: gv_remax has surrogate=reinforce"),
    "epsilon out of range": (
        "gv_grpo",
        {"epsilon": -0.1},
        "epsilon=-0.1: grpo: surrogate.low=-0.1 is out of range; allowed: a finite number of at least 0.",
    ),
    "beta out of range": ("gv_grpo", {"beta": -1.0}, "beta=-1.0: grpo: kl.beta=-1.0 is out of range"),
    "delta below the clip": (
        "gv_grpo",
        {"delta": 1.1},
        "delta=1.1 is below 1 + 0.2, where TRL's two-sided clip also binds for positive advantages; "
        "allowed for gv_grpo: at least 1.2.",
    ),
    "delta below a wider clip": ("gv_grpo", {"delta": 1.25, "epsilon_high": 0.28}, "at least 1.28."),
    "delta below 1 where epsilon_high is 0": ("gv_grpo", {"delta": 0.9, "epsilon_high": 0.0}, "at least 1."),
    "scale_rewards unknown": (
        "gv_grpo",
        {"scale_rewards": "std"},
        "scale_rewards='std' is unknown; allowed: group, batch, none.",
    ),
    "importance_sampling_level unknown": (
        "gv_grpo",
        {"importance_sampling_level": "sequence_token"},
        "importance_sampling_level='sequence_token' is unknown. Did you mean 'sequence'? Allowed: token, sequence.",
    ),
    "importance_sampling_level against the surrogate": (
        "gv_grpo,credit=reward_to_go",
        {"importance_sampling_level": "sequence"},
        "importance_sampling_level='sequence': grpo: ratio=sequence has one value per response and takes one advantage",
    ),
    "top_entropy_quantile 0": (
        "gv_grpo",
        {"top_entropy_quantile": 0.0},
        "top_entropy_quantile=0.0: grpo: tokens.fraction=0.0 is out of range; allowed: a finite number above 0.",
    ),
    "top_entropy_quantile above 1": (
        "gv_grpo",
        {"top_entropy_quantile": 1.2},
        "top_entropy_quantile=1.2: grpo: tokens.fraction=1.2",
    ),
    "use_bias_correction_kl without KL": (
        "gv_dapo",
        {"use_bias_correction_kl": True},
        "use_bias_correction_kl=True has no effect: gv_dapo has no KL term. Set beta too, or remove it.",
    ),
    "use_bias_correction_kl on a KL in the reward": (
        "gv_reinforce_pp",
        {"use_bias_correction_kl": True},
        "use_bias_correction_kl=True: reinforce_pp: kl.placement='reward' has no gradient through the penalty",
    ),
    "use_bias_correction_kl with beta 0": (
        "gv_grpo",
        {"use_bias_correction_kl": True, "beta": 0.0},
        "gv_grpo has no KL term",
    ),
    "multi_objective_aggregation": (
        "gv_reinforce_pp",
        {"multi_objective_aggregation": "normalize_then_sum"},
        "multi_objective_aggregation='normalize_then_sum' cannot be honoured: gv_reinforce_pp has credit=reward_to_go",
    ),
    "multi_objective_aggregation that does not exist": (
        "gv_grpo",
        {"multi_objective_aggregation": "sum"},
        "multi_objective_aggregation='sum' is unknown; allowed: sum_then_normalize, normalize_then_sum.",
    ),
    "off_policy_mask_threshold 0": (
        "gv_grpo",
        {"off_policy_mask_threshold": 0.0},
        "off_policy_mask_threshold=0.0: correction.threshold=0.0 is out of range; allowed: a finite number above 0.",
    ),
    **{
        f"{flag} of another loss": (
            "gv_grpo",
            {flag: 1.0},
            f"{flag}=1.0: no effect on gv_grpo, whose surrogate is clip; the flag belongs to TRL's "
            f"loss_type={owner!r}. Remove it, or use gv_{owner}.",
        )
        for flag, owner in [
            ("sapo_temperature_neg", "sapo"),
            ("sapo_temperature_pos", "sapo"),
            ("vespo_k_pos", "vespo"),
            ("vespo_lambda_pos", "vespo"),
            ("vespo_k_neg", "vespo"),
            ("vespo_lambda_neg", "vespo"),
        ]
    },
    **{
        f"{flag} with the correction off": (
            "gv_grpo",
            {flag: value, "vllm_importance_sampling_correction": False},
            f"{flag}={value!r}: no effect with vllm_importance_sampling_correction=False. Remove one of the two.",
        )
        for flag, value in [
            ("vllm_importance_sampling_mode", "token_mask"),
            ("vllm_importance_sampling_clip_max", 2.0),
            ("vllm_importance_sampling_clip_max", None),
            ("vllm_importance_sampling_clip_min", 0.5),
        ]
    },
    "vllm_importance_sampling_mode unknown": (
        "gv_grpo",
        {"vllm_importance_sampling_mode": "tis"},
        "vllm_importance_sampling_mode='tis' is unknown; allowed: token_truncate, sequence_truncate, token_mask, "
        "sequence_mask.",
    ),
    "a truncation without bound": (
        "gv_grpo",
        {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": None},
        "vllm_importance_sampling_mode='token_truncate' needs vllm_importance_sampling_clip_max, a number.",
    ),
    "a mask without bounds": (
        "gv_grpo",
        {"vllm_importance_sampling_clip_max": None},
        "vllm_importance_sampling_clip_max=None: correction.low and correction.high are both none",
    ),
    "vllm_importance_sampling_cap": (
        "gv_grpo",
        {"vllm_importance_sampling_cap": 2.0},
        "vllm_importance_sampling_cap=2.0: deprecated in TRL; use vllm_importance_sampling_clip_max.",
    ),
    "epsilon_high against the spec": (
        "gv_grpo,surrogate.high=0.3",
        {"epsilon_high": 0.28},
        "epsilon_high=0.28 and loss_type='gv_grpo,surrogate.high=0.3' disagree about surrogate.high: 0.28 and 0.3. "
        "Set one of them.",
    ),
    "beta against the spec": ("gv_grpo,kl=none", {"beta": 0.1}, "disagree about kl: 'k3' and 'none'"),
    "beta 0 against the spec": ("gv_grpo,kl.beta=0.1", {"beta": 0.0}, "disagree about kl.beta: 'none' and 0.1"),
    "another beta": ("gv_dapo,kl=k2,kl.beta=0.2", {"beta": 0.1}, "disagree about kl.beta: 0.1 and 0.2"),
    "scale_rewards against the spec": (
        "gv_grpo,scale=none",
        {"scale_rewards": "group"},
        "disagree about scale: 'group_std' and 'none'",
    ),
    "importance_sampling_level against the spec": (
        "gv_grpo,ratio=token",
        {"importance_sampling_level": "sequence"},
        "disagree about ratio: 'sequence' and 'token'",
    ),
    "mask_truncated_completions against the spec": (
        "gv_dapo,overlong=penalty,overlong.buffer=4",
        {"mask_truncated_completions": True},
        "disagree about overlong: 'mask' and 'penalty'",
    ),
    "top_entropy_quantile against the spec": (
        "gv_grpo,tokens=top_entropy,tokens.fraction=0.3",
        {"top_entropy_quantile": 0.2},
        "disagree about tokens.fraction: 0.2 and 0.3",
    ),
    "top_entropy_quantile 1.0 against the spec": (
        "gv_grpo,tokens=top_entropy",
        {"top_entropy_quantile": 1.0},
        "disagree about tokens: 'all' and 'top_entropy'",
    ),
    "delta against the spec": (
        "gv_grpo,surrogate.dual=3",
        {"delta": 4.0},
        "disagree about surrogate.dual: 4.0 and 3.0",
    ),
    "use_bias_correction_kl against the spec": (
        "gv_grpo,kl.weighted=none,kl.beta=0.1",
        {"use_bias_correction_kl": True},
        "disagree about kl.weighted: 'ratio' and 'none'",
    ),
    "correction against the spec": (
        "gv_grpo,correction=token_truncate",
        {"vllm_importance_sampling_clip_max": 4.0},
        "disagree about correction: 'sequence_mask' and 'token_truncate'",
    ),
    "off_policy_mask_threshold against a joined spec": (
        "gv_grpo,correction=token_truncate+off_policy_mask,correction.threshold=0.4",
        {"off_policy_mask_threshold": 0.5},
        "disagree about correction.off_policy_mask.threshold: 0.5 and 0.4",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_honoured_raises_with_the_way_out(case):
    loss_type, flags, text = REFUSALS[case]
    with pytest.raises(ValueError, match=re.escape(text)) as refused:
        choose(loss_type, **flags)
    assert any(str(refused.value).startswith(f"{flag}=") for flag in flags), "the message does not name the flag"


AGREEMENTS = [
    ("gv_grpo,surrogate.high=0.3", {"epsilon_high": 0.3}),
    ("gv_grpo,surrogate.low=0.1,surrogate.high=0.1", {"epsilon": 0.1}),
    ("gv_grpo,kl=none", {"beta": 0.0}),
    ("gv_grpo,kl=k1,kl.beta=0.1", {"beta": 0.1}),
    ("gv_grpo,scale=none", {"scale_rewards": "none"}),
    ("gv_grpo,scale=none", {"scale_rewards": False}),
    ("gv_grpo,ratio=sequence", {"importance_sampling_level": "sequence"}),
    ("gv_grpo,overlong=mask", {"mask_truncated_completions": True}),
    ("gv_grpo,tokens=top_entropy,tokens.fraction=0.3", {"top_entropy_quantile": 0.3}),
    ("gv_grpo,surrogate.dual=4", {"delta": 4.0}),
    ("gv_grpo,kl.weighted=ratio", {"use_bias_correction_kl": True}),
    ("gv_grpo,correction=off_policy_mask,correction.threshold=0.5", {"off_policy_mask_threshold": 0.5}),
    (
        "gv_grpo,correction=token_truncate",
        {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0},
    ),
]


@pytest.mark.parametrize(("loss_type", "flags"), AGREEMENTS)
def test_a_flag_may_repeat_the_spec_string(loss_type, flags):
    choice = choose(loss_type, **flags)
    assert choice.variant == gv.get(loss_type.removeprefix("gv_"))
    written = loss_type.split(",")[1:]
    assert {text.partition("=")[0]: choice.origins[text.partition("=")[0]] for text in written} == {
        text.partition("=")[0]: f"loss_type ({text})" for text in written
    }


ORIGINS = [
    ("gv_grpo", {}, {}),
    ("gv_grpo", {"beta": 0.0}, {"kl": "flag beta=0.0"}),
    ("gv_grpo", {"beta": 0.04}, {"kl": "flag beta=0.04", "kl.beta": "flag beta=0.04"}),
    ("gv_grpo", {"scale_rewards": "group"}, {"scale": "flag scale_rewards=group"}),
    ("gv_grpo", {"epsilon": 0.1}, dict.fromkeys(("surrogate.low", "surrogate.high"), "flag epsilon=0.1")),
    ("gv_dapo", {"epsilon_high": 0.28}, {"surrogate.high": "flag epsilon_high=0.28"}),
    (
        "gv_dapo,kl=k2",
        {"beta": 0.3},
        {"kl": "loss_type (kl=k2)", "kl.beta": "flag beta=0.3"},
    ),
    (
        "gv_grpo,correction=token_truncate+off_policy_mask,correction.threshold=0.4,correction.cap=3",
        {},
        {
            "correction": "loss_type (correction=token_truncate+off_policy_mask)",
            "correction.off_policy_mask.threshold": "loss_type (correction.off_policy_mask.threshold=0.4)",
            "correction.token_truncate.cap": "loss_type (correction.token_truncate.cap=3)",
        },
    ),
]


@pytest.mark.parametrize(("loss_type", "flags", "expected"), ORIGINS)
def test_a_value_knows_where_it_came_from(loss_type, flags, expected):
    assert dict(choose(loss_type, **flags).origins) == expected


def test_every_flag_has_a_case():
    covered = {flag for _, flags, _ in [*EFFECTS.values(), *REFUSALS.values()] for flag in flags}
    assert covered == set(FLAGS)
