"""Filters: which groups are worth training on, which tokens count in the policy term."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from grpo_variants.inputs import Counts, Tokens, groups_of, read_table, read_valid
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.masked import masked_quantile


def keep_groups(
    values: Tensor | Sequence[Any],
    groups: Sequence[Hashable] | Tensor,
    valid: Tensor | Sequence[bool] | None = None,
) -> Tensor:
    """Which responses belong to a group with signal: dynamic sampling's decision (DAPO, arXiv 2503.14476).

    A group is kept where any value differs between its valid responses (max != min), so a group of one is not.
    values: [N] rewards, or [N, K]: kept where any of the K differs, as rules that normalise each reward need.
    What is not finite, or None, is missing. groups: N hashable ids. valid: [N] bool.
    Returns [N] bool; the decision is the whole group's, groups are never split.
    """
    table = read_table("values", values)
    dense, usable = groups_of(groups, table), ~table.isnan()
    if valid is not None:
        usable &= read_valid(valid, len(table), table.device).unsqueeze(1)
    kept = torch.zeros(dense.count, dtype=torch.bool, device=table.device)
    for column, here in zip(table.unbind(1), usable.unbind(1), strict=True):
        low, high = dense.low_and_high(column, here)
        kept |= low < high
    return kept[dense.ids]


class TokenFilter(Protocol):
    """The contract of a token filter."""

    @property
    def whole_batch(self) -> bool:
        """Whether its statistic spans the batch."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Names of that statistic in `Counts.thresholds`."""
        ...

    @property
    def denominator(self) -> str:
        """Whether dropped tokens stay in the counts: `all` or `kept`."""
        ...

    def thresholds(self, x: Tokens) -> Mapping[str, Tensor]:
        """That statistic of a batch, by name; none where nothing spans the batch."""
        ...

    def __call__(self, x: Tokens, counts: Counts) -> Tensor | None:
        """Tokens whose policy term counts: [B, T] bool, or None for all."""
        ...


@dataclass(frozen=True, kw_only=True)
class AllTokens:
    """Every token of the loss mask."""

    whole_batch: ClassVar[bool] = False
    names: ClassVar[tuple[str, ...]] = ()
    denominator: ClassVar[str] = "all"

    def thresholds(self, x: Tokens) -> Mapping[str, Tensor]:
        """None: nothing spans the batch."""
        return {}

    def __call__(self, x: Tokens, counts: Counts) -> Tensor | None:
        """None: nothing is dropped."""
        return None


@dataclass(frozen=True, kw_only=True)
class TopEntropy:
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


@dataclass(frozen=True, kw_only=True)
class NoFilter:
    """Every group is trained on."""


@dataclass(frozen=True, kw_only=True)
class ZeroVariance:
    """Dynamic sampling: groups without signal are dropped and new prompts drawn (DAPO, arXiv 2503.14476).

    metric: what has to vary: none for the total reward, or the name of one reward function.
    max_rounds: how often new prompts are drawn before the batch stays short; 0 only drops, none for no bound (verl).
    """

    metric: str | None = None
    max_rounds: int | None = 10

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("filter.max_rounds", self.max_rounds, at_least=0, optional=True)
