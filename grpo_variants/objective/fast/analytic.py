"""A block's loss, metrics and gradient by the derivatives of its parts: one pass, nothing kept for a backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from grpo_variants.objective.autograd import weighted
from grpo_variants.objective.block import Block
from grpo_variants.objective.correction import combined, truncated
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.kl import KLTerm
from grpo_variants.objective.metrics import RANGES, Loss, LossTerms
from grpo_variants.objective.ratio import LogRatio
from grpo_variants.objective.rule import Objective
from grpo_variants.objective.surrogate import Slope
from grpo_variants.tensors.bit_mask import BitMask, keep, otherwise


class BlockResult(NamedTuple):
    """What a block's rows add: their parts of loss and metrics, and their extrema, each [b] (or [1] for all of them).

    units: for metrics that are sums still to be divided, what they count, `tokens` or `rows`.
    """

    loss: Loss
    units: Mapping[str, str]


class _Terms(NamedTuple):
    """The unreduced terms of a block, with their derivatives."""

    block: Block
    log_ratio: LogRatio
    slope: Slope
    kl: KLTerm | None
    parts: LossTerms


def covers(objective: Objective) -> bool:
    """Whether ratio and surrogate have their derivatives by hand; a subclass of a part is another part."""
    ratio, surrogate = type(objective.ratio), type(objective.surrogate)
    return "with_derivative" in vars(ratio) and "derivative" in vars(surrogate)


@torch.inference_mode()  # less to do for each kernel than without a gradient
def analytic(objective: Objective, x: Tokens, counts: Counts, gradient: Tensor | None) -> BlockResult:
    """`differentiated`, one kernel after the other."""
    return differentiated(objective, x, gradient)


def differentiated(objective: Objective, x: Tokens, gradient: Tensor | None) -> BlockResult:
    """A block of rows with `Tokens.row_weights`; its gradient [b, T] is written to `gradient` where that is given."""
    terms = _terms(objective, Block(x))
    block, kl = terms.block, terms.kl
    policy = (block.per_row(_policy(terms, terms.slope.term.loss)) * block.rows).squeeze(1)
    loss = policy if kl is None else policy + beta_of(objective) * (block.per_row(kl.value) * block.rows).squeeze(1)
    sums, extrema, units = _measures(terms)
    if gradient is not None:
        torch.mul(_gradient(terms, beta_of(objective)), block.rows, out=gradient)
    return BlockResult(Loss(loss, {"policy_loss": policy, **sums}, extrema), units)


def _measures(terms: _Terms) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """Sums and extrema of the shares over each row [b], and what each sum counts."""
    block = terms.block
    shares = {name: value.to(block.dtype) for name, value in terms.parts.shares(block.entropy).items()}
    kept = {name: block.kept(value) for name, value in shares.items()}
    sums = {name: value.sum(1) for name, value in kept.items()}
    extrema: dict[str, Tensor] = {}
    for name in filter(kept.__contains__, RANGES):
        extrema |= _extrema(RANGES[name], block.counts(kept[name]), kept[name])
    return sums, extrema, {name: block.unit(value) for name, value in shares.items()}


def beta_of(objective: Objective) -> float:
    """Coefficient of the KL term."""
    return 0.0 if objective.kl is None else objective.kl.beta


def _terms(objective: Objective, block: Block) -> _Terms:
    kl = None
    log_ratio = objective.ratio.with_derivative(block)
    ratio = log_ratio.value.exp()
    slope = objective.surrogate.derivative(log_ratio.value, ratio, block)
    if objective.kl is not None and objective.kl_in_loss:
        kl = objective.kl.with_derivative(ratio, block, f"{objective.name}'s kl={objective.kl.estimator}")
    weight = cut = None
    if objective.correction or block.given.correction is not None:
        weight, cut = combined(objective.correction, block.x), truncated(objective.correction, block.x)
    parts = LossTerms(slope.term, ratio, block.keep, weight, cut, None if kl is None else kl.value)
    return _Terms(block, log_ratio, slope, kl, parts)


def _policy(terms: _Terms, value: Tensor) -> Tensor:
    """A value of the policy term, its loss or a derivative, corrected and where it is kept."""
    return weighted(value, terms.parts.keep, terms.parts.correction)


def _gradient(terms: _Terms, beta: float) -> Tensor:
    """Derivative of each token's loss by its logp [b, T], 0 in padding; without the rows' weights."""
    block, slope, kl = terms.block, terms.slope, terms.kl
    by_ratio = None if slope.of_ratio is None else _policy(terms, slope.of_ratio)
    if by_ratio is not None and slope.spread is not None:
        by_ratio = slope.spread(block.per_row(by_ratio))
    by_logp = None if slope.of_logp is None else _policy(terms, slope.of_logp)
    if kl is not None:
        by_logp = _sum(by_logp, beta * kl.of_logp)
        by_ratio = by_ratio if kl.of_ratio is None else _sum(by_ratio, beta * kl.of_ratio)
    if by_ratio is not None:
        per_row = terms.log_ratio.value.shape[1] == 1
        by_logp = _sum(by_logp, terms.log_ratio.back(block.per_row(by_ratio) if per_row else by_ratio))
    return keep(block.here, by_logp)  # type: ignore[arg-type]


def _sum(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one + other


def _extrema(name: str, counted: BitMask, kept: Tensor) -> dict[str, Tensor]:
    """Smallest and largest value of each row [b], from where it counts, and it cleared elsewhere."""
    smallest = otherwise(counted, kept, float("inf")).amin(1)
    # A ratio is at least 0: the zeros that stand for padding are no larger. Without a token that is mended later.
    largest = (kept if name == "ratio" else otherwise(counted, kept, -float("inf"))).amax(1)
    return {f"{name}/min": smallest, f"{name}/max": largest}
