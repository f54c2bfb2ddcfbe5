"""Methods of the trainer that a derived class has replaced without calling the one that trains the variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from grpo_variants_trl.step.step_counts import GROUP

# What leads from a micro-batch to the variant's loss, and from prompts to its advantages.
_TO_THE_LOSS = ("training_step", "compute_loss", "_compute_loss")
_TO_THE_ADVANTAGES = ("_prepare_inputs", "_generate_and_score_completions")


class OverriddenMethods(TrainerCallback):
    """Stops a run before its first change of the weights if the variant's advantages or loss were never computed."""

    def __init__(self, trainer: Any, variant_trainer: type) -> None:
        """Bind the trainer; variant_trainer is the class whose methods, and those of its bases, train the variant."""
        self.trainer, self.variant_trainer = trainer, variant_trainer

    def check_advantages(self, inputs: Mapping[str, Any]) -> None:
        """Raise RuntimeError for a micro-batch without advantages of the variant."""
        if GROUP not in inputs:
            raise RuntimeError(self._without_effect(_TO_THE_ADVANTAGES))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise RuntimeError where no micro-batch reached the variant's loss."""
        if self.trainer._step_counts is None:
            raise RuntimeError(self._without_effect(_TO_THE_LOSS))

    def _without_effect(self, methods: Sequence[str]) -> str:
        """The error for a variant that one of these methods, replaced somewhere, keeps from training."""
        replaced = [name for name in methods if self._is_replaced(name)] or methods[-1:]
        own = " or ".join(f"{type(self.trainer).__name__}.{name}" for name in replaced)
        inherited = " or ".join(f"super().{name}" for name in replaced)
        return (
            f"loss_type={self.trainer.args.loss_type!r} has no effect: {own} does not call {inherited}, which trains "
            "the variant. Call it there, or choose a built-in loss type."
        )

    def _is_replaced(self, name: str) -> bool:
        """Whether a method belongs to the trainer object, or to a class that stands before the variant trainer."""
        order = type(self.trainer).__mro__
        before = order[: order.index(self.variant_trainer)]
        return name in vars(self.trainer) or any(name in vars(cls) for cls in before)
