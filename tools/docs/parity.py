"""docs/parity.md: what the tests of both trainers' suites compared, from the tables that they leave in docs/parity."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from grpo_variants.catalogue import CATALOGUE
from grpo_variants.trainers import verdicts_of
from tools.docs.markdown import code, table

TRAINERS_TESTED = ("trl", "verl")
NAMES = {"trl": "TRL", "verl": "verl"}
QUANTITIES = ("advantages", "loss", "gradient")
NOTHING = "-"

_INTRO = """\
What the tests compared with the trainers' own code: {versions}.

Every line is what a test found: `make parity` runs the tests that compare, in both suites, and writes this page from
their results; `make test` fails where a result is no longer what stands here. How far equal numbers really were apart,
as powers of ten, and which test compared them is in [trl.json]({folder}/trl.json) and
[verl.json]({folder}/verl.json)."""
_GLANCE = """\
The quantities that are equal to a built-in of the trainer, for some of the variant's settings or under a condition: the
tables below say which. Where the variant itself runs through the trainer's code, it is compared with this package's
functions. A dash in the last two columns: the trainer cannot run it, or the recorded batch lacks an input."""
_EQUAL = """\
A spec on the left computes what the built-in on the right computes, within the relative tolerance under each quantity.
`conventions` sets numeric fields only: epsilons, clamps, a group of one."""
_DIFFER = "Defects, defaults and choices of the trainers, each pinned by a test that computes both numbers."
_MISSING = "What the trainers have and this package has no name for; where a run meets it, the package says so."
_ABSENT = "Why there is no built-in to compare with. Where the variant runs all the same, the first table says so."
_NO_COUNTERPART = re.compile(r"no counterpart\b.*?[:;] ")


@dataclass(frozen=True)
class Row:
    """One line of a trainer's table. spec: ours. builtin: the trainer's, empty where ours ran through its code."""

    trainer: str
    spec: str
    builtin: str
    quantity: str
    verdict: str
    rtol: float = 0.0
    here: str = ""
    there: str = ""
    cause: str = ""

    @property
    def variant(self) -> str:
        """Name that the spec starts with."""
        return self.spec.partition(",")[0]


def read(folder: Path) -> tuple[dict[str, str], list[Row]]:
    """Versions by trainer and every row; empty for a trainer without a table."""
    versions: dict[str, str] = {}
    rows: list[Row] = []
    for trainer in TRAINERS_TESTED:
        path = folder / f"{trainer}.json"
        content: dict[str, Any] = {"version": "without results", "rows": []}
        if path.exists():
            content = json.loads(path.read_text("utf-8"))
        versions[trainer] = content["version"]
        rows += [_row(trainer, row) for row in content["rows"]]
    return versions, rows


def page(folder: Path, command: str) -> str:
    """The page, in Markdown."""
    versions, rows = read(folder)
    named = " and ".join(f"{NAMES[trainer]} {version}" for trainer, version in versions.items())
    sections = [
        f"<!-- Written by `{command}` from the results of the tests. -->\n# Parity with the trainers",
        _INTRO.format(versions=named, folder=folder.name),
        f"## At a glance\n\n{_GLANCE}\n\n{_glance(rows)}",
        *(f"## Equal to {NAMES[trainer]}\n\n{_EQUAL}\n\n{_equal(rows, trainer)}" for trainer in TRAINERS_TESTED),
        f"## Where a trainer computes another number\n\n{_DIFFER}\n\n{_differing(rows)}",
        f"## Members without a counterpart in a trainer\n\n{_ABSENT}\n\n{_absent()}",
        f"## Built-ins without a counterpart here\n\n{_MISSING}\n\n{_missing(rows)}",
    ]
    return "\n\n".join(sections) + "\n"


def _row(trainer: str, row: dict[str, Any]) -> Row:
    known = {
        name: row[name] for name in ("spec", "builtin", "quantity", "verdict", "rtol", "here", "cause") if name in row
    }
    return Row(trainer=trainer, there=str(row.get("there", "")), **known)


def _glance(rows: list[Row]) -> str:
    equal = [row for row in rows if row.verdict == "equal"]

    def cell(name: str, trainer: str, own: bool) -> str:
        found = {row.quantity for row in equal if (row.variant, row.trainer, bool(row.builtin)) == (name, trainer, own)}
        return ", ".join(quantity for quantity in QUANTITIES if quantity in found) or NOTHING

    lines = (
        (
            f"[{variant.name}](variants/{variant.name}.md)",
            *(cell(variant.name, trainer, own) for own in (True, False) for trainer in TRAINERS_TESTED),
        )
        for variant in CATALOGUE
    )
    return table(
        ("variant", "TRL's built-in", "verl's built-in", "through TRL's trainer", "through verl's functions"), lines
    )


def _equal(rows: list[Row], trainer: str) -> str:
    equal = [row for row in rows if (row.verdict, row.trainer) == ("equal", trainer) and row.builtin]
    lines = (
        (code(spec), builtin, *_quantities(list(group)))
        for (spec, builtin), group in groupby(_in_order(equal), key=lambda row: (row.spec, row.builtin))
    )
    return table(("here", NAMES[trainer], *QUANTITIES, "also"), lines)


def _in_order(rows: Iterable[Row]) -> list[Row]:
    """By trainer, then as the catalogue has the variants."""
    order = [variant.name for variant in CATALOGUE]
    return sorted(rows, key=lambda row: (row.trainer, order.index(row.variant), row.spec, row.builtin))


def _quantities(group: list[Row]) -> Iterator[str]:
    for quantity in QUANTITIES:
        yield next((f"{row.rtol:.0e}" for row in group if row.quantity == quantity), NOTHING)
    yield ", ".join(sorted(row.quantity for row in group if row.quantity not in QUANTITIES))


def _differing(rows: Iterable[Row]) -> str:
    lines = (
        (NAMES[row.trainer], row.builtin, code(row.spec), row.quantity, row.there, row.here, row.cause)
        for row in _in_order(row for row in rows if row.verdict == "differs")
    )
    return table(("trainer", "built-in", "here", "what", "trainer's number", "number here", "why"), lines)


def _absent() -> str:
    lines = ((variant.name, *map(_reason, verdicts_of(variant).values())) for variant in CATALOGUE)
    named = (line for line in lines if set(line[1:]) != {NOTHING})
    return table(("variant", *(f"not in {NAMES[trainer]}" for trainer in TRAINERS_TESTED)), named)


def _reason(verdict: str) -> str:
    """Why a verdict knows no counterpart; a dash where it knows one."""
    found = _NO_COUNTERPART.match(verdict)
    return verdict[found.end() :] if found else NOTHING


def _missing(rows: Iterable[Row]) -> str:
    lines = ((NAMES[row.trainer], row.builtin, row.cause) for row in rows if row.verdict == "missing")
    return table(("trainer", "built-in", "why"), lines)
