"""What a case is: contenders on the same inputs, one of them a trainer, and the check that they agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setup:
    """A case at one size, ready to run.

    runs: by contender, a function without arguments that does the whole work once and returns its result.
    check: raises unless the contenders agree; it runs before anything is timed.
    unit, unit_name: bytes of what the peak is read in, and its name: one [B, T] tensor in float32, or another.
    opaque: contenders whose kernels the dispatcher does not see, so that they are not counted (compiled ones).
    """

    runs: Mapping[str, Callable[[], Any]]
    check: Callable[[], None]
    unit: int
    opaque: tuple[str, ...] = ()
    unit_name: str = "[B, T]"


@dataclass(frozen=True)
class Case:
    """A comparison at several sizes.

    needs: the packages without which it does not run (`verl`, `trl`); TRL and verl live in two environments.
    build: size -> Setup. quick, full: the sizes of the two runs, each a tuple of numbers. axes: what the numbers are.
    """

    name: str
    build: Callable[..., Setup]
    quick: tuple[tuple[int, ...], ...]
    full: tuple[tuple[int, ...], ...]
    needs: tuple[str, ...] = ()
    axes: tuple[str, ...] = ("batch size", "length")
