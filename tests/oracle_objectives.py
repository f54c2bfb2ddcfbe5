"""Surrogates of the oracle: what one token adds to the loss, in plain numbers, real or complex."""

import cmath
import math
from typing import Any, NamedTuple

from oracle_numbers import bounded, larger, mean, smaller, stop


class Loss(NamedTuple):
    """A token's loss and whether it was clipped from below, from above; None where nothing clips."""

    loss: Any
    low: bool | None = None
    high: bool | None = None


class Here(NamedTuple):
    """A token: its log ratio, advantage and log-probability; those of its response, and its place in the batch."""

    d: Any
    a: float
    lp: Any
    row: Any
    ratios: list
    n: int
    cell: tuple
    batch: Any

    @property
    def ratio(self):
        return cmath.exp(self.d)


def reinforce(values, x):
    return Loss(-stop(x.ratio) * x.a * x.lp)


def clip(values, x):
    low, high = 1 - values["surrogate.low"], 1 + values["surrogate.high"]
    gain = smaller(x.ratio * x.a, bounded(x.ratio, low, high) * x.a)
    if x.a < 0 and values["surrogate.dual"] is not None:
        gain = larger(gain, values["surrogate.dual"] * x.a)
    return Loss(-gain, x.a < 0 and x.ratio.real < low, x.a > 0 and x.ratio.real > high)


SURROGATES = {"reinforce": reinforce, "clip": clip}
CLIPPING = {"clip"}

# What a part takes from the whole batch: (values, x, counts) -> anything, read as `batch` of a token.
STATISTICS: dict[str, Any] = {}
