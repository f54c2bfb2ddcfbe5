"""Selections: which responses of a group are learnt from. Each maps samples -> [N] bool.

The others are out of every statistic and get advantage 0; they stay in the loss's counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from grpo_variants.checks import check_number
from grpo_variants.group_size import Doubt
from grpo_variants.inputs import Samples


class Selection(Protocol):
    """The contract of a selection."""

    @property
    def of_group(self) -> bool:
        """Whether siblings of the same prompt enter it."""
        ...

    def __call__(self, samples: Samples) -> Tensor:
        """Which valid responses are learnt from: [N] bool."""
        ...


@dataclass(frozen=True, kw_only=True)
class Everyone:
    """Every response of the group."""

    of_group: ClassVar[bool] = False

    def __call__(self, samples: Samples) -> Tensor:
        """All of the valid ones."""
        return samples.valid


@dataclass(frozen=True, kw_only=True)
class _Best:
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
        return samples.valid & (samples.groups.ranks(cost, samples.valid) < self.keep)


@dataclass(frozen=True, kw_only=True)
class Shortest(_Best):
    """The shortest responses (GFPO, arXiv 2508.09726)."""

    def __call__(self, samples: Samples) -> Tensor:
        """Which are kept; needs `lengths` or `mask`."""
        return self._lowest(samples.need("lengths", "selection=shortest"), samples)


@dataclass(frozen=True, kw_only=True)
class Efficient(_Best):
    """The responses with the most reward a token (GFPO's token efficiency, arXiv 2508.09726)."""

    def __call__(self, samples: Samples) -> Tensor:
        """Which are kept; needs `lengths` or `mask`."""
        lengths = samples.need("lengths", "selection=efficient").clamp(min=1)
        return self._lowest(-samples.rewards / lengths.to(samples.rewards.dtype), samples)


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Groups whose rewards are not all the same; a group of one stays (Reinforce-Rej, arXiv 2504.11343)."""

    of_group: ClassVar[bool] = True

    def __call__(self, samples: Samples) -> Tensor:
        """Which are kept."""
        low, high = samples.groups.low_and_high(samples.rewards, samples.valid)
        mixed = (low < high) | (samples.groups.size(samples.valid) == 1)
        return samples.valid & mixed[samples.groups.ids]
