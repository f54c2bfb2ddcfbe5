"""From text to a variant: options by the keys of a spec string, applied to a variant; the only parser."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, Union

from grpo_variants.axes import AXES, WORD_AXES, choice_name, fields_of
from grpo_variants.spelling import Draft, Drafts, today, with_choices
from grpo_variants.tensors.checks import shown, unknown

V = TypeVar("V")


class UnknownKey(ValueError):
    """A key that is no axis, or a field that the part on its axis does not have; `what` says which."""

    key: str = ""
    what: str = ""


def read_options(text: str) -> dict[str, str]:
    """Split `key=value,key=value` into a dict; raises ValueError for a piece that is not key=value, or a repeat."""
    options: dict[str, str] = {}
    for piece in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not key or not value:
            raise ValueError(f"{piece!r} is not axis=choice or axis.field=value, as in 'dapo,surrogate.high=0.3'.")
        if key in options:
            raise ValueError(f"{key} is given twice: {options[key]!r} and {value!r}. Give it once.")
        options[key] = value
    return options


def applied(variant: V, options: Mapping[str, Any]) -> V:
    """A variant with options applied, values as text or already typed, without advice on what is wrong with them.

    Raises UnknownKey for a key, `fences.Meaningless` for parts that do not go together, ValueError for a value.
    """
    record: Any = variant
    choices = {key: value for key, value in options.items() if "." not in key}
    settings = {key: value for key, value in options.items() if "." in key}
    for axis, choice in choices.items():
        _check_axis(record.name, axis, axis)
        _check_choices(record.name, axis, str(choice))
    _check_words(record, choices)
    drafts, words = with_choices(record, choices)
    # A field that resets others comes first: a setting of one of those is then refused, not overwritten.
    for key, value in sorted(settings.items(), key=lambda item: not _resets(drafts, item[0])):
        _set_field(record.name, drafts, key, value)
    parts = {axis: _build(record.name, axis, given) for axis, given in drafts.items()}
    built: V = replace(record, **parts, **words)
    return built


def _unknown_key(key: str, word: str, what: str, known: Sequence[str], label: str) -> UnknownKey:
    error = UnknownKey(unknown(what, word, known, label))
    error.key, error.what = key, what
    return error


def _check_axis(name: str, axis: str, key: str) -> None:
    if axis not in AXES:
        raise _unknown_key(key, axis, f"{name}: unknown axis {axis!r}", list(AXES), "axes")


def _check_choices(name: str, axis: str, choice: str) -> None:
    known = AXES[axis].choices
    words = choice.split("+") if AXES[axis].joins else [choice]
    for word in words:
        if today(axis, word) != word:
            raise ValueError(f"{name}: {axis}={word} is called {axis}={today(axis, word)} now; write that.")
        if word not in known:
            raise ValueError(unknown(f"{name}: {axis}={choice!r} is unknown", word, known, f"choices of {axis}"))
    if len(words) != len(set(words)) or ("none" in words and len(words) > 1):
        raise ValueError(f"{name}: {axis}={choice!r} joins a part with itself or with none; name each part once.")


def _check_words(record: Any, given: Mapping[str, Any]) -> None:
    """Raise ValueError for a plain word that has no effect, or whose effect is not known."""
    if given.get("conventions") == "paper" != record.conventions:
        raise ValueError(
            f"{record.name}: it was registered with conventions={record.conventions}, and what its paper's numerics "
            "are is not known; set the numeric fields themselves."
        )
    chosen = {axis: str(given.get(axis, choice_name(axis, getattr(record, axis)))) for axis in _COMPARING}
    parts = [AXES[axis].choices.get(word) for axis, word in chosen.items()]
    for word in WORD_AXES:
        reader = AXES[word].read_by
        idle = reader is not None and not any(getattr(part, reader, False) is True for part in parts)
        if idle and given.get(word, AXES[word].default) != AXES[word].default:
            raise ValueError(
                f"{record.name}: {word}={given[word]} has no effect with baseline={chosen['baseline']}, "
                f"scale={chosen['scale']}: no group statistic is taken. Leave it out."
            )


_COMPARING = ("baseline", "scale", "credit")


def _resets(drafts: Drafts, key: str) -> bool:
    """Whether a key sets a field that resets others."""
    axis, _, field = key.partition(".")
    return any(name == field for draft in drafts.get(axis, ()) for name, _ in getattr(draft.cls, "resets", {}))


def _set_field(name: str, drafts: Drafts, key: str, value: Any) -> None:
    axis, _, field = key.partition(".")
    _check_axis(name, axis, key)
    if axis in WORD_AXES:
        raise ValueError(f"{name}: {axis} has no fields; set {axis}={'|'.join(AXES[axis].choices)}.")
    candidates = list(_owners(drafts[axis], field))
    if len(candidates) > 1:
        raise ValueError(_ambiguous(name, axis, field, candidates))
    if not candidates:
        choice, own = "+".join(draft.choice for draft in drafts[axis]), [f for d in drafts[axis] for f in d.fields]
        raise _unknown_key(key, field, f"{name}: {axis}={choice} has no field {field!r}", own, "its fields")
    field = field.rpartition(".")[2]
    draft = candidates[0]
    draft.set(field, coerce(f"{name}: {key}", value, fields_of(draft.cls)[field]))


def _owners(parts: list[Draft], field: str) -> Iterator[Draft]:
    """The parts that a field's name means: `field`, or `choice.field` where several parts are joined."""
    choice, _, name = field.rpartition(".")
    for draft in parts:
        if name in draft.fields and (not choice or choice == draft.choice):
            yield draft


def _ambiguous(name: str, axis: str, field: str, owners: list[Draft]) -> str:
    choice = "+".join(draft.choice for draft in owners)
    both = " or ".join(f"{axis}.{draft.choice}.{field}" for draft in owners)
    return f"{name}: {axis}.{field} could mean several parts of {axis}={choice}; write {both}."


def _build(name: str, axis: str, drafts: list[Draft]) -> Any:
    try:
        parts = tuple(draft.build(name) for draft in drafts)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if name in text else f"{name}: {text}") from None
    if AXES[axis].joins:
        return tuple(part for part in parts if part is not None)
    return parts[0]


def coerce(where: str, value: Any, hint: Any) -> Any:
    """Text to the type of a field; a value that is no text is left as it is, for the part itself to check."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    if not isinstance(value, str):
        # One that no float holds stays as it is, for the part to refuse.
        return float(value) if type(value) is int and float in kinds and abs(value) < 2**63 else value
    if value.lower() in ("none", "null") and type(None) in kinds:
        return None
    kind = next(k for k in kinds if k is not type(None))
    if kind is str or typing.get_origin(kind) is Literal:
        return value
    try:
        return int(value) if kind is int else float(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        optional = " or none" if type(None) in kinds else ""
        raise ValueError(f"{where}={shown(value)} is not {wanted}{optional}.") from None
