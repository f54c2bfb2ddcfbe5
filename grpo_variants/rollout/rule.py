"""RolloutRule: what happens to groups and responses while they are sampled."""

from __future__ import annotations

from dataclasses import dataclass, field

from grpo_variants.rollout.dynamic_sampling import GroupFilter, NoFilter
from grpo_variants.rollout.overlong import Keep, Overlong


@dataclass(frozen=True, kw_only=True)
class RolloutRule:
    """What runs where responses are sampled: the filter of groups and the rule for overlong responses.

    name is for messages only: two rules that differ in it are equal.
    """

    name: str = field(default="this rollout rule", compare=False)
    filter: GroupFilter = NoFilter()
    overlong: Overlong = Keep()
