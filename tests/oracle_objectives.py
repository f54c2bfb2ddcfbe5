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


def cispo(values, x):
    weight, low = x.ratio.real, values["surrogate.low"]
    top = values["surrogate.cap"] if values["surrogate.high"] is None else 1 + values["surrogate.high"]
    bottom = 0.0 if low is None else 1 - low
    return Loss(-min(max(weight, bottom), top) * x.a * x.lp, weight < bottom, weight > top)


def sapo(values, x):
    tau = values["surrogate.tau_pos"] if x.a > 0 else values["surrogate.tau_neg"]
    z = tau * (x.ratio - 1)
    gate = 1 / (1 + cmath.exp(-z)) if z.real > -700 else 0.0
    return Loss(-4 / tau * gate * x.a)


def gmpo(values, x):
    """The response's loss, at each of its tokens."""
    a, low, high = mean(x.row.advantage), values["surrogate.low"], values["surrogate.high"]
    clipped = [min([d, high], key=stop) if a > 0 else max([d, -low], key=stop) if a < 0 else d for d in x.ratios]
    loss = -a * cmath.exp(sum(clipped) / len(clipped))
    return Loss(loss, a < 0 and stop(x.d) < -low, a > 0 and stop(x.d) > high)


def vespo(values, x):
    sign, log_weight = ("pos" if x.a >= 0 else "neg"), stop(x.d)
    k, decay = values[f"surrogate.k_{sign}"], values[f"surrogate.lambda_{sign}"]
    return Loss(-math.exp(decay + k * log_weight - decay * math.exp(log_weight)) * x.a * x.lp)


def topr(values, x):
    floor, cap, ratio = values["surrogate.floor"], values["surrogate.ceiling"], x.ratio.real
    if x.a >= 0:
        return Loss(-x.a * x.lp, False, False)
    return Loss(-min(max(ratio, floor), cap) * x.a * x.lp, ratio < floor, ratio > cap)


def trust_region(distance):
    """A score function whose tokens are dropped where a distance, signed as the move, passes a bound."""

    def rule(values, x):
        p, q = math.exp(stop(x.lp)), math.exp(stop(x.lp) - stop(x.d))
        moved, cap = distance(p, q, -stop(x.d)), values["surrogate.cap"]
        low, high = x.a < 0 and moved < -values["surrogate.low"], x.a > 0 and moved > values["surrogate.high"]
        weight = x.ratio.real if cap is None else min(x.ratio.real, cap)
        return Loss(0.0 if low or high else -weight * x.a * x.lp, low, high)

    return rule


def total_variation(p, q, d):
    return p - q


def binary_kl(p, q, d):
    q = min(q, 1.0)
    size = q * d + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
    return -size if d > 0 else size


def quadratic(values, x):
    return Loss(-x.ratio * x.a + abs(x.a) / (2 * values["surrogate.range"]) * (x.ratio - 1) ** 2)


def dro(values, x):
    """A whole response's penalty is shared by its tokens."""
    times = len(x.ratios) if values["ratio"] == "sequence_product" else 1
    return Loss(-x.a * x.lp + values["surrogate.tau"] / 2 * x.d**2 / times)


SURROGATES = {
    "reinforce": reinforce,
    "clip": clip,
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
    "vespo": vespo,
    "topr": topr,
    "dppo_tv": trust_region(total_variation),
    "dppo_kl": trust_region(binary_kl),
    "quadratic": quadratic,
    "dro": dro,
}
CLIPPING = {"clip", "cispo", "gmpo", "topr", "dppo_tv", "dppo_kl"}

# What a part takes from the whole batch: (values, x, counts) -> anything, read as `batch` of a token.
STATISTICS: dict[str, Any] = {}
