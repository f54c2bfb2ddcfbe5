"""Surrogates that clip, and treat the two sides of the clip or the two signs of the advantage differently."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.ratio import Ratio, TokenRatio
from grpo_variants.objective.surrogate.base import Surrogate, SurrogateOutput
from grpo_variants.objective.surrogate.clipping import bounds_by_entropy, clip_between
from grpo_variants.part import added
from grpo_variants.tensors.checks import check_number
from grpo_variants.tensors.masked import discounted_sum_to_go, select


@dataclass(frozen=True, kw_only=True)
class Aspo(Surrogate):
    r"""Asymmetric importance: with A > 0 a token weighs \(1/\rho\) instead of \(\rho\), so that rare ones learn most.

    A > 0: \(-A / \rho\) with that weight detached, no gradient above 1 + high. A < 0: the clip with floor 1 - low.
    A weight above cap becomes \(-\mathrm{cap}\, A\, \mathrm{logp}\): capped, with a gradient (soft dual clip).
    fraction: share of each response's tokens, those of highest entropy, whose range is top_low and top_high (the
    authors' code); none for one range (the paper).
    Reference: "ASPO: Asymmetric Importance Sampling Policy Optimization", arXiv 2510.06062.
    """

    low: float = 0.2
    high: float = 0.2
    cap: float | None = 3.0
    fraction: float | None = added(0.2, before=None)
    top_low: float = added(0.4)
    top_high: float = added(0.4)

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("low", "high", "top_low", "top_high"):
            check_number(f"surrogate.{name}", getattr(self, name), at_least=0)
        check_number("surrogate.cap", self.cap, above=0, optional=True)
        check_number("surrogate.fraction", self.fraction, above=0, below=1, optional=True)

    @property
    def reads(self) -> tuple[str, ...]:
        """Entropies, where the range depends on them."""
        return () if self.fraction is None else ("entropy",)

    def bounds(self, x: Tokens) -> tuple[Tensor, Tensor]:
        """Smallest and largest ratio, two [B, T], or 0-d for one range."""
        if self.fraction is None:
            return x.logp.new_tensor(1 - self.low), x.logp.new_tensor(1 + self.high)
        entropy = x.need("entropy", "surrogate=aspo").to(x.logp.dtype)
        narrow, wide = (self.low, self.high), (self.top_low, self.top_high)
        return bounds_by_entropy(narrow, wide, entropy, x.mask, self.fraction)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss and clip flags, of the shape that ratio and advantages broadcast to."""
        ratio, negative = log_ratio.exp(), x.advantages < 0
        floor, ceiling = self.bounds(x)
        # Clamped tokens have no gradient: below the floor for A < 0, above the ceiling for A > 0.
        below, above = ratio.clamp(min=floor), ratio.clamp(max=ceiling)
        flipped = above / above.detach().square()  # 1 / rho in value, with the gradient of rho over rho squared
        weight = torch.where(negative, below, flipped)
        loss = -x.advantages * weight
        if self.cap is not None:
            loss = torch.where(weight > self.cap, -self.cap * x.advantages * x.logp, loss)
        return SurrogateOutput(loss, negative & (ratio < floor), (x.advantages > 0) & (ratio > ceiling))


@dataclass(frozen=True, kw_only=True)
class CeGppo(Surrogate):
    r"""Gradient-preserving clip: a clipped token keeps a gradient, of the bound times a factor.

    Inside the range \(-\rho A\); for A < 0 below 1 - low and for A > 0 above 1 + high
    \(-\mathrm{keep}\cdot\mathrm{bound}\,\frac{\rho}{\mathrm{sg}[\rho]} A\), with keep_low and keep_high.
    Reference: "CE-GPPO: Coordinating Entropy via Gradient-Preserving Clipping Policy Optimization in Reinforcement
    Learning", arXiv 2509.20712.
    """

    low: float = 0.2
    high: float = 0.2
    keep_low: float = 0.75
    keep_high: float = 1.0

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("low", "high", "keep_low", "keep_high"):
            check_number(f"surrogate.{name}", getattr(self, name), at_least=0)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss and clip flags, of the shape that ratio and advantages broadcast to."""
        ratio = log_ratio.exp()
        clip_low = (x.advantages < 0) & (ratio < 1 - self.low)
        clip_high = (x.advantages > 0) & (ratio > 1 + self.high)
        one = (log_ratio - log_ratio.detach()).exp()  # rho / sg[rho], also where rho underflows
        weight = torch.where(clip_low, self.keep_low * (1 - self.low) * one, ratio)
        weight = torch.where(clip_high, self.keep_high * (1 + self.high) * one, weight)
        return SurrogateOutput(-x.advantages * weight, clip_low, clip_high)


@dataclass(frozen=True, kw_only=True)
class Dcpo(Surrogate):
    r"""Clip whose range is wider for tokens that were improbable, \(\frac12 \pm\), with q the old policy's probability.

    Between \(\frac12 + \frac12\sqrt{\max(1 - 4\,\mathrm{low}/q, 0)}\) and
    \(\frac12 + \frac12\sqrt{1 + 4\,\mathrm{high}/q}\), at most cap; for A < 0 the ratio counts up to cap.
    Reference: "DCPO: Dynamic Clipping Policy Optimization", arXiv 2509.02333.
    """

    low: float = 0.16
    high: float = 0.2
    cap: float = 10.0
    ratios: ClassVar[tuple[type[Ratio], ...]] = (TokenRatio,)
    reads: ClassVar[tuple[str, ...]] = ("old_logp",)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.low", self.low, at_least=0)
        check_number("surrogate.high", self.high, at_least=0)
        check_number("surrogate.cap", self.cap, above=1)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss and clip flags [B, T]."""
        inverse = (-x.need("old_logp", "surrogate=dcpo")).exp()  # 1 / q, of the token and not of its bounded ratio
        # Below a probability of 4 low the paper has no root: the floor is then 1/2.
        floor = 0.5 + 0.5 * (1 - 4 * self.low * inverse).clamp(min=0).sqrt()
        ceiling = (0.5 + 0.5 * (1 + 4 * self.high * inverse).sqrt()).clamp(max=self.cap)
        return clip_between(log_ratio, x.advantages, floor, ceiling, self.cap)


@dataclass(frozen=True, kw_only=True)
class Fipo(Surrogate):
    r"""Clip with each token's advantage weighted by what its future did, \(\mathrm{clip}(e^{F_t})\).

    \(F_t = \sum_{k\ge t} 2^{-(k-t)/\mathrm{half\_life}}\, d_k\), over tokens with \(d_k \le \ln\mathrm{dual}\).
    weight_low, weight_high: bounds of the weight. safety: for A < 0 and a ratio above it the weight is between 0.8
    and 1. low, high, dual: as in `clip`.
    Reference: "FIPO: Eliciting Deep Reasoning with Future-KL Influenced Policy Optimization", arXiv 2603.19835. Not
    done: its code also drops a response two of whose tokens the dual clip holds.
    """

    low: float = 0.2
    high: float = 0.28
    dual: float = 10.0
    half_life: float = 32.0
    weight_low: float = 1.0
    weight_high: float = 1.2
    safety: float = 10.0
    ratios: ClassVar[tuple[type[Ratio], ...]] = (TokenRatio,)

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("low", "high", "weight_low"):
            check_number(f"surrogate.{name}", getattr(self, name), at_least=0)
        for name in ("half_life", "safety"):
            check_number(f"surrogate.{name}", getattr(self, name), above=0)
        check_number("surrogate.dual", self.dual, above=1)
        check_number("surrogate.weight_high", self.weight_high, above=self.weight_low)

    def influence(self, log_ratio: Tensor, x: Tokens) -> Tensor:
        """Weight of each token's advantage: [B, T], detached."""
        d = log_ratio.detach()
        # Every position decays, a hole as well: the authors count positions.
        future = discounted_sum_to_go(
            select(x.mask & ~(d > math.log(self.dual)), d), torch.ones_like(x.mask), 2 ** (-1 / self.half_life)
        )
        weight = future.exp().clamp(self.weight_low, self.weight_high)
        # A wrong token that has become much likelier must not be pushed harder by its future.
        risky = (x.advantages < 0) & (d.exp() > self.safety)
        return torch.where(risky, weight.clamp(0.8, 1.0), weight)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss and clip flags [B, T]."""
        weighted = x.advantages * self.influence(log_ratio, x)
        return clip_between(log_ratio, weighted, 1 - self.low, 1 + self.high, self.dual)
