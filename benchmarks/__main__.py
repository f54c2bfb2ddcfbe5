"""Run the benchmarks of this environment and judge them by the bars.

    python -m benchmarks --quick                     one to two minutes: the sizes of the bars, few rounds
    python -m benchmarks --full --into results.json  every size; adds to what another environment has measured

TRL and verl do not work in one environment: each runs the cases that it has the trainer for and names the others. With
--into the results of both end up in one file, one table and one plot. Exit status 1 when a bar fails. Absolute times
say nothing about another machine: the ratios within one run do.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# One thread and no hub, before torch is imported.
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", VERL_LOGGING_LEVEL="ERROR")

import torch
from rich.console import Console

from benchmarks.bars import bars
from benchmarks.case import Case
from benchmarks.floors import floors
from benchmarks.machine import environment
from benchmarks.measure import counted, interleaved, peak_bytes
from benchmarks.report import judge, page, plot, put, table

# Modules with a tuple CASES. A further one is a line here and its bars in bars.toml.
MODULES = ("advantages", "losses", "lm_head", "training")
ROUNDS = {"quick": 7, "full": 15}


def cases() -> list[Case]:
    """Every case of every module."""
    return [case for name in MODULES for case in importlib.import_module(f"benchmarks.{name}").CASES]


def measured(case: Case, size: tuple[int, ...], rounds: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """A case at one size: agreement first, then times, peaks, kernels and synchronisations of each contender."""
    tell("do they agree")
    setup = case.build(*size)
    setup.check()
    runs = {**setup.runs, **floors(setup.unit)}
    seconds = interleaved(runs, rounds, tell)
    found: dict[str, dict[str, Any]] = {
        name: {"seconds": [float(f"{one:.4g}") for one in times]} for name, times in seconds.items()
    }
    for name, run in setup.runs.items():
        tell(f"memory of {name}")
        found[name]["peak"] = peak_bytes(run) / setup.unit
        if name not in setup.opaque:
            found[name]["kernels"], found[name]["syncs"] = counted(run)
    title = {"case": case.name, "size": "x".join(map(str, size)), "axes": list(case.axes), "unit": setup.unit_name}
    return title | {"contenders": found}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", dest="length", action="store_const", const="quick", default="quick")
    length.add_argument("--full", dest="length", action="store_const", const="full")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases whose name holds one of the words")
    parser.add_argument("--rounds", type=int, help="how often everybody has a turn")
    parser.add_argument("--into", type=Path, help="JSON file that the results are added to")
    parser.add_argument("--page", type=Path, help="Markdown file that bars and tables are put into, between its marks")
    parser.add_argument("--plot", type=Path, help="PNG file for times against batch size and length")
    return parser.parse_args()


def merged(path: Path | None, fresh: list[dict[str, Any]]) -> dict[str, Any]:
    """Earlier results with the fresh ones in place of those of the same case and size; written back."""
    before = json.loads(path.read_text()) if path and path.exists() else {"environment": {}, "results": []}
    new = {(one["case"], one["size"]) for one in fresh}
    results = [one for one in before["results"] if (one["case"], one["size"]) not in new] + fresh
    found = {"environment": {**before["environment"], **environment()}, "results": in_order(results)}
    if path:
        path.write_text(_lines(found))
    return found


def _lines(found: dict[str, Any]) -> str:
    """JSON with a line a result."""
    results = ",\n".join(map(json.dumps, found["results"]))
    return f'{{"environment": {json.dumps(found["environment"])},\n"results": [\n{results}\n]}}\n'


def in_order(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results in the order of the cases, whichever environment came first; without cases that are no more."""
    names = [case.name for case in cases()]
    known = [result for result in results if result["case"] in names]
    return sorted(known, key=lambda result: names.index(result["case"]))


def main() -> int:
    given, console = arguments(), Console(highlight=False, soft_wrap=True)
    torch.set_num_threads(1)
    fresh = []
    for case in cases():
        if given.only and not any(word in case.name for word in given.only):
            continue
        missing = [name for name in case.needs if not find_spec(name)]
        if missing:
            console.print(f"{case.name}: not run here, it needs {' and '.join(missing)}")
            continue
        for size in getattr(case, given.length):
            title = f"{case.name} at {'x'.join(map(str, size))}"
            console.print(title)
            with console.status(title) as status:
                rounds = given.rounds or ROUNDS[given.length]
                fresh.append(measured(case, size, rounds, lambda text, t=title, s=status: s.update(f"{t}: {text}")))
    found = merged(given.into, fresh)
    results = found["results"]
    console.print("\n" + table(results), markup=False)
    if given.page:
        put(given.page, page(results, found["environment"], bars()))
    if given.plot:
        plot(results, given.plot)
    lines, failed = judge(bars(), results, quick=given.length == "quick")
    console.print("\n".join(lines), markup=False)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
