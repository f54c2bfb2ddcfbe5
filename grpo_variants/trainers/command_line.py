"""What trainers that are run by flags share: how flags are printed, and how a refusal names what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from grpo_variants.axes import choice_name
from grpo_variants.spelling import written
from grpo_variants.variant import Variant

# A flag and its values; none for a switch.
Flags = Mapping[str, tuple[object, ...]]


def shell_lines(notes: Iterable[str], flags: Flags) -> Iterator[str]:
    """Notes as shell comments, then the flags as the words of one shell command, one flag per line."""
    yield from (f"# {note}" for note in notes)
    *first, last = [" ".join([flag, *map(written, values)]) for flag, values in flags.items()]
    yield from (f"{words} \\" for words in first)
    yield last


def choice_refused(axis: str, part: object, reason: str) -> str:
    """A refusal of a choice: `axis=choice: reason`."""
    return f"{axis}={choice_name(axis, part)}: {reason}"


def field_refused(key: str, value: object, reason: str) -> str:
    """A refusal of a field's value: `axis.field=value: reason`."""
    return f"{key}={written(value)}: {reason}"


def chosen_rewards_refused(variant: Variant, trainer: str) -> Iterator[str]:
    """Refusals of selection and transform: the trainer uses every response and its reward as it is."""
    for axis in ("selection", "transform"):
        part = getattr(variant, axis)
        if choice_name(axis, part) != "none":
            yield choice_refused(axis, part, f"{trainer} uses every response and its reward as it is. Set {axis}=none.")
