"""Surrogates of the oracle: what one token adds to the loss, in plain numbers, real or complex."""

import cmath
import math
from fractions import Fraction
from typing import Any, NamedTuple

from support.oracle.numbers import bounded, larger, mean, smaller, stop, upper_quantile


class Loss(NamedTuple):
    """A token's loss and whether it was clipped from below, from above; None where nothing clips."""

    loss: Any
    low: bool | None = None
    high: bool | None = None


class Here(NamedTuple):
    """A token: its log ratio, advantage and log-probability; those of its response, its place in the batch, "
    "statistics."""

    d: Any
    a: float
    lp: Any
    row: Any
    ratios: list
    n: int
    cell: tuple
    batch: Any
    at: list

    @property
    def ratio(self):
        return cmath.exp(self.d)


def reinforce(values, x):
    return Loss(-stop(x.ratio) * x.a * x.lp)


def clipped(x, low, high, dual=None):
    """PPO's clip between two bounds of the ratio."""
    gain = smaller(x.ratio * x.a, bounded(x.ratio, low, high) * x.a)
    if x.a < 0 and dual is not None:
        gain = larger(gain, dual * x.a)
    return Loss(-gain, x.a < 0 and x.ratio.real < low, x.a > 0 and x.ratio.real > high)


def clip(values, x):
    return clipped(x, 1 - values["surrogate.low"], 1 + values["surrogate.high"], values["surrogate.dual"])


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
    if values["surrogate.mean"] == "harmonic":
        loss = -a * len(clipped) / sum(cmath.exp(-d) for d in clipped)
    else:
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
        moved, cap = distance(x), values["surrogate.cap"]
        any_sign = values["surrogate.drops"] == "both"
        low = moved < -values["surrogate.low"] and (any_sign or x.a < 0)
        high = moved > values["surrogate.high"] and (any_sign or x.a > 0)
        weight = x.ratio.real if cap is None else min(x.ratio.real, cap)
        paid = values["surrogate.penalty"] * x.d**2
        return Loss(paid if low or high else paid - weight * x.a * x.lp, low, high)

    return rule


def total_variation(x):
    return math.exp(stop(x.lp)) - math.exp(stop(x.lp) - stop(x.d))


def off_old_policy(x):
    return math.exp(stop(x.lp) - stop(x.row.old[x.n])) - 1


def binary_kl(x):
    p, q, d = math.exp(stop(x.lp)), min(math.exp(stop(x.lp) - stop(x.d)), 1.0), -stop(x.d)
    size = q * d + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
    return -size if d > 0 else size


def band(values, x):
    low, high = x.ratio.real <= 1 - values["surrogate.low"], x.ratio.real >= 1 + values["surrogate.high"]
    paid = values["surrogate.penalty"] * x.d**2
    return Loss(paid if low or high else paid - x.ratio.real * x.a * x.lp, low, high)


def quadratic(values, x):
    return Loss(-x.ratio * x.a + abs(x.a) / (2 * values["surrogate.range"]) * (x.ratio - 1) ** 2)


def dro(values, x):
    """A whole response's penalty is shared by its tokens."""
    times = len(x.ratios) if values["ratio"] == "sequence_product" else 1
    return Loss(-x.a * x.lp + values["surrogate.tau"] / 2 * x.d**2 / times)


def range_of(values, x):
    """Bounds of a token's ratio: the wide ones where its entropy is among the highest of its response."""
    share = values["surrogate.fraction"]
    top = "top_" if share is not None and x.row.entropy[x.n] > upper_quantile(x.row.entropy, share) else ""
    return 1 - values[f"surrogate.{top}low"], 1 + values[f"surrogate.{top}high"]


def entropy_clip(values, x):
    return clipped(x, *range_of(values, x), values["surrogate.dual"])


def aspo(values, x):
    (low, high), cap = range_of(values, x), values["surrogate.cap"]
    top = bounded(x.ratio, None, high)
    weight = bounded(x.ratio, low, None) if x.a < 0 else top / stop(top) ** 2
    loss = -cap * x.a * x.lp if cap is not None and stop(weight) > cap else -x.a * weight
    return Loss(loss, x.a < 0 and x.ratio.real < low, x.a > 0 and x.ratio.real > high)


def ce_gppo(values, x):
    low, high, one = 1 - values["surrogate.low"], 1 + values["surrogate.high"], x.ratio / stop(x.ratio)
    if x.a < 0 and x.ratio.real < low:
        return Loss(-values["surrogate.keep_low"] * low * one * x.a, True, False)
    if x.a > 0 and x.ratio.real > high:
        return Loss(-values["surrogate.keep_high"] * high * one * x.a, False, True)
    return Loss(-x.ratio * x.a, False, False)


def dcpo(values, x):
    q, cap = math.exp(stop(x.row.old[x.n])), values["surrogate.cap"]
    low = 0.5 + 0.5 * math.sqrt(max(1 - 4 * values["surrogate.low"] / q, 0))
    high = min(0.5 + 0.5 * math.sqrt(1 + 4 * values["surrogate.high"] / q), cap)
    return clipped(x, low, high, cap)


def fipo(values, x):
    """The weight counts positions of the response, holes too: x.at are those of its tokens."""
    dual, future = values["surrogate.dual"], 0.0
    for place, d in zip(x.at[x.n :], x.ratios[x.n :], strict=True):
        if stop(d) <= math.log(dual):
            future += 2 ** (-(place - x.at[x.n]) / values["surrogate.half_life"]) * stop(d)
    weight = min(max(math.exp(min(future, 700.0)), values["surrogate.weight_low"]), values["surrogate.weight_high"])
    if x.a < 0 and x.ratio.real > values["surrogate.safety"]:
        weight = min(max(weight, 0.8), 1.0)
    weighted = x._replace(a=x.a * weight)
    return clipped(weighted, 1 - values["surrogate.low"], 1 + values["surrogate.high"], dual)


class Cell(NamedTuple):
    """A token of the batch, in real numbers."""

    at: tuple
    d: float
    a: float
    lp: float
    draw: float


def covariances(cells, thresholds):
    a = thresholds.get("advantage_mean", sum(c.a for c in cells) / max(len(cells), 1))
    lp = thresholds.get("logp_mean", sum(c.lp for c in cells) / max(len(cells), 1))
    return {c.at: (c.a - a) * (c.lp - lp) for c in cells}


def drawn_by_covariance(values, cells, thresholds):
    """The tokens that clip_cov takes: those with the smallest numbers among its candidates."""
    low, high, by = 1 - values["surrogate.low"], 1 + values["surrogate.high"], covariances(cells, thresholds)

    def candidate(c):
        ratio = math.exp(c.d)
        free = not (c.a < 0 and ratio < low) and not (c.a > 0 and ratio > high)
        return free and values["surrogate.cov_low"] < by[c.at] < values["surrogate.cov_high"]

    ordered = sorted((c for c in cells if candidate(c)), key=lambda c: c.draw)
    if "draw" in thresholds:
        return {c.at for c in ordered if c.draw <= thresholds["draw"]}
    return {c.at for c in ordered[: max(int(values["surrogate.fraction"] * len(cells)), 1)]}


def clip_cov(values, x):
    term = clipped(x, 1 - values["surrogate.low"], 1 + values["surrogate.high"])
    return term._replace(loss=0.0) if x.cell in x.batch else term


def highest_covariance(values, cells, thresholds):
    """The tokens that kl_cov penalises."""
    by = covariances(cells, thresholds)
    if "covariance" in thresholds:
        return {at for at, cov in by.items() if cov >= thresholds["covariance"]}
    if not cells or len({c.a for c in cells}) == 1:
        return set()
    least = sorted(by.values(), reverse=True)[max(int(values["surrogate.fraction"] * len(cells)), 1) - 1]
    return {at for at, cov in by.items() if cov >= least}


def kl_cov(values, x):
    distance = x.d if stop(x.d) > 0 else -x.d if stop(x.d) < 0 else 0.0
    return Loss(-x.ratio * x.a + (values["surrogate.coef"] * distance if x.cell in x.batch else 0.0))


def balance(values, cells, thresholds):
    """BAPO's bounds: raise one of floor and ceiling, then the other, until gains are a share of the whole."""
    if "floor" in thresholds:
        return thresholds["floor"], thresholds["ceiling"]
    bounds = {name: values[f"surrogate.{name}"] for name in ("floor", "ceiling")}

    def balanced():
        gain = sum(min(math.exp(c.d), bounds["ceiling"]) * c.a for c in cells if c.a > 0)
        loss = sum(max(math.exp(c.d), bounds["floor"]) * -c.a for c in cells if c.a < 0)
        return gain >= values["surrogate.target"] * (gain + loss)

    for name in sorted(bounds, key=lambda name: name != values["surrogate.first"]):
        end = values[f"surrogate.{name}_end"]
        step = values["surrogate.step"] if name == "ceiling" else 0.05  # any step of the floor does
        while not balanced() and bounds[name] < end:
            # A step is exact: thirty of 0.02 are 0.6, which a sum of floating numbers is not.
            bounds[name] = min(float(Fraction(str(bounds[name])) + Fraction(str(step))), end)
    return bounds["floor"], bounds["ceiling"]


def bapo(values, x):
    return clipped(x, *x.batch, values["surrogate.dual"])


def second_moment(values, cells, thresholds):
    """M2PO's range of the log ratio: harmful tokens at it and beyond it have no gradient."""
    if "log_range" in thresholds:
        return thresholds["log_range"]
    sizes = sorted(abs(c.d) for c in cells if c.a * c.d > 0)
    if sum(s**2 for s in sizes) <= values["surrogate.budget"] * len(sizes):
        return math.inf
    if values["surrogate.rule"] == "mask":
        return next(s for n, s in enumerate(sizes, 1) if sum(t**2 for t in sizes[:n]) > values["surrogate.budget"] * n)
    budget = values["surrogate.budget"] * len(sizes)
    return max((s for s in sizes if sum(min(s, other) ** 2 for other in sizes) < budget), default=0.0)


def m2po(values, x):
    low, high = values["surrogate.low"], values["surrogate.high"]
    down = max(x.batch, math.inf if low >= 1 else -math.log(1 - low))
    up = max(x.batch, math.log(1 + high))
    d = stop(x.d)
    if x.a < 0 and d < 0 and -d >= down:
        return Loss(0.0 if values["surrogate.rule"] == "mask" else -math.exp(-down) * x.a, True, False)
    if x.a > 0 and d > 0 and d >= up:
        return Loss(0.0 if values["surrogate.rule"] == "mask" else -math.exp(up) * x.a, False, True)
    return Loss(-x.ratio * x.a, False, False)


SURROGATES = {
    "reinforce": reinforce,
    "clip": clip,
    "entropy_clip": entropy_clip,
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
    "vespo": vespo,
    "topr": topr,
    "dppo_tv": trust_region(total_variation),
    "dppo_kl": trust_region(binary_kl),
    "band": band,
    "ppo_mask": trust_region(off_old_policy),
    "quadratic": quadratic,
    "dro": dro,
    "aspo": aspo,
    "ce_gppo": ce_gppo,
    "dcpo": dcpo,
    "fipo": fipo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "bapo": bapo,
    "m2po": m2po,
}
CLIPPING = set(SURROGATES) - {"reinforce", "sapo", "vespo", "quadratic", "dro", "kl_cov"}

# What a part takes from the whole batch: (values, cells, thresholds) -> anything, read as `batch` of a token.
STATISTICS = {
    "clip_cov": drawn_by_covariance,
    "kl_cov": highest_covariance,
    "bapo": balance,
    "m2po": second_moment,
}
