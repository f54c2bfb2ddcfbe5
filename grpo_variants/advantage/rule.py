"""AdvantageRule: how the rewards of a batch become advantages."""

from __future__ import annotations

from dataclasses import dataclass, field

from grpo_variants.advantage.baseline import Baseline, NoBaseline
from grpo_variants.advantage.credit import Credit, Outcome
from grpo_variants.advantage.group_size import Doubt
from grpo_variants.advantage.reward_transform import NoTransform, Transform
from grpo_variants.advantage.scale import NoScale, Scale
from grpo_variants.advantage.selection import Everyone, Selection
from grpo_variants.objective.kl import KL
from grpo_variants.part import Part


@dataclass(frozen=True, kw_only=True)
class AdvantageRule:
    """What runs where rewards are grouped: selection, transform, baseline, scale, credit, singleton; KL in the reward.

    name is for messages only: two rules that differ in it are equal. A `Variant` checks that its parts go together.
    """

    name: str = field(default="this advantage rule", compare=False)
    selection: Selection = Everyone()
    transform: Transform = NoTransform()
    baseline: Baseline = NoBaseline()
    scale: Scale = NoScale()
    credit: Credit = Outcome()
    singleton: str = "zero"
    kl: KL | None = None

    @property
    def advantage_parts(self) -> tuple[Part, ...]:
        """Every part but the KL."""
        return self.selection, self.transform, self.baseline, self.scale, self.credit

    @property
    def kl_in_reward(self) -> bool:
        """Whether rewards are reduced by a KL penalty that is not zero."""
        return self.kl is not None and self.kl.beta > 0 and self.kl.placement == "reward"

    @property
    def per_token(self) -> bool:
        """Whether it gives one advantage per token."""
        return self.credit.per_token

    @property
    def compares_group(self) -> bool:
        """Whether a response is compared with the others to its prompt, so that a group of one means nothing."""
        return self.baseline.of_group or self.scale.of_group or self.credit.own_rule

    @property
    def remembers(self) -> bool:
        """Whether it remembers earlier steps, in a `Memory`."""
        return self.baseline.remembers or self.scale.remembers

    @property
    def rollout_inputs(self) -> frozenset[str]:
        """The fields of `Rollouts` that it cannot do without, beside rewards and groups."""
        of_kl = ("old_logp", "ref_logp", "mask") if self.kl_in_reward else ()
        return frozenset(of_kl).union(*(part.reads for part in self.advantage_parts))

    @property
    def reads_old_logp(self) -> bool:
        """Whether it reads log-probabilities of the policy that sampled."""
        return "old_logp" in self.rollout_inputs

    @property
    def minds_group_size(self) -> bool:
        """Whether one of its parts has something to say about a group's size."""
        return any(hasattr(part, "doubt") for part in self.advantage_parts)

    def doubts(self, size: int) -> list[Doubt]:
        """What groups of this many responses make of the rule, where that is not what it is for."""
        said = dict.fromkeys(part.doubt(size) for part in self.advantage_parts if hasattr(part, "doubt"))
        return [doubt for doubt in said if doubt is not None]
