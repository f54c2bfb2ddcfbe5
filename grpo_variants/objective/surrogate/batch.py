"""Surrogates that look at the whole batch: at covariances, at its balance, at its second moment.

Each takes its statistic from `Counts.thresholds` where the trainer has computed it for the step (by `thresholds`), and
from the micro-batch otherwise. None waits for the device: order statistics are sorted and gathered on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.ratio import Ratio, TokenRatio
from grpo_variants.objective.surrogate.base import Surrogate, SurrogateOutput
from grpo_variants.objective.surrogate.clipping import clip_between
from grpo_variants.part import added
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.masked import low_and_high, select
from grpo_variants.tensors.precision import Number, wide


class _OfBatch(Surrogate):
    """A surrogate with statistics of the batch, by name."""

    whole_batch: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]]

    def values(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> Mapping[str, Number]:
        """The step's statistics, or this micro-batch's."""
        given = counts.thresholds or {}
        return given if set(self.names) <= set(given) else self.thresholds(log_ratio.detach(), x)


def _ordered(value: Tensor, among: Tensor) -> Tensor:
    """The values where `among` holds, rising, then +inf; one of these at least, for a batch without tokens."""
    beyond = value.new_full((1,), float("inf"))
    return torch.cat([select(among, value, float("inf")).flatten(), beyond]).sort().values


def smallest(value: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The count-th smallest value where `among` holds, 0-d; +inf where it holds less often."""
    ordered = _ordered(value, among)
    place = (count.long() - 1).clamp(0, ordered.numel() - 1)
    return ordered.gather(0, place.reshape(1)).squeeze(0)


@dataclass(frozen=True, kw_only=True)
class _Covariance(_OfBatch):
    """Selects tokens by the covariance of advantage and log-probability, (A - mean A)(logp - mean logp)."""

    ratios: ClassVar[tuple[type[Ratio], ...]] = (TokenRatio,)

    def means(self, x: Tokens) -> dict[str, Tensor]:
        """Means over the batch's tokens."""
        count = x.mask.sum().clamp(min=1)
        return {
            "advantage_mean": select(x.mask, x.advantages).sum() / count,
            "logp_mean": select(x.mask, x.logp.detach()).sum() / count,
        }

    @staticmethod
    def covariance(x: Tokens, values: Mapping[str, Number]) -> Tensor:
        """A token's share of the covariance: [B, T]."""
        return (x.advantages - values["advantage_mean"]) * (x.logp.detach() - values["logp_mean"])


def _share_of(x: Tokens, fraction: float) -> Tensor:
    """Number of tokens that a fraction of the batch is, at least one: 0-d."""
    return (x.mask.sum().double() * fraction).floor().clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class ClipCov(_Covariance):
    r"""Clip that also takes the gradient from a few tokens, drawn at random among those of high covariance.

    fraction: share of the batch's tokens that is drawn. cov_low, cov_high: the covariance of a candidate lies between
    them, and it is not clipped anyway. low, high: clip range. Draws with the generator of `policy_loss`, or by
    `Tokens.draws`: the candidates with the smallest numbers are taken.
    Reference: "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617.
    """

    low: float = 0.2
    high: float = 0.2
    fraction: float = 2e-4
    cov_low: float = 1.0
    cov_high: float = 5.0
    draws: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = ("advantage_mean", "logp_mean", "draw")

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.low", self.low, at_least=0)
        check_number("surrogate.high", self.high, at_least=0)
        check_number("surrogate.fraction", self.fraction, above=0)
        check_number("surrogate.cov_low", self.cov_low)
        check_number("surrogate.cov_high", self.cov_high, above=self.cov_low)

    def candidates(self, log_ratio: Tensor, x: Tokens, values: Mapping[str, Number]) -> Tensor:
        """Tokens that may be drawn: [B, T] bool."""
        term = clip_between(log_ratio, x.advantages, 1 - self.low, 1 + self.high)
        covariance = self.covariance(x, values)
        # A ratio that is no number must stay in the loss, where it is seen.
        inside = (covariance > self.cov_low) & (covariance < self.cov_high) & ~log_ratio.isnan()
        return x.mask & inside & ~term.clip_low & ~term.clip_high  # type: ignore[operator]

    def thresholds(self, log_ratio: Tensor, x: Tokens) -> Mapping[str, Tensor]:
        """Means, and the largest number that is drawn."""
        values = self.means(x)
        candidates = self.candidates(log_ratio, x, values)
        return {**values, "draw": smallest(x.need("draws", "clip_cov"), candidates, _share_of(x, self.fraction))}

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss and clip flags [B, T]; a drawn token's loss is 0."""
        values = self.values(log_ratio, x, counts)
        drawn = self.candidates(log_ratio.detach(), x, values) & (x.need("draws", "clip_cov") <= values["draw"])
        term = clip_between(log_ratio, x.advantages, 1 - self.low, 1 + self.high)
        return term._replace(loss=torch.where(drawn, torch.zeros_like(term.loss), term.loss))


@dataclass(frozen=True, kw_only=True)
class KlCov(_Covariance):
    r"""Importance-weighted objective, with \(\mathrm{coef}\, |d|\) added on the tokens of highest covariance.

    Loss \(-\rho A\), without a clip. fraction: share of the batch's tokens that is penalised; tokens that tie with the
    last one are too, and none is where all advantages are equal. coef: weight of the penalty.
    Reference: "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617.
    """

    fraction: float = 2e-4
    coef: float = 1.0
    names: ClassVar[tuple[str, ...]] = ("advantage_mean", "logp_mean", "covariance")

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.fraction", self.fraction, above=0)
        check_number("surrogate.coef", self.coef, at_least=0)

    def thresholds(self, log_ratio: Tensor, x: Tokens) -> Mapping[str, Tensor]:
        """Means, and a number between the smallest covariance that is penalised and the next one.

        Between: a second forward pass may round a token's log-probability otherwise, which must not unpick it.
        """
        values, count = self.means(x), _share_of(x, self.fraction)
        negative = -self.covariance(x, values)
        last, following = (smallest(negative, x.mask, place) for place in (count, count + 1))
        least = -torch.where(following.isinf(), last, (last + following) / 2)
        low, high = low_and_high(x.advantages, x.mask)
        return {**values, "covariance": torch.where(low < high, least, float("inf"))}

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss [B, T]."""
        values = self.values(log_ratio, x, counts)
        chosen = self.covariance(x, values) >= values["covariance"]
        loss = -log_ratio.exp() * x.advantages
        return SurrogateOutput(torch.where(chosen, loss + self.coef * log_ratio.abs(), loss))


@dataclass(frozen=True, kw_only=True)
class Bapo(_OfBatch):
    r"""Clip whose bounds are moved until positive advantages make up a share of the batch's objective.

    floor, ceiling: bounds of the ratio to start with. One of them goes up to its end, then the other: first=ceiling as
    in the paper's algorithm, first=floor as in its authors' code. They stop where
    \(\sum_{A>0} \min(\rho, \mathrm{ceiling}) A\) is at least target times itself plus
    \(\sum_{A<0} \max(\rho, \mathrm{floor}) |A|\). The code's target is the ratio t of the two sums, which is the share
    t / (1 + t). step: of the ceiling; the last one is as long as is left. A higher floor only adds to the negative
    side, so that a floor that moves goes to its end, whatever its step. dual: as in `clip`.
    Reference: "BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs via Balanced Policy Optimization with
    Adaptive Clipping", arXiv 2510.18927.
    """

    floor: float = 0.6
    floor_end: float = 0.9
    ceiling: float = 1.2
    ceiling_end: float = 3.0
    step: float = 0.05
    target: float = 0.4
    dual: float | None = None
    first: Literal["ceiling", "floor"] = added("ceiling", before="floor")
    names: ClassVar[tuple[str, ...]] = ("floor", "ceiling")

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.floor", self.floor, at_least=0)
        check_number("surrogate.floor_end", self.floor_end, at_least=self.floor)
        check_number("surrogate.ceiling", self.ceiling, above=self.floor_end)
        check_number("surrogate.ceiling_end", self.ceiling_end, at_least=self.ceiling)
        check_number("surrogate.step", self.step, above=0)
        check_number("surrogate.target", self.target, at_least=0)
        check_number("surrogate.dual", self.dual, above=1, optional=True)
        check_choice("surrogate.first", self.first, ("ceiling", "floor"))

    def thresholds(self, log_ratio: Tensor, x: Tokens) -> Mapping[str, Tensor]:
        """The first pair of bounds that balances the batch, or the last one."""
        ratio, a = wide(log_ratio).exp(), wide(select(x.mask, x.advantages))
        floors, ceilings = (log_ratio.new_tensor(bounds) for bounds in zip(*self.path(), strict=True))
        gains = torch.stack([(a.clamp(min=0) * ratio.clamp(max=c)).sum() for c in ceilings])
        losses = torch.stack([(-a.clamp(max=0) * ratio.clamp(min=f)).sum() for f in floors])
        balanced = gains >= self.target * (gains + losses)
        return {"floor": _at_first(balanced, floors), "ceiling": _at_first(balanced, ceilings)}

    def path(self) -> list[tuple[float, float]]:
        """Pairs of floor and ceiling in the order in which they are tried."""
        ceilings = _steps(self.ceiling, self.ceiling_end, self.step)
        if self.first == "floor":
            return [(self.floor, self.ceiling), *((self.floor_end, ceiling) for ceiling in ceilings)]
        return [*((self.floor, ceiling) for ceiling in ceilings), (self.floor_end, self.ceiling_end)]

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss and clip flags, of the shape that ratio and advantages broadcast to."""
        values = self.values(log_ratio, x, counts)
        return clip_between(log_ratio, x.advantages, values["floor"], values["ceiling"], self.dual)


def _steps(start: float, end: float, step: float) -> list[float]:
    """From start to end by steps, the last one as long as is left; without the rounding that a sum of them adds up."""
    count = math.ceil((end - start) / step - 1e-9)
    return [round(start + i * step, 9) for i in range(count)] + [end]


@dataclass(frozen=True, kw_only=True)
class M2po(_OfBatch):
    r"""Holds the second moment of the batch's harmful log ratios within a budget.

    Harmful: \(A d > 0\). Where their mean \(d^2\) exceeds budget, those with \(|d| \ge \tau\) have no gradient.
    rule=clip, as in the authors' code: their ratio counts as \(e^{\pm\tau}\), with \(\tau^2\) the largest of their
    \(d^2\) for which \(\sum \min(d^2, \tau^2)\) is below the budget, or 0. rule=mask, the paper's algorithm: they add
    nothing, with \(\tau^2\) the smallest of their \(d^2\) that does not fit into a mean within the budget; equal ones
    are taken out together.
    low, high: a ratio between 1 - low and 1 + high is left alone whatever the budget.
    Reference: "Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?", arXiv 2510.01161.
    """

    budget: float = 0.04
    low: float = 0.0
    high: float = 0.0
    rule: Literal["clip", "mask"] = added("clip")
    ratios: ClassVar[tuple[type[Ratio], ...]] = (TokenRatio,)
    names: ClassVar[tuple[str, ...]] = ("log_range",)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.budget", self.budget, above=0)
        check_number("surrogate.low", self.low, at_least=0)
        check_number("surrogate.high", self.high, at_least=0)
        check_choice("surrogate.rule", self.rule, ("clip", "mask"))

    def thresholds(self, log_ratio: Tensor, x: Tokens) -> Mapping[str, Tensor]:
        """The log ratio from which a harmful token has no gradient, tau; +inf where each of them has one."""
        harmful = x.mask & (x.advantages * log_ratio > 0)
        ordered = _ordered(log_ratio.abs(), harmful)
        places = torch.arange(ordered.numel(), device=ordered.device)
        squares = wide(select(places < harmful.sum(), ordered)).square()
        count, total = harmful.sum().to(squares.dtype), squares.cumsum(0)
        # In both rules a place is the first one at which the budget does not hold, and +inf stands behind the last one.
        if self.rule == "mask":
            beyond = total > self.budget * (places + 1)
            return {"log_range": _at_first(beyond & (places < count), ordered)}
        # The sum of all, were the largest ones cut to each value in turn; the value before it is the range.
        cut = total + (count - places - 1).clamp(min=0) * squares
        beyond = (cut >= self.budget * count) & (squares.sum() > self.budget * count)
        return {"log_range": _at_first(beyond & (places < count), torch.cat([torch.zeros_like(ordered[:1]), ordered]))}

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> SurrogateOutput:
        """Loss and clip flags [B, T]."""
        given = self.values(log_ratio, x, counts)["log_range"]
        tau = torch.as_tensor(given, dtype=log_ratio.dtype, device=log_ratio.device)
        down = math.inf if self.low >= 1 else -math.log1p(-self.low)
        bound = torch.where(log_ratio < 0, -tau.clamp(min=down), tau.clamp(min=math.log1p(self.high)))
        cut = (x.advantages * log_ratio > 0) & (log_ratio.abs() >= bound.abs())
        # The token that has the range is cut itself, which a clamp of its ratio would leave to rounding.
        loss = -x.advantages * torch.where(cut, bound, log_ratio).exp()
        if self.rule == "mask":
            loss = torch.where(cut, torch.zeros_like(loss), loss)
        return SurrogateOutput(loss, cut & (x.advantages < 0), cut & (x.advantages > 0))


def _at_first(there: Tensor, values: Tensor) -> Tensor:
    """The value at the first place that is marked, or the last value: 0-d."""
    places = torch.arange(there.numel(), device=there.device)
    place = torch.where(there, places, values.numel() - 1).amin()
    return values.gather(0, place.reshape(1)).squeeze(0)
