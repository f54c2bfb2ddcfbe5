"""Dynamic sampling: which groups have signal, and what is done about those that have none."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from grpo_variants.part import Part
from grpo_variants.tensors.checks import check_number
from grpo_variants.tensors.reading import groups_of, read_table, read_valid


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
    # max != min is exact, where a deviation of equal rewards may be off 0 by rounding.
    kept = torch.zeros(dense.count, dtype=torch.bool, device=table.device)
    for column, here in zip(table.unbind(1), usable.unbind(1), strict=True):
        low, high = dense.low_and_high(column, here)
        kept |= low < high
    return kept[dense.ids]


class GroupFilter(Part):
    """Which groups are trained on. drops: those without signal are not."""

    drops: ClassVar[bool] = False

    @property
    def metric(self) -> str | None:
        """What has to vary within a group: None for the total reward, or the name of one reward function."""
        return None

    @property
    def max_rounds(self) -> int | None:
        """How often new prompts are drawn in place of dropped groups; None for no bound."""
        return 0

    @property
    def draws_again(self) -> bool:
        """Whether new prompts are drawn at all."""
        return self.max_rounds != 0


@dataclass(frozen=True, kw_only=True)
class NoFilter(GroupFilter):
    """Every group is trained on."""


@dataclass(frozen=True, kw_only=True)
class ZeroVariance(GroupFilter):
    """Dynamic sampling: groups without signal are dropped and new prompts drawn (DAPO, arXiv 2503.14476).

    metric: what has to vary: none for the total reward, or the name of one reward function.
    max_rounds: how often new prompts are drawn before the batch stays short; 0 only drops, none for no bound.
    """

    metric: str | None = None
    max_rounds: int | None = 10
    drops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("filter.max_rounds", self.max_rounds, at_least=0, optional=True)
