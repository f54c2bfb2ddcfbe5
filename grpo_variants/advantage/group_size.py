"""Sizes of groups at which a member is another one, or nothing: what to say of them, once for every trainer.

A part that needs groups of certain sizes has `doubt(size) -> Doubt | None`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from grpo_variants.variant import Variant


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


def doubts(variant: Variant, size: int) -> list[Doubt]:
    """What groups of this many responses make of a variant's advantage rule, where that is not what it is for."""
    found = dict.fromkeys(part.doubt(size) for part in _choosy(variant))
    return [doubt for doubt in found if doubt is not None]


def is_choosy(variant: Variant) -> bool:
    """Whether a part of the advantage rule has something to say of a group's size."""
    return bool(_choosy(variant))


def _choosy(variant: Variant) -> list[Any]:
    parts = (variant.selection, variant.transform, variant.baseline, variant.scale, variant.credit)
    return [part for part in parts if hasattr(part, "doubt")]
