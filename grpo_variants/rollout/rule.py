"""RolloutRule: what happens to groups and responses while they are sampled."""

from __future__ import annotations

from dataclasses import dataclass, field

from grpo_variants.rollout.dynamic_sampling import NoFilter, ZeroVariance
from grpo_variants.rollout.overlong import Keep, Mask, Penalty


@dataclass(frozen=True, kw_only=True)
class RolloutRule:
    """What runs where responses are sampled: the filter of groups and the rule for overlong responses.

    name is for messages only: two rules that differ in it are equal.
    """

    name: str = field(default="this rollout rule", compare=False)
    filter: NoFilter | ZeroVariance = NoFilter()
    overlong: Keep | Mask | Penalty = Keep()
