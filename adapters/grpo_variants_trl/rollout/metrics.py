"""Metrics of a generation batch in TRL's log: rewards, advantages, and which groups have signal."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from trl.trainer.utils import nanstd

from grpo_variants import keep_groups
from grpo_variants_trl.rollout.dynamic_sampling import FilledBatch
from grpo_variants_trl.rollout.generation_batch import Gathered
from grpo_variants_trl.rollout.greedy import GreedyPass
from grpo_variants_trl.rollout.rewards import total_rewards
from grpo_variants_trl.rollout.signal import Signal, signal_of
from grpo_variants_trl.step.health import HealthWatch
from grpo_variants_trl.step.log import current_metrics

# The ratio of TRL's own correction, which a variant's loss does not read; the variant's is under gv/correction.
_TRLS_CORRECTION = tuple(f"sampling/importance_sampling_ratio/{name}" for name in ("min", "mean", "max"))


class RolloutMetrics:
    """Corrects what TRL has logged by its own advantages, and adds what the variant makes of the batch."""

    def __init__(self, trainer: Any, health: HealthWatch | None) -> None:
        """Bind the trainer whose log is written, and the health check that reads it, if there is one."""
        self.trainer = trainer
        self.health = health
        self._lowest, self._highest = 0.0, -math.inf

    def responses(self, seen: Gathered, advantages: Tensor, greedy: GreedyPass | None) -> None:
        """Log rewards, advantages, punishments of length and greedy responses of every rank."""
        trainer, log = self.trainer, current_metrics(self.trainer)
        for name in _TRLS_CORRECTION:
            log.pop(name, None)
        self._replace_shares(seen, advantages)
        self._replace_table(advantages if advantages.dim() == 1 else _response_means(advantages, seen))
        rule = trainer.variant.overlong
        if rule.punishes:
            penalty = rule.penalty(seen.lengths, trainer.max_completion_length)
            log["gv/overlong_penalty"].append(penalty.mean().item())
        if greedy is not None:
            total = total_rewards(trainer, greedy.rewards)
            log["gv/greedy_reward"].append(total[greedy.prompts].nanmean().item())
            log["gv/greedy_length"].append(greedy.lengths[greedy.prompts].float().mean().item())

    def _replace_shares(self, seen: Gathered, advantages: Tensor) -> None:
        """Put the variant's numbers in place of TRL's last ones, and keep those that the health check reads."""
        log, rewards = current_metrics(self.trainer), total_rewards(self.trainer, seen.rewards)
        with_signal, valid = keep_groups(rewards, seen.groups), ~rewards.isnan()
        shares = [with_signal.float().mean(), valid.float().mean(), advantages.abs().max().float()]
        # One transfer from the device for all of them.
        signal, rewarded, largest, mean, std = torch.stack([*shares, torch.nanmean(rewards), nanstd(rewards)]).tolist()
        log["frac_reward_zero_std"][-1] = 1 - signal
        # TRL counts a response that only functions of weight 0 have scored as one of reward 0.
        log["reward"][-1], log["reward_std"][-1] = mean, std
        self.without_reward, self.largest_advantage = 1 - rewarded, largest

    def _replace_table(self, advantages: Tensor) -> None:
        """Put the variant's advantages [N] in place of TRL's in the table of responses."""
        table = self.trainer._logs["advantages"]
        for _ in range(min(len(table), len(advantages))):
            table.pop()
        table.extend(advantages.tolist())

    def groups(self, filled: FilledBatch, kept: Tensor | None, group_size: int) -> None:
        """Log which share of the sampled groups has no signal, why, and what dynamic sampling cost."""
        signal = Signal.joined([signal_of(self.trainer, part, group_size) for part in filled.drawn])
        costs = {} if kept is None else filled.costs(kept) | {"kept_responses": kept.float().mean().item()}
        found = costs | self._signal(signal)
        for name, value in found.items():
            if not math.isnan(value):
                current_metrics(self.trainer)[f"gv/{name}"].append(value)
        if self.health is not None and self.trainer.model.training:
            self.health.rollout(self.largest_advantage, self.without_reward, found)

    def _signal(self, signal: Signal) -> dict[str, float]:
        """Shares of groups without signal by reason; right and wrong are the highest and lowest reward of the run."""
        known = signal.totals[signal.valid & ~signal.totals.isnan()]
        if len(known):
            self._lowest = min(self._lowest, known.min().item())
            self._highest = max(self._highest, known.max().item())
        found = signal.counted(lowest=self._lowest, highest=self._highest)
        named = {
            "groups/without_signal": found.without,
            "groups/all_right": found.share("all_right"),
            "groups/all_wrong": found.share("all_wrong"),
            "groups/constant": found.share("constant"),
            "groups/identical": signal.identical,
            "groups/expected_without_signal": found.expected_without,
            "groups/effective": found.effective,
        }
        # One transfer from the device for all of them.
        return dict(zip(named, torch.stack([value.float() for value in named.values()]).tolist(), strict=True))


def _response_means(advantages: Tensor, seen: Gathered) -> Tensor:
    """Mean advantage of a response's tokens, for a table with one number per response."""
    return advantages.sum(1) / seen.loss_lengths.clamp(min=1)
