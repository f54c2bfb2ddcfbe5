"""The contract of a trainer: what this package knows about one without importing it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_variants import foreign_words, numerics
from grpo_variants.advantage import inputs
from grpo_variants.foreign_words import Word
from grpo_variants.numerics import Numerics
from grpo_variants.registry import find
from grpo_variants.variant import Variant


@dataclass(frozen=True)
class Finding:
    """A line of `grpo-variants doctor`: `ok`, `note` or `missing`, and a sentence."""

    state: str
    text: str


# What an interpreter found out about a trainer, by the probe's own keys.
Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """The package that runs variants inside a trainer, and how it is looked after.

    package: the trainer's name on the package index. tested: the version that the tests run with. launcher: module with
    `main(arguments)` for a command of the trainer's name, which `launches` describes; or None. probe: code that adds
    to `facts`, run by a fresh interpreter in which `attempt(module)` tries an import. examine: what these facts mean.
    """

    module: str
    package: str
    tested: str
    examine: Callable[[Facts], Iterator[Finding]]
    probe: str = ""
    launcher: str | None = None
    launches: str = ""


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A trainer, in its own words.

    name: the word for it on the command line. title: how people write it. translate: the settings that make it run a
    variant, a line each; raises ValueError where it cannot, with every reason. settings: what these lines are, for the
    help. refusals: these reasons; nothing where it can. words: its words, as they may stand in a spec string. verdicts:
    what of it equals each member of the catalogue, or why it has no counterpart. supplies: for inputs that not every
    rule reads, a sentence on how it comes by them. conventions: the numeric fields as it computes them, for
    `conventions=<name>`. adapter: what runs variants inside it; None for one that is only written to.
    """

    name: str
    title: str
    translate: Callable[[Variant], Iterator[str]]
    refusals: Callable[[Variant], Collection[str]]
    settings: str
    words: Mapping[str, Word] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    supplies: Mapping[str, str] = field(default_factory=dict)
    conventions: tuple[Numerics, ...] = ()
    adapter: Adapter | None = None


def teach(trainer: Trainer) -> None:
    """Make a trainer's words, numerics and supplies known to the parser and the errors of the core."""
    foreign_words.teach(trainer.words)
    if trainer.conventions:
        numerics.teach(trainer.name, trainer.conventions)
    for name, sentence in trainer.supplies.items():
        inputs.SUPPLIERS.setdefault(name, {})[trainer.name] = sentence


def name_comes_first(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    """A word that names a variant, among the options of another: raises ValueError that says where the name stands."""
    found = find(str(value))
    first = f": write {found.name}" if found is not None else ""
    raise ValueError(f"the variant's name is the first word of a spec string{first}")
