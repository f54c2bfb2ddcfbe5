"""Conventions: the numeric fields in which papers and trainers differ; never a hyper-parameter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Numerics:
    """Values of numeric fields on one axis, for some of its choices (all, if none is named) under some ratios."""

    axis: str
    values: Mapping[str, object] = field(hash=False)
    choices: Collection[str] = ()
    ratios: Collection[str] = ()

    def applies(self, axis: str, choice: str, ratio: str) -> bool:
        """Whether this entry speaks about an axis with this choice, in a variant with this ratio."""
        return (
            axis == self.axis
            and (not self.choices or choice in self.choices)
            and (not self.ratios or ratio in self.ratios)
        )


# By the word of `conventions=`; each trainer's folder teaches its own, and the parity tests hold these numbers to it.
CONVENTIONS: dict[str, tuple[Numerics, ...]] = {"paper": ()}
# The words of that axis.
WORDS: dict[str, str] = {"paper": "paper"}


def teach(word: str, entries: tuple[Numerics, ...]) -> None:
    """Add the numeric fields of a trainer."""
    CONVENTIONS[word] = entries
    WORDS[word] = word


def numerics(conventions: str, axis: str, choice: str, ratio: str) -> dict[str, object]:
    """The numeric fields that a convention sets on one axis."""
    values: dict[str, object] = {}
    for entry in CONVENTIONS[conventions]:
        if entry.applies(axis, choice, ratio):
            values.update(entry.values)
    return values
