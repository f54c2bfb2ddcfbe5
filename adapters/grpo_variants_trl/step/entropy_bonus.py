"""The entropy bonus under a variant: TRL's own options, with a mean over the whole optimizer step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo_variants import Tokens
from grpo_variants.tensors.precision import at_least_one
from grpo_variants_trl.step.step_counts import StepCounts


class EntropyBonus:
    r"""\(-c\, H\), H the mean entropy of the step's loss tokens (those that a token filter keeps).

    TRL takes the mean of each micro-batch; over the step's count it does not depend on the split. Where that count is
    known too late (a token filter, a step over two generations) the mean is that of the micro-batch, as in TRL. The
    adaptive controller (Skywork-OR1, arXiv 2505.22312) moves TRL's own coefficient, which TRL saves and loads.
    """

    def __init__(self, trainer: Any) -> None:
        """Bind the trainer whose coefficient is used and moved."""
        self.trainer = trainer

    def __call__(self, entropy: Tensor, x: Tokens, step: StepCounts) -> Tensor:
        """The term to add to a micro-batch's loss; step: the optimizer step that it belongs to."""
        trainer = self.trainer
        keep = trainer.variant.tokens(x, step.counts)
        mask = x.mask if keep is None else x.mask & keep
        total = torch.where(mask, entropy, torch.zeros_like(entropy)).sum()
        if keep is None and step.exact:
            mean = total * step.counts.grad_average / at_least_one(step.counts.tokens)
        else:
            accumulated = trainer.current_gradient_accumulation_steps if trainer.model.training else 1
            mean = total / mask.sum().clamp(min=1) / accumulated
        coefficient = self._coefficient()
        if trainer.model.training:
            self._observe(total.detach(), mask, last=step.left == 1)
        return -coefficient * mean

    def _coefficient(self) -> float:
        """The coefficient of this optimizer step; the adaptive one acts only at or below its target."""
        trainer = self.trainer
        if trainer.use_adaptive_entropy and trainer._last_world_entropy > trainer.args.entropy_target:
            return 0.0
        return float(trainer.entropy_coef)

    def _observe(self, total: Tensor, mask: Tensor, last: bool) -> None:
        trainer = self.trainer
        if trainer.use_adaptive_entropy:
            seen = torch.stack([total.float(), mask.sum().float()])
            before = trainer._entropy_window_stats
            trainer._entropy_window_stats = seen if before is None else before + seen
            if last:
                self._adapt()
        if last:
            trainer._metrics["train"]["entropy_coef"].append(trainer.entropy_coef)

    def _adapt(self) -> None:
        """Move the coefficient by its delta towards the target entropy."""
        trainer, args = self.trainer, self.trainer.args
        total, count = trainer.accelerator.reduce(trainer._entropy_window_stats, reduction="sum").tolist()
        trainer._entropy_window_stats = None
        if count == 0:  # without a token there is no entropy to adapt to
            return
        entropy = total / count
        delta = args.entropy_coef_delta if entropy <= args.entropy_target else -args.entropy_coef_delta
        moved = trainer.entropy_coef + delta
        bounded = min(moved, args.entropy_coef_max) if delta > 0 else max(moved, args.entropy_coef_min)
        trainer.entropy_coef, trainer._last_world_entropy = bounded, entropy
