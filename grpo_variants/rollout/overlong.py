"""Reward shaping before advantages: what happens to responses that hit the length limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_variants.part import Part
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.reading import read_lengths


def soft_overlong_penalty(
    lengths: Tensor | Sequence[int],
    max_length: float,
    buffer: float,
    factor: float = 1.0,
) -> Tensor:
    r"""Soft overlong punishment: 0, then a line down to -factor at the length limit, and never below.

    \(p = 0\) for \(l \le L - b\); \(p = f\,(L - b - l)/b\) for \(L - b < l \le L\); \(p = -f\) beyond.
    lengths: [N] tokens. max_length, buffer: L and b, in tokens. Returns [N], to be added to the rewards.
    Raises ValueError for a buffer that is not in (0, max_length] and for what is no length.
    Reference: "DAPO", arXiv 2503.14476 (L = 20480, b = 4096, f = 1).
    """
    check_number("max_length", max_length, above=0)
    check_number("buffer", buffer, above=0)
    check_number("factor", factor, above=0)
    if buffer > max_length:
        raise ValueError(f"buffer={buffer!r} is longer than max_length={max_length!r}; allowed: at most max_length.")
    length = read_lengths(lengths)
    length = length if length.dtype == torch.float64 else length.float()
    # Clamped on both sides: no bonus for short responses, and never more than the factor.
    return ((max_length - buffer - length) / buffer).clamp(-1, 0) * factor


@dataclass(frozen=True, kw_only=True)
class Overlong(Part):
    """What happens to a response that hit the length limit.

    statistics: whether a truncated response's reward stays in its group's statistics. masks: it leaves the loss mask.
    punishes: a penalty is added to its reward.
    """

    statistics: Literal["keep", "drop"] = "keep"
    masks: ClassVar[bool] = False
    punishes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the fields."""
        check_choice("overlong.statistics", self.statistics, ("keep", "drop"))


@dataclass(frozen=True, kw_only=True)
class Keep(Overlong):
    """Truncated responses are trained on like any other."""


@dataclass(frozen=True, kw_only=True)
class Mask(Overlong):
    """Overlong filtering: truncated responses leave the loss mask (DAPO, arXiv 2503.14476)."""

    masks: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Penalty(Overlong):
    """Soft overlong punishment, added to the reward (DAPO, arXiv 2503.14476).

    buffer: tokens before the limit over which it grows; has no default. factor: its largest size.
    """

    buffer: int
    factor: float = 1.0
    punishes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_number("overlong.buffer", self.buffer, above=0)
        check_number("overlong.factor", self.factor, above=0)

    def penalty(self, lengths: Tensor | Sequence[int], limit: float) -> Tensor:
        """What is added to the rewards of responses of these lengths under a length limit: [N]."""
        return soft_overlong_penalty(lengths, limit, self.buffer, self.factor)
