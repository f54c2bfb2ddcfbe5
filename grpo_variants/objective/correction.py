r"""Corrections for the mismatch of rollout engine and trainer: detached weights on the policy term.

With \(w_{it} = e^{\mathrm{old}_{it} - \mathrm{mu}_{it}}\): `token` uses \(w_{it}\), `sequence` the product over the
response, `geometric` its geometric mean. `truncate` caps the weight. A token or sequence `mask` keeps the weight inside
[low, high] and zeroes it outside; a geometric mask decides which responses count and leaves their weight at 1, so
that it can be joined with a token weight.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grpo_variants.objective.inputs import Tokens
from grpo_variants.part import Part
from grpo_variants.tensors.checks import check_number
from grpo_variants.tensors.masked import masked_mean, masked_sum

# exp(20) is far outside every cap and band, and finite in float32, so that 0 * inf never arises.
_LOG_BOUND = 20.0


class Correction(Part):
    """A detached weight on the policy term.

    weighs_tokens: it is the importance weight of each token by itself. Where the engine samples from a truncated
    distribution (top_p, top_k), such a weight is right, left-out mass and all; anything else takes the left-out mass of
    a response, which grows with its length, for mismatch.
    """

    weighs_tokens: ClassVar[bool] = False

    def __call__(self, x: Tokens) -> Tensor:
        """Detached weights [B, T] or [B, 1]."""
        raise NotImplementedError


def _token(value: Tensor, mask: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, kw_only=True)
class _Mismatch(Correction):
    """A weight exp(old - mu), per token or pooled over the response by `pool`."""

    reads: ClassVar[tuple[str, ...]] = ("old_logp", "rollout_logp")

    @staticmethod
    def pool(value: Tensor, mask: Tensor) -> Tensor:
        """Log weights [B, T] to those of the unit: as they are, their sum, or their mean over the response."""
        raise NotImplementedError

    def weight(self, x: Tokens) -> Tensor:
        """The weight before truncation or masking: [B, T] or [B, 1]."""
        # Detached: the weight says how the tokens were sampled, and is no part of the policy.
        old = x.need("old_logp", "correction").detach()
        log_weight = old - x.need("rollout_logp", "correction").detach()
        return self.pool(log_weight, x.mask).clamp(-_LOG_BOUND, _LOG_BOUND).exp()


@dataclass(frozen=True, kw_only=True)
class _Truncate(_Mismatch):
    """min(max(w, floor), cap)."""

    cap: float = 2.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("correction.floor", self.floor, at_least=0)
        check_number("correction.cap", self.cap, above=self.floor)

    def __call__(self, x: Tokens) -> Tensor:
        """Truncated weights."""
        return self.weight(x).clamp(self.floor, self.cap)

    def cuts(self, x: Tokens) -> Tensor:
        """Where the weight is outside [floor, cap]: [B, T] or [B, 1] bool."""
        weight = self.weight(x)
        return (weight < self.floor) | (weight > self.cap)


@dataclass(frozen=True, kw_only=True)
class _Band(_Mismatch):
    """w inside [low, high], 0 outside; none leaves a side open."""

    low: float | None
    high: float | None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("correction.low", self.low, at_least=0, optional=True)
        check_number("correction.high", self.high, above=self.low or 0, optional=True)
        if self.low is None and self.high is None:
            raise ValueError("correction.low and correction.high are both none, so the mask has no effect; set one.")

    def inside(self, weight: Tensor) -> Tensor:
        """Whether the weight is in the band. A NaN weight counts as inside, so that it stays visible."""
        low = 0.0 if self.low is None else self.low
        high = float("inf") if self.high is None else self.high
        return ~((weight < low) | (weight > high))

    def __call__(self, x: Tokens) -> Tensor:
        """Masked weights."""
        weight = self.weight(x)
        return torch.where(self.inside(weight), weight, torch.zeros_like(weight))


@dataclass(frozen=True, kw_only=True)
class TokenTruncate(_Truncate):
    r"""\(\min(w_{it}, \mathrm{cap})\): truncated importance sampling (Yao et al. 2025)."""

    weighs_tokens: ClassVar[bool] = True
    pool = staticmethod(_token)


@dataclass(frozen=True, kw_only=True)
class TokenMask(_Band):
    r"""\(w_{it}\, 1[\mathrm{low} \le w_{it} \le \mathrm{high}]\): masked importance sampling, IcePop (2510.18855)."""

    weighs_tokens: ClassVar[bool] = True
    pool = staticmethod(_token)


@dataclass(frozen=True, kw_only=True)
class SequenceTruncate(_Truncate):
    r"""\(\min(\prod_t w_{it}, \mathrm{cap})\) on every token of the response."""

    pool = staticmethod(masked_sum)


@dataclass(frozen=True, kw_only=True)
class SequenceMask(_Band):
    r"""\(\prod_t w_{it}\) where it is inside the band, 0 for the whole response outside."""

    pool = staticmethod(masked_sum)


@dataclass(frozen=True, kw_only=True)
class GeometricTruncate(_Truncate):
    r"""\(\min((\prod_t w_{it})^{1/l_i}, \mathrm{cap})\) on every token of the response."""

    pool = staticmethod(masked_mean)


@dataclass(frozen=True, kw_only=True)
class GeometricMask(_Band):
    r"""\(1[\mathrm{low} \le (\prod_t w_{it})^{1/l_i} \le \mathrm{high}]\): which responses count."""

    pool = staticmethod(masked_mean)

    def __call__(self, x: Tokens) -> Tensor:
        """Ones and zeros [B, 1]; NaN where the weight is."""
        weight = self.weight(x)
        return torch.where(weight.isnan(), weight, self.inside(weight).to(weight.dtype))


@dataclass(frozen=True, kw_only=True)
class OffPolicyMask(Correction):
    r"""Drop a response with \(A < 0\) and \(\frac{1}{l_i}\sum_t (\mu_{it} - \mathrm{logp}_{it}) > \mathrm{threshold}\).

    Reference: "DeepSeek-V3.2", arXiv 2512.02556. mu is what the rollout engine reported, or the old policy without it.
    """

    threshold: float

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("correction.threshold", self.threshold, above=0)

    def __call__(self, x: Tokens) -> Tensor:
        """Ones and zeros, [B, 1] or [B, T] as the advantages are."""
        sampled = x.old_logp if x.rollout_logp is None else x.rollout_logp
        drift = masked_mean(sampled - x.logp.detach(), x.mask)  # type: ignore[operator]
        return (~((x.advantages < 0) & (drift > self.threshold))).to(x.logp.dtype)


@dataclass(frozen=True, kw_only=True)
class Kpop(_Mismatch):
    r"""\(w_{it}\) where trainer and engine agree on the token in binary KL, both ways, 0 elsewhere.

    \(D(p \| q) = p \ln\frac{p}{q} + (1-p) \ln\frac{1-p}{1-q}\) with p the trainer's old probability and q the
    engine's; a token counts if \(\max(D(p \| q), D(q \| p)) \le \mathrm{threshold}\).
    Reference: "KPop: Taming Training-Inference Mismatch in Reinforcement Learning with Adaptive Masking Regions"
    (2026), and "Ling and Ring 2.6 Technical Report", arXiv 2606.15079. The threshold is not published.
    """

    threshold: float = 0.1
    pool = staticmethod(_token)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("correction.threshold", self.threshold, above=0)

    def __call__(self, x: Tokens) -> Tensor:
        """Masked weights [B, T]."""
        old, engine = x.need("old_logp", "correction").detach(), x.need("rollout_logp", "correction").detach()
        # A token of probability 1 leaves no rest to compare: the rest is at least 1e-6.
        old_rest, engine_rest = ((-value.clamp(max=0).expm1()).clamp(min=1e-6) for value in (old, engine))
        difference, rest = old - engine, (old_rest / engine_rest).log()
        forward = old.exp() * difference + old_rest * rest
        backward = -engine.exp() * difference - engine_rest * rest
        weight = self.weight(x)
        return torch.where((forward > self.threshold) | (backward > self.threshold), torch.zeros_like(weight), weight)


def combined(parts: tuple[Correction, ...], x: Tokens) -> Tensor | None:
    """Product of the parts' weights, or what the trainer handed in; None where there is neither."""
    if x.correction is not None:
        return x.correction
    weight: Tensor | None = None
    with torch.no_grad():
        for part in parts:
            weight = part(x) if weight is None else weight * part(x)
    return weight


def truncated(parts: tuple[Correction, ...], x: Tokens) -> Tensor | None:
    """Where some part truncates its weight: [B, T] or [B, 1] bool; None where no part does, or weights were given."""
    if x.correction is not None:
        return None
    found = [part.cuts(x) for part in parts if isinstance(part, _Truncate)]
    return functools.reduce(torch.logical_or, found) if found else None
