"""Fields that a part was given after its first release: the card's hash must not change for those who leave them alone.

Rule: such a field is declared by `added`, which records the value that means what the part meant without it. A card
leaves the field out of its hash, and out of a comparison of cards, where it has that value. The default may be another.
"""

from __future__ import annotations

from dataclasses import MISSING, field, fields, is_dataclass
from typing import Any

_BEFORE = "before"


def added(default: Any, *, before: Any = MISSING) -> Any:
    """A dataclass field that came later. before: what the part meant without it, where that is not the default."""
    return field(default=default, metadata={_BEFORE: default if before is MISSING else before})


def before(part: object, name: str) -> Any:
    """The value of a part's field that means what the part meant without it; MISSING for one that was always there."""
    if not isinstance(part, type) or not is_dataclass(part):
        return MISSING
    return next((f.metadata.get(_BEFORE, MISSING) for f in fields(part) if f.name == name), MISSING)
