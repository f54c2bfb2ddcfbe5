"""Derivatives by hand: of the clip family's surrogates, of the ratios, of the KL estimators. Tables by class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_variants.objective import ratio as ratios
from grpo_variants.objective.fast.bit_mask import chosen, greater, keep, less, otherwise, pick, same, unchanged
from grpo_variants.objective.fast.block import Block
from grpo_variants.objective.kl import KL
from grpo_variants.objective.surrogate import (
    Cispo,
    Clip,
    EntropyClip,
    Gmpo,
    Reinforce,
    Sapo,
    Surrogate,
    SurrogateOutput,
)


class Slope(NamedTuple):
    """A surrogate's loss with its derivatives, of the loss's shape.

    of_ratio: by the log ratio. of_logp: by logp itself, where the ratio is detached. spread: where a loss of the whole
    response reads token ratios, the share [b, T] of each in the derivative.
    """

    term: SurrogateOutput
    of_ratio: Tensor | None = None
    of_logp: Tensor | None = None
    spread: Callable[[Tensor], Tensor] | None = None


def _clip(s: Clip, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
    a = block.advantages
    positive = greater(a, 0)
    floor = less(a, 0).mul_(1 - s.low)  # a ratio is at least 0, so that 0 is no floor
    ceiling = positive.reciprocal().mul_(1 + s.high)  # infinite where A <= 0
    if s.dual is not None:
        ceiling = _with_dual(positive, ceiling, 1 + s.high, s.dual)
    clipped = torch.maximum(ratio, floor)
    torch.minimum(clipped, ceiling, out=clipped)
    low, high, free = greater(clipped, ratio), less(clipped, ratio), same(clipped, ratio)
    loss = clipped.mul_(-a)
    return Slope(SurrogateOutput(loss, low, high if s.dual is None else high.mul_(positive)), of_ratio=free.mul_(loss))


def _entropy_clip(s: EntropyClip, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
    a, mask = block.advantages, block.given.mask.bool()
    low, high = s.bounds(block.need_entropy("surrogate=entropy_clip"), mask)
    positive = chosen(greater(a, 0), a.dtype)
    floor = keep(chosen(less(a, 0), a.dtype), low)  # a ratio is at least 0, so that 0 is no floor
    dual = float("inf") if s.dual is None else s.dual
    ceiling = otherwise(positive, keep(positive, high), dual)
    clipped = torch.minimum(torch.maximum(ratio, floor), ceiling)
    low_cut, high_cut, free = greater(clipped, ratio), less(clipped, ratio), same(clipped, ratio)
    loss = clipped.mul_(-a)
    return Slope(SurrogateOutput(loss, low_cut, keep(positive, high_cut)), of_ratio=free.mul_(loss))


def _with_dual(positive: Tensor, ceiling: Tensor, high: float, dual: float) -> Tensor:
    """The ceiling with `dual` in place of infinity."""
    if dual >= high:
        return ceiling.clamp_(max=dual)
    return pick(chosen(positive, positive.dtype), high, dual, positive.dtype)


def _cispo(s: Cispo, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
    floor = 0.0 if s.low is None else 1 - s.low
    score = -ratio.clamp(floor, s.ceiling) * block.advantages
    return Slope(SurrogateOutput(score * block.logp, less(ratio, floor), greater(ratio, s.ceiling)), of_logp=score)


def _reinforce(s: Reinforce, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
    score = -ratio * block.advantages
    return Slope(SurrogateOutput(score * block.logp), of_logp=score)


def _sapo(s: Sapo, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
    a = block.advantages
    tau = pick(chosen(greater(a, 0), a.dtype), s.tau_pos, s.tau_neg, a.dtype)
    gate = torch.sigmoid(tau * torch.expm1(log_ratio))
    return Slope(SurrogateOutput(-gate * (4 / tau) * a), of_ratio=-4 * a * ratio * gate * (1 - gate))


def _gmpo(s: Gmpo, log_ratio: Tensor, ratio: Tensor, block: Block) -> Slope:
    a, lengths = block.advantages, block.lengths.clamp(min=1)
    a = a if a.shape[1] == 1 else block.per_row(a) / lengths
    ceiling = pick(chosen(greater(a, 0), a.dtype), s.high, float("inf"), a.dtype)
    floor = pick(chosen(less(a, 0), a.dtype), -s.low, -float("inf"), a.dtype)
    clipped = torch.minimum(torch.maximum(log_ratio, floor), ceiling)
    inside = unchanged(clipped, log_ratio)
    low, high = less(log_ratio, floor), greater(log_ratio, ceiling)
    if s.mean == "harmonic":
        # The smallest ratio is taken out, so that no power overflows; it may be the padding's 1.
        least = clipped.amin(1, keepdim=True)
        inverse = (least - clipped).exp()
        total = otherwise(block.some, block.per_row(inverse), 1.0)
        loss = -a * lengths / total * least.exp()
        return Slope(
            SurrogateOutput(loss, low, high), of_ratio=loss, spread=lambda rows: keep(inside, rows * (inverse / total))
        )
    loss = -a * (block.per_row(clipped) / lengths).exp()
    return Slope(SurrogateOutput(loss, low, high), of_ratio=loss, spread=lambda rows: keep(inside, rows / lengths))


SURROGATES: Mapping[type[Surrogate], Callable[..., Slope]] = {
    Clip: _clip,
    EntropyClip: _entropy_clip,
    Cispo: _cispo,
    Gmpo: _gmpo,
    Reinforce: _reinforce,
    Sapo: _sapo,
}


class LogRatio(NamedTuple):
    """A log ratio, and what takes a derivative by it (of a row's sum, for one value per response) to one by logp."""

    value: Tensor
    back: Callable[[Tensor], Tensor]


def _bounded(rule: Any, raw: Tensor) -> LogRatio:
    value = rule.clamp(raw)
    if value is raw:
        return LogRatio(value, lambda slope: slope)
    inside = unchanged(raw, value)
    return LogRatio(value, lambda slope: keep(inside, slope))


def _none(rule: ratios.NoRatio, block: Block) -> LogRatio:
    return LogRatio(block.logp - block.logp, lambda slope: slope)


def _difference(rule: Any, block: Block) -> Tensor:
    name = "old_logp" if rule.anchor == "old" else "rollout_logp"
    return block.difference(name, f"ratio.anchor={rule.anchor}")


def _token(rule: ratios.TokenRatio, block: Block) -> LogRatio:
    return _bounded(rule, _difference(rule, block))


def _sequence_token(rule: ratios.SequenceTokenRatio, block: Block) -> LogRatio:
    mean = block.per_row(_difference(rule, block)) / block.lengths.clamp(min=1)
    return _bounded(rule, mean + (block.logp - block.logp))


def _sequence(rule: ratios.SequenceRatio, block: Block) -> LogRatio:
    lengths = block.lengths.clamp(min=1)
    mean = _bounded(rule, block.per_row(_difference(rule, block)) / lengths)
    return LogRatio(mean.value, lambda rows: mean.back(rows) / lengths)


def _product(rule: ratios.SequenceProduct, block: Block) -> LogRatio:
    return _bounded(rule, block.per_row(_difference(rule, block)))


RATIOS: Mapping[type, Callable[..., LogRatio]] = {
    ratios.NoRatio: _none,
    ratios.TokenRatio: _token,
    ratios.SequenceTokenRatio: _sequence_token,
    ratios.SequenceRatio: _sequence,
    ratios.SequenceProduct: _product,
}


class Penalty(NamedTuple):
    """A KL estimate [b, T] with its derivatives by logp and, where it is weighted by the ratio, by the log ratio."""

    value: Tensor
    of_logp: Tensor
    of_ratio: Tensor | None = None


def _k1(u: Tensor) -> tuple[Tensor, Tensor]:
    return -u, torch.full_like(u, -1.0)


def _k2(u: Tensor) -> tuple[Tensor, Tensor]:
    return 0.5 * u.square(), u


def _k3(u: Tensor) -> tuple[Tensor, Tensor]:
    slope = torch.expm1(u)
    return slope - u, slope


def _abs(u: Tensor) -> tuple[Tensor, Tensor]:
    return u.abs(), u.sign()


ESTIMATORS: Mapping[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {"k1": _k1, "k2": _k2, "k3": _k3, "abs": _abs}


def penalty(rule: KL, ratio: Tensor, block: Block, wanted_by: str) -> Penalty:
    """A KL term and its derivatives, without the coefficient."""
    raw = -block.difference("ref_logp", wanted_by)
    u = raw if rule.bound is None else raw.clamp(-rule.bound, rule.bound)
    full, slope = ESTIMATORS[rule.estimator](u)
    value = full if rule.value_bound is None else full.clamp(-rule.value_bound, rule.value_bound)
    if rule.gradient == "k2":
        slope = u
    elif value is not full:
        slope = keep(unchanged(full, value), slope)
    slope = -slope if u is raw else -keep(unchanged(raw, u), slope)
    if rule.exempt is not None:
        weight = rule.weights(block.need_entropy("kl.exempt"), block.given.mask.bool())
        paying = chosen(weight != 0, block.dtype)
        value, slope = keep(paying, value) * weight, keep(paying, slope) * weight
    if rule.weighted == "none":
        return Penalty(value, slope)
    return Penalty(value * ratio, slope * ratio, value * ratio)
