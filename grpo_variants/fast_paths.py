"""The switch of the fast paths, and what they say when they step aside."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from grpo_variants.tensors.checks import check_choice

VARIABLE = "GRPO_VARIANTS_FAST"
OFF, ON, COMPILED = "0", "1", "compile"

_override: ContextVar[str | None] = ContextVar("mode", default=None)
_log = logging.getLogger("grpo_variants.fast")


def current() -> str:
    """`0` off, `1` on (the default), `compile` on and compiled; from the environment, or from `mode`.

    Raises ValueError for another value of the variable.
    """
    value = _override.get() or os.environ.get(VARIABLE, ON)
    check_choice(VARIABLE, value, (OFF, ON, COMPILED))
    return value


@contextmanager
def mode(value: str) -> Iterator[None]:
    """Another mode than the environment's, for a while."""
    check_choice("mode", value, (OFF, ON, COMPILED))
    token = _override.set(value)
    try:
        yield
    finally:
        _override.reset(token)


@cache
def say_once(level: int, text: str) -> None:
    """Log a line the first time that it is said."""
    _log.log(level, text)
