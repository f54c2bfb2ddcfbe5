"""Surrogates that look at the whole batch: at covariances, at its balance, at its second moment.

Each takes its statistic from `Counts.thresholds` where the host has computed it for the step (`thresholds` does), and
from the micro-batch otherwise. None waits for the device: order statistics are sorted and gathered on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from grpo_variants.checks import check_number
from grpo_variants.inputs import Counts, Number, Tokens
from grpo_variants.masked import low_and_high, select
from grpo_variants.ratio import Ratio, TokenRatio
from grpo_variants.surrogate.base import Surrogate, Term
from grpo_variants.surrogate.clipping import clip_between


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

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> Term:
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

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> Term:
        """Loss [B, T]."""
        values = self.values(log_ratio, x, counts)
        chosen = self.covariance(x, values) >= values["covariance"]
        loss = -log_ratio.exp() * x.advantages
        return Term(torch.where(chosen, loss + self.coef * log_ratio.abs(), loss))


@dataclass(frozen=True, kw_only=True)
class Bapo(_OfBatch):
    r"""Clip whose bounds are moved until positive advantages make up a share of the batch's objective.

    floor, ceiling: bounds of the ratio to start with. First the floor goes up to floor_end, then the ceiling to
    ceiling_end, by step, until \(\sum_{A>0} \min(\rho, \mathrm{ceiling}) A\) is at least target of itself plus
    \(\sum_{A<0} \max(\rho, \mathrm{floor}) |A|\). dual: as in `clip`.
    Reference: "BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs via Balanced Policy Optimization with
    Adaptive Clipping", arXiv 2510.18927.
    """

    floor: float = 0.6
    floor_end: float = 0.9
    ceiling: float = 1.2
    ceiling_end: float = 3.0
    step: float = 0.05
    target: float = 0.5
    dual: float | None = 3.0
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

    def thresholds(self, log_ratio: Tensor, x: Tokens) -> Mapping[str, Tensor]:
        """The first pair of bounds that balances the batch, or the last one."""
        ratio, a = log_ratio.exp(), select(x.mask, x.advantages)
        floors, ceilings = (
            _steps(self.floor, self.floor_end, self.step),
            _steps(self.ceiling, self.ceiling_end, self.step),
        )
        gains = torch.stack([(a.clamp(min=0) * ratio.clamp(max=c)).sum() for c in ceilings])
        losses = torch.stack([(-a.clamp(max=0) * ratio.clamp(min=f)).sum() for f in floors])
        # Along the search: every floor under the first ceiling, then every further ceiling over the last floor.
        gains = torch.cat([gains[:1].expand(len(floors)), gains[1:]])
        losses = torch.cat([losses, losses[-1:].expand(len(ceilings) - 1)])
        places = torch.arange(len(gains), device=ratio.device)
        balanced = gains >= self.target * (gains + losses)
        place = torch.where(balanced, places, len(gains) - 1).amin().reshape(1)
        path = (floors + floors[-1:] * (len(ceilings) - 1), ceilings[:1] * len(floors) + ceilings[1:])
        bounds = (torch.tensor(p, dtype=ratio.dtype, device=ratio.device).gather(0, place).squeeze(0) for p in path)
        return dict(zip(self.names, bounds, strict=True))

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> Term:
        """Loss and clip flags, of the shape that ratio and advantages broadcast to."""
        values = self.values(log_ratio, x, counts)
        return clip_between(log_ratio, x.advantages, values["floor"], values["ceiling"], self.dual)


def _steps(start: float, end: float, step: float) -> list[float]:
    """From start to end by steps, the last one as long as is left."""
    found = [start]
    while found[-1] < end:
        found.append(min(found[-1] + step, end))
    return found


@dataclass(frozen=True, kw_only=True)
class M2po(_OfBatch):
    r"""Clip as wide as the second moment of the batch's harmful log ratios allows.

    Harmful: \(A (\rho - 1) > 0\). Where their mean \(d^2\) exceeds budget, the ratio is clipped to \(e^{\mp\tau}\),
    with \(\tau^2\) the largest of their \(d^2\) for which \(\sum \min(d^2, \tau^2)\) is below the budget, but at
    least to 1 - low and 1 + high. Otherwise nothing is clipped.
    Reference: "Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?", arXiv 2510.01161.
    """

    budget: float = 0.04
    low: float = 0.3
    high: float = 0.5
    ratios: ClassVar[tuple[type[Ratio], ...]] = (TokenRatio,)
    names: ClassVar[tuple[str, ...]] = ("log_range",)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("surrogate.budget", self.budget, above=0)
        check_number("surrogate.low", self.low, at_least=0)
        check_number("surrogate.high", self.high, at_least=0)

    def thresholds(self, log_ratio: Tensor, x: Tokens) -> Mapping[str, Tensor]:
        """The range of the log ratio, tau; +inf where nothing has to be clipped."""
        harmful = x.mask & (x.advantages * log_ratio > 0)
        count, squares = harmful.sum(), log_ratio.square()
        ordered = _ordered(squares, harmful)
        places = torch.arange(ordered.numel(), device=ordered.device)
        inside = places < count
        finite = select(inside, ordered)
        # The sum of all, were the largest ones cut to each value in turn.
        cut = finite.cumsum(0) + (count - places - 1).clamp(min=0) * finite
        first = torch.where(inside & (cut >= self.budget * count), places, ordered.numel()).amin()
        square = finite.gather(0, (first - 1).clamp(min=0).reshape(1)).squeeze(0)
        square = torch.where(first == 0, torch.zeros_like(square), square)
        exceeds = finite.sum() > self.budget * count
        return {"log_range": torch.where(exceeds, square.sqrt(), float("inf"))}

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> Term:
        """Loss and clip flags [B, T]."""
        tau = torch.as_tensor(self.values(log_ratio, x, counts)["log_range"], dtype=log_ratio.dtype)
        floor, ceiling = (-tau).exp().clamp(max=1 - self.low), tau.exp().clamp(min=1 + self.high)
        return clip_between(log_ratio, x.advantages, floor, ceiling)
