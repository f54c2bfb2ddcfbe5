"""Metrics of the loss in TRL's log: exact for the optimizer step, and one wait for the device per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grpo_variants import Loss, Tokens
from grpo_variants.rollout.mismatch import mismatch_extrema, mismatch_report, mismatch_sums
from grpo_variants_trl.step.health import HealthWatch
from grpo_variants_trl.step.log import current_metrics
from grpo_variants_trl.step.step_counts import StepCounts

# TRL's names where TRL has the metric; the rest keep the core's names under gv/.
NAMES: Mapping[str, str] = {
    "kl": "kl",
    "entropy": "entropy",
    "clip/low": "clip_ratio/low_mean",
    "clip/high": "clip_ratio/high_mean",
    "clip/region": "clip_ratio/region_mean",
}


class LossMetrics:
    """Adds micro-batches up and logs their sum when the optimizer step is complete."""

    def __init__(self, trainer: Any, health: HealthWatch | None) -> None:
        """Bind the trainer whose log is written, and the health check that reads it, if there is one."""
        self.trainer = trainer
        self.health = health
        self.forget()

    def forget(self) -> None:
        """Begin an optimizer step anew."""
        self._parts: list[Mapping[str, Tensor]] = []
        self._apart: dict[str, Tensor] = {}
        self._extrema: dict[str, Tensor] = {}

    def scored(self, rows: Tensor | None, scored: Tensor) -> None:
        """Log the share of an optimizer step's responses that the model scores, where some may be left out."""
        if rows is not None:
            current_metrics(self.trainer)["gv/scored_responses"].append((scored / rows.clamp(min=1)).item())

    def loss(self, out: Loss, step: StepCounts) -> None:
        """Add a micro-batch; the last one completes the optimizer step (or the evaluation batch)."""
        self._parts.append(out.metrics)
        self._widen(out.extrema)
        if step.left == 0:
            self._flush(step, out.per_response)

    def mismatch(self, reported: Tensor | None, x: Tokens) -> None:
        """Add how far a micro-batch's log-probabilities [B, T] are from those that the engine reported, if any."""
        if reported is not None:
            old = x.logp if x.old_logp is None else x.old_logp
            _add(self._apart, mismatch_sums(old, reported, x.mask))
            self._widen(mismatch_extrema(old, reported, x.mask))

    def _widen(self, extrema: Mapping[str, Tensor]) -> None:
        for name, value in extrema.items():
            join = torch.minimum if name.endswith("/min") else torch.maximum
            self._extrema[name] = join(self._extrema[name], value) if name in self._extrema else value

    def _flush(self, step: StepCounts, per_response: frozenset[str]) -> None:
        accelerator = self.trainer.accelerator
        added, names = {**step.joined(self._parts, per_response), **self._apart}, list(self._extrema)
        # A minimum is the negative of a maximum, so one gather does for both.
        sign = torch.tensor([-1.0 if name.endswith("/min") else 1.0 for name in names], device=accelerator.device)
        packed = torch.stack([v.float() for v in (*added.values(), *self._extrema.values())])
        ranks = accelerator.gather(packed.unsqueeze(0))
        widest = (ranks[:, len(added) :] * sign).amax(0) * sign
        total = dict(zip(added, ranks[:, : len(added)].sum(0), strict=True))
        sums = {name: total.pop(name) for name in self._apart}
        found = {**total, **(mismatch_report(sums) if sums else {}), **dict(zip(names, widest, strict=True))}
        counted = [step.tokens().to(packed), sums["tokens"] if sums else packed.new_zeros(())]
        *values, tokens, reported = torch.stack([*found.values(), *counted]).tolist()
        # Nothing has no mean and no extremes, and a step without tokens must not count in a mean over steps.
        read = {
            name: value
            for name, value in zip(found, values, strict=True)
            if name == "policy_loss" or (reported if name.startswith("mismatch/") else tokens)
        }
        for name, value in read.items():
            current_metrics(self.trainer)[NAMES.get(name, f"gv/{name}")].append(value)
        if self.health is not None and self.trainer.model.training:
            self.health.loss(read, tokens, step.on_policy)
        self.forget()


def _add(sums: dict[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        sums[name] = sums[name] + value if name in sums else value
