"""Results against the bars, as a page of Markdown tables, and as a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar
from benchmarks.measure import ratio
from tools.docs import markdown

COLUMNS = ("size", "contender", "ms", "to the first", "peak", "kernels", "syncs")
START, END = "<!-- measured -->", "<!-- /measured -->"
TOKENS, PANELS = "batch size x length", 2
GENERAL_FLOORS = ("floor: copy", "floor: read two", "floor: product of")
Result = Mapping[str, Any]


def page(results: Sequence[Result], environment: Mapping[str, str], bars: Sequence[Bar]) -> str:
    """Where it was measured, the bars, and a table a case."""
    where = ", ".join(f"{name} {value}" for name, value in environment.items())
    parts = [f"Where: {where}.", _bars_table(bars, results)]
    for case, group in groupby(results, key=lambda result: result["case"]):
        found = list(group)
        rows = [row for result in found for row in _rows(result)]
        head = (" x ".join(found[0]["axes"]), *COLUMNS[1:])
        parts += [f"### {case[0].upper()}{case[1:]}", markdown.table(head, rows)]
    return "\n\n".join(parts) + "\n"


def put(path: Path, text: str) -> None:
    """Write the text between the marks of a file, START and END; where it has none, at its end."""
    before, _, rest = (path.read_text() if path.exists() else "").partition(START)
    after = rest.partition(END)[2] or "\n"
    path.write_text(f"{before}{START}\n\n{text}\n{END}{after}")


def _bars_table(bars: Sequence[Bar], results: Sequence[Result]) -> str:
    """The bars that were measured; those of a quick run's own cases are not, in a full one."""
    rows = [
        (bar.id, bar.sentence, _wanted(bar), f"{value:.3g}", verdict.lower())
        for bar, value, verdict in _verdicts(bars, results, quick=False)
        if value is not None
    ]
    return markdown.table(("bar", "what", "wanted", "found", ""), rows)


def table(results: Sequence[Result]) -> str:
    """One row a contender, with its times over those of the case's first contender."""
    rows = [(result["case"], *row) for result in results for row in _rows(result)]
    return markdown.table(("case", *COLUMNS), rows) + "\n"


def _rows(result: Result) -> list[tuple[str, ...]]:
    first = next(iter(result["contenders"].values()))["seconds"]
    return [
        (
            result["size"],
            name,
            f"{1e3 * statistics.median(found['seconds']):.3g}",
            f"{ratio(first, found['seconds']):.3g}x",
            f"{found['peak']:.3g} {result['unit']}" if "peak" in found else "",
            *(str(found[key]) if key in found else "" for key in ("kernels", "syncs")),
        )
        for name, found in result["contenders"].items()
    ]


def judge(bars: Sequence[Bar], results: Sequence[Result], quick: bool) -> tuple[list[str], bool]:
    """A line a bar, and whether one failed. A bar without a result is named; it fails nothing."""
    found = list(_verdicts(bars, results, quick))
    lines = [f"{bar.id:15} {verdict:12} {_numbers(bar, value)}: {bar.sentence}" for bar, value, verdict in found]
    return lines, any(verdict == "FAILS" for *_, verdict in found)


def _verdicts(bars: Sequence[Bar], results: Sequence[Result], quick: bool) -> Iterator[tuple[Bar, float | None, str]]:
    """Each bar with its number and what follows."""
    by_place = {(result["case"], result["size"]): result for result in results}
    for bar in bars:
        result = by_place.get((bar.case, bar.size))
        value = None if result is None else bar.value(result)
        if value is None:
            yield bar, value, "not measured"
        elif quick and not bar.quick:
            yield bar, value, "full only"
        elif bar.holds(value, quick=False):
            yield bar, value, "holds"
        else:
            yield bar, value, "in margin" if bar.holds(value, quick) else "FAILS"


def _wanted(bar: Bar) -> str:
    wanted = f"at least {bar.at_least:g}" if bar.at_most is None else f"at most {bar.at_most:g}"
    return wanted if bar.aim is None else f"{wanted}, aim {bar.aim:g}"


def _numbers(bar: Bar, value: float | None) -> str:
    return _wanted(bar) if value is None else f"{value:.3g}, {_wanted(bar)}"


def plot(results: Sequence[Result], path: Path) -> None:
    """Times against the number of tokens, a panel a case that has several sizes, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = {name: list(found) for name, found in groupby(results, key=lambda result: result["case"])}
    cases = {name: found for name, found in cases.items() if len(found) > 1} or cases
    rows = -(-len(cases) // PANELS)
    figure, panels = plt.subplots(rows, PANELS, figsize=(7 * PANELS, 3.6 * rows), squeeze=False, layout="constrained")
    for panel in panels.flat[len(cases) :]:
        panel.set_axis_off()
    for panel, (name, found) in zip(panels.flat, cases.items(), strict=False):
        _panel(panel, name, found)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _panel(panel: Any, name: str, found: Sequence[Result]) -> None:
    """Contenders in colours, floors dotted in grey; those that every case has are left to the table."""
    place, label = _axis(found)
    own = [c for c in found[0]["contenders"] if not c.startswith(GENERAL_FLOORS)]
    for contender in own:
        at: dict[int, list[float]] = {}
        for result in found:
            if contender in result["contenders"]:
                at.setdefault(place(result), []).append(_ms(result, contender))
        points = sorted((x, statistics.median(times)) for x, times in at.items())
        style = {"linestyle": ":", "color": "grey"} if contender.startswith("floor") else {}
        panel.plot(*zip(*points, strict=True), marker="o", markersize=4, label=contender, **style)
    panel.set(yscale="log", title=name, xlabel=label, ylabel="ms, one thread")
    if label == TOKENS:
        panel.set_xscale("log")
    panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)


def _axis(found: Sequence[Result]) -> tuple[Callable[[Result], int], str]:
    """What the results differ in: the tokens of their batches, or else a number of their sizes."""
    axes = found[0]["axes"]
    if " x ".join(axes) == TOKENS:
        return lambda result: math.prod(_size(result)), TOKENS
    sizes = list(zip(*map(_size, found), strict=True))
    varies = next((i for i, values in enumerate(sizes) if len(set(values)) > 1), 0)
    return lambda result: _size(result)[varies], axes[varies]


def _size(result: Result) -> list[int]:
    return [int(number) for number in result["size"].split("x")]


def _ms(result: Result, contender: str) -> float:
    return 1e3 * statistics.median(result["contenders"][contender]["seconds"])
