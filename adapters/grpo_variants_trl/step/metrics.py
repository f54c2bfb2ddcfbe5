"""Metrics of a variant in TRL's logs: exact for the optimizer step, one host synchronisation a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from trl.trainer.utils import nanstd

from grpo_variants import Loss, Tokens, keep_groups
from grpo_variants.rollout.mismatch import mismatch_extrema, mismatch_report, mismatch_sums
from grpo_variants_trl.rollout.dynamic_sampling import Filled
from grpo_variants_trl.rollout.generation_batch import Gathered
from grpo_variants_trl.rollout.greedy import GreedyPass
from grpo_variants_trl.rollout.rewards import total_rewards
from grpo_variants_trl.rollout.signal import Signal, signal_of
from grpo_variants_trl.step.health import HealthWatch
from grpo_variants_trl.step.step_counts import Window

# TRL's names where TRL has the metric; the rest keep the core's names under gv/.
NAMES: Mapping[str, str] = {
    "kl": "kl",
    "entropy": "entropy",
    "clip/low": "clip_ratio/low_mean",
    "clip/high": "clip_ratio/high_mean",
    "clip/region": "clip_ratio/region_mean",
}

# The ratio of TRL's own correction, which a variant's loss does not read; the variant's is under gv/correction.
_TRLS_CORRECTION = tuple(f"sampling/importance_sampling_ratio/{name}" for name in ("min", "mean", "max"))


class WindowMetrics:
    """Adds micro-batches up and logs their sum when the optimizer step is complete."""

    def __init__(self, trainer: Any, health: HealthWatch | None) -> None:
        """Bind the trainer whose log is written, and the health check that reads it, if there is one."""
        self.trainer = trainer
        self.health = health
        self._lowest, self._highest = 0.0, -math.inf
        self.forget()

    def forget(self) -> None:
        """Begin an optimizer step anew."""
        self._parts: list[Mapping[str, Tensor]] = []
        self._apart: dict[str, Tensor] = {}
        self._extrema: dict[str, Tensor] = {}

    @property
    def _log(self) -> Any:
        return self.trainer._metrics["train" if self.trainer.model.training else "eval"]

    def scored(self, rows: Tensor | None, scored: Tensor) -> None:
        """The share of an optimizer step's responses that the model scores, where some may be left out."""
        if rows is not None:
            self._log["gv/scored_responses"].append((scored / rows.clamp(min=1)).item())

    def loss(self, out: Loss, window: Window) -> None:
        """Take in a micro-batch; the window's last one closes the optimizer step (or the evaluation batch)."""
        self._parts.append(out.metrics)
        self._widen(out.extrema)
        if window.left == 0:
            self._flush(window, out.per_response)

    def mismatch(self, reported: Tensor | None, x: Tokens) -> None:
        """Take in how far a micro-batch's log-probabilities [B, T] are from those that the engine reported, if any."""
        if reported is not None:
            old = x.logp if x.old_logp is None else x.old_logp
            _add(self._apart, mismatch_sums(old, reported, x.mask))
            self._widen(mismatch_extrema(old, reported, x.mask))

    def _widen(self, extrema: Mapping[str, Tensor]) -> None:
        for name, value in extrema.items():
            join = torch.minimum if name.endswith("/min") else torch.maximum
            self._extrema[name] = join(self._extrema[name], value) if name in self._extrema else value

    def _flush(self, window: Window, per_response: frozenset[str]) -> None:
        accelerator = self.trainer.accelerator
        added, names = {**window.joined(self._parts, per_response), **self._apart}, list(self._extrema)
        # A minimum is the negative of a maximum, so one gather serves both ends.
        sign = torch.tensor([-1.0 if name.endswith("/min") else 1.0 for name in names], device=accelerator.device)
        packed = torch.stack([v.float() for v in (*added.values(), *self._extrema.values())])
        ranks = accelerator.gather(packed.unsqueeze(0))
        widest = (ranks[:, len(added) :] * sign).amax(0) * sign
        total = dict(zip(added, ranks[:, : len(added)].sum(0), strict=True))
        sums = {name: total.pop(name) for name in self._apart}
        found = {**total, **(mismatch_report(sums) if sums else {}), **dict(zip(names, widest, strict=True))}
        counted = [window.tokens().to(packed), sums["tokens"] if sums else packed.new_zeros(())]
        *values, tokens, reported = torch.stack([*found.values(), *counted]).tolist()
        # A mean or an extreme of nothing is no number, and a step without tokens must not count in a mean of steps.
        read = {
            name: value
            for name, value in zip(found, values, strict=True)
            if name == "policy_loss" or (reported if name.startswith("mismatch/") else tokens)
        }
        for name, value in read.items():
            self._log[NAMES.get(name, f"gv/{name}")].append(value)
        if self.health is not None and self.trainer.model.training:
            self.health.loss(read, tokens, window.on_policy)
        self.forget()

    def rollout(self, seen: Gathered, advantages: Tensor, greedy: GreedyPass | None) -> None:
        """Mend what TRL has logged about a generation batch by its own advantages, and add the variant's."""
        trainer, log = self.trainer, self._log
        rewards = total_rewards(trainer, seen.rewards)
        with_signal, valid = keep_groups(rewards, seen.groups), ~rewards.isnan()
        for name in _TRLS_CORRECTION:
            log.pop(name, None)
        shown = advantages if advantages.dim() == 1 else _row_mean(advantages, seen)
        # One transfer from the device for all of them.
        shares = [with_signal.float().mean(), valid.float().mean(), advantages.abs().max().float()]
        told = torch.stack([*shares, torch.nanmean(rewards), nanstd(rewards)]).tolist()
        log["frac_reward_zero_std"][-1] = 1 - told[0]
        self.without_reward, self.largest_advantage = 1 - told[1], told[2]
        # TRL counts a response that only functions of weight 0 have scored as one of reward 0.
        log["reward"][-1], log["reward_std"][-1] = told[3:]
        table = trainer._logs["advantages"]
        for _ in range(min(len(table), len(shown))):
            table.pop()
        table.extend(shown.tolist())
        rule = trainer.variant.overlong
        if rule.punishes:
            penalty = rule.penalty(seen.lengths, trainer.max_completion_length)
            log["gv/overlong_penalty"].append(penalty.mean().item())
        if greedy is not None:
            total = total_rewards(trainer, greedy.rewards)
            log["gv/greedy_reward"].append(total[greedy.prompts].nanmean().item())
            log["gv/greedy_length"].append(greedy.lengths[greedy.prompts].float().mean().item())

    def sampling(self, filled: Filled, kept: Tensor | None, group_size: int) -> None:
        """What share of the sampled groups has no signal, why, and what dynamic sampling cost."""
        signal = Signal.joined([signal_of(self.trainer, part, group_size) for part in filled.drawn])
        costs = {} if kept is None else filled.costs(kept) | {"kept_responses": kept.float().mean().item()}
        found = costs | self._signal(signal)
        for name, value in found.items():
            if not math.isnan(value):
                self._log[f"gv/{name}"].append(value)
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


def _row_mean(advantages: Tensor, seen: Gathered) -> Tensor:
    """Mean advantage of a response's tokens, for a table with one number per response."""
    return advantages.sum(1) / seen.loss_lengths.clamp(min=1)


def _add(sums: dict[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        sums[name] = sums[name] + value if name in sums else value
