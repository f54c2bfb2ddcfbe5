"""A run in a folder with an earlier run: what differs is reported, and the earlier card is kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_variants.card import FILE_NAME, Card, differences, read_card
from grpo_variants.files import FileError
from grpo_variants_verl.worker_check import LOG


def install(card: Card, trainer: Any) -> None:
    """Write a card into the folder of the checkpoints.

    trainer: verl's section of that name. A card of another objective that is there stays, under a name with its hash;
    what differs from the checkpoint that the run resumes from is reported. A damaged card is only a warning.
    """
    folder = Path(trainer.default_local_dir)
    beside, checkpoint = _read(folder), resumed_from(trainer)
    if checkpoint is not None:
        _report_other(card, checkpoint, _read(checkpoint) or beside)
    _keep_other(card, folder, beside)
    card.write(folder)


def resumed_from(trainer: Any) -> Path | None:
    """The checkpoint that verl will load, as it finds it; None for a run from the start."""
    if trainer.get("resume_mode") == "resume_path" and trainer.get("resume_from_path"):
        return Path(trainer.resume_from_path)
    if trainer.get("resume_mode") != "auto":
        return None
    # Imported here since it imports datasets and peft, and every worker imports this module.
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    found = find_latest_ckpt_path(trainer.default_local_dir)
    return None if found is None else Path(found)


def _report_other(card: Card, checkpoint: Path, before: Mapping[str, Any] | None) -> None:
    """Report what differs from the objective of a checkpoint; its card is in it, or (legacy trainer) beside it."""
    changed = [] if before is None else differences(before, card.as_dict())
    if changed:
        lines = "\n  ".join(changed)
        LOG.warning(f"{checkpoint} was trained with another objective:\n  {lines}")


def _keep_other(card: Card, folder: Path, before: Mapping[str, Any] | None) -> None:
    """Rename a card of another objective, and one that cannot be read."""
    path = folder / FILE_NAME
    name = "unreadable" if before is None else before.get("hash")
    if path.exists() and name != card.hash:
        os.replace(path, path.with_name(f"{path.stem}.{name}{path.suffix}"))


def _read(folder: Path) -> dict[str, Any] | None:
    """The card in a folder; None where there is none, or a damaged one, which is reported."""
    try:
        return read_card(folder)
    except FileError as error:
        LOG.warning(str(error))
        return None
