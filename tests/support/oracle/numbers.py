"""Numbers of the oracle, real or complex: stop-gradient, bounds, means."""

import math
import statistics
from fractions import Fraction


def stop(z):
    return complex(z).real


def bounded(z, low, high):
    if low is not None and stop(z) < low:
        return low
    if high is not None and stop(z) > high:
        return high
    return z


def smaller(a, b):
    return a if stop(a) <= stop(b) else b


def larger(a, b):
    return a if stop(a) >= stop(b) else b


def minus(bound):
    return None if bound is None else -bound


def mean(numbers):
    return float(statistics.mean(numbers)) if numbers else 0.0


def variance(numbers, ddof):
    if len(numbers) <= ddof:
        return 0.0
    return float(statistics.variance(numbers) if ddof else statistics.pvariance(numbers))


def upper_quantile(numbers, share):
    """The linear quantile above which a share of the numbers lies, as a fraction without rounding."""
    ordered, position = sorted(map(Fraction, numbers)), (len(numbers) - 1) * (1 - Fraction(str(share)))
    low = math.floor(position)
    above = ordered[min(low + 1, len(ordered) - 1)]
    return ordered[low] + (above - ordered[low]) * (position - low)
