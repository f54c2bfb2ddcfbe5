"""The variant card: what a run optimised, exactly, in a file beside its checkpoints."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from grpo_variants.axes import parts_of
from grpo_variants.catalogue.former import FORMER
from grpo_variants.files import FileError, read_json, write_json
from grpo_variants.numerics import numerics
from grpo_variants.options import read_options
from grpo_variants.registry import found_exactly
from grpo_variants.spec import get
from grpo_variants.spelling import as_released, resolved_values, spelt
from grpo_variants.trainers import TRAINERS
from grpo_variants.variant import UNCONFIRMED, Variant
from grpo_variants.versions import versions

FILE_NAME = "grpo_variant.json"
_UNUSABLE = "delete it, since a card is only compared"
# What an entry of a card's history has.
_ENTRY = {"step", "key", "old", "new"}
_TRAINERS = (trainer.adapter.package for trainer in TRAINERS.values() if trainer.adapter is not None)
_PACKAGES = ("grpo-variants", "torch", "transformers", "peft", "accelerate", *_TRAINERS)


@dataclass(frozen=True, kw_only=True)
class Card:
    """A variant as a run used it.

    variant: what was run. trainer: where. origins: where each value came from, by the keys of a
    spec string. effective: what the trainer adds to the objective (a length, an entropy coefficient); part of the hash.
    notes: sentences on what differs from the paper in this trainer. history: what was changed while it trained, with
    the optimizer step, counted from 1, from which it holds; the rest of the card is what the run started with.
    """

    variant: Variant
    trainer: str
    origins: Mapping[str, str] = field(default_factory=dict)
    effective: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def hash(self) -> str:
        """Hash of the objective: two runs with the same hash ran the same one, whatever its name or trainer."""
        # An axis on which nothing is chosen is left out, and a field that was added to a part where it is as before:
        # a new one then does not change the hash of the others.
        values = as_released(resolved_values(self.variant))
        values = {k: v for k, v in values.items() if k != "conventions" and ("." in k or v != "none")}
        text = json.dumps({"values": values, "effective": dict(self.effective)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """The card as it is written: plain JSON values."""
        origins = value_origins(self.variant, self.origins)
        values = resolved_values(self.variant)
        return {
            "variant": self.variant.name,
            "spec": str(self.variant),
            "hash": self.hash,
            "summary": self.variant.summary,
            "formula": self.variant.formula,
            "references": [str(reference) for reference in self.variant.references],
            "unconfirmed": self.variant.unconfirmed,
            "values": {key: {"value": value, "origin": origins[key]} for key, value in values.items()},
            "effective": dict(self.effective),
            "notes": list(self.notes),
            "history": [dict(entry) for entry in self.history],
            "host": self.trainer,
            "versions": versions(_PACKAGES),
        }

    def write(self, folder: str | Path) -> Path:
        """Write the card into a folder, which is made if need be; returns the file's path.

        The card that was there before stays where the new one cannot be written (FileError).
        """
        return write_json(Path(folder) / FILE_NAME, self.as_dict())

    def paragraph(self) -> str:
        """A Markdown paragraph for a model card: what a paper must say about the objective."""
        cited = "; ".join(map(str, self.variant.references)) or "no reference"
        changed = [f"`{key}={_word(value)}`" for key, value in _changed(self.variant).items()]
        lines = [
            "## Objective",
            f"Trained with `{self.variant}` (grpo-variants, objective hash `{self.hash}`).",
            f"`{self.variant.name}`: {self.variant.summary} Defined in {cited}.",
        ]
        if changed:
            lines.append(f"Set differently from the paper: {', '.join(changed)}.")
        if self.history:
            lines.append(f"Changed while it trained: {'; '.join(_moves(self.history))}.")
        if self.variant.contrib:
            lines.append(f"`{self.variant.name}` is in contrib: {UNCONFIRMED}. {self.variant.unconfirmed}")
        return "\n\n".join([*lines, *self.notes]) + "\n"

    def bibtex(self) -> str:
        """BibTeX entries of the papers that define the variant; the empty string where there is none."""
        name, references = self.variant.name, self.variant.references
        letters = string.ascii_lowercase if len(references) > 1 else ("",)
        return "\n\n".join(r.bibtex(f"{name}{r.year}{letter}") for r, letter in zip(references, letters, strict=False))

    def opening(self) -> list[str]:
        """The start of a run in a few lines: the objective, and what of it was set otherwise than it is defined."""
        lines = [f"variant {self.variant}  (objective hash {self.hash})", self.variant.summary, self._settings()]
        if self.effective:
            added = ", ".join(f"{key}={_word(value)}" for key, value in self.effective.items())
            lines.append(f"set in {self.trainer}: {added}")
        if self.variant.contrib:
            lines.append(f"contrib: {self.variant.unconfirmed}")
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def _settings(self) -> str:
        """What the user set, with the member's own value, and how much else it moved."""
        values, changed = resolved_values(self.variant), _changed(self.variant)
        defined = resolved_values(found_exactly(self.variant.name) or self.variant)
        given = [key for key in changed if key in self.origins and not self._came_along(key)]
        told = [f"{key}={_word(values[key])} (defined: {_word(defined.get(key))})" for key in given]
        rest = len(changed) - len(given)
        if rest:
            told.append(f"{rest} value{'s' if rest > 1 else ''} that came with it")
        return f"changed from its definition: {', '.join(told)}" if told else "every value is as defined"

    def _came_along(self, key: str) -> bool:
        """Whether a field is at the default of a part that was chosen anew."""
        axis, _, name = key.partition(".")
        defaults = {
            f.name: f.default for part in parts_of(self.variant, axis) if is_dataclass(part) for f in fields(part)
        }
        return axis in _changed(self.variant) and defaults.get(name, MISSING) == resolved_values(self.variant)[key]

    def text(self) -> str:
        """The resolved variant for a terminal: every value and where it came from."""
        content = self.as_dict()
        rows = [(key, _word(v["value"]), v["origin"]) for key, v in content["values"].items()]
        rows += [(key, _word(value), f"set by {self.trainer}") for key, value in self.effective.items()]
        wide = [max(len(row[i]) for row in rows) for i in (0, 1)]
        lines = [f"variant {content['spec']}  (objective hash {content['hash']})", f"  {content['summary']}"]
        lines += [f"  {key:<{wide[0]}}  {value:<{wide[1]}}  {origin}" for key, value, origin in rows]
        lines += [f"  source: {reference}" for reference in content["references"]]
        lines += [f"  contrib: {self.variant.unconfirmed}"] if self.variant.contrib else []
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


def _moves(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was changed in a run, one phrase a value: from the first to the last, and in which steps."""
    told = []
    for key in dict.fromkeys(entry["key"] for entry in history):
        own = [entry for entry in history if entry["key"] == key]
        first, last = own[0], own[-1]
        when = (
            f"in step {first['step']}"
            if len(own) == 1
            else f"{len(own)} times, steps {first['step']} to {last['step']}"
        )
        told.append(f"`{key}` from {_word(first['old'])} to {_word(last['new'])} ({when})")
    return told


def value_origins(variant: Variant, given: Mapping[str, str]) -> dict[str, str]:
    """Where each value of a variant came from: what the caller knows, else its conventions, axis choice or paper."""
    values, changed = resolved_values(variant), _changed(variant)
    origins: dict[str, str] = {}
    for key in values:
        axis, field = key.partition(".")[0], key.rpartition(".")[2]
        if key in given:
            origins[key] = given[key]
        elif key not in changed:
            origins[key] = "paper"
        elif field in numerics(variant.conventions, axis, values[axis], values["ratio"]):
            origins[key] = f"conventions={variant.conventions}"
        else:
            origins[key] = f"default of {axis}={values[axis]}" if axis in given else "set in code"
    return origins


def _changed(variant: Variant) -> dict[str, Any]:
    """The values that the registered variant of the same name does not have."""
    paper = resolved_values(found_exactly(variant.name) or variant)
    return {key: value for key, value in resolved_values(variant).items() if paper.get(key, MISSING) != value}


def read_card(folder: str | Path) -> dict[str, Any] | None:
    """The card in a folder as plain values, or None where there is none; raises FileError for one that is damaged."""
    path = Path(folder) / FILE_NAME
    if not path.exists():
        return None
    card = read_json(path, _UNUSABLE)
    values, effective, history = card.get("values"), card.get("effective", {}), card.get("history", [])
    whole = isinstance(values, dict) and all(isinstance(v, dict) and "value" in v for v in values.values())
    if not whole or not isinstance(effective, dict):
        raise FileError(f"{path} is no variant card, since it lacks its table of values: {_UNUSABLE}.")
    if not isinstance(history, list) or not all(isinstance(entry, dict) and {*entry} >= _ENTRY for entry in history):
        raise FileError(f"{path} has a history whose entries lack {', '.join(sorted(_ENTRY))}: {_UNUSABLE}.")
    return card


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What two cards' objectives differ in, one line a value; empty for equal objectives."""
    if before.get("hash") == after.get("hash"):
        return []
    old, new = _flat(before), _flat(after)
    keys = [*new, *(key for key in old if key not in new)]
    moved = [f"{k}: {old.get(k, 'absent')} -> {new.get(k, 'absent')}" for k in keys if old.get(k) != new.get(k)]
    former = former_spec(before)
    return moved if former is None else [*moved, changed_since(before, former)]


def former_spec(card: Mapping[str, Any]) -> str | None:
    """The spec string for what a card says, where it names a member by defaults that it no longer has; else None."""
    name, options = card.get("variant", ""), read_options(card.get("spec", "").partition(",")[2])
    if name not in FORMER:
        return None
    then, now = resolved_values(get(f"{name},{FORMER[name]}")), resolved_values(get(name))
    moved = {key: value for key, value in then.items() if now.get(key, value) != value and key not in options}
    values = {key: entry["value"] for key, entry in card.get("values", {}).items()}
    if not moved or any(values.get(key, value) != value for key, value in moved.items()):
        return None
    return f"{name},{spelt({**read_options(FORMER[name]), **options})}"


def changed_since(card: Mapping[str, Any], former: str) -> str:
    """The sentence about a card whose member has other defaults now."""
    return f"{card['variant']} had other defaults when this card was written: what it names is {former} today"


def _flat(card: Mapping[str, Any]) -> dict[str, Any]:
    values = as_released({key: entry["value"] for key, entry in card.get("values", {}).items()})
    return values | dict(card.get("effective", {}))


def _word(value: Any) -> str:
    return "none" if value is None else str(value)
