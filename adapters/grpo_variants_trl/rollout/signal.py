"""Which groups of a TRL batch have signal: one decision for dynamic sampling, the filter and the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_variants import GroupSignal, group_signal, keep_groups
from grpo_variants_trl.rollout.capture import Sampled
from grpo_variants_trl.rollout.rewards import total_rewards


@dataclass(frozen=True, eq=False)
class Signal:
    """Responses of whole groups of `size`, one group after the other.

    totals: [N] the reward that is counted. valid: [N] bool, responses that count. kept: [N] bool, members of a group
    with signal. fingerprints: [N] integers, equal for equal responses.
    """

    totals: Tensor
    valid: Tensor
    kept: Tensor
    fingerprints: Tensor
    size: int

    @classmethod
    def joined(cls, parts: Sequence[Signal]) -> Signal:
        """Several batches as one; their groups stay apart."""
        columns = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("totals", "valid", "kept", "fingerprints")
        )
        return cls(*columns, parts[0].size)

    @property
    def of_groups(self) -> Tensor:
        """Which groups have signal: [P] bool."""
        return self.kept.view(-1, self.size)[:, 0]

    @property
    def identical(self) -> Tensor:
        """Share of the groups whose responses are all the same, 0 for groups of one: 0-d."""
        told = self.fingerprints.view(-1, self.size)
        return ((told == told[:, :1]).all(1) & (self.size > 1)).float().mean()

    def counted(self, **bounds: float) -> GroupSignal:
        """Groups by what they teach; bounds: rewards of a wrong (`lowest`) and of a right response (`highest`)."""
        return group_signal(self.totals, _groups(self.totals, self.size), self.valid, kept=self.kept, **bounds)


def signal_of(trainer: Any, batch: Sampled, size: int) -> Signal:
    """Whether what has to differ within a group does.

    The total reward or one reward function's; each function's own where the variant normalises them one by one, any of
    the group's steps with process supervision. What length shaping adds later is not in it, so it cannot fake a signal.
    """
    variant, metric = trainer.variant, trainer.variant.filter.metric
    weighted = batch.rewards * trainer.reward_weights.to(batch.rewards.device)
    valid, groups = batch.valid(trainer), _groups(weighted, size)
    if metric is not None:
        totals = batch.rewards[:, trainer.reward_func_names.index(metric)]
        return Signal(totals, valid, keep_groups(totals, groups, valid), batch.fingerprints, size)
    totals = total_rewards(trainer, batch.rewards)
    if batch.steps is not None:
        return Signal(totals, valid, batch.steps.with_signal(groups, valid), batch.fingerprints, size)
    compared = weighted if variant.credit.per_function else totals
    return Signal(totals, valid, keep_groups(compared, groups, valid), batch.fingerprints, size)


def _groups(rows: Tensor, size: int) -> Tensor:
    return torch.arange(len(rows), device=rows.device) // size
