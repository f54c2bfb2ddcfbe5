"""Surrogates that clip the importance ratio, hard."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_variants.checks import check_number
from grpo_variants.inputs import Counts, Tokens
from grpo_variants.surrogate.base import Surrogate, Term


@dataclass(frozen=True, kw_only=True)
class Clip(Surrogate):
    r"""PPO's clipped surrogate, \(-\min(\rho A,\ \mathrm{clip}(\rho, 1-\mathrm{low}, 1+\mathrm{high})\, A)\).

    low, high: clip range below and above 1; `high` above `low` is DAPO's clip-higher (arXiv 2503.14476).
    dual: for A < 0 the loss is at most \(-\mathrm{dual}\cdot A\) (dual clip, arXiv 1912.09729), or none.
    Reference: "Proximal Policy Optimization Algorithms", arXiv 1707.06347.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.low", self.low, at_least=0)
        check_number("surrogate.high", self.high, at_least=0)
        check_number("surrogate.dual", self.dual, above=1, optional=True)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> Term:
        """Loss and clip flags, of the shape that ratio and advantages broadcast to."""
        ratio, negative = log_ratio.exp(), x.advantages < 0
        # The minimum of the two products is one clamp whose bounds depend on the sign of A: half the memory.
        floor = torch.full_like(x.advantages, float("-inf")).masked_fill(negative, 1 - self.low)
        ceiling = torch.full_like(x.advantages, 1 + self.high).masked_fill(negative, self.dual or float("inf"))
        loss = -x.advantages * ratio.clamp(floor, ceiling)
        with torch.no_grad():
            clip_low = (ratio < 1 - self.low) & negative
            clip_high = (ratio > 1 + self.high) & (x.advantages > 0)
        return Term(loss, clip_low, clip_high)
