"""OpenRLHF's flags for the parts of a variant: data, and the flags that a variant's own values give them."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_variants.advantage.baseline import Baseline, BatchMean, GroupMean, LeaveOneOut, NoBaseline
from grpo_variants.advantage.credit import RewardToGo
from grpo_variants.advantage.scale import BatchStd, GroupStd, NoScale, Scale
from grpo_variants.objective.correction import TokenMask, TokenTruncate
from grpo_variants.objective.ratio import NoRatio, SequenceRatio, SequenceTokenRatio
from grpo_variants.objective.surrogate import Clip
from grpo_variants.rollout.overlong import Penalty
from grpo_variants.trainers.command_line import Flags
from grpo_variants.variant import Variant

ADVANTAGE = "--algo.advantage"
CORRECTION = f"{ADVANTAGE}.is_correction"
KL = "--algo.kl"
FILTER = "--algo.dynamic_filtering"

# Its estimators, by the baseline and the scale that they compute.
ESTIMATORS: Mapping[tuple[type[Baseline], type[Scale]], str] = {
    (LeaveOneOut, NoScale): "rloo",
    (GroupMean, NoScale): "dr_grpo",
    (GroupMean, GroupStd): "group_norm",
    (BatchMean, NoScale): "flash_reinforce",
    (NoBaseline, BatchStd): "reinforce",
    (GroupMean, BatchStd): "reinforce_baseline",
}
# What its estimators fix of a scale, by field: other values have no flag.
SCALE_FIELDS: Mapping[type[Scale], Mapping[str, object]] = {
    GroupStd: {"ddof": 1, "eps_in": "std"},
    BatchStd: {"ddof": 0, "of": "centred", "over": "tokens", "eps_in": "floor", "mean": "keep"},
}
# Its own epsilons are 1e-9 and 1e-8: up to here a variant's is a matter of rounding.
LARGEST_EPS = 1e-4
# Bounds that its formulas have, or that never bind.
RATIO_BOUNDS: Mapping[bool, tuple[float | None, ...]] = {False: (20.0,), True: (20.0, None)}
KL_FIELDS: Mapping[str, tuple[float | None, ...]] = {"bound": (20.0, 10.0, None), "value_bound": (10.0, None)}


def estimator_of(variant: Variant) -> str | None:
    """The word for a variant's baseline and scale; None where there is none."""
    return ESTIMATORS.get((type(variant.baseline), type(variant.scale)))


def advantage_flags(variant: Variant) -> Flags:
    """The estimator, which has to be given: the default is PPO with a critic."""
    flags: dict[str, tuple[object, ...]] = {f"{ADVANTAGE}.estimator": (estimator_of(variant),)}
    if isinstance(variant.credit, RewardToGo):
        flags[f"{ADVANTAGE}.gamma"] = (variant.credit.gamma,)
    return flags


def objective_flags(variant: Variant) -> Flags:
    """Ratio, clip and aggregation; gspo has an aggregation of its own."""
    flags: dict[str, tuple[object, ...]] = {}
    if is_gspo(variant):
        flags["--actor.policy_loss_type"] = ("gspo",)
    else:
        word = "token-mean" if variant.aggregation.of_tokens else "seq-mean-token-mean"
        flags["--actor.loss_agg_mode"] = (word,)
    if isinstance(variant.surrogate, Clip):
        flags["--actor.eps_clip_low_high"] = (variant.surrogate.low, variant.surrogate.high)
        if variant.surrogate.dual is not None:
            flags["--actor.dual_clip"] = (variant.surrogate.dual,)
    if isinstance(variant.ratio, NoRatio):
        flags["--train.max_epochs"] = (1,)
    return flags


def is_gspo(variant: Variant) -> bool:
    """Whether the ratio is that of the whole response in value; its token form has the same loss and gradient."""
    return isinstance(variant.ratio, (SequenceRatio, SequenceTokenRatio))


def kl_flags(variant: Variant) -> Flags:
    """The KL term; without one its coefficient has to be set to 0, since the default is 0.01 in the reward."""
    kl = variant.kl
    if kl is None or kl.beta == 0:
        return {f"{KL}.init_coef": (0,)}
    flags: dict[str, tuple[object, ...]] = {f"{KL}.use_loss": ()} if kl.placement == "loss" else {}
    return flags | {f"{KL}.estimator": (kl.estimator,), f"{KL}.init_coef": (kl.beta,)}


def correction_flags(variant: Variant) -> Flags:
    """The weight of a token by the engine's log-probabilities; gspo compares with the engine whatever the level is."""
    if variant.ratio.anchor == "rollout":
        return {f"{CORRECTION}_level": ("token",)}
    for part in variant.correction:
        if isinstance(part, TokenTruncate):
            return _correction("clip", part.floor, part.cap)
        if isinstance(part, TokenMask):
            return _correction("mask", part.low or 0, "inf" if part.high is None else part.high)
    return {}


def _correction(mode: str, low: object, high: object) -> Flags:
    return {f"{CORRECTION}_level": ("token",), f"{CORRECTION}_mode": (mode,), f"{CORRECTION}_threshold": (low, high)}


def rollout_flags(variant: Variant) -> Flags:
    """Dynamic filtering and the overlong penalty."""
    flags: dict[str, tuple[object, ...]] = {}
    if variant.filter.drops:
        flags |= {f"{FILTER}_enable": (), f"{FILTER}_range": (0, 1)}
    if isinstance(variant.overlong, Penalty):
        flags["--reward.overlong_buffer_len"] = (variant.overlong.buffer,)
        flags["--reward.overlong_penalty_factor"] = (variant.overlong.factor,)
    return flags


def flags_of(variant: Variant) -> Flags:
    """Every flag that a variant sets, with its values."""
    return {
        **advantage_flags(variant),
        **objective_flags(variant),
        **kl_flags(variant),
        **correction_flags(variant),
        **rollout_flags(variant),
    }
