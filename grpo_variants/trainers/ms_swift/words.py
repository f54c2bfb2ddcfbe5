"""ms-swift's flags for the parts of a variant: data, and the flags that a variant's own values give them."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_variants.advantage.baseline import Baseline, GroupMean, LeaveOneOut
from grpo_variants.advantage.credit import Decoupled
from grpo_variants.advantage.scale import BatchStd, GroupStd, NoScale, Scale
from grpo_variants.axes import choice_name
from grpo_variants.objective.aggregation import Aggregation, Constant, SequenceMean, TokenMean
from grpo_variants.objective.correction import Correction, GeometricTruncate, OffPolicyMask, TokenMask, TokenTruncate
from grpo_variants.objective.ratio import NoRatio
from grpo_variants.objective.surrogate import Cispo, Clip, Fipo, Reinforce, Sapo, Surrogate
from grpo_variants.objective.token_filter import TopEntropy
from grpo_variants.rollout.overlong import Penalty
from grpo_variants.trainers.command_line import Flags
from grpo_variants.variant import Variant

# What a loss type computes: a surrogate and an aggregation together.
LOSS_TYPES: Mapping[tuple[type[Surrogate], type[Aggregation]], str] = {
    (Clip, SequenceMean): "grpo",
    (Clip, TokenMean): "dapo",
    (Clip, Constant): "dr_grpo",
    (Reinforce, SequenceMean): "grpo",
    (Reinforce, TokenMean): "dapo",
    (Reinforce, Constant): "dr_grpo",
    (Cispo, TokenMean): "cispo",
    (Sapo, SequenceMean): "sapo",
    (Fipo, TokenMean): "fipo",
}
SCALES: Mapping[type[Scale], str] = {GroupStd: "group", BatchStd: "batch", NoScale: "none"}
# What its scales fix, by field: other values have no flag.
SCALE_FIELDS: Mapping[type[Scale], Mapping[str, object]] = {
    GroupStd: {"ddof": 1, "eps_in": "std"},
    BatchStd: {"ddof": 1, "over": "responses", "eps_in": "std", "mean": "keep"},
}
# 1e-4 is added to its deviations: up to here a variant's epsilon is a matter of rounding.
LARGEST_EPS = 1e-4
# The rollout corrections, by the word of their flag. Its words for a sequence mean the geometric mean.
CORRECTIONS: Mapping[type[Correction], str] = {
    TokenTruncate: "token_truncate",
    TokenMask: "token_mask",
    GeometricTruncate: "sequence_truncate",
}
LEVELS: Mapping[str, str] = {"token": "token", "sequence": "sequence", "sequence_token": "sequence_token"}


def estimator_of(variant: Variant) -> str | None:
    """The word for a variant's baseline, given its scale; None where there is none."""
    baseline: type[Baseline] = type(variant.baseline)
    if baseline is LeaveOneOut:
        return "rloo"
    if baseline is not GroupMean:
        return None
    return "reinforce_plus_plus" if getattr(variant.scale, "of", "raw") == "centred" else "grpo"


def loss_type_of(variant: Variant) -> str | None:
    """The word for a variant's surrogate and aggregation; None where there is none."""
    return LOSS_TYPES.get((type(variant.surrogate), type(variant.aggregation)))


def advantage_flags(variant: Variant) -> Flags:
    """Estimator, scale and KL in the reward, each of which has another default under another estimator."""
    scale = "gdpo" if isinstance(variant.credit, Decoupled) else SCALES[type(variant.scale)]
    in_reward = "true" if variant.kl_in_reward else "false"
    return {
        "--advantage_estimator": (estimator_of(variant),),
        "--scale_rewards": (scale,),
        "--kl_in_reward": (in_reward,),
        "--beta": (variant.kl.beta if variant.kl is not None else 0,),
    }


def objective_flags(variant: Variant) -> Flags:
    """Loss type, ratio and the surrogate's own fields."""
    level = {} if isinstance(variant.ratio, NoRatio) else {"--importance_sampling_level": (level_of(variant),)}
    iterations: Flags = {"--num_iterations": (1,)} if isinstance(variant.ratio, NoRatio) else {}
    tokens: Flags = {}
    if isinstance(variant.tokens, TopEntropy):
        tokens = {"--top_entropy_quantile": (variant.tokens.fraction,)}
    return {"--loss_type": (loss_type_of(variant),), **level, **iterations, **surrogate_flags(variant), **tokens}


def level_of(variant: Variant) -> str | None:
    """The word for a variant's ratio; None where there is none."""
    return LEVELS.get(choice_name("ratio", variant.ratio))


def surrogate_flags(variant: Variant) -> Flags:
    """The fields of the surrogate that have a flag."""
    rule = variant.surrogate
    if isinstance(rule, Cispo):
        return {"--epsilon_high": (rule.ceiling,)}
    if isinstance(rule, Sapo):
        return {"--tau_pos": (rule.tau_pos,), "--tau_neg": (rule.tau_neg,)}
    if not isinstance(rule, (Clip, Fipo)):
        return {}
    flags: dict[str, tuple[object, ...]] = {"--epsilon": (rule.low,), "--epsilon_high": (rule.high,)}
    if rule.dual is not None:
        flags["--delta"] = (rule.dual,)
    if isinstance(rule, Fipo):
        flags["--fipo_decay_rate"] = (rule.half_life,)
        flags["--fipo_clip_range"] = (round(rule.weight_high - 1, 12),)
        flags["--fipo_clip_high_only"] = ("true" if rule.weight_low == 1 else "false",)
        flags["--fipo_safety_threshold"] = (rule.safety,)
    return flags


def correction_flags(variant: Variant) -> Flags:
    """The rollout correction, which needs vLLM's log-probabilities, and the off-policy mask beside it."""
    flags: dict[str, tuple[object, ...]] = {}
    for part in variant.correction:
        if isinstance(part, OffPolicyMask):
            flags["--off_policy_sequence_mask_delta"] = (part.threshold,)
        elif type(part) in CORRECTIONS:
            most = part.high if isinstance(part, TokenMask) else getattr(part, "cap", None)
            flags |= {"--use_vllm": ("true",), "--vllm_mode": ("colocate",)}
            flags |= {"--rollout_importance_sampling_mode": (CORRECTIONS[type(part)],)}
            flags |= {"--rollout_importance_sampling_threshold": (most,)}
    return flags


def rollout_flags(variant: Variant) -> Flags:
    """Dynamic sampling and the overlong rules. It uses one draw less than it makes."""
    flags: dict[str, tuple[object, ...]] = {}
    rounds = variant.filter.max_rounds
    if variant.filter.drops and rounds is not None:
        flags |= {"--dynamic_sample": ("true",), "--max_resample_times": (rounds + 1,)}
    if variant.overlong.masks:
        flags["--overlong_filter"] = ("true",)
    if isinstance(variant.overlong, Penalty):
        flags["--soft_cache_length"] = (variant.overlong.buffer,)
    return flags


def flags_of(variant: Variant) -> Flags:
    """Every flag that a variant sets, with its values."""
    return {
        "--rlhf_type": ("grpo",),
        **advantage_flags(variant),
        **objective_flags(variant),
        **correction_flags(variant),
        **rollout_flags(variant),
    }
