"""Score functions: minus a detached weight times the advantage times the log-probability.

The weight never carries a gradient, so a token whose weight is capped still learns; only weight 0 does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_variants.objective.block import Block
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.ratio import Ratio, SequenceProduct, TokenRatio
from grpo_variants.objective.surrogate.base import Slope, Surrogate, SurrogateOutput
from grpo_variants.part import added
from grpo_variants.tensors.bit_mask import greater, less
from grpo_variants.tensors.checks import check_choice, check_number


@dataclass(frozen=True, kw_only=True)
class Reinforce(Surrogate):
    r"""Score function, \(-\mathrm{sg}[e^{d}]\, A\, \mathrm{logp}\); without a ratio \(-A\, \mathrm{logp}\).

    Reference: R. Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement
    learning" (1992). With a ratio it is the importance-weighted score function, which is not clipped.
    """

    needs_ratio: ClassVar[bool] = False

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss [B, T]."""
        # Detached: the ratio weighs the score function and is not differentiated.
        return SurrogateOutput(-log_ratio.detach().exp() * x.advantages * x.logp)

    def derivative(self, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
        """Loss and flags as `__call__` has them, with the derivative by logp: the weight is detached."""
        score = -ratio * block.advantages
        return Slope(SurrogateOutput(score * block.logp), of_logp=score)


@dataclass(frozen=True, kw_only=True)
class Cispo(Surrogate):
    r"""Clipped weight, \(-\mathrm{sg}[\mathrm{clip}(\rho, 1-\mathrm{low}, \mathrm{cap})]\, A\, \mathrm{logp}\).

    cap: the largest weight itself. high: the same as an offset, 1 + high;
    one of the two, and none for the other. low: the smallest weight is 1 - low; none, as in the paper, for no floor.
    Reference: "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", arXiv 2506.13585.
    """

    cap: float | None = 5.0
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.cap", self.cap, above=0, optional=True)
        check_number("surrogate.low", self.low, at_least=0, optional=True)
        check_number("surrogate.high", self.high, at_least=0, optional=True)
        if (self.cap is None) == (self.high is None):
            raise ValueError(
                f"surrogate.cap={self.cap!r} and surrogate.high={self.high!r}: the largest weight is cap, or 1 + high; "
                "set one of the two and the other to none."
            )

    @property
    def ceiling(self) -> float:
        """The largest weight."""
        return 1 + self.high if self.high is not None else self.cap or 0.0

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss [B, T] and where the weight was raised or capped."""
        ratio = log_ratio.detach().exp()
        floor = 0.0 if self.low is None else 1 - self.low
        # The capped weight is a number, so a token beyond the cap keeps its gradient.
        loss = -ratio.clamp(floor, self.ceiling) * x.advantages * x.logp
        return SurrogateOutput(loss, ratio < floor, ratio > self.ceiling)

    def derivative(self, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
        """Loss and flags as `__call__` has them, with the derivative by logp: the weight is detached."""
        floor = 0.0 if self.low is None else 1 - self.low
        score = -ratio.clamp(floor, self.ceiling) * block.advantages
        return Slope(
            SurrogateOutput(score * block.logp, less(ratio, floor), greater(ratio, self.ceiling)), of_logp=score
        )


@dataclass(frozen=True, kw_only=True)
class Topr(Surrogate):
    r"""Tapered: A >= 0 counts fully, A < 0 by \(\mathrm{clip}(S_i, \mathrm{floor}, \mathrm{ceiling})\).

    Loss \(-A\, \mathrm{logp}\) and \(-\mathrm{sg}[\mathrm{clip}(S_i)]\, A\, \mathrm{logp}\), with the whole response's
    ratio to the policy that sampled it. floor, ceiling: bounds of that weight.
    Reference: "Tapered Off-Policy REINFORCE", arXiv 2503.14286.
    """

    floor: float = 0.0
    ceiling: float = 1.0
    ratios: ClassVar[tuple[type[Ratio], ...]] = (SequenceProduct,)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.floor", self.floor, at_least=0)
        check_number("surrogate.ceiling", self.ceiling, above=self.floor)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss [B, T] and where the weight was raised or capped."""
        ratio, negative = log_ratio.detach().exp(), x.advantages < 0
        # Right responses count fully however rare they have become; only wrong ones are tapered.
        weight = torch.where(negative, ratio.clamp(self.floor, self.ceiling), torch.ones_like(ratio))
        loss = -weight * x.advantages * x.logp
        return SurrogateOutput(loss, negative & (ratio < self.floor), negative & (ratio > self.ceiling))


@dataclass(frozen=True, kw_only=True)
class Vespo(Surrogate):
    r"""Gamma-shaped weight of a response, \(\varphi(S) = e^{\lambda} S^{k} e^{-\lambda S}\), with \(\varphi(1) = 1\).

    Loss \(-\mathrm{sg}[\varphi(S_i)]\, A\, \mathrm{logp}\). k_pos, lambda_pos: for A >= 0; the others for A < 0.
    The log ratio's bounds are those of the ratio (the authors' are ln 1e-8 and 20).
    Reference: "VESPO: Variational Sequence-Level Soft Policy Optimization", arXiv 2602.10693.
    """

    k_pos: float = 2.0
    lambda_pos: float = 3.0
    k_neg: float = 3.0
    lambda_neg: float = 2.0
    ratios: ClassVar[tuple[type[Ratio], ...]] = (SequenceProduct,)

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("k_pos", "k_neg"):
            check_number(f"surrogate.{name}", getattr(self, name), at_least=0)
        for name in ("lambda_pos", "lambda_neg"):
            check_number(f"surrogate.{name}", getattr(self, name), above=0)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss [B, T]."""
        log_weight, negative = log_ratio.detach(), x.advantages < 0
        k = torch.full_like(x.advantages, self.k_pos).masked_fill(negative, self.k_neg)
        decay = torch.full_like(x.advantages, self.lambda_pos).masked_fill(negative, self.lambda_neg)
        # In log space: S^k alone overflows for a long response.
        weight = (decay + k * log_weight - decay * log_weight.exp()).exp()
        return SurrogateOutput(-weight * x.advantages * x.logp)


@dataclass(frozen=True, kw_only=True)
class _Dppo(Surrogate):
    """A token counts while its probability has not moved too far the way its advantage pushes.

    low, high: how far it may have fallen with A < 0, and risen with A > 0. cap: the largest importance weight, or none.
    drops: `by_sign`, or `both` where a move past either bound drops a token whatever the sign of A. penalty: factor of
    the squared log ratio, which every token pays, a dropped one too.
    """

    low: float
    high: float
    cap: float | None = None
    drops: Literal["by_sign", "both"] = added("by_sign")
    penalty: float = added(0.0)
    ratios: ClassVar[tuple[type[Ratio], ...]] = (TokenRatio,)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.low", self.low, at_least=0)
        check_number("surrogate.high", self.high, at_least=0)
        check_number("surrogate.cap", self.cap, above=0, optional=True)
        check_choice("surrogate.drops", self.drops, ("by_sign", "both"))
        check_number("surrogate.penalty", self.penalty, at_least=0)

    @staticmethod
    def divergence(log_ratio: Tensor, x: Tokens) -> Tensor:
        """How far the probability has moved, of the sign of the move: [B, T]."""
        raise NotImplementedError

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss [B, T] and which tokens were dropped, for having fallen and for having risen."""
        with torch.no_grad():
            moved = self.divergence(log_ratio, x)
        low, high = moved < -self.low, moved > self.high
        if self.drops == "by_sign":
            low, high = low & (x.advantages < 0), high & (x.advantages > 0)
        weight = log_ratio.detach().exp()
        weight = weight if self.cap is None else weight.clamp(max=self.cap)
        loss = torch.where(low | high, torch.zeros_like(weight), -weight * x.advantages * x.logp)
        return SurrogateOutput(loss + self.penalty * log_ratio.square() if self.penalty else loss, low, high)


@dataclass(frozen=True, kw_only=True)
class DppoTv(_Dppo):
    r"""Trust region in the token's probability itself: dropped if \(A > 0, p - q > \mathrm{high}\), or the reverse.

    p is the policy's probability of the sampled token, q that of the ratio's anchor: the binary total variation. Loss
    \(-\mathrm{sg}[\min(\rho, \mathrm{cap})]\, A\, \mathrm{logp}\) on the others.
    Reference: "Rethinking the Trust Region in LLM Reinforcement Learning", arXiv 2602.04879.
    """

    low: float = 0.2
    high: float = 0.2

    @staticmethod
    def divergence(log_ratio: Tensor, x: Tokens) -> Tensor:
        """p - q."""
        return x.logp.exp() - (x.logp - log_ratio).exp()


@dataclass(frozen=True, kw_only=True)
class DppoKl(_Dppo):
    r"""As `dppo_tv` with the binary KL, \(q \ln\frac{q}{p} + (1-q) \ln\frac{1-q}{1-p}\), for the distance.

    Reference: "Rethinking the Trust Region in LLM Reinforcement Learning", arXiv 2602.04879.
    """

    low: float = 0.05
    high: float = 0.05

    @staticmethod
    def divergence(log_ratio: Tensor, x: Tokens) -> Tensor:
        """The binary KL with the sign of p - q."""
        # Probabilities that rounding lifts above 1 have no rest; 1e-8, as the authors have it, for a rest of 0.
        p, q = x.logp.exp().clamp(max=1), (x.logp - log_ratio).exp().clamp(max=1)
        divergence = -q * log_ratio + (1 - q) * ((1 - q + 1e-8) / (1 - p + 1e-8)).log()
        return divergence.copysign(log_ratio)


@dataclass(frozen=True, kw_only=True)
class PpoMask(_Dppo):
    r"""PPO's range as a mask: a token whose ratio to the old policy has left it, the way A pushes, has no gradient.

    Loss \(-\mathrm{sg}[\min(\rho, \mathrm{cap})]\, A\, \mathrm{logp}\) on the others. The mask looks at the trainer's
    old policy, the weight at the ratio's anchor, which may be the engine.
    Reference: "Stabilizing Reinforcement Learning with LLMs: Formulation and Practices", arXiv 2512.01374.
    """

    low: float = 0.2
    high: float = 0.27
    cap: float | None = 5.0
    reads: ClassVar[tuple[str, ...]] = ("old_logp",)

    @staticmethod
    def divergence(log_ratio: Tensor, x: Tokens) -> Tensor:
        """The ratio to the old policy, less 1."""
        return torch.expm1(x.logp - x.need("old_logp", "surrogate=ppo_mask"))


@dataclass(frozen=True, kw_only=True)
class Band(Surrogate):
    r"""A token counts while its ratio lies between 1 - low and 1 + high, whatever the sign of A, bounds excluded.

    Loss \(-\mathrm{sg}[\rho]\, A\, \mathrm{logp} + \mathrm{penalty}\, d^2\); a token outside pays the penalty only.
    Reference: "GLM-5: from Vibe Coding to Agentic Engineering", arXiv 2602.15763.
    """

    low: float = 0.2
    high: float = 0.2
    penalty: float = 0.0
    ratios: ClassVar[tuple[type[Ratio], ...]] = (TokenRatio,)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.low", self.low, at_least=0)
        check_number("surrogate.high", self.high, at_least=0)
        check_number("surrogate.penalty", self.penalty, at_least=0)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss [B, T] and which tokens lie below and above."""
        ratio = log_ratio.detach().exp()
        low, high = ratio <= 1 - self.low, ratio >= 1 + self.high
        loss = torch.where(low | high, torch.zeros_like(ratio), -ratio * x.advantages * x.logp)
        return SurrogateOutput(loss + self.penalty * log_ratio.square() if self.penalty else loss, low, high)
