"""Measures of a function: interleaved medians, peak memory, kernels and waits for the device."""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

SHORTEST = 4e-3  # seconds that one timing lasts at least, by repetition
FEWEST, LONGEST = 5, 90.0  # after so many rounds a case ends that has taken so many seconds
FREED = 30 << 20  # bytes; see `settle`
SYNCS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal")


def settle() -> None:
    """Bring the C library's allocator to where any trainer's is after its first step.

    Until glibc has seen a large block freed it hands memory back at once, and gets it again page by page: a page costs
    as much as several thousand multiplications, and who pays for it hangs on the order of the contenders.
    """
    torch.empty(FREED, dtype=torch.uint8)


def interleaved(
    runs: Mapping[str, Callable[[], Any]], rounds: int, tell: Callable[[str], None] = lambda text: None
) -> dict[str, list[float]]:
    """Seconds of CPU time of each contender in each round; in a round everybody has a turn.

    CPU time of the process and not the clock: another job on the machine then costs caches, not seconds. A case that
    takes LONGEST seconds ends after FEWEST rounds. tell: gets a word before each round.
    """
    settle()
    tell("first runs")
    repeats = {name: _repeats(run) for name, run in runs.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    turns = random.Random(0)  # an order anew in each round, since it matters whom one comes after
    gc.collect()
    start = time.monotonic()
    for done in range(rounds):
        if done >= FEWEST and time.monotonic() - start > LONGEST:
            break
        tell(f"round {done + 1} of {rounds}")
        for name in turns.sample(list(runs), len(runs)):
            found[name].append(_seconds(runs[name], repeats[name]))
    return found


def _seconds(run: Callable[[], Any], repeats: int) -> float:
    if repeats > 1:
        run()  # a short one's numbers fit into the cache, where the one before it has left its own
    start = time.process_time()
    for _ in range(repeats):
        run()
    return (time.process_time() - start) / repeats


def _repeats(run: Callable[[], Any]) -> int:
    run()  # what happens once (compilation, caches) is not measured
    return max(1, round(SHORTEST / max(_seconds(run, 1), 1e-6)))


def ratio(above: list[float], below: list[float]) -> float:
    """Median over the rounds of one contender's time over another's."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def peak_bytes(run: Callable[[], Any]) -> int:
    """Most bytes that a run holds at once beyond what was there before it, results included."""
    run()
    gc.collect()
    with _without_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = [
        (node.start_time_ns, node.extra_fields.alloc_size)
        for node in _nodes(recorded.profiler.kineto_results.experimental_event_tree())
        if type(node.extra_fields).__name__ == "_ExtraFields_Allocation"
    ]
    held = peak = 0
    for _, size in sorted(events, key=lambda event: event[0]):
        held += size
        peak = max(peak, held)
    return peak


@contextmanager
def _without_stderr() -> Iterator[None]:
    """The profiler announces its start and its end there, past Python."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _nodes(tree: list[Any]) -> list[Any]:
    return [found for node in tree for found in (node, *_nodes(node.children))]


class _Counter(TorchDispatchMode):
    """Counts kernels and waits for the device; views cost nothing and are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.syncs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        self.syncs += name in SYNCS
        self.kernels += name not in SYNCS and not func.is_view and not name.startswith(("aten::empty", "aten::detach"))
        return func(*args, **(kwargs or {}))


def counted(run: Callable[[], Any]) -> tuple[int, int]:
    """Kernels and waits for the device of a run."""
    with _Counter() as counter:
        run()
    return counter.kernels, counter.syncs
