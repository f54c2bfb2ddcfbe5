"""The contract of a surrogate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor

from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.ratio import Ratio
from grpo_variants.part import Part


class SurrogateOutput(NamedTuple):
    """Unreduced loss [B, T] or [B, 1], and where it was clipped from below and from above (bool, or None)."""

    loss: Tensor
    clip_low: Tensor | None = None
    clip_high: Tensor | None = None


class Surrogate(Part):
    """The per-token objective to minimise: (log ratio, tokens, counts) -> `SurrogateOutput`, unreduced.

    needs_ratio: it means nothing without an importance ratio. ratios: the ratios that it is defined for; empty for any.
    per_response: it takes one advantage per response. whole_batch: a statistic of it spans the batch; then `thresholds`
    computes that statistic, by `names`; `Counts.thresholds` hands in the step's, and without them it is the
    micro-batch's.
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
