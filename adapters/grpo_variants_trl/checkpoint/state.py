"""What a resumed run needs beyond TRL's own checkpoint: written before it, checked when it is read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from grpo_variants.files import FileError, read_json, write_json

STATE_FILE = "grpo_variants_state.json"
# The entries of the file that a run continues from, and what they are.
_MEANING = {
    "memory": "what was remembered of the prompts",
    "prompts_drawn": "the place in the data set from which groups are drawn again",
    "reference": "when the reference last moved",
}
_OTHER = "resume from another checkpoint, or "


def save_state(trainer: Any, folder: Path) -> None:
    """Write a variant's part of a checkpoint, and its card.

    It is called before TRL writes its own, so that a checkpoint that TRL has finished always has it; TRL deletes the
    older checkpoints only then. Raises FileError where the disk is full.
    """
    if trainer._reference is not None:
        trainer._reference.save(folder)
    write_json(folder / STATE_FILE, _state(trainer))
    trainer.variant_card.write(folder)


def _state(trainer: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {"optimizer_step": trainer.state.global_step}
    if trainer.memory is not None:
        kept["memory"] = trainer.memory.state_dict()
    if trainer._dynamic_sampling is not None:
        kept["prompts_drawn"] = trainer._dynamic_sampling.stream.drawn
    if trainer._reference is not None:
        kept["reference"] = trainer._reference.state()
    if trainer.use_adaptive_entropy:  # TRL writes it after its checkpoint, which may be too late
        seen = trainer._last_world_entropy
        kept["entropy_control"] = {
            "coefficient": trainer.entropy_coef,
            "last_entropy": seen if math.isfinite(seen) else None,
        }
    return kept


def load_state(trainer: Any, folder: Path) -> None:
    """Continue from a checkpoint's state; raises FileError where it is damaged, or lacks what the variant needs."""
    path, needed = folder / STATE_FILE, [name for name in _MEANING if name in _state(trainer)]
    loss_type = trainer.args.loss_type
    if not path.exists():
        if needed:
            raise FileError(
                f"{folder} has no {STATE_FILE}, from which loss_type={loss_type!r} takes {_named(needed)}: {_OTHER}"
                "start a new run from its weights."
            )
        return
    last = "start a new run from its weights" if needed else f"delete it, since {loss_type} goes on without it"
    remedy = _OTHER + last
    kept = read_json(path, remedy)
    missing = [name for name in needed if name not in kept]
    if missing:
        raise FileError(f"{path} does not hold {_named(missing)}: {remedy}.")
    try:
        _check_step(kept, trainer.state.global_step)
        _restore(trainer, kept)
    except ValueError as error:
        raise FileError(f"{path} cannot be used ({error}): {remedy}.") from error
    if trainer._reference is not None:
        trainer._reference.load(folder)


def _named(names: list[str]) -> str:
    return " and ".join(_MEANING[name] for name in names)


def _check_step(kept: dict[str, Any], done: int) -> None:
    # Version 0.1.0 wrote a counter of micro-batches in its place, which follows from the configuration.
    step = kept.get("optimizer_step", done)
    if step != done:
        raise ValueError(f"optimizer_step={step!r}, and trainer_state.json has {done}")


def _restore(trainer: Any, kept: dict[str, Any]) -> None:
    if trainer.memory is not None:
        trainer.memory.load_state_dict(kept["memory"])
    if trainer._dynamic_sampling is not None:
        trainer._dynamic_sampling.stream.seek(_count(kept, "prompts_drawn"))
    if trainer._reference is not None:
        moved = _object(kept, "reference")
        trainer._reference.step, trainer._reference.resets = _count(moved, "step"), _count(moved, "resets")
    if trainer.use_adaptive_entropy and "entropy_control" in kept:
        control = _object(kept, "entropy_control")
        trainer.entropy_coef = _number(control, "coefficient")
        seen = control.get("last_entropy")
        trainer._last_world_entropy = math.inf if seen is None else _number(control, "last_entropy")


def _object(kept: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(kept[name], dict):
        raise ValueError(f"{name}={kept[name]!r}; allowed: an object of names and numbers")
    return kept[name]


def _number(kept: dict[str, Any], name: str) -> float:
    value = kept.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name}={value!r}; allowed: a number")
    return value


def _count(kept: dict[str, Any], name: str) -> int:
    value = kept.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}={value!r}; allowed: a whole number of at least 0")
    return value


class MicroBatchCounter(TrainerCallback):
    """Sets TRL's counter of micro-batches, which starts at 0 in every run, to where the data is fast-forwarded to.

    It follows from the optimizer steps that are done and from the run's own schedule, which may be another one than the
    checkpoint's.
    """

    def __init__(self, trainer: Any) -> None:
        """Bind the trainer that counts."""
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the counter when a run starts or is resumed."""
        data = kwargs.get("train_dataloader")
        in_epoch = len(data) if has_length(data) else None
        self.trainer._step = micro_batches_done(
            state.global_step, args.gradient_accumulation_steps, in_epoch, skips=not args.ignore_data_skip
        )


def micro_batches_done(steps: int, accumulation: int, in_epoch: int | None, *, skips: bool = True) -> int:
    """Micro-batches of `steps` optimizer steps, as transformers skips them when it resumes.

    in_epoch: micro-batches of an epoch, whose last step may have fewer than `accumulation`; None for a stream. skips:
    whether the data continues within the epoch; otherwise the epoch starts anew.
    """
    if in_epoch is None:
        return steps * accumulation if skips else 0
    epochs, within = divmod(steps, max(1, math.ceil(in_epoch / accumulation)))
    return epochs * in_epoch + (within * accumulation if skips else 0)
