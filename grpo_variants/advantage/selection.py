"""Selections: which responses of a group are learnt from. Each maps samples -> [N] bool.

The others are out of every statistic and get advantage 0. They stay in the loss's counts, unless a selection drops
them: then the caller leaves them out of the loss, as `gv.selected` names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_variants.advantage.group_size import Doubt
from grpo_variants.advantage.inputs import Samples
from grpo_variants.part import Part
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.groups import Groups, whole
from grpo_variants.tensors.order import ranks


class Selection(Part):
    """The contract of a selection.

    of_group: siblings of the same prompt enter it. drops: the others leave the loss and its counts, KL term included.
    after: it goes by the advantages, so that the others are in the statistics.
    """

    of_group: ClassVar[bool] = False
    drops: ClassVar[bool] = False
    after: ClassVar[bool] = False

    def __call__(self, samples: Samples) -> Tensor:
        """Which valid responses enter the statistics: [N] bool."""
        return samples.valid

    def by_advantage(self, value: Tensor, samples: Samples) -> Tensor:
        """Which of them are learnt from, given their advantages [N]: [N] bool."""
        return samples.valid


@dataclass(frozen=True, kw_only=True)
class Everyone(Selection):
    """Every response of the group."""


@dataclass(frozen=True, kw_only=True)
class _Best(Selection):
    """keep: how many of each group are kept; ties go by order of appearance."""

    keep: int = 8
    of_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("selection.keep", self.keep, at_least=1)

    def doubt(self, size: int) -> Doubt | None:
        """Whether a group of this many responses is kept whole."""
        if size > self.keep:
            return None
        text = f"selection.keep={self.keep} keeps every response of a group of {size}, so that nothing is selected."
        return Doubt(text, 2 * self.keep)

    def _lowest(self, cost: Tensor, samples: Samples) -> Tensor:
        return samples.valid & (ranks(samples.groups, cost, samples.valid) < self.keep)


@dataclass(frozen=True, kw_only=True)
class Shortest(_Best):
    """The shortest responses (GFPO, arXiv 2508.09726)."""

    reads: ClassVar[tuple[str, ...]] = ("lengths",)

    def __call__(self, samples: Samples) -> Tensor:
        """Which are kept; needs `lengths` or `mask`."""
        return self._lowest(samples.need("lengths", "selection=shortest"), samples)


@dataclass(frozen=True, kw_only=True)
class Efficient(_Best):
    """The responses with the most reward per token (GFPO's token efficiency, arXiv 2508.09726)."""

    reads: ClassVar[tuple[str, ...]] = ("lengths",)

    def __call__(self, samples: Samples) -> Tensor:
        """Which are kept; needs `lengths` or `mask`."""
        lengths = samples.need("lengths", "selection=efficient").clamp(min=1)
        return self._lowest(-samples.rewards / lengths.to(samples.rewards.dtype), samples)


@dataclass(frozen=True, kw_only=True)
class Mixed(Selection):
    """Groups whose rewards are not all the same; a group of one stays (Reinforce-Rej, arXiv 2504.11343)."""

    of_group: ClassVar[bool] = True

    def __call__(self, samples: Samples) -> Tensor:
        """Which are kept."""
        low, high = samples.groups.low_and_high(samples.rewards, samples.valid)
        mixed = (low < high) | (samples.groups.size(samples.valid) == 1)
        return samples.valid & mixed[samples.groups.ids]


# Two variances that differ by less, as shares of the largest, are equal: sums of rewards are off by rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class MaxVariance(_Best):
    """The rewards of largest variance: some of the highest and some of the lowest (PODS, arXiv 2504.13818).

    Of equal variances the one with all of the highest is taken, and then the one with fewest of them.
    """

    keep: int = 16
    drops: ClassVar[bool] = True

    def __call__(self, samples: Samples) -> Tensor:
        """Which are kept."""
        groups, rank = samples.groups, ranks(samples.groups, samples.rewards, samples.valid)
        size = groups.size(samples.valid)
        highest = torch.tensor([self.keep, *range(self.keep)], device=rank.device)
        variance = _variances(samples, rank, size, highest)
        equal = variance >= variance.amax(1, keepdim=True) * (1 - _ROUNDING)
        high = highest[equal.long().argmax(1)][groups.ids]
        ends = (rank < self.keep - high) | (rank >= size[groups.ids] - high)
        return samples.valid & (ends | (size <= self.keep)[groups.ids])


def _variances(samples: Samples, rank: Tensor, size: Tensor, highest: Tensor) -> Tensor:
    """Variance of so many highest rewards of each group and the rest of `keep` lowest: [P, C] for C numbers of them."""
    groups, valid, keep = samples.groups, samples.valid, int(highest.max())
    # From the group's lowest reward, so that equal rewards have variance 0 to the last digit.
    above = samples.rewards - groups.low_and_high(samples.rewards, valid)[0][groups.ids]
    width = max(int(size.max()), keep) + 1 if groups.count else keep + 1
    ordered = torch.zeros(groups.count, width, dtype=above.dtype, device=above.device)
    ordered[groups.ids[valid], rank[valid] + 1] = above[valid]
    lowest = (keep - highest).expand(groups.count, -1)
    others = (size[:, None] - highest).clamp(min=0)

    def total(power: int) -> Tensor:
        sums = ordered.pow(power).cumsum(1)
        return sums.gather(1, lowest) + sums[:, -1:] - sums.gather(1, others)

    return total(2) / keep - (total(1) / keep).square()


@dataclass(frozen=True, kw_only=True)
class LargestAdvantage(Selection):
    """The responses of largest advantage, whatever its sign (CPPO's completion pruning, arXiv 2503.22342).

    share: of the valid responses, how many are kept, rounded down, and at least one. over: of each `group`, or of the
    whole `batch`. Ties go by order of appearance.
    """

    share: float = 0.5
    over: Literal["group", "batch"] = "group"
    of_group: ClassVar[bool] = True
    drops: ClassVar[bool] = True
    after: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("selection.share", self.share, above=0, below=1)
        check_choice("selection.over", self.over, ("group", "batch"))

    def by_advantage(self, value: Tensor, samples: Samples) -> Tensor:
        """Which are kept."""
        batch = self.over == "batch"
        groups: Groups = whole(len(value), value.device) if batch else samples.groups
        # The product is off by rounding: 0.7 * 10 is below 7.
        kept = (groups.size(samples.valid).double() * self.share + 1e-9).floor().clamp(min=1)
        return samples.valid & (ranks(groups, -value.abs(), samples.valid) < kept[groups.ids])
