"""The objective: `policy_loss`, the only place that reduces, and the weights that it reduces with."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from grpo_variants.inputs import Counts, Tokens, check_counts, check_tokens, check_values, read_lengths, read_tokens
from grpo_variants.objective.aggregation import trained, weights_of_rows
from grpo_variants.objective.autograd import plain_loss
from grpo_variants.objective.correction import combined
from grpo_variants.objective.fast.loss import fast_loss
from grpo_variants.objective.metrics import Loss
from grpo_variants.spec import resolve
from grpo_variants.tensors.groups import Groups, count_ids
from grpo_variants.tensors.masked import select
from grpo_variants.variant import Variant

__all__ = ["Loss", "correction_weights", "policy_loss", "row_weights"]


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

    x: `Tokens` of B responses. counts: `Counts` of the whole optimizer step; without them x is the whole step. Under
    `aggregation.rows=signal` they are those of the responses whose advantage is not 0.
    generator: for parts that draw at random, unless `Tokens.draws` holds the numbers; refused where nothing does.
    With the step's counts, the losses of any split into micro-batches add up to the loss of the whole.

    Raises ValueError for a wrong shape, a missing input, an option without effect and, where looking costs no wait for
    a device, for numbers that are no mask or no log-probabilities. Nothing synchronises with the host. Not done: no
    entropy bonus, no division by the number of accumulated micro-batches.
    """
    variant = resolve(variant)
    check_tokens(x)
    check_values(x)
    check_counts(counts)
    if generator is not None and not variant.surrogate.draws:
        raise ValueError(f"generator= has no effect: {variant.name} draws nothing at random. Leave it out.")
    return _computed(variant, x, counts, generator)


def loss_of(variant: Variant, x: Tokens, counts: Counts | None) -> Loss:
    """`policy_loss` of tensors that a trainer has computed itself: their numbers are not looked at."""
    check_tokens(x)
    return _computed(variant, x, counts)


def _computed(variant: Variant, x: Tokens, counts: Counts | None, generator: torch.Generator | None = None) -> Loss:
    x = trained(variant.aggregation, x)
    return fast_loss(variant, x, counts) or plain_loss(variant, x, counts, generator)


def row_weights(
    variant: Variant | str,
    lengths: Tensor | Sequence[int],
    counts: Counts | None,
    groups: Groups | Sequence[Hashable] | Tensor | None = None,
) -> Tensor:
    r"""Weight \(w_i\) of each response in the loss \(\sum_i w_i \sum_t m_{it} x_{it}\).

    lengths: [N] loss tokens of each response, 0 for one that `aggregation.rows=signal` leaves out. counts: of the whole
    optimizer step; None where these N responses are the step. groups: N hashable ids, for aggregation=prompt_mean;
    these N responses must then hold whole groups.
    Returns [N] in float32, without `counts.grad_average`.
    Raises ValueError for a count or an input that the rule needs and does not get.
    """
    check_counts(counts)
    tokens = read_lengths(lengths)
    if groups is not None and count_ids(groups) != len(tokens):
        raise ValueError(f"groups has {count_ids(groups)} entries for {len(tokens)} responses; give one per response.")
    counts = Counts.of_lengths(tokens, groups) if counts is None else counts
    return weights_of_rows(resolve(variant).aggregation, tokens, counts, groups)


def correction_weights(variant: Variant | str, x: Tokens) -> Tensor:
    r"""Weights of a variant's correction, the product of its parts: detached [N, T], 0 outside the mask.

    For `token_truncate` \(\min(e^{\mathrm{old} - \mathrm{mu}}, \mathrm{cap})\), and its relatives. Ones for a variant
    without a correction.
    Raises ValueError where `rollout_logp` is missing. Not done: the loss mask and its counts are not changed.
    """
    check_tokens(x)
    check_values(x)
    variant, x = resolve(variant), read_tokens(x)
    weight = combined(variant.correction, x)
    ones = torch.ones_like(x.logp)
    return select(x.mask, ones if weight is None else ones * weight).detach()
