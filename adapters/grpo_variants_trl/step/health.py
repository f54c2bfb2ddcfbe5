"""The health check in TRL: what the trainer logs per optimizer step becomes warnings on the main process."""

from __future__ import annotations

import logging
from typing import Any

from transformers import TrainerCallback

from grpo_variants.health import HealthCheck, Observation
from grpo_variants.registry import found_exactly
from grpo_variants.variant import Variant

LOG = logging.getLogger("grpo_variants_trl")


class HealthWatch(TrainerCallback):
    """The health check of one run: from what the trainer logs to warnings, counters and a summary at the end."""

    def __init__(self, trainer: Any) -> None:
        """Bind the trainer whose log is read."""
        self.trainer = trainer
        self.check = HealthCheck(remedies(trainer))
        self._added_kl = _added_kl(trainer.variant)
        self._rollout: dict[str, float] = {}
        self._step: dict[str, Any] = {}
        self._judged = -1

    def rollout(self, largest_advantage: float, without_reward: float, groups: dict[str, float]) -> None:
        """Note a generation batch: its largest advantage, its share of responses without reward, its groups by kind."""
        log = self.trainer._metrics["train"]
        self._rollout = {
            "largest_advantage": largest_advantage,
            "without_reward": without_reward,
            "all_right": groups["groups/all_right"],
            "all_wrong": groups["groups/all_wrong"],
            "identical": groups["groups/identical"],
        }
        if self.trainer.variant.overlong.masks:
            self._rollout["overlong"] = log["completions/clipped_ratio"][-1]

    def loss(self, found: dict[str, float], loss_tokens: float, on_policy: bool) -> None:
        """Note an optimizer step: its metrics by the core's names, and how many tokens count in its loss.

        Metrics that are means over no token are not in `found`.
        """
        cuts = [found[name] for name in ("correction/zero", "correction/truncated") if name in found]
        self._step = {
            "loss_tokens": loss_tokens,
            "clipped": found.get("clip/region"),
            "ratio": found.get("ratio/mean"),
            "cut_weights": max(cuts, default=None),
            "on_policy": on_policy,
        }

    def close(self, gradient_norm: Any) -> None:
        """Judge the optimizer step that has just ended.

        The gradient's norm is on the device: it is read at the first step, and where the trainer reads it for its log.
        """
        trainer = self.trainer
        if trainer.state.global_step == self._judged:  # TRL calls this once more at the end of an epoch
            return
        self._judged = trainer.state.global_step
        reads = self.check.steps == 0 or trainer.control.should_log
        norm = float(gradient_norm) if reads and gradient_norm is not None else None
        if trainer.accelerator.optimizer_step_was_skipped:
            norm = None  # the scaler of half precision skips steps with infinite gradients by design
        seen = Observation(**self._rollout, **self._step, gradient_norm=norm, added_kl=self._added_kl)
        for line in self.check.observe(trainer.state.global_step, seen):
            if trainer.is_world_process_zero():
                LOG.warning(line)
        for name, value in self.check.counters().items():
            trainer._metrics["train"][f"gv/health/{name}"].append(value)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print a summary of the run."""
        if state.is_world_process_zero and self.check.steps:
            print(*self.check.summary(), sep="\n", flush=True)


def _added_kl(variant: Variant) -> float | None:
    """The coefficient of a KL term that the registered variant does not have."""
    defined = found_exactly(variant.name) or variant
    return variant.kl.beta if variant.kl is not None and defined.kl is None else None


def remedies(trainer: Any) -> dict[str, str]:
    """What to set in TRL, by symptom."""
    args = trainer.args
    rate = f"learning_rate (now {args.learning_rate:g})"
    return {
        "all_overlong": (
            f"raise max_completion_length (now {args.max_completion_length}), or train on truncated responses with "
            "overlong=keep in the loss type"
        ),
        "identical_responses": f"raise temperature (now {args.temperature:g}), or look whether sampling is seeded",
        "no_signal": "look at the reward functions and at a few responses, or choose prompts of another difficulty",
        "nothing_scored": "look at the masks of tools and at the lengths of the responses",
        "nonfinite_gradient": f"lower {rate}, or look for overflows in the model's forward",
        "off_on_policy": (
            "set the model's and LoRA's dropout to 0, or look for kernels that differ between its two forwards"
        ),
        "every_token_clipped": f"lower {rate} or num_iterations (now {args.num_iterations}), or widen the clip bounds",
        "correction_cuts_most": "compare dtypes and sampling settings of trainer and engine, or raise the cap",
        "zero_gradient": "look whether the trained parameters require gradients",
        "added_kl": "set beta=0.0 to train it as it is defined",
    }
