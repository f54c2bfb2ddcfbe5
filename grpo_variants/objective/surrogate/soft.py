"""Surrogates that bend the objective away from large ratios, smoothly, instead of clipping it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grpo_variants.objective.block import Block
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.ratio import Ratio, SequenceProduct, TokenRatio
from grpo_variants.objective.surrogate.base import Slope, Surrogate, SurrogateOutput
from grpo_variants.tensors.bit_mask import chosen, greater, pick
from grpo_variants.tensors.checks import check_number


@dataclass(frozen=True, kw_only=True)
class Sapo(Surrogate):
    r"""Soft gate, \(-\frac{4}{\tau}\, \sigma(\tau(\rho - 1))\, A\), whose slope at \(\rho = 1\) is that of the ratio.

    tau_pos, tau_neg: temperature for A > 0 and for the others; the larger, the sooner a token stops counting.
    Reference: "Soft Adaptive Policy Optimization", arXiv 2511.20347.
    """

    tau_pos: float = 1.0
    tau_neg: float = 1.05

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.tau_pos", self.tau_pos, above=0)
        check_number("surrogate.tau_neg", self.tau_neg, above=0)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss, of the shape that ratio and advantages broadcast to."""
        tau = torch.full_like(x.advantages, self.tau_neg).masked_fill(x.advantages > 0, self.tau_pos)
        # 4 / tau makes the slope at a ratio of 1 that of the ratio; expm1 keeps the digits near 1.
        gate = torch.sigmoid(tau * torch.expm1(log_ratio)) * (4 / tau)
        return SurrogateOutput(-gate * x.advantages)

    def derivative(self, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
        """Loss and flags as `__call__` has them, with the derivative by the log ratio."""
        a = block.advantages
        tau = pick(chosen(greater(a, 0), a.dtype), self.tau_pos, self.tau_neg, a.dtype)
        gate = torch.sigmoid(tau * torch.expm1(log_ratio))
        return Slope(SurrogateOutput(-gate * (4 / tau) * a), of_ratio=-4 * a * ratio * gate * (1 - gate))


@dataclass(frozen=True, kw_only=True)
class Quadratic(Surrogate):
    r"""Quadratic penalty on the ratio, \(-\rho A + \frac{|A|}{2\,\mathrm{range}} (\rho - 1)^2\), best at 1 + range.

    range: where the objective turns, above 1 for A > 0 and below for A < 0.
    Reference: "Simple Policy Optimization", arXiv 2401.16025.
    """

    range: float = 0.2

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.range", self.range, above=0)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss, of the shape that ratio and advantages broadcast to."""
        # rho - 1 without cancellation near 1.
        excess = torch.expm1(log_ratio)
        return SurrogateOutput(-(1 + excess) * x.advantages + x.advantages.abs() / (2 * self.range) * excess.square())


@dataclass(frozen=True, kw_only=True)
class Dro(Surrogate):
    r"""Policy mirror descent, \(-A\, \mathrm{logp} + \frac{\tau}{2} d^2\), with a quadratic penalty on the log ratio.

    With ratio=token d is each token's, as trainers code it. With ratio=sequence_product it is the whole response's and
    counts once per response, as in the paper. tau: weight of the penalty.
    Reference: "Kimi k1.5: Scaling Reinforcement Learning with LLMs", arXiv 2501.12599.
    """

    tau: float = 0.1
    ratios: ClassVar[tuple[type[Ratio], ...]] = (TokenRatio, SequenceProduct)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.tau", self.tau, above=0)

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss [B, T]."""
        penalty = 0.5 * self.tau * log_ratio.square()
        if log_ratio.shape[1] != x.logp.shape[1]:  # the loss is summed over tokens, and this term is the response's
            penalty = penalty / x.mask.sum(1, keepdim=True).clamp(min=1)
        return SurrogateOutput(-x.advantages * x.logp + penalty)
