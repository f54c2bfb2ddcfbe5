"""Bars: what has to hold, as data in bars.toml, judged on the results of one run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import ratio

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("bars.toml")


@dataclass(frozen=True)
class Bar:
    """One bar.

    case, size: the result that it is read from. of: what is read, `seconds`, `peak` (in units), `kernels` or `syncs`.
    pairs: contenders whose numbers are divided, first over second; or one contender, whose number it is. The worst of
    them counts. at_least, at_most: the number that has to hold. aim: where we want to be. margin: by which share a
    quick run may miss it, since it is short and the machine may be busy; a full run may not. quick: whether a quick run
    judges it at all.
    """

    id: str
    sentence: str
    case: str
    size: str
    of: str
    pairs: tuple[tuple[str, ...], ...]
    at_least: float | None = None
    at_most: float | None = None
    aim: float | None = None
    margin: float = 0.5
    quick: bool = True

    def value(self, result: Mapping[str, Any]) -> float | None:
        """The worst of the pairs, or None where one of them was not measured."""
        found = [_one(result["contenders"], pair, self.of) for pair in self.pairs]
        if None in found:
            return None
        return min(found) if self.at_most is None else max(found)

    def holds(self, value: float, quick: bool) -> bool:
        """Whether the number is good enough."""
        slack = self.margin if quick else 0.0
        if self.at_most is None:
            return value >= (self.at_least or 0.0) * (1 - slack)
        return value <= self.at_most * (1 + slack)


def _one(contenders: Mapping[str, Any], pair: tuple[str, ...], of: str) -> float | None:
    values = [contenders.get(name, {}).get(of) for name in pair]
    if None in values:
        return None
    if len(values) == 1:
        return float(values[0])
    return ratio(*values) if of == "seconds" else values[0] / values[1]


def bars() -> list[Bar]:
    """Every bar of bars.toml."""
    table = tomllib.loads(FILE.read_text())["bar"]
    return [Bar(**{**entry, "pairs": tuple(map(tuple, entry["pairs"]))}) for entry in table]
