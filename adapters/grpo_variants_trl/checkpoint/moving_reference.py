"""Iterative GRPO's moving reference: every N optimizer steps it becomes the policy, for full models and for adapters.

The reset happens before the rollouts that follow the N-th optimizer step. So all log-probabilities of a generation come
from one reference, and the first ones are the policy's own: a KL of 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch
from torch import Tensor
from trl import GRPOConfig

from grpo_variants.files import FileError, replacing
from grpo_variants.variant import Variant
from grpo_variants_trl.checkpoint.reference_adapter import REFERENCE, add_twin, twin_pairs

REFERENCE_FILE = "grpo_variants_reference.pt"


def check_reset(args: GRPOConfig, variant: Variant | None) -> None:
    """Raise ValueError for a `reset_reference_every` that has no effect, or that falls between two generations."""
    every = args.reset_reference_every
    if every is None:
        return
    where = f"reset_reference_every={every!r}"
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"{where} is out of range; allowed: a number of optimizer steps of at least 1, or none.")
    if variant is None:
        raise ValueError(f"{where} has no effect with the built-in loss_type={args.loss_type!r}. Remove it.")
    if variant.kl is None or variant.kl.beta == 0:
        raise ValueError(
            f"{where} has no effect: loss_type={args.loss_type!r} has no KL term and so no reference. Give it one "
            "(kl=k3,kl.beta=0.04 in the spec string), or remove it."
        )
    if args.sync_ref_model:
        raise ValueError(f"{where} and sync_ref_model=True both move the reference. Set one of them.")
    accumulation, generation = args.gradient_accumulation_steps, args.steps_per_generation * args.num_iterations
    if every * accumulation % generation:
        fits = [n for n in range(1, every + generation + 1) if n * accumulation % generation == 0]
        nearest = [n for n in fits if n < every][-1:] + [n for n in fits if n > every][:1]
        raise ValueError(
            f"{where} falls between two optimizer steps of one generation, whose reference log-probabilities are known "
            f"already. Set {' or '.join(f'reset_reference_every={n}' for n in nearest)}."
        )


class MovingReference:
    """The reference of a trainer, and when it last became the policy."""

    def __init__(self, trainer: Any) -> None:
        """Bind the trainer, and give an adapter a frozen twin that starts as its copy.

        With `peft_config=` TRL's reference is the model without its adapter; a new adapter's copy computes the same.
        Raises ValueError for sharded models and for adapters that cannot have a twin.
        """
        self.trainer = trainer
        self.every: int = trainer.args.reset_reference_every
        self.step, self.resets = 0, 0
        _refuse_shards(trainer)
        if trainer.ref_model is None and REFERENCE not in trainer.model.peft_config:
            add_twin(trainer.model, "reset_reference_every")

    def follow(self) -> None:
        """Reset the reference where N optimizer steps are done; call it before each generation."""
        done = self.trainer.state.global_step
        if done == 0:  # a run that starts anew
            self.step = 0
        if done // self.every > self.step // self.every:
            self._copy()
            self.step, self.resets = done, self.resets + 1
        self.trainer._metrics["train"]["gv/reference_resets"].append(float(self.resets))

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter of the reference with the policy's."""
        unwrap = self.trainer.accelerator.unwrap_model
        policy = unwrap(self.trainer.model)
        if self.trainer.ref_model is None:
            return twin_pairs(policy)
        return zip(unwrap(self.trainer.ref_model).parameters(), policy.parameters(), strict=True)

    @torch.no_grad()
    def _copy(self) -> None:
        for reference, policy in self.pairs():
            reference.copy_(policy)

    # Checkpoints. TRL saves and loads an adapter's twin like any other adapter.

    def state(self) -> dict[str, int]:
        """When it last moved, and how often it has."""
        return {"step": self.step, "resets": self.resets}

    def save(self, folder: Path) -> None:
        """Write the parameters that TRL does not keep."""
        if self.trainer.ref_model is not None and self.resets:
            model = self.trainer.accelerator.unwrap_model(self.trainer.ref_model)
            with replacing(folder / REFERENCE_FILE) as handle:
                _save(model.state_dict(), handle)

    def load(self, folder: Path) -> None:
        """Take the reference of a checkpoint, if it had moved; raises FileError where it is missing or damaged."""
        if self.trainer.ref_model is None or not self.resets:
            return
        path = folder / REFERENCE_FILE
        remedy = "resume from another checkpoint, or start a new run from its weights"
        if not path.exists():
            raise FileError(
                f"{folder} has no {REFERENCE_FILE}, and the reference has moved {self.resets} times: {remedy}."
            )
        try:
            kept = torch.load(path, map_location="cpu", weights_only=True)
            self.trainer.accelerator.unwrap_model(self.trainer.ref_model).load_state_dict(kept)
        except (OSError, EOFError, RuntimeError, TypeError, ValueError, UnpicklingError) as error:
            raise FileError(f"{path} is damaged, or of another model ({_first_line(error)}): {remedy}.") from error


def _save(weights: dict[str, Tensor], handle: IO[bytes]) -> None:
    try:
        torch.save(weights, handle)
    except RuntimeError as error:  # torch's error for a full disk
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".:")


def _refuse_shards(trainer: Any) -> None:
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    sharded = "FSDP" if trainer.is_fsdp_enabled else None
    if trainer.is_deepspeed_enabled and getattr(plugin, "zero_stage", 0) == 3:
        sharded = "DeepSpeed ZeRO-3"
    if sharded:
        raise ValueError(
            f"reset_reference_every={trainer.args.reset_reference_every} copies whole parameters, and {sharded} shards "
            "them. Use DDP or DeepSpeed ZeRO-1 or 2, or train round by round from the last round's model."
        )
