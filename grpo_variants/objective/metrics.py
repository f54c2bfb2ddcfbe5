"""What `policy_loss` returns beside the loss: named numbers of a batch, additive, and its extrema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.surrogate import SurrogateOutput
from grpo_variants.tensors.masked import low_and_high, select
from grpo_variants.tensors.precision import Number, at_least_one


@dataclass(frozen=True)
class Loss:
    """What `policy_loss` returns: `loss` is 0-d and carries the gradient, the rest is detached.

    metrics: 0-d, additive: the sum over the micro-batches and ranks of a step is the step's value.
    extrema: 0-d smallest and largest values, to be combined by minimum and maximum; infinite for an empty mask.
    per_response: names of the metrics that are means over responses with a token; the others are means over tokens, but
    for `policy_loss`, which is the sum that the loss is.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]
    extrema: Mapping[str, Tensor]
    per_response: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LossTerms:
    """Unreduced terms of a loss, for its metrics."""

    term: SurrogateOutput
    ratio: Tensor
    keep: Tensor | None
    correction: Tensor | None
    truncated: Tensor | None
    kl: Tensor | None

    def shares(self, entropy: Tensor | None) -> dict[str, Tensor]:
        """What is averaged, by name: [B, T] or [B, 1], numbers or flags."""
        named = {
            "ratio/mean": self.ratio,
            "clip/low": self.term.clip_low,
            "clip/high": self.term.clip_high,
            "kl": self.kl,
            "entropy": entropy,
            "tokens/kept": self.keep,
            "correction/mean": self.correction,
            "correction/zero": None if self.correction is None else self.correction == 0,
            "correction/truncated": self.truncated,
        }
        return {name: value for name, value in named.items() if value is not None}


# Which shares have a smallest and a largest value as well, and under which name.
RANGES: Mapping[str, str] = {"ratio/mean": "ratio", "correction/mean": "correction", "kl": "kl"}


def metrics(x: Tokens, counts: Counts, parts: LossTerms) -> dict[str, Tensor]:
    """Each share of the step: 0-d."""
    return {
        name: _share(value.to(parts.ratio.dtype), x.mask, counts) for name, value in _shares(parts, x.entropy).items()
    }


def per_response(x: Tokens, parts: LossTerms) -> frozenset[str]:
    """Names of the metrics that are shares of the responses."""
    return frozenset(name for name, value in _shares(parts, x.entropy).items() if _of_rows(value, x.mask))


def _shares(parts: LossTerms, entropy: Tensor | None) -> dict[str, Tensor]:
    shares, term = parts.shares(entropy), parts.term
    if term.clip_low is not None and term.clip_high is not None:
        shares["clip/region"] = term.clip_low | term.clip_high
    return shares


def divisors(counts: Counts) -> dict[str, Number]:
    """What shares are divided by: the step's tokens for [B, T], its responses with a token for [B, 1]."""
    rows = counts.sequences if counts.nonempty is None else counts.nonempty
    return {"tokens": at_least_one(counts.tokens), "rows": at_least_one(rows)}


def _share(value: Tensor, mask: Tensor, counts: Counts) -> Tensor:
    if _of_rows(value, mask):
        return select(mask.any(1, keepdim=True), value).sum() / divisors(counts)["rows"]
    return select(mask, value).sum() / divisors(counts)["tokens"]


def _of_rows(value: Tensor, mask: Tensor) -> bool:
    return value.shape[1] == 1 != mask.shape[1]


def extrema(mask: Tensor, parts: LossTerms) -> dict[str, Tensor]:
    """Smallest and largest value of each range: 0-d."""
    found: dict[str, Tensor] = {}
    shares = parts.shares(None)
    for name in filter(shares.__contains__, RANGES):
        low, high = low_and_high(shares[name], mask)
        found |= {f"{RANGES[name]}/min": low, f"{RANGES[name]}/max": high}
    return found
