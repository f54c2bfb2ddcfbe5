"""What is known about trainers without importing them: a folder for each, and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_variants.trainers.base import Trainer, teach
from grpo_variants.trainers.ms_swift.trainer import MS_SWIFT
from grpo_variants.trainers.openrlhf.trainer import OPENRLHF
from grpo_variants.trainers.trl.trainer import TRL
from grpo_variants.trainers.verl.trainer import VERL
from grpo_variants.variant import Variant

TRAINERS: Mapping[str, Trainer] = {trainer.name: trainer for trainer in (TRL, VERL, OPENRLHF, MS_SWIFT)}

for _trainer in TRAINERS.values():
    teach(_trainer)


NO_BUILT_IN = "no counterpart: the trainer has no built-in for it"


def verdicts_of(variant: Variant) -> dict[str, str]:
    """What of each trainer with an adapter equals a variant, or why it has no counterpart; by the trainer's name."""
    return {
        name: trainer.verdicts.get(variant.name, NO_BUILT_IN)
        for name, trainer in TRAINERS.items()
        if trainer.adapter is not None
    }
