"""Surrogates that clip the importance ratio, hard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_variants.objective.block import Block
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.ratio import Ratio, TokenRatio
from grpo_variants.objective.surrogate.base import Slope, Surrogate, SurrogateOutput
from grpo_variants.part import added
from grpo_variants.tensors.bit_mask import chosen, greater, keep, less, otherwise, pick, same, unchanged
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.masked import highest, masked_mean
from grpo_variants.tensors.precision import Number


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

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss and clip flags, of the shape that ratio and advantages broadcast to."""
        return clip_between(log_ratio, x.advantages, 1 - self.low, 1 + self.high, self.dual)

    def derivative(self, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
        """Loss and flags as `__call__` has them, with the derivative by the log ratio."""
        a = block.advantages
        positive = greater(a, 0)
        floor = less(a, 0).mul_(1 - self.low)  # a ratio is at least 0, so that 0 is no floor
        ceiling = positive.reciprocal().mul_(1 + self.high)  # infinite where A <= 0
        if self.dual is not None:
            ceiling = _with_dual(positive, ceiling, 1 + self.high, self.dual)
        clipped = torch.maximum(ratio, floor)
        torch.minimum(clipped, ceiling, out=clipped)
        low, high, free = greater(clipped, ratio), less(clipped, ratio), same(clipped, ratio)
        loss = clipped.mul_(-a)
        return Slope(
            SurrogateOutput(loss, low, high if self.dual is None else high.mul_(positive)), of_ratio=free.mul_(loss)
        )


@dataclass(frozen=True, kw_only=True)
class EntropyClip(Surrogate):
    r"""PPO's clip with a wider range for the tokens of highest entropy in their response.

    fraction: share of each response's tokens that has it, those above the (1 - fraction) quantile of its entropies.
    low, high: range of the others; top_low, top_high: theirs. dual: as in `clip`.
    Reference: "Stabilizing Knowledge, Promoting Reasoning: Dual-Token Constraints for RLVR", arXiv 2507.15778.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = 10.0
    fraction: float = 0.2
    top_low: float = 0.5
    top_high: float = 0.5
    reads: ClassVar[tuple[str, ...]] = ("entropy",)
    ratios: ClassVar[tuple[type[Ratio], ...]] = (TokenRatio,)

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("low", "high", "top_low", "top_high"):
            check_number(f"surrogate.{name}", getattr(self, name), at_least=0)
        check_number("surrogate.dual", self.dual, above=1, optional=True)
        check_number("surrogate.fraction", self.fraction, above=0, below=1)

    def bounds(self, entropy: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest ratio of each token, two [B, T]."""
        narrow, wide = (self.low, self.high), (self.top_low, self.top_high)
        return bounds_by_entropy(narrow, wide, entropy, mask, self.fraction)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss and clip flags [B, T]."""
        floor, ceiling = self.bounds(x.need("entropy", "surrogate=entropy_clip").to(log_ratio.dtype), x.mask)
        return clip_between(log_ratio, x.advantages, floor, ceiling, self.dual)

    def derivative(self, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
        """Loss and flags as `__call__` has them, with the derivative by the log ratio."""
        a, mask = block.advantages, block.given.mask.bool()
        low, high = self.bounds(block.need_entropy("surrogate=entropy_clip"), mask)
        positive = chosen(greater(a, 0), a.dtype)
        floor = keep(chosen(less(a, 0), a.dtype), low)  # a ratio is at least 0, so that 0 is no floor
        dual = float("inf") if self.dual is None else self.dual
        ceiling = otherwise(positive, keep(positive, high), dual)
        clipped = torch.minimum(torch.maximum(ratio, floor), ceiling)
        low_cut, high_cut, free = greater(clipped, ratio), less(clipped, ratio), same(clipped, ratio)
        loss = clipped.mul_(-a)
        return Slope(SurrogateOutput(loss, low_cut, keep(positive, high_cut)), of_ratio=free.mul_(loss))


def bounds_by_entropy(
    narrow: tuple[float, float], wide: tuple[float, float], entropy: Tensor, mask: Tensor, fraction: float
) -> tuple[Tensor, Tensor]:
    """Smallest and largest ratio of each token, two [B, T]: the wide range for those of highest entropy.

    narrow, wide: how far below and above 1. fraction: share of each response's tokens that has the wide range.
    """
    high = highest(entropy, mask, fraction)
    floor = torch.full_like(entropy, 1 - narrow[0]).masked_fill(high, 1 - wide[0])
    return floor, torch.full_like(entropy, 1 + narrow[1]).masked_fill(high, 1 + wide[1])


@dataclass(frozen=True, kw_only=True)
class Gmpo(Surrogate):
    r"""Geometric mean of clipped ratios, \(-A_i \exp\big(\frac{1}{l_i} \sum_t d^c_{it}\big)\), or their harmonic mean.

    \(d^c\) is the log ratio clipped in log space: from above to `high` for A > 0, from below to -`low` for A < 0.
    mean=harmonic is \(-A_i\, l_i / \sum_t e^{-d^c_{it}}\), where a token's share of the gradient is the larger, the
    smaller its ratio is.
    A response without a token adds nothing. Where advantages come one per token, their mean is the response's.
    Reference: "Geometric-Mean Policy Optimization", arXiv 2507.20673.
    """

    low: float = 0.4
    high: float = 0.4
    mean: Literal["geometric", "harmonic"] = added("geometric")
    ratios: ClassVar[tuple[type[Ratio], ...]] = (TokenRatio,)
    per_response: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.low", self.low, at_least=0)
        check_number("surrogate.high", self.high, at_least=0)
        check_choice("surrogate.mean", self.mean, tuple(_LOG_MEANS))

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss [B, 1] and clip flags [B, T]."""
        advantage = x.advantages if x.advantages.shape[1] == 1 else masked_mean(x.advantages, x.mask)
        ceiling = torch.full_like(advantage, float("inf")).masked_fill(advantage > 0, self.high)
        floor = torch.full_like(advantage, float("-inf")).masked_fill(advantage < 0, -self.low)
        # Clipped before the mean, so that one token cannot move the whole response.
        mean = _LOG_MEANS[self.mean](log_ratio.clamp(floor, ceiling), x.mask)
        return SurrogateOutput(-advantage * mean.exp(), log_ratio < floor, log_ratio > ceiling)

    def derivative(self, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
        """Loss and flags as `__call__` has them, with the derivative by the log ratio."""
        a, lengths = block.advantages, block.lengths.clamp(min=1)
        a = a if a.shape[1] == 1 else block.per_row(a) / lengths
        ceiling = pick(chosen(greater(a, 0), a.dtype), self.high, float("inf"), a.dtype)
        floor = pick(chosen(less(a, 0), a.dtype), -self.low, -float("inf"), a.dtype)
        clipped = torch.minimum(torch.maximum(log_ratio, floor), ceiling)
        inside = unchanged(clipped, log_ratio)
        low, high = less(log_ratio, floor), greater(log_ratio, ceiling)
        if self.mean == "harmonic":
            # The smallest ratio is taken out, so that no power overflows; it may be the padding's 1.
            least = clipped.amin(1, keepdim=True)
            inverse = (least - clipped).exp()
            total = otherwise(block.some, block.per_row(inverse), 1.0)
            loss = -a * lengths / total * least.exp()
            return Slope(
                SurrogateOutput(loss, low, high),
                of_ratio=loss,
                spread=lambda rows: keep(inside, rows * (inverse / total)),
            )
        loss = -a * (block.per_row(clipped) / lengths).exp()
        return Slope(SurrogateOutput(loss, low, high), of_ratio=loss, spread=lambda rows: keep(inside, rows / lengths))


def _log_harmonic_mean(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Logarithm of the harmonic mean of each row's ratios [B, 1]; 0 for a row without a token."""
    some = mask.any(1, keepdim=True)
    # A row without a token would be the logarithm of 0, whose gradient is NaN.
    inverse = torch.where(mask, -log_ratio, torch.zeros_like(log_ratio).masked_fill(some, -torch.inf))
    value = mask.sum(1, keepdim=True).to(log_ratio.dtype).log() - inverse.logsumexp(1, keepdim=True)
    return torch.where(some, value, torch.zeros_like(value))


_LOG_MEANS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "geometric": masked_mean,
    "harmonic": _log_harmonic_mean,
}


def _with_dual(positive: Tensor, ceiling: Tensor, high: float, dual: float) -> Tensor:
    """The ceiling with `dual` in place of infinity."""
    if dual >= high:
        return ceiling.clamp_(max=dual)
    return pick(chosen(positive, positive.dtype), high, dual, positive.dtype)


def clip_between(
    log_ratio: Tensor, advantages: Tensor, low: Number, high: Number, dual: float | None = None
) -> SurrogateOutput:
    """PPO's clip between two bounds of the ratio, numbers or tensors; for A < 0 at most `dual`, or unbounded.

    Loss and clip flags of the shape that all of them broadcast to.
    """
    ratio, negative = log_ratio.exp(), advantages < 0
    low, high = (torch.as_tensor(bound, dtype=ratio.dtype, device=ratio.device) for bound in (low, high))
    # The minimum of the two products is one clamp whose bounds depend on the sign of A: half the memory.
    floor = torch.where(negative, low, float("-inf"))
    ceiling = torch.where(negative, float("inf") if dual is None else dual, high)
    loss = -advantages * ratio.clamp(floor, ceiling)
    with torch.no_grad():
        return SurrogateOutput(loss, negative & (ratio < low), (advantages > 0) & (ratio > high))
