"""What an error about options proposes. Every proposal is tried before it is made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from grpo_variants import foreign_words
from grpo_variants.axes import AXES, fields_of, parts_of
from grpo_variants.fences import Meaningless, Way, propose, ways_out
from grpo_variants.options import UnknownKey, applied
from grpo_variants.spelling import difference, resolved_values, spelt
from grpo_variants.tensors.checks import did_you_mean
from grpo_variants.variant import Variant

Options = Mapping[str, Any]

# What stands for a value that only the user knows, and what it is tried with.
_OPEN, _TRIED = "<value>", {"low": "0.5"}


def works(variant: Variant, options: Options) -> bool:
    """Whether a variant takes these options."""
    with contextlib.suppress(ValueError):
        applied(variant, _filled(options))
        return True
    return False


def _filled(options: Options) -> Options:
    return {k: _TRIED.get(k.rpartition(".")[2], "2") if v == _OPEN else v for k, v in options.items()}


def advised(variant: Variant, options: Options, error: UnknownKey | Meaningless) -> str:
    """What is wrong with options, and what to write or choose in their place."""
    if isinstance(error, Meaningless):
        return _for_parts(variant, options, error)
    return _for_key(variant, options, error)


# Parts that do not go together


def _for_parts(variant: Variant, options: Options, error: Meaningless) -> str:
    """What does not go together, and what to choose beside the options that were given."""
    ways = list(_possible(variant, options, ways_out(error.variant)))
    return " ".join([error.complaint, *propose(ways)]) if ways else str(error)


def _possible(variant: Variant, options: Options, ways: Iterable[Way]) -> Iterator[str]:
    """Ways out that work together with the options, and without which of these where they work without only."""
    for way in ways:
        replaced = [key for key in options if "." in key and key not in way and key.partition(".")[0] in way]
        for dropped in ([], replaced, [*replaced, *(key for key in options if key == "singleton")]):
            kept = {key: value for key, value in options.items() if key not in dropped}
            if works(variant, {**kept, **way}):
                yield spelt(way) + (f" without {' and '.join(dropped)}" if dropped else "")
                break


# Keys that a variant does not have


def _for_key(variant: Variant, options: Options, error: UnknownKey) -> str:
    """What is wrong with a key, and what to write in its place."""
    axis, _, field = error.key.rpartition(".")
    if _trainers_word(error.key) is not None:
        return _for_trainers_words(variant, options)
    own = [name for part in (parts_of(variant, axis) if axis in AXES else ()) for name in fields_of(type(part))]
    value, others = options[error.key], {k: v for k, v in options.items() if k != error.key}
    ways, near = list(_setting(variant, others, axis, field, value)), did_you_mean(field, own)
    owners = _owners(axis, field)
    where = f" {field!r} is a field of {axis}={', '.join(owners)}." if owners else ""
    if not ways:
        return f"{error}{where}"
    return f"{error.what}.{near} {'Or write' if near else 'Write'} {' or '.join(map(spelt, ways))}.{where}"


def _owners(axis: str, field: str) -> list[str]:
    """The choices of an axis that have a field."""
    return [word for word, part in AXES[axis].choices.items() if field in fields_of(part)] if axis in AXES else []


def _setting(variant: Variant, options: Options, axis: str, field: str, value: Any) -> Iterator[Way]:
    """Options that set a field: where the variant has it, else a choice that has it, with what this one needs."""
    axes = [axis] if _owners(axis, field) else list(AXES)
    here = [other for other in axes for part in parts_of(variant, other) if field in fields_of(type(part))]
    ways = [{f"{other}.{field}": value} for other in here if works(variant, {**options, f"{other}.{field}": value})]
    yield from ways
    for other in axes if not ways else ():
        choices = _owners(other, field)
        # k1 comes first, but as a loss its gradient is 0.
        choices.sort(key=lambda word: word != "k3")
        found = (completed(variant, options, _chosen(other, word, {field: value})) for word in choices)
        yield from list(filter(None, found))[:1]


def _chosen(axis: str, choice: str, values: Options) -> dict[str, Any]:
    """A choice with values for its fields; those without a default that are not given stay open."""
    part: Any = AXES[axis].choices[choice]
    needed = {f.name: _OPEN for f in fields(part) if f.default is MISSING}
    return {axis: choice, **{f"{axis}.{field}": value for field, value in (needed | dict(values)).items()}}


def completed(variant: Variant, options: Options, way: Way) -> Way | None:
    """Options with what else has to be chosen for them to work on a variant; None where nothing does it."""
    try:
        applied(variant, _filled({**options, **way}))
    except Meaningless as error:
        joined = ({**way, **then} for then in ways_out(error.variant, keep=way))
        return next((_ordered(one) for one in joined if works(variant, {**options, **one})), None)
    except ValueError:
        return None
    return way


def _ordered(way: Way) -> Way:
    """Choices before fields."""
    return dict(sorted(way.items(), key=lambda item: "." in item[0]))


# A trainer's words


def _trainers_word(key: str) -> str | None:
    """The trainer's word that a key is; None where it is one of this package's own fields, by its axis."""
    axis, _, field = key.rpartition(".")
    return None if _owners(axis, field) else foreign_words.word_in(key)


def _for_trainers_words(variant: Variant, options: Options) -> str:
    """What a trainer's words in a spec string mean on a variant, all of them at once."""
    foreign = {key: word for key in options if key not in AXES and (word := _trainers_word(key)) is not None}
    own = {key: value for key, value in options.items() if key not in foreign}
    base = applied(variant, own) if works(variant, own) else variant
    given = {word: foreign_words.value_of(options[key]) for key, word in foreign.items()}
    tuned, meant, reasons = base, dict[str, Any](), list[str]()
    for word in given:
        try:
            tuned, said = _meant(tuned, word, given)
            meant |= said
        except ValueError as error:
            reasons.append(str(error).removeprefix(f"{variant.name}: ").rstrip("."))
    if meant:
        reasons.append(f"write {spelt(meant)}")
    return f"{variant.name}: {_whose(given)}; {'; '.join(reasons or [_has_already(base, given)])}."


def _has_already(variant: Variant, given: Options) -> str:
    """That a variant is as the words say, by its own keys where they show the value."""
    values = resolved_values(variant)
    keys = {key: value for word, value in given.items() for key in foreign_words.WORDS[word].keys}
    same = {key: value for key, value in keys.items() if key in values and values[key] == value}
    return f"{variant.name} has {spelt(same) or 'what it says'} already, so leave it out"


def _whose(words: Iterable[str]) -> str:
    """Which trainer the words belong to."""
    by_trainer: dict[str, list[str]] = {}
    for word in words:
        by_trainer.setdefault(foreign_words.WORDS[word].trainer, []).append(repr(word))
    return " and ".join(
        f"{_listed(of)} {'is' if len(of) == 1 else 'are'} {trainer}'s word{'s' if len(of) > 1 else ''}"
        for trainer, of in by_trainer.items()
    )


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _meant(variant: Variant, word: str, given: Options) -> tuple[Variant, Way]:
    """The variant that a word makes of one, and the options that do it; raises ValueError where nothing does."""
    entry = foreign_words.WORDS[word]
    theirs = {other: value for other, value in given.items() if foreign_words.WORDS[other].trainer == entry.trainer}
    try:
        tuned = entry.tune(variant, given[word], theirs)
        return tuned, difference(variant, tuned)
    except (ValueError, TypeError) as error:
        for key in entry.keys:
            axis, _, field = key.rpartition(".")
            for way in _setting(variant, {}, axis, field, given[word]) if axis else ():
                return applied(variant, _filled(way)), way
        reason = f"{word}={given[word]!r} is no value of it" if isinstance(error, TypeError) else str(error)
        raise ValueError(reason) from None
