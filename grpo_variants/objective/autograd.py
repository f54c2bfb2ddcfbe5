"""The loss as it is defined: every part in turn, over the whole batch, with autograd's gradient.

`policy_loss` computes the same by `grpo_variants.objective.fast` where it can, and by this where it cannot.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from grpo_variants.objective.aggregation import weights_of_rows
from grpo_variants.objective.correction import combined, truncated
from grpo_variants.objective.inputs import Counts, Tokens, read_tokens
from grpo_variants.objective.metrics import Loss, LossTerms, extrema, metrics, per_response
from grpo_variants.objective.rule import Objective
from grpo_variants.tensors.masked import select


def plain_loss(
    objective: Objective, x: Tokens, counts: Counts | None, generator: torch.Generator | None = None
) -> Loss:
    """`policy_loss` of an objective, part by part."""
    x, step = read_tokens(x), step_of(counts, x, objective)
    if objective.surrogate.draws and x.draws is None:
        x = replace(x, draws=torch.rand(x.logp.shape, generator=generator, device=x.logp.device))
    log_ratio = objective.ratio(x)
    term = objective.surrogate(log_ratio, x, step)
    keep = x.keep if x.keep is not None else objective.tokens(x, step)
    weight = combined(objective.correction, x)
    policy = weighted(term.loss, keep, weight)
    kl = _kl(objective, x, log_ratio)
    per_token = policy if kl is None or objective.kl is None else policy + objective.kl.beta * kl
    rows = row_weights_of(objective, x, counts, keep)
    loss = _reduce(rows, x.mask, per_token) * step.grad_average
    # Metrics are detached: they must not keep the graph alive.
    with torch.no_grad():
        parts = LossTerms(term, log_ratio.exp(), keep, weight, truncated(objective.correction, x), kl)
        named = {"policy_loss": _reduce(rows, x.mask, policy), **metrics(x, step, parts)}
        return Loss(loss, named, extrema(x.mask, parts), per_response(x, parts))


def step_of(counts: Counts | None, x: Tokens, objective: Objective) -> Counts:
    """The step's counts; where none are given the batch is the step."""
    if counts is None:
        return Counts.of(x.mask, x.groups)
    if objective.aggregation.of_group and x.row_weights is None:
        raise ValueError(
            "aggregation=prompt_mean weighs a response by its whole group's tokens, which a micro-batch does not show: "
            "pass row_weights=gv.row_weights(variant, lengths, counts, groups) of the whole step in gv.Tokens."
        )
    return counts


def weighted(loss: Tensor, keep: Tensor | None, weight: Tensor | None) -> Tensor:
    """Policy term times correction where it is kept; by selection, so that a dropped token's overflow is dropped."""
    if weight is not None:
        loss = torch.where(weight == 0, torch.zeros_like(weight), weight * loss)
    return loss if keep is None else select(keep, loss)


def _kl(objective: Objective, x: Tokens, log_ratio: Tensor) -> Tensor | None:
    """KL estimate per token [B, T], without its coefficient; None where the loss has no KL term."""
    if objective.kl is None or not objective.kl_in_loss:
        return None
    estimate = objective.kl.estimate(x.logp, x.need("ref_logp", f"{objective.name}'s kl={objective.kl.estimator}"))
    if objective.kl.weighted == "ratio":
        estimate = estimate * log_ratio.exp()
    if objective.kl.exempt is None:
        return estimate
    weight = objective.kl.weights(x.need("entropy", "kl.exempt"), x.mask)
    return select(weight != 0, estimate) * weight


def row_weights_of(objective: Objective, x: Tokens, counts: Counts | None, keep: Tensor | None) -> Tensor:
    """Weight of each response [B, 1]; without counts the batch is the step and is counted here."""
    if x.row_weights is not None:
        return x.row_weights.unsqueeze(1)
    if counts is not None and not getattr(objective.aggregation, "of_length", True):
        return weights_of_rows(objective.aggregation, _no_lengths(x), counts).unsqueeze(1)
    counted = x.mask.bool()
    if keep is not None and objective.tokens.denominator == "kept":
        counted = counted & keep
    counts = Counts.of(counted, x.groups) if counts is None else counts
    lengths = counted.sum(1)
    lengths = lengths.double() if x.logp.dtype == torch.float64 else lengths
    return weights_of_rows(objective.aggregation, lengths, counts, x.groups).unsqueeze(1)


def _no_lengths(x: Tokens) -> Tensor:
    """Lengths [B] for a rule that only asks how many there are."""
    return torch.zeros(x.logp.shape[0], dtype=x.logp.dtype, device=x.logp.device)


def _reduce(rows: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """Sum over responses of weight times masked token sum: 0-d."""
    return (rows * select(mask, value)).sum()
