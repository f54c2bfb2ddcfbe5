"""Words of trainers in a spec string, and what they make of a variant: `epsilon_high=0.28` for surrogate.high.

Each trainer's folder teaches its own words; nothing here knows one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# (variant, value, every word that is given) -> the variant that the word makes of it
Tune = Callable[[Any, Any, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Word:
    """A word of a trainer.

    tune: what it makes of a variant; raises ValueError where it has no effect. keys: the keys of a spec string that say
    the same where a variant has them.
    """

    trainer: str
    tune: Tune
    keys: tuple[str, ...] = ()


WORDS: dict[str, Word] = {}


def teach(words: Mapping[str, Word]) -> None:
    """Add a trainer's words; where two trainers have the same one, that of the trainer that was taught first stays."""
    for key, word in words.items():
        WORDS.setdefault(key, word)


def word_in(key: str) -> str | None:
    """The trainer's word that a key of a spec string is, without the sections that it lies in; None for no word."""
    parts = key.split(".")
    return next((word for word in (".".join(parts[-2:]), parts[-1]) if word in WORDS), None)


def value_of(text: Any) -> Any:
    """A value as a trainer's configuration has it."""
    plain = {"true": True, "false": False, "none": None, "null": None}
    if not isinstance(text, str):
        return text
    if text.lower() in plain:
        return plain[text.lower()]
    try:
        return (
            text if "_" in text else float(text)
        )  # two bounds may be joined by an underscore, as thousands are in Python
    except ValueError:
        return text
