"""Methods of the trainer that a derived class has replaced without calling the one that trains the variant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

# What leads from a micro-batch to the variant's loss, and from prompts to its advantages.
_TO_THE_LOSS = ("training_step", "compute_loss", "_compute_loss")
_TO_THE_ADVANTAGES = ("_prepare_inputs", "_generate_and_score_completions")


class LossReached(TrainerCallback):
    """Stops a run in front of its first change of the weights if the variant's loss was never asked for."""

    def __init__(self, trainer: Any, hooks: type) -> None:
        """Bind the trainer; hooks is the class whose methods train the variant."""
        self.trainer, self.hooks = trainer, hooks

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise RuntimeError where no micro-batch came to the variant's loss."""
        if self.trainer._window is None:
            raise RuntimeError(without_effect(self.trainer, self.hooks, _TO_THE_LOSS))


def without_advantages(trainer: Any, hooks: type) -> str:
    """Why a batch has no advantages of the variant."""
    return without_effect(trainer, hooks, _TO_THE_ADVANTAGES)


def without_effect(trainer: Any, hooks: type, methods: Sequence[str]) -> str:
    """The error for a variant that one of these methods, replaced somewhere, keeps from training."""
    replaced = [name for name in methods if _is_replaced(trainer, hooks, name)] or methods[-1:]
    own = " or ".join(f"{type(trainer).__name__}.{name}" for name in replaced)
    hosts = " or ".join(f"super().{name}" for name in replaced)
    return (
        f"loss_type={trainer.args.loss_type!r} has no effect: {own} does not call {hosts}, which trains the variant. "
        "Call it there, or choose a built-in loss type."
    )


def _is_replaced(trainer: Any, hooks: type, name: str) -> bool:
    """Whether a method is the trainer's own, or that of a class derived from the one with the hooks."""
    order = type(trainer).__mro__
    return name in vars(trainer) or any(name in vars(cls) for cls in order[: order.index(hooks)])
