"""The contract of a surrogate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor

from grpo_variants.objective.block import Block
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.ratio import Ratio
from grpo_variants.part import Part


class SurrogateOutput(NamedTuple):
    """Unreduced loss [B, T] or [B, 1], and where it was clipped from below and from above (bool, or None)."""

    loss: Tensor
    clip_low: Tensor | None = None
    clip_high: Tensor | None = None


class Slope(NamedTuple):
    """A surrogate's loss with its derivatives, of the loss's shape.

    of_ratio: by the log ratio. of_logp: by logp itself, where the ratio is detached. spread: where a loss of the whole
    response reads token ratios, the share [b, T] of each in the derivative.
    """

    term: SurrogateOutput
    of_ratio: Tensor | None = None
    of_logp: Tensor | None = None
    spread: Callable[[Tensor], Tensor] | None = None


class Surrogate(Part):
    """The per-token objective to minimise: (log ratio, tokens, counts) -> `SurrogateOutput`, unreduced.

    needs_ratio: it means nothing without an importance ratio. ratios: the ratios that it is defined for; empty for any.
    per_response: it takes one advantage per response. whole_batch: a statistic of it spans the batch; then `thresholds`
    computes that statistic, by `names`; `Counts.thresholds` hands in the step's, and without them it is the
    micro-batch's.
    derivative: optional, its gradient by hand, beside the definition so that whoever changes one sees the other. It
    counts only in the class that defines it: a subclass is another surrogate. Without it autograd differentiates.
    draws: it reads `Tokens.draws`, which `policy_loss` fills in with its generator.
    """

    needs_ratio: ClassVar[bool] = True
    ratios: ClassVar[tuple[type[Ratio], ...]] = ()
    per_response: ClassVar[bool] = False
    whole_batch: ClassVar[bool] = False
    names: ClassVar[tuple[str, ...]] = ()
    draws: ClassVar[bool] = False

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Per-token loss; no masking, no reduction, no KL."""
        raise NotImplementedError

    def thresholds(self, log_ratio: Tensor, x: Tokens) -> Mapping[str, Tensor]:
        """Statistics of a batch that `Counts.thresholds` may hand in, by name; none where nothing spans the batch."""
        return {}

    def derivative(self, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
        """What `__call__` gives for a block of responses, with its derivatives; only asked where a class defines it."""
        raise NotImplementedError
