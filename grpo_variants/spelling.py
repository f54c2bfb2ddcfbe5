"""From a variant to text: its values by the keys of a spec string, and what differs between two variants.

Everything here reads a record that has every axis: `Variant`, which stands above this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, cast

from grpo_variants.axes import AXES, FIRST_WORDS, WORD_AXES, choice_name, parts_of
from grpo_variants.numerics import numerics
from grpo_variants.part import before


@dataclass
class Draft:
    """A part that is not built yet: its choice, its class (None for no part), the fields that are set."""

    axis: str
    choice: str
    cls: type | None
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, axis: str, part: Any) -> Draft:
        """A part as it is."""
        if part is None:
            return cls(axis, "none", None)
        return cls(axis, choice_name(axis, part), type(part), {f.name: getattr(part, f.name) for f in fields(part)})

    @property
    def fields(self) -> dict[str, Any]:
        """Every field of the part with its value so far, or MISSING."""
        if self.cls is None:
            return {}
        return {f.name: self.values.get(f.name, f.default) for f in fields(self.cls)}

    def set(self, name: str, value: Any) -> None:
        """Set a field, and reset those that mean nothing with this value, as the part's class says (`resets`)."""
        self.values[name] = value
        self.values |= getattr(self.cls, "resets", {}).get((name, value), {})

    def follow(self, conventions: str, ratio: str) -> None:
        """Take the numeric fields of a convention, but for those that mean nothing with the part's other values."""
        values = {k: v for k, v in numerics(conventions, self.axis, self.choice, ratio).items() if k in self.fields}
        for (name, value), reset in getattr(self.cls, "resets", {}).items():
            if self.values.get(name) == value:
                values = {k: v for k, v in values.items() if k not in reset}
        self.values |= values

    def build(self, name: str) -> Any:
        """The part; raises ValueError for a field that has no default and was not given."""
        missing = [f"{self.axis}.{field}" for field, value in self.fields.items() if value is MISSING]
        if missing:
            raise ValueError(
                f"{self.axis}={self.choice} on {name!r} needs {' and '.join(missing)}, which has no default: "
                f"for example {missing[0]}=<value>."
            )
        return None if self.cls is None else self.cls(**self.values)


Drafts = dict[str, list[Draft]]


def with_choices(record: Any, choices: Mapping[str, Any]) -> tuple[Drafts, dict[str, str]]:
    """Parts and plain words of a variant after axis choices and conventions, before fields."""
    words = {word: str(choices.get(word, getattr(record, word))) for word in WORD_AXES}
    drafts = {axis: _drafts(record, axis, choices.get(axis)) for axis in AXES if axis not in WORD_AXES}
    ratio = drafts["ratio"][0].choice
    for axis, parts in drafts.items():
        if axis in choices or "conventions" in choices:
            for draft in parts:
                draft.follow(words["conventions"], ratio)
    if "conventions" in choices:
        for word in set(WORD_AXES) - set(choices):
            words |= cast("dict[str, str]", numerics(words["conventions"], word, "", ratio))
    return drafts, words


def _drafts(record: Any, axis: str, choice: Any) -> list[Draft]:
    """The parts of an axis as drafts: fresh for a new choice, else as the variant has them."""
    if choice is None:
        return [Draft.of(axis, part) for part in parts_of(record, axis)]
    words = str(choice).split("+") if AXES[axis].joins else [str(choice)]
    return [Draft(axis, word, cast("type | None", AXES[axis].choices[word])) for word in words]


def resolved_values(record: Any) -> dict[str, Any]:
    """Every axis choice and every field of a variant, by the keys of a spec string."""
    return {key: value for axis in AXES for key, value in values_on(record, axis).items()}


def values_on(record: Any, axis: str) -> dict[str, Any]:
    """The choice on one axis and the fields of its parts, by the keys of a spec string."""
    if axis in WORD_AXES:
        return {axis: getattr(record, axis)}
    drafts = [Draft.of(axis, part) for part in parts_of(record, axis)]
    return {axis: "+".join(draft.choice for draft in drafts), **_fields(drafts)}


def _fields(drafts: list[Draft]) -> dict[str, Any]:
    """The fields of an axis by their keys, which name the part where several are joined."""
    return {
        f"{draft.axis}.{draft.choice}.{name}" if len(drafts) > 1 else f"{draft.axis}.{name}": value
        for draft in drafts
        for name, value in draft.fields.items()
    }


def today(axis: str, word: str) -> str:
    """The word of today for a choice as an older card has it."""
    return {old: new for new, old in FIRST_WORDS.get(axis, {}).items()}.get(word, word)


def as_released(values: Mapping[str, Any]) -> dict[str, Any]:
    """`resolved_values` in the words of their first release, less fields that came later and have the value of before.

    What a card's hash and a comparison of cards go by.
    """

    def as_before(key: str, value: Any) -> bool:
        axis, _, rest = key.partition(".")
        choice, _, name = rest.rpartition(".")
        part = AXES[axis].choices.get(today(axis, choice or values[axis])) if axis in AXES and rest else None
        return bool(before(part, name) == value)

    kept = {key: value for key, value in values.items() if not as_before(key, value)}
    return {key: FIRST_WORDS.get(key, {}).get(value, value) if "." not in key else value for key, value in kept.items()}


def full_keys(record: Any, options: Mapping[str, str]) -> dict[str, str]:
    """Options by the keys that `resolved_values` has for them: a joined part's field carries the part's name."""
    full: dict[str, str] = {}
    for key, text in options.items():
        axis, _, name = key.partition(".")
        ends = f".{name.rpartition('.')[2]}"
        matches = [
            k for k in resolved_values(record) if k == key or (name and k.startswith(f"{axis}.") and k.endswith(ends))
        ]
        full |= dict.fromkeys(matches or [key], text)
    return full


def difference(base: Any, record: Any) -> dict[str, Any]:
    """The options that make a variant of another one, by the keys of a spec string; choices first."""
    wanted, had = resolved_values(record), resolved_values(base)
    choices = {axis: wanted[axis] for axis in AXES if wanted[axis] != had[axis]}
    start = _values_after(base, choices)
    # A word that the conventions set by themselves is left out; one that they would change is given.
    for word in WORD_AXES:
        without = {axis: choice for axis, choice in choices.items() if axis != word}
        if start[word] != wanted[word]:
            choices[word] = wanted[word]
        elif word in choices and _values_after(base, without)[word] == wanted[word]:
            choices = without
    settings = {key: value for key, value in wanted.items() if "." in key and value != start.get(key, MISSING)}
    return choices | settings


def _values_after(base: Any, choices: Mapping[str, str]) -> dict[str, Any]:
    """The values that choices and conventions alone lead to; fields without default are left out."""
    drafts, values = with_choices(base, choices)
    found: dict[str, Any] = dict(values)
    for parts in drafts.values():
        found |= {key: value for key, value in _fields(parts).items() if value is not MISSING}
    return found


def spec_string(base: Any, record: Any) -> str:
    """Canonical spec string: the name, then only what differs from the registered variant of that name, the base."""
    return ",".join(filter(None, (record.name, spelt(difference(base, record)))))


def spelt(options: Mapping[str, Any]) -> str:
    """Options as a spec string has them."""
    return ",".join(f"{key}={written(value)}" for key, value in options.items())


def written(value: Any) -> str:
    """A value as a spec string has it."""
    return "none" if value is None else repr(value) if isinstance(value, float) else str(value)
