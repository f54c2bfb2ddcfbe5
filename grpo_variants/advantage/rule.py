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
    def advantage_parts(self) -> tuple[Selection | Transform | Baseline | Scale | Credit, ...]:
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
        """Whether the other responses to a prompt enter an advantage, by whichever part."""
        return self.credit.own_rule or any(part.of_group for part in self.advantage_parts)

    @property
    def needs_siblings(self) -> bool:
        """Whether a response without others to its prompt has advantage 0, so that it teaches nothing."""
        centred = self.baseline.of_group or self.scale.of_group or self.credit.of_group
        # The reasoning steps of one response are compared with each other, and a memory has earlier responses.
        alone = "step_ends" not in self.credit.reads and not self.remembers
        return centred and alone and self.singleton == "zero"

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
