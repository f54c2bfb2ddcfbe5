"""The trainer's log stage: TRL's log with the health of each optimizer step, and with finite numbers only."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from trl import GRPOTrainer

from grpo_variants_trl.step.finite import is_nonfinite, take_nonfinite


def mode_of(trainer: Any) -> str:
    """TRL's name of a trainer's current mode."""
    return "train" if trainer.model.training else "eval"


def current_metrics(trainer: Any) -> dict[str, list[float]]:
    """The lists of values that TRL logs the means of, in a trainer's current mode."""
    return trainer._metrics[mode_of(trainer)]


class LogStage(GRPOTrainer):
    """Writes TRL's log with the health check in it, and without numbers that are not finite."""

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, grad_norm: Any, *args: Any, **kwargs: Any) -> None:
        """TRL's log of an optimizer step, with the health of the step in it."""
        if self.variant is not None and self.health is not None:
            self.health.close(grad_norm)
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log without numbers that are not finite, which JSON does not have; the caller keeps them in `logs`."""
        if self.variant is None:
            super().log(logs, start_time)
            return
        left_out = take_nonfinite(logs, self._metrics, mode_of(self))
        super().log(logs, start_time)
        logs.update(left_out)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Whether an evaluation is the best so far; one whose metric is not finite never is."""
        name = self.args.metric_for_best_model or ""
        value = metrics.get(name if name.startswith("eval_") else f"eval_{name}")
        if self.variant is not None and is_nonfinite(value):
            return False
        return super()._determine_best_metric(metrics=metrics, trial=trial)
