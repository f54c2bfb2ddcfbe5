"""A part: one choice on one axis of a variant, as a frozen dataclass that validates its own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from typing import Any, ClassVar

_BEFORE = "before"


class Part:
    """What every part has.

    reads: the inputs that it cannot do without, by their names in `Rollouts` or `Tokens`; a trainer's adapter compares
    them with what the trainer supplies. Inputs that every call has (rewards, groups, logp, mask, advantages) are not
    among them. resets: fields that mean nothing where another field has some value, with what they become:
    {(field, value): {field: value}}.
    """

    resets: ClassVar[Mapping[tuple[str, object], Mapping[str, object]]] = {}

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of these inputs."""
        return ()


def added(default: Any, *, before: Any = MISSING) -> Any:
    """A dataclass field that a part got after its first release. before: the value that means the part without it.

    A card leaves the field out of its hash, and out of a comparison of cards, where it has that value, so that the hash
    does not change for those who leave the field alone. before is the default unless it is given.
    """
    return field(default=default, metadata={_BEFORE: default if before is MISSING else before})


def before(part: object, name: str) -> Any:
    """The value of a part's field that means the part without it; MISSING for a field that was always there."""
    if not isinstance(part, type) or not is_dataclass(part):
        return MISSING
    return next((f.metadata.get(_BEFORE, MISSING) for f in fields(part) if f.name == name), MISSING)
