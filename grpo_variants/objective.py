"""The objective: `policy_loss`, the only place that reduces."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_variants.correction import combined, truncated
from grpo_variants.groups import Groups
from grpo_variants.inputs import Counts, Tokens, at_least_one, read_tokens
from grpo_variants.masked import low_and_high, select
from grpo_variants.options import resolve
from grpo_variants.surrogate import Term
from grpo_variants.variant import Variant


@dataclass(frozen=True)
class Loss:
    """What `policy_loss` returns: `loss` is 0-d and carries the gradient, the rest is detached.

    metrics: 0-d, additive: the sum over the micro-batches and ranks of a step is the step's value.
    extrema: 0-d smallest and largest values, to be combined by minimum and maximum; infinite for an empty mask.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]
    extrema: Mapping[str, Tensor]


def policy_loss(
    variant: Variant | str,
    x: Tokens,
    counts: Counts | None = None,
    generator: torch.Generator | None = None,
) -> Loss:
    r"""Loss of a (micro-)batch under a variant's objective.

    \(L = g \sum_i w_i \sum_t m_{it} \left[k_{it} c_{it}\, \mathrm{surrogate}(d_{it}, A_{it}) + \beta\, kl_{it}\right]\)
    with weights w of the aggregation, loss mask m, kept tokens k, correction c, log ratio d and
    g = `counts.grad_average`.

    x: `Tokens` of B responses. counts: `Counts` of the whole optimizer step; without them x is the whole step.
    generator: for parts that draw at random, unless `Tokens.draws` holds the numbers; refused where nothing does.
    With the step's counts, the losses of any split into micro-batches add up to the loss of the whole.

    Raises ValueError for a wrong shape, a missing input or an option without effect. Nothing synchronises with the
    host. Not done: no entropy bonus, no division by the number of accumulated micro-batches.
    """
    variant = resolve(variant)
    if generator is not None and not variant.surrogate.draws:
        raise ValueError(f"generator= has no effect: {variant.name} draws nothing at random. Leave it out.")
    x, step = read_tokens(x), _with_weights(counts, x, variant)
    if variant.surrogate.draws and x.draws is None:
        x = replace(x, draws=torch.rand(x.logp.shape, generator=generator, device=x.logp.device))
    log_ratio = variant.ratio(x)
    term = variant.surrogate(log_ratio, x, step)
    keep = x.keep if x.keep is not None else variant.tokens(x, step)
    weight = combined(variant.correction, x)
    policy = _weighted(term.loss, keep, weight)
    kl = _kl(variant, x, log_ratio)
    per_token = policy if kl is None or variant.kl is None else policy + variant.kl.beta * kl
    rows = _weights_of_rows(variant, x, counts, keep)
    loss = _reduce(rows, x.mask, per_token) * step.grad_average
    with torch.no_grad():
        cut = truncated(variant.correction, x)
        parts = _Parts(term, log_ratio.exp(), keep, weight, cut, kl, _reduce(rows, x.mask, policy))
        return Loss(loss, _metrics(x, step, parts), _extrema(x.mask, parts))


def row_weights(
    variant: Variant | str,
    lengths: Tensor,
    counts: Counts,
    groups: Sequence[Hashable] | Tensor | None = None,
) -> Tensor:
    r"""Weight \(w_i\) of each response in the loss \(\sum_i w_i \sum_t m_{it} x_{it}\).

    lengths: [N] loss tokens of each response. counts: of the whole optimizer step. groups: N hashable ids, for
    aggregation=prompt_mean; these N responses must then hold whole groups.
    Returns [N] in float32, without `counts.grad_average`.
    Raises ValueError for a count or an input that the rule needs and does not get.
    """
    rule = resolve(variant).aggregation
    group_tokens = None
    if rule.of_group and groups is not None:
        dense = Groups.of(groups, lengths.device)
        group_tokens = dense.sum(lengths, torch.ones_like(dense.ids, dtype=torch.bool))[dense.ids]
    return rule(lengths, counts, group_tokens)


def correction_weights(variant: Variant | str, x: Tokens) -> Tensor:
    r"""Weights of a variant's correction, the product of its parts: detached [N, T], 0 outside the mask.

    For `token_truncate` \(\min(e^{\mathrm{old} - \mathrm{mu}}, \mathrm{cap})\), and its relatives. Ones for a variant
    without a correction.
    Raises ValueError where `rollout_logp` is missing. Not done: the loss mask and its counts are not changed.
    """
    variant, x = resolve(variant), read_tokens(x)
    weight = combined(variant.correction, x)
    ones = torch.ones_like(x.logp)
    return select(x.mask, ones if weight is None else ones * weight).detach()


@dataclass(frozen=True)
class _Parts:
    """Unreduced terms of a loss, for its metrics."""

    term: Term
    ratio: Tensor
    keep: Tensor | None
    correction: Tensor | None
    truncated: Tensor | None
    kl: Tensor | None
    policy: Tensor


def _with_weights(counts: Counts | None, x: Tokens, variant: Variant) -> Counts:
    """The step's counts; where none are given the batch is the step."""
    if counts is None:
        return Counts.of(x.mask, x.groups)
    if variant.aggregation.of_group and x.row_weights is None:
        raise ValueError(
            "aggregation=prompt_mean weighs a response by its whole group's tokens, which a micro-batch does not show: "
            "pass row_weights=gv.row_weights(variant, lengths, counts, groups) of the whole step in gv.Tokens."
        )
    return counts


def _weighted(loss: Tensor, keep: Tensor | None, weight: Tensor | None) -> Tensor:
    """Policy term times correction where it is kept; by selection, so that a dropped token's overflow is dropped."""
    if weight is not None:
        loss = torch.where(weight == 0, torch.zeros_like(weight), weight * loss)
    return loss if keep is None else select(keep, loss)


def _kl(variant: Variant, x: Tokens, log_ratio: Tensor) -> Tensor | None:
    """KL estimate a token [B, T], without its coefficient; None where the loss has no KL term."""
    if variant.kl is None or not variant.kl_in_loss:
        return None
    estimate = variant.kl.per_token(x.logp, x.need("ref_logp", f"{variant.name}'s kl={variant.kl.estimator}"))
    return estimate * log_ratio.exp() if variant.kl.weighted == "ratio" else estimate


def _weights_of_rows(variant: Variant, x: Tokens, counts: Counts | None, keep: Tensor | None) -> Tensor:
    """Weight of each response [B, 1]; without counts the batch is the step and is counted here."""
    if x.row_weights is not None:
        return x.row_weights.unsqueeze(1)
    counted = x.mask
    if keep is not None and variant.tokens.denominator == "kept":
        counted = x.mask & keep
    counts = Counts.of(counted, x.groups) if counts is None else counts
    lengths = counted.sum(1)
    lengths = lengths.double() if x.logp.dtype == torch.float64 else lengths
    return row_weights(variant, lengths, counts, x.groups).unsqueeze(1)


def _reduce(rows: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """Sum over responses of weight times masked token sum: 0-d."""
    return (rows * select(mask, value)).sum()


def _metrics(x: Tokens, counts: Counts, parts: _Parts) -> dict[str, Tensor]:
    def share(value: Tensor | None) -> Tensor | None:
        return None if value is None else _share(value, x.mask, counts)

    low, high = parts.term.clip_low, parts.term.clip_high
    named: dict[str, Any] = {
        "policy_loss": parts.policy,
        "ratio/mean": share(parts.ratio),
        "clip/low": share(low),
        "clip/high": share(high),
        "clip/region": share(low | high) if low is not None and high is not None else None,
        "kl": share(parts.kl),
        "entropy": share(x.entropy),
        "tokens/kept": share(parts.keep),
        "correction/mean": share(parts.correction),
        "correction/zero": share(None if parts.correction is None else parts.correction == 0),
        "correction/truncated": share(parts.truncated),
    }
    return {name: value for name, value in named.items() if value is not None}


def _share(value: Tensor, mask: Tensor, counts: Counts) -> Tensor:
    """Numerator over the step's count: tokens for [B, T], responses with a token for [B, 1]."""
    value = value.float() if value.dtype == torch.bool else value
    if value.shape[1] == 1 != mask.shape[1]:
        rows = select(mask.any(1, keepdim=True), value)
        return rows.sum() / at_least_one(counts.sequences if counts.nonempty is None else counts.nonempty)
    return select(mask, value).sum() / at_least_one(counts.tokens)


def _extrema(mask: Tensor, parts: _Parts) -> dict[str, Tensor]:
    named = {"ratio": parts.ratio, "correction": parts.correction, "kl": parts.kl}
    found: dict[str, Tensor] = {}
    for name, value in named.items():
        if value is not None:
            low, high = low_and_high(value, mask)
            found |= {f"{name}/min": low, f"{name}/max": high}
    return found
