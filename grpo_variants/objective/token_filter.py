"""Token filters: which tokens' policy term counts. Each maps (tokens, counts) -> [B, T] bool, or None for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.part import Part
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.masked import masked_quantile


class TokenFilter(Part):
    """Which tokens' policy term counts.

    whole_batch: its statistic spans the batch; then `thresholds` computes it, by `names`, as a surrogate's.
    """

    whole_batch: ClassVar[bool] = False
    names: ClassVar[tuple[str, ...]] = ()

    @property
    def denominator(self) -> str:
        """Whether dropped tokens stay in the counts: `all` or `kept`."""
        return "all"

    def thresholds(self, x: Tokens) -> Mapping[str, Tensor]:
        """That statistic of a batch, by name; none where nothing spans the batch."""
        return {}

    def __call__(self, x: Tokens, counts: Counts) -> Tensor | None:
        """Tokens whose policy term counts: [B, T] bool, or None for all."""
        return None


@dataclass(frozen=True, kw_only=True)
class AllTokens(TokenFilter):
    """Every token of the loss mask."""


@dataclass(frozen=True, kw_only=True)
class TopEntropy(TokenFilter):
    """Only the tokens of highest entropy (forking tokens, "Beyond the 80/20 Rule", arXiv 2506.01939).

    fraction: share of tokens that is kept; the threshold is the (1 - fraction) quantile of the batch's entropies.
    It spans the batch: give `counts.thresholds["entropy"]` for micro-batches, or it is that of the micro-batch.
    denominator: `all` keeps dropped tokens in the counts; `kept` leaves them out (then `Counts` that are given have to
        count the kept ones).
    """

    fraction: float = 0.2
    denominator: Literal["all", "kept"] = "all"
    whole_batch: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = ("entropy",)
    reads: ClassVar[tuple[str, ...]] = ("entropy",)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("tokens.fraction", self.fraction, above=0)
        if self.fraction >= 1:
            raise ValueError(f"tokens.fraction={self.fraction!r} drops nothing; allowed: below 1. Use tokens=all.")
        check_choice("tokens.denominator", self.denominator, ("all", "kept"))

    def thresholds(self, x: Tokens) -> Mapping[str, Tensor]:
        """The (1 - fraction) quantile of the entropies: 0-d."""
        return {"entropy": masked_quantile(self._entropy(x), x.mask, 1 - self.fraction)}

    def __call__(self, x: Tokens, counts: Counts) -> Tensor | None:
        """Tokens at or above the threshold: [B, T] bool."""
        given = counts.thresholds or {}
        values = given if "entropy" in given else self.thresholds(x)
        return x.mask & (self._entropy(x) >= values["entropy"])

    @staticmethod
    def _entropy(x: Tokens) -> Tensor:
        return x.need("entropy", "tokens=top_entropy").detach()
