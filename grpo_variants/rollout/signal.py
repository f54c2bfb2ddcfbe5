"""Zero-signal accounting: which groups teach nothing, why, and how many of them to expect."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_variants.rollout.dynamic_sampling import keep_groups
from grpo_variants.tensors.reading import groups_of, read_table, read_valid


@dataclass(frozen=True, eq=False)
class GroupSignal:
    r"""Groups of a batch by what they teach: counts as 0-d tensors, and the success rate.

    groups: groups with a valid response. effective: those whose rewards differ, which alone have a gradient.
    all_right, all_wrong: constant groups at the highest and at the lowest reward. constant: the other constant ones.
    success_rate: share of valid responses at the highest reward; NaN where some reward lies in between.
    expected_without: share of groups that is constant by chance where every prompt has that success rate,
        the mean of \(p^G + (1 - p)^G\) over the groups' sizes; NaN with the success rate.
    """

    groups: Tensor
    effective: Tensor
    all_right: Tensor
    all_wrong: Tensor
    constant: Tensor
    success_rate: Tensor
    expected_without: Tensor

    @property
    def without(self) -> Tensor:
        """Share of groups without signal."""
        return 1 - self.effective / self.groups.clamp(min=1)

    def share(self, kind: str) -> Tensor:
        """Share of groups of a kind: `all_right`, `all_wrong` or `constant`."""
        count: Tensor = getattr(self, kind)
        return count / self.groups.clamp(min=1)


def group_signal(
    rewards: Tensor | Sequence[Any],
    groups: Sequence[Hashable] | Tensor,
    valid: Tensor | Sequence[bool] | None = None,
    *,
    lowest: float | None = None,
    highest: float | None = None,
    kept: Tensor | None = None,
) -> GroupSignal:
    r"""Count the groups that have no signal, by the reason, and what share of them chance explains.

    Rewards of 0 and 1 with success rate p leave a share \(p^G + (1 - p)^G\) of groups of G responses without signal,
    66 % at G = 8 and p = 0.05. Prompts of uneven difficulty leave more: the excess says how uneven they are.
    rewards: [N], or [N, K] where a difference in any of K is a signal; what is not finite, or None, is missing.
    groups: N hashable ids.
    valid: [N] bool. lowest, highest: the (total) rewards of a wrong and of a right response; unset, the batch's own,
        where 0 counts as wrong until something better is seen.
    kept: [N] bool, whose group has signal where the rewards do not show it, such as by steps; unset, `keep_groups`.
    Returns a `GroupSignal`. It decides nothing: what dynamic sampling keeps is `keep_groups`.
    """
    table = read_table("rewards", rewards)
    dense = groups_of(groups, table)
    usable = ~table.isnan().all(1)
    if valid is not None:
        usable &= read_valid(valid, len(table), table.device)
    value = table.nansum(1)
    bottom, top = _range(value, usable, lowest, highest)
    low, high = dense.low_and_high(value, usable)
    size = dense.size(usable)
    present = size > 0
    kept = keep_groups(table, dense.ids, usable) if kept is None else kept & usable
    same = present & (dense.size(kept) == 0)
    right, wrong = same & (low >= top), same & (high <= bottom)
    rate = _success_rate(value, usable, bottom, top)
    chance = rate ** size.to(value.dtype) + (1 - rate) ** size.to(value.dtype)
    return GroupSignal(
        groups=present.sum(),
        effective=(present & ~same).sum(),
        all_right=right.sum(),
        all_wrong=wrong.sum(),
        constant=(same & ~right & ~wrong).sum(),
        success_rate=rate,
        expected_without=torch.where(present, chance, torch.zeros_like(chance)).sum() / present.sum().clamp(min=1),
    )


def _range(value: Tensor, usable: Tensor, lowest: float | None, highest: float | None) -> tuple[Tensor, Tensor]:
    """The rewards of a wrong and of a right response; they differ, so that no group is both."""
    zero = torch.zeros((), dtype=value.dtype, device=value.device)
    bottom = torch.where(usable, value, zero).amin().clamp(max=0) if lowest is None else zero + lowest
    top = value.masked_fill(~usable, float("-inf")).amax() if highest is None else zero + highest
    # Where every reward is the same it counts as wrong: top must differ from bottom.
    return bottom, torch.where(top > bottom, top, bottom + 1)


def _success_rate(value: Tensor, usable: Tensor, lowest: Tensor, highest: Tensor) -> Tensor:
    """Share of right responses; NaN where a reward is neither right nor wrong, or there is none."""
    between = usable & (value > lowest) & (value < highest)
    rate = (usable & (value >= highest)).sum() / usable.sum().to(value.dtype)
    return torch.where(between.any(), torch.full_like(rate, float("nan")), rate)
