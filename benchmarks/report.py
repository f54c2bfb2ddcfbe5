"""Results as a Markdown table, as a plot, and against the bars."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar
from benchmarks.measure import ratio

COLUMNS = ("case", "size", "contender", "ms", "to the first", "peak", "kernels", "syncs")
Result = Mapping[str, Any]


def table(results: Sequence[Result]) -> str:
    """One row a contender; peaks in units of the case, times over those of the case's first contender."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(row for result in results for row in _rows(result))]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _rows(result: Result) -> list[tuple[str, ...]]:
    first = next(iter(result["contenders"].values()))["seconds"]
    return [
        (
            result["case"],
            result["size"],
            name,
            f"{1e3 * statistics.median(found['seconds']):.3g}",
            f"{ratio(first, found['seconds']):.3g}x",
            *(f"{found[key]:.3g}" if key in found else "" for key in ("peak", "kernels", "syncs")),
        )
        for name, found in result["contenders"].items()
    ]


def judge(bars: Sequence[Bar], results: Sequence[Result], quick: bool) -> tuple[list[str], bool]:
    """A line a bar, and whether one failed. A bar without a result is named; it fails nothing."""
    by_place = {(result["case"], result["size"]): result for result in results}
    lines, failed = [], False
    for bar in bars:
        result = by_place.get((bar.case, bar.size))
        value = None if result is None else bar.value(result)
        judged = value is not None and (bar.quick or not quick)
        holds = not judged or bar.holds(value, quick)
        failed = failed or not holds
        verdict = "not measured" if value is None else "full only" if not judged else "holds" if holds else "FAILS"
        lines.append(f"{bar.id:15} {verdict:12} {_numbers(bar, value)}: {bar.sentence}")
    return lines, failed


def _numbers(bar: Bar, value: float | None) -> str:
    wanted = f"at least {bar.at_least:g}" if bar.at_most is None else f"at most {bar.at_most:g}"
    aim = "" if bar.aim is None else f", aim {bar.aim:g}"
    return f"{'' if value is None else f'{value:.3g}, '}{wanted}{aim}"


def plot(results: Sequence[Result], path: Path) -> None:
    """Times against the number of tokens, a panel a case, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(result["case"] for result in results))
    figure, panels = plt.subplots(1, len(names), figsize=(5 * len(names), 4), squeeze=False)
    for panel, name in zip(panels[0], names, strict=True):
        chosen = sorted((r for r in results if r["case"] == name), key=_tokens)
        for contender in chosen[0]["contenders"]:
            if not contender.startswith("floor: product"):
                points = [(_tokens(r), _ms(r, contender)) for r in chosen if contender in r["contenders"]]
                panel.plot(*zip(*points, strict=True), marker="o", label=contender)
        panel.set(xscale="log", yscale="log", title=name, xlabel="batch size x length", ylabel="ms, one thread")
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _tokens(result: Result) -> int:
    rows, width, *_ = map(int, result["size"].split("x"))
    return rows * width


def _ms(result: Result, contender: str) -> float:
    return 1e3 * statistics.median(result["contenders"][contender]["seconds"])
