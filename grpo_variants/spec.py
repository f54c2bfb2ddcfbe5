"""Spec strings: `name[,axis=choice][,axis.field=value]...` <-> Variant; the only parser."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, Union

from grpo_variants.added import before
from grpo_variants.catalogue import registered
from grpo_variants.fences import Meaningless
from grpo_variants.numerics import numerics
from grpo_variants.tensors.checks import shown, unknown
from grpo_variants.variant import AXES, Variant

PLAIN = ("singleton", "conventions")


def get(spec: str) -> Variant:
    """Turn a spec string into a variant.

    `name[,axis=choice][,axis.field=value]...`: axis choices apply first and reset that axis's fields, then
    conventions, then fields. For example `dapo,surrogate.high=0.3,kl=k3,kl.beta=0.01`.
    The name may be written as people write it: `Dr. GRPO`, `reinforce++`, `gv_dapo`.
    Raises ValueError for an unknown name, axis, choice, field or value, with the nearest known ones.
    """
    name, _, rest = str(spec).partition(",")
    return configure(registered(name), read_options(rest))


def resolve(variant: Variant | str) -> Variant:
    """A variant from a variant or a spec string."""
    return variant if isinstance(variant, Variant) else get(variant)


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


@dataclass
class _Draft:
    """A part that is not built yet: its choice, its class (None for no part), the fields that are set."""

    axis: str
    choice: str
    cls: type | None
    values: dict[str, Any]

    @property
    def fields(self) -> dict[str, Any]:
        """Every field of the part with its value so far, or MISSING."""
        if self.cls is None:
            return {}
        return {f.name: self.values.get(f.name, f.default) for f in fields(self.cls)}

    def build(self, name: str) -> Any:
        missing = [f"{self.axis}.{field}" for field, value in self.fields.items() if value is MISSING]
        if missing:
            raise ValueError(
                f"{self.axis}={self.choice} on {name!r} needs {' and '.join(missing)}, which has no default: "
                f"for example {missing[0]}=<value>."
            )
        return None if self.cls is None else self.cls(**self.values)


def configure(variant: Variant, options: Mapping[str, Any]) -> Variant:
    """A variant with options applied; keys as in a spec string, values as text or already typed.

    Raises ValueError as `get` does.
    """
    try:
        return applied(variant, options)
    except (UnknownKey, Meaningless) as error:
        from grpo_variants.advice import advised

        raise ValueError(advised(variant, options, error)) from None


class UnknownKey(ValueError):
    """A key that is no axis, or a field that the part on its axis does not have; `what` says which."""

    key: str = ""
    what: str = ""


def _unknown_key(key: str, word: str, what: str, known: Sequence[str], label: str) -> UnknownKey:
    error = UnknownKey(unknown(what, word, known, label))
    error.key, error.what = key, what
    return error


def applied(variant: Variant, options: Mapping[str, Any]) -> Variant:
    """`configure` without advice: raises UnknownKey for a key, Meaningless for parts that do not go together."""
    choices = {key: value for key, value in options.items() if "." not in key}
    settings = {key: value for key, value in options.items() if "." in key}
    for axis, choice in choices.items():
        _check_axis(variant.name, axis, axis)
        _check_choices(variant.name, axis, str(choice))
    _check_words(variant, choices)
    drafts, words = _start(variant, choices)
    # Placement first, since it resets a field that means nothing with it: a setting of that one is then refused.
    for key, value in sorted(settings.items(), key=lambda item: not item[0].endswith(".placement")):
        _set_field(variant.name, drafts, key, value)
    parts = {axis: _build(variant.name, axis, given) for axis, given in drafts.items()}
    return replace(variant, **parts, **words)


def _start(variant: Variant, choices: Mapping[str, Any]) -> tuple[dict[str, list[_Draft]], dict[str, Any]]:
    """Parts and plain words of a variant after axis choices and conventions, before fields."""
    words = {word: str(choices.get(word, getattr(variant, word))) for word in PLAIN}
    drafts = {axis: _drafts(variant, axis, choices.get(axis)) for axis in AXES if axis not in PLAIN}
    ratio = drafts["ratio"][0].choice
    for axis, parts in drafts.items():
        if axis in choices or "conventions" in choices:
            for draft in parts:
                draft.values |= _set_by(words["conventions"], draft, ratio)
    if "conventions" in choices and "singleton" not in choices:
        words |= typing.cast("dict[str, str]", numerics(words["conventions"], "singleton", "", ratio))
    return drafts, words


def _check_axis(name: str, axis: str, key: str) -> None:
    if axis not in AXES:
        raise _unknown_key(key, axis, f"{name}: unknown axis {axis!r}", list(AXES), "axes")


def _check_choices(name: str, axis: str, choice: str) -> None:
    known = AXES[axis].choices
    words = choice.split("+") if AXES[axis].joins else [choice]
    for word in words:
        if word not in known:
            raise ValueError(unknown(f"{name}: {axis}={choice!r} is unknown", word, known, f"choices of {axis}"))
    if len(words) != len(set(words)) or ("none" in words and len(words) > 1):
        raise ValueError(f"{name}: {axis}={choice!r} joins a part with itself or with none; name each part once.")


def _check_words(variant: Variant, given: Mapping[str, Any]) -> None:
    if given.get("conventions") == "paper" != variant.conventions:
        raise ValueError(
            f"{variant.name}: it was registered with conventions={variant.conventions}, and what its paper's numerics "
            "are is not known; set the numeric fields themselves."
        )
    baseline = str(given.get("baseline", choice_name("baseline", variant.baseline)))
    scale = str(given.get("scale", choice_name("scale", variant.scale)))
    credit = str(given.get("credit", choice_name("credit", variant.credit)))
    chosen = {"baseline": baseline, "scale": scale, "credit": credit}
    parts = [AXES[axis].choices.get(word) for axis, word in chosen.items()]
    if given.get("singleton") == "raw" and not any(getattr(part, "of_group", False) for part in parts):
        raise ValueError(
            f"{variant.name}: singleton=raw has no effect with baseline={baseline}, scale={scale}: no group statistic "
            "is taken. Leave it out."
        )


def _drafts(variant: Variant, axis: str, choice: Any) -> list[_Draft]:
    """The parts of an axis as drafts: fresh for a new choice, else as the variant has them."""
    if choice is not None:
        table = AXES[axis].choices
        words = str(choice).split("+") if AXES[axis].joins else [str(choice)]
        return [_Draft(axis, word, typing.cast("type | None", table[word]), {}) for word in words]
    return [_as_draft(axis, part) for part in parts_of(variant, axis)]


def _as_draft(axis: str, part: Any) -> _Draft:
    if part is None:
        return _Draft(axis, "none", None, {})
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    return _Draft(axis, choice_name(axis, part), type(part), values)


def parts_of(variant: Variant, axis: str) -> tuple[Any, ...]:
    """The parts that a variant has on an axis; (None,) where the choice is none."""
    part = getattr(variant, axis)
    return (part or (None,)) if AXES[axis].joins else (part,)


def choice_name(axis: str, part: Any) -> str:
    """The word for a part on its axis; a user's own class goes by its class name."""
    for word, cls in AXES[axis].choices.items():
        if cls is (None if part is None else type(part)):
            return word
    return type(part).__name__


def _set_by(conventions: str, draft: _Draft, ratio: str) -> dict[str, object]:
    values = numerics(conventions, draft.axis, draft.choice, ratio)
    if draft.values.get("placement") == "reward":
        values.pop("weighted", None)  # a penalty in the reward has no gradient for the ratio to weigh
    return {name: value for name, value in values.items() if name in draft.fields}


def _set_field(name: str, drafts: Mapping[str, list[_Draft]], key: str, value: Any) -> None:
    axis, _, field = key.partition(".")
    _check_axis(name, axis, key)
    if axis in PLAIN:
        raise ValueError(f"{name}: {axis} has no fields; set {axis}={'|'.join(AXES[axis].choices)}.")
    candidates = list(_owners(drafts[axis], field))
    if len(candidates) > 1:
        raise ValueError(_ambiguous(name, axis, field, candidates))
    if not candidates:
        choice, own = "+".join(draft.choice for draft in drafts[axis]), [f for d in drafts[axis] for f in d.fields]
        raise _unknown_key(key, field, f"{name}: {axis}={choice} has no field {field!r}", own, "its fields")
    field = field.rpartition(".")[2]
    draft = candidates[0]
    draft.values[field] = coerce(f"{name}: {key}", value, _hints(typing.cast(type, draft.cls))[field])
    if field == "placement" and draft.values[field] == "reward":
        draft.values["weighted"] = "none"


def _owners(parts: list[_Draft], field: str) -> Iterator[_Draft]:
    """The parts that a field's name means: `field`, or `choice.field` where several parts are joined."""
    choice, _, name = field.rpartition(".")
    for draft in parts:
        if name in draft.fields and (not choice or choice == draft.choice):
            yield draft


def _ambiguous(name: str, axis: str, field: str, owners: list[_Draft]) -> str:
    choice = "+".join(draft.choice for draft in owners)
    both = " or ".join(f"{axis}.{draft.choice}.{field}" for draft in owners)
    return f"{name}: {axis}.{field} could mean several parts of {axis}={choice}; write {both}."


def _build(name: str, axis: str, drafts: list[_Draft]) -> Any:
    try:
        parts = tuple(draft.build(name) for draft in drafts)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if name in text else f"{name}: {text}") from None
    if AXES[axis].joins:
        return tuple(part for part in parts if part is not None)
    return parts[0]


def fields_of(part: object) -> Mapping[str, Any]:
    """The fields of a choice, by name; none for a plain word or for no part."""
    return _hints(part) if isinstance(part, type) and is_dataclass(part) else {}


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Type of each field of a part."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


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


def resolved_values(variant: Variant) -> dict[str, Any]:
    """Every axis choice and every field of a variant, by the keys of a spec string."""
    values: dict[str, Any] = {}
    for axis in AXES:
        if axis in PLAIN:
            values[axis] = getattr(variant, axis)
            continue
        drafts = [_as_draft(axis, part) for part in parts_of(variant, axis)]
        values[axis] = "+".join(draft.choice for draft in drafts)
        for draft in drafts:
            prefix = f"{axis}.{draft.choice}" if len(drafts) > 1 else axis
            values |= {f"{prefix}.{field}": value for field, value in draft.fields.items()}
    return values


def without_added(values: Mapping[str, Any]) -> dict[str, Any]:
    """`resolved_values` less every field that came after its part and has the value of before (`added`)."""

    def as_before(key: str, value: Any) -> bool:
        axis, _, rest = key.partition(".")
        choice, _, field = rest.rpartition(".")
        part = AXES[axis].choices.get(choice or values[axis]) if axis in AXES and rest else None
        return bool(before(part, field) == value)

    return {key: value for key, value in values.items() if not as_before(key, value)}


def full_keys(variant: Variant, options: Mapping[str, str]) -> dict[str, str]:
    """Options by the keys that `resolved_values` has for them: a joined part's field carries the part's name."""
    full: dict[str, str] = {}
    for key, text in options.items():
        axis, _, field = key.partition(".")
        ends = f".{field.rpartition('.')[2]}"
        matches = [
            k for k in resolved_values(variant) if k == key or (field and k.startswith(f"{axis}.") and k.endswith(ends))
        ]
        full |= dict.fromkeys(matches or [key], text)
    return full


def spec_string(variant: Variant) -> str:
    """Canonical spec string: the name, then only what differs from the registered variant of that name."""
    base = registered(variant.name, default=Variant(name=variant.name))
    return ",".join(filter(None, (variant.name, spelt(difference(base, variant)))))


def difference(base: Variant, variant: Variant) -> dict[str, Any]:
    """The options that make a variant of another one, by the keys of a spec string; choices first."""
    wanted, had = resolved_values(variant), resolved_values(base)
    choices = {axis: wanted[axis] for axis in AXES if wanted[axis] != had[axis]}
    start = _values_after(base, choices)
    if "singleton" in choices and start["singleton"] == wanted["singleton"]:
        without = {axis: choice for axis, choice in choices.items() if axis != "singleton"}
        if _values_after(base, without)["singleton"] == wanted["singleton"]:
            choices = without
    elif start["singleton"] != wanted["singleton"]:
        choices["singleton"] = wanted["singleton"]
    settings = {key: value for key, value in wanted.items() if "." in key and value != start.get(key, MISSING)}
    return choices | settings


def _values_after(base: Variant, choices: Mapping[str, str]) -> dict[str, Any]:
    """The values that choices and conventions alone lead to; fields without default are left out."""
    drafts, values = _start(base, choices)
    for axis, parts in drafts.items():
        for draft in parts:
            prefix = f"{axis}.{draft.choice}" if len(parts) > 1 else axis
            values |= {f"{prefix}.{field}": value for field, value in draft.fields.items() if value is not MISSING}
    return values


def spelt(options: Mapping[str, Any]) -> str:
    """Options as a spec string has them."""
    return ",".join(f"{key}={written(value)}" for key, value in options.items())


def written(value: Any) -> str:
    """A value as a spec string has it."""
    return "none" if value is None else repr(value) if isinstance(value, float) else str(value)
