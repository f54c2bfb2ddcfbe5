"""Results against the bars, as a page of Markdown tables, and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar
from benchmarks.measure import ratio
from grpo_variants import markdown

COLUMNS = ("size", "contender", "ms", "to the first", "peak", "kernels", "syncs")
START, END = "<!-- measured -->", "<!-- /measured -->"
Result = Mapping[str, Any]


def page(results: Sequence[Result], environment: Mapping[str, str], bars: Sequence[Bar]) -> str:
    """Where it was measured, the bars, and a table a case."""
    where = ", ".join(f"{name} {value}" for name, value in environment.items())
    parts = [f"Where: {where}.", _bars_table(bars, results)]
    for case, found in groupby(results, key=lambda result: result["case"]):
        rows = [row for result in found for row in _rows(result)]
        parts += [f"### {case[0].upper()}{case[1:]}", markdown.table(COLUMNS, rows)]
    return "\n\n".join(parts) + "\n"


def put(path: Path, text: str) -> None:
    """Write the text between the marks of a file, START and END; where it has none, at its end."""
    before, _, rest = (path.read_text() if path.exists() else "").partition(START)
    after = rest.partition(END)[2] or "\n"
    path.write_text(f"{before}{START}\n\n{text}\n{END}{after}")


def _bars_table(bars: Sequence[Bar], results: Sequence[Result]) -> str:
    rows = [
        (bar.id, bar.sentence, _wanted(bar), "" if value is None else f"{value:.3g}", verdict)
        for bar, value, verdict in _verdicts(bars, results, quick=False)
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
        else:
            yield bar, value, "holds" if bar.holds(value, quick) else "FAILS"


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

    cases = {name: sorted(found, key=_tokens) for name, found in groupby(results, key=lambda r: r["case"])}
    cases = {name: found for name, found in cases.items() if len(found) > 1} or cases
    columns = min(len(cases), 3)
    rows = -(-len(cases) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(5 * columns, 4 * rows), squeeze=False)
    for panel in panels.flat[len(cases) :]:
        panel.set_axis_off()
    for panel, (name, found) in zip(panels.flat, cases.items(), strict=False):
        _panel(panel, name, found)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _panel(panel: Any, name: str, found: Sequence[Result]) -> None:
    for contender in found[0]["contenders"]:
        if not contender.startswith("floor: product"):
            points = [(_tokens(r), _ms(r, contender)) for r in found if contender in r["contenders"]]
            panel.plot(*zip(*points, strict=True), marker="o", label=contender)
    panel.set(xscale="log", yscale="log", title=name, xlabel="batch size x length", ylabel="ms, one thread")
    panel.legend(fontsize=7)


def _tokens(result: Result) -> int:
    rows, width, *_ = map(int, result["size"].split("x"))
    return rows * width


def _ms(result: Result, contender: str) -> float:
    return 1e3 * statistics.median(result["contenders"][contender]["seconds"])
