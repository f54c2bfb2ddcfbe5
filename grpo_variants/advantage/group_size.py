"""Sizes of groups at which a member is another one, or nothing: what to say of them, once for every trainer.

A part that needs groups of certain sizes has `doubt(size) -> Doubt | None`.
"""

from __future__ import annotations

from typing import NamedTuple


class Doubt(NamedTuple):
    """What a group of some size makes of a rule, as a sentence, and how many responses per prompt would do."""

    text: str
    draw: int


def no_middle(size: int, even: str) -> Doubt | None:
    """Whether a group of this many responses has no median response."""
    if size % 2:
        return None
    taken = "the lower of the middle two" if even == "lower" else "the mean of the middle two"
    return Doubt(f"a group of {size} has no response in the middle, and its median is {taken}.", size + 1)
