"""Checkers shared by every part: an error names the field, the value given and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import SequenceMatcher

# Share of matching letters from which a word counts as mistyped rather than as another word; difflib's own cutoff.
_NEAR = 0.6
_TOO_LARGE = 2**63  # what no tensor's whole numbers hold
_LONGEST = 60  # characters of a value that an error shows in full


def check_number(
    where: str,
    value: object,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    optional: bool = False,
) -> None:
    """Raise unless `value` is a finite number inside the range (or None where that is allowed)."""
    if value is None and optional:
        return
    allowed = _range_text(at_least, above, below, optional)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}={value!r} is not a number; allowed: {allowed}.")
    representable = abs(value) < _TOO_LARGE if isinstance(value, int) else math.isfinite(value)
    if not representable or not at_least <= value < below or value <= above:
        raise ValueError(f"{where}={shown(value)} is out of range; allowed: {allowed}.")


def shown(value: object) -> str:
    """A value as an error shows it: its middle is left out where it is long."""
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:
        return f"(a whole number of {value.bit_length()} bits)"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:20]}...{text[-8:]} ({len(text)} characters)"


def _range_text(at_least: float, above: float, below: float, optional: bool) -> str:
    if above > -math.inf:
        text = f"a finite number above {above:g}"
    elif at_least > -math.inf:
        text = f"a finite number of at least {at_least:g}"
    else:
        text = "a finite number"
    if below < math.inf:
        text += f" and below {below:g}"
    return f"{text}, or none" if optional else text


def check_choice(where: str, value: object, allowed: Iterable[object]) -> None:
    """Raise unless `value` is one of the allowed ones."""
    options = list(allowed)
    if value not in options:
        raise ValueError(unknown(f"{where}={value!r} is unknown", str(value), map(str, options)))


def unknown(what: str, word: str, known: Iterable[str], label: str = "allowed") -> str:
    """The text for a word that is not known: what is wrong, the nearest words, and last all of them.

    what: a sentence without its full stop. label: what the known ones are called.
    """
    words = list(known)
    hint, rest = did_you_mean(word, words), f"{label}: {', '.join(words) or 'none'}."
    return f"{what}.{hint} {rest[0].upper()}{rest[1:]}" if hint else f"{what}; {rest}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The known words nearest to a mistyped one, whatever its case, as a sentence; the empty string if none is near."""
    likeness = {k: SequenceMatcher(None, k.lower(), word.lower()).ratio() for k in known}
    best = max(likeness.values(), default=0.0)
    nearest = [repr(k) for k, ratio in likeness.items() if ratio == best >= _NEAR]
    return f" Did you mean {' or '.join(nearest)}?" if nearest else ""
