"""Checkers shared by every part: an error names the field, the value given and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches


def check_number(
    where: str,
    value: object,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    optional: bool = False,
) -> None:
    """Raise unless `value` is a finite number inside the range (or None where that is allowed)."""
    if value is None and optional:
        return
    allowed = _range_text(at_least, above, optional)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}={value!r} is not a number; allowed: {allowed}.")
    if not math.isfinite(value) or value < at_least or value <= above:
        raise ValueError(f"{where}={value!r} is out of range; allowed: {allowed}.")


def _range_text(at_least: float, above: float, optional: bool) -> str:
    if above > -math.inf:
        text = f"a finite number above {above:g}"
    elif at_least > -math.inf:
        text = f"a finite number of at least {at_least:g}"
    else:
        text = "a finite number"
    return f"{text}, or none" if optional else text


def check_choice(where: str, value: object, allowed: Iterable[object]) -> None:
    """Raise unless `value` is one of the allowed ones."""
    options = list(allowed)
    if value not in options:
        raise ValueError(f"{where}={value!r} is unknown; allowed: {', '.join(map(str, options))}.")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion for a mistyped word, or the empty string."""
    close = get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
