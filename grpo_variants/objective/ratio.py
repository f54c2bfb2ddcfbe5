"""Importance ratios, in log space. Each maps tokens -> log ratio [B, T], or [B, 1] for a whole response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from grpo_variants.objective.block import Block
from grpo_variants.objective.inputs import Tokens
from grpo_variants.part import Part
from grpo_variants.tensors.bit_mask import keep, unchanged
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.masked import masked_mean, masked_sum, select


class LogRatio(NamedTuple):
    """A log ratio, and what takes a derivative by it (of a row's sum, for one value per response) to one by logp."""

    value: Tensor
    back: Callable[[Tensor], Tensor]


class Ratio(Part):
    """An importance ratio. per_sequence: it has one value per response."""

    per_sequence: ClassVar[bool] = False

    @property
    def anchor(self) -> str | None:
        """Which log-probabilities it compares with: `old`, `rollout`, or None."""
        return None

    def __call__(self, x: Tokens) -> Tensor:
        """Log ratio of the policy now to its anchor."""
        raise NotImplementedError

    def with_derivative(self, block: Block) -> LogRatio:
        """What `__call__` gives for a block of responses, with its derivative; only asked where a class defines it."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoRatio(Ratio):
    r"""No importance ratio: log ratio 0 in value with the gradient of \(\mathrm{logp}\), as strictly on policy."""

    def __call__(self, x: Tokens) -> Tensor:
        """Zeros [B, T] that carry the gradient of logp."""
        # 0 in value with the gradient of logp: strictly on policy every ratio is 1.
        return x.logp - x.logp.detach()

    def with_derivative(self, block: Block) -> LogRatio:
        """Zeros [b, T], whose derivative by logp is 1."""
        return LogRatio(block.logp - block.logp, lambda slope: slope)


@dataclass(frozen=True, kw_only=True)
class _Bounded(Ratio):
    """A ratio to an anchor, clamped in log space so that its exponential stays finite.

    bound_low, bound_high: the log ratio is clamped to [-bound_low, bound_high]; none switches a side off. A clamped
    token has no gradient. anchor: `old` (the policy that sampled, recomputed) or `rollout` (as the engine reported).
    """

    bound_low: float | None = 20.0
    bound_high: float | None = 20.0
    anchor: Literal["old", "rollout"] = "old"

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("ratio.bound_low", self.bound_low, above=0, optional=True)
        check_number("ratio.bound_high", self.bound_high, above=0, optional=True)
        check_choice("ratio.anchor", self.anchor, ("old", "rollout"))

    @property
    def reads(self) -> tuple[str, ...]:
        """The engine's log-probabilities, where they are the anchor; the old ones are those of now by default."""
        return ("rollout_logp",) if self.anchor == "rollout" else ()

    def difference(self, x: Tokens) -> Tensor:
        """Token log ratio, before any clamp: [B, T]."""
        name = "old_logp" if self.anchor == "old" else "rollout_logp"
        return x.logp - x.need(name, f"ratio.anchor={self.anchor}")

    def clamp(self, log_ratio: Tensor) -> Tensor:
        """The bounds, on whatever the ratio's unit is."""
        if self.bound_low is None and self.bound_high is None:
            return log_ratio
        low = None if self.bound_low is None else -self.bound_low
        # exp overflows float32 at 88; a clamped ratio stays finite, and its token has no gradient.
        return log_ratio.clamp(low, self.bound_high)

    def block_difference(self, block: Block) -> Tensor:
        """`difference` of a block, 0 in the padding: [b, T]."""
        name = "old_logp" if self.anchor == "old" else "rollout_logp"
        return block.difference(name, f"ratio.anchor={self.anchor}")

    def bounded(self, raw: Tensor) -> LogRatio:
        """`clamp`, with its derivative: a clamped token has none."""
        value = self.clamp(raw)
        if value is raw:
            return LogRatio(value, lambda slope: slope)
        inside = unchanged(raw, value)
        return LogRatio(value, lambda slope: keep(inside, slope))


@dataclass(frozen=True, kw_only=True)
class TokenRatio(_Bounded):
    r"""\(d_{it} = \mathrm{logp}_{it} - \mathrm{old}_{it}\) (PPO, arXiv 1707.06347; GRPO, arXiv 2402.03300)."""

    def __call__(self, x: Tokens) -> Tensor:
        """Log ratio [B, T]."""
        return self.clamp(self.difference(x))

    def with_derivative(self, block: Block) -> LogRatio:
        """Log ratio [b, T]."""
        return self.bounded(self.block_difference(block))


@dataclass(frozen=True, kw_only=True)
class SequenceRatio(_Bounded):
    r"""Geometric mean over the response, \(d_i = \frac{1}{l_i}\sum_t d_{it}\) (GSPO, arXiv 2507.18071)."""

    per_sequence: ClassVar[bool] = True

    def __call__(self, x: Tokens) -> Tensor:
        """Log ratio [B, 1]."""
        return self.clamp(masked_mean(self.difference(x), x.mask))

    def with_derivative(self, block: Block) -> LogRatio:
        """Log ratio [b, 1]; each token has its share 1 / l of the derivative."""
        lengths = block.lengths.clamp(min=1)
        mean = self.bounded(block.per_row(self.block_difference(block)) / lengths)
        return LogRatio(mean.value, lambda rows: mean.back(rows) / lengths)


@dataclass(frozen=True, kw_only=True)
class SequenceArithmetic(_Bounded):
    r"""Arithmetic mean of the token ratios, \(d_i = \log\frac{1}{l_i}\sum_t e^{d_{it}}\) (GRPO-S, arXiv 2508.04349).

    The bounds are on the tokens' log ratios, so that no exponential overflows.
    """

    per_sequence: ClassVar[bool] = True

    def __call__(self, x: Tokens) -> Tensor:
        """Log ratio [B, 1]; 0 for an empty row."""
        log_ratio = select(x.mask, self.clamp(self.difference(x)))
        mean = masked_mean(log_ratio.exp(), x.mask)
        return torch.where(x.mask.any(-1, keepdim=True), mean, torch.ones_like(mean)).log()


@dataclass(frozen=True, kw_only=True)
class SequenceTokenRatio(_Bounded):
    r"""Value of the sequence ratio, gradient of each token.

    \(d_{it} = \mathrm{sg}[d_i] + \mathrm{logp}_{it} - \mathrm{sg}[\mathrm{logp}_{it}]\).
    GSPO-token (arXiv 2507.18071): the same value as `sequence`, and each token may have its own advantage.
    """

    def __call__(self, x: Tokens) -> Tensor:
        """Log ratio [B, T]."""
        # Stop-gradient: the value is the response's, the gradient each token's own.
        mean = masked_mean(self.difference(x), x.mask).detach()
        return self.clamp(mean + (x.logp - x.logp.detach()))

    def with_derivative(self, block: Block) -> LogRatio:
        """Log ratio [b, T]; the mean is a number, so each token's derivative is its own."""
        mean = block.per_row(self.block_difference(block)) / block.lengths.clamp(min=1)
        return self.bounded(mean + (block.logp - block.logp))


@dataclass(frozen=True, kw_only=True)
class SequenceProduct(_Bounded):
    r"""Ratio of the whole response, \(\sum_t d_{it}\): the true importance weight, of high variance (TOPR, VESPO)."""

    per_sequence: ClassVar[bool] = True

    def __call__(self, x: Tokens) -> Tensor:
        """Log ratio [B, 1]."""
        return self.clamp(masked_sum(self.difference(x), x.mask))

    def with_derivative(self, block: Block) -> LogRatio:
        """Log ratio [b, 1]."""
        return self.bounded(block.per_row(self.block_difference(block)))
