"""The public functions: a variant or a spec string, and tensors in; tensors out."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_variants.advantage.compute import advantages_of, check_state, plain_advantages
from grpo_variants.advantage.inputs import ROLLOUT_INPUTS, Rollouts, check_rollouts
from grpo_variants.advantage.memory import Memory
from grpo_variants.objective.aggregation import weights_of_rows
from grpo_variants.objective.compute import computed
from grpo_variants.objective.correction import combined
from grpo_variants.objective.inputs import Counts, Tokens, check_counts, check_tokens, check_values, read_tokens
from grpo_variants.objective.metrics import Loss
from grpo_variants.spec import resolve
from grpo_variants.tensors.checks import unknown
from grpo_variants.tensors.groups import Groups, count_ids
from grpo_variants.tensors.masked import select
from grpo_variants.tensors.reading import as_floating, read_lengths
from grpo_variants.tensors.values import readable
from grpo_variants.variant import Variant


def advantages(
    variant: Variant | str,
    rewards: Any = None,
    groups: Any = None,
    *,
    state: Memory | None = None,
    **inputs: Any,
) -> Tensor:
    r"""Advantages of N responses under a variant's advantage rule.

    \(A_i = (r_i - b_i) / \mathrm{scale}_g\), or per token where the variant's credit is per token.

    variant: a `AdvantageRule`, or a spec string.
    rewards: [N], or [N, K] for K reward functions (what is not finite, or None, is missing); or one `Rollouts` with
        everything.
    groups: N hashable ids, equal for the responses of one prompt.
    state: the `Memory` of a rule that remembers earlier steps, which updates it; refused by a rule that has none.
    inputs: the other fields of `Rollouts`, by name: lengths, valid, mask, token_rewards, step_ends, greedy_rewards,
        reward_weights, old_logp, ref_logp, entropy, sum_pi_squared, extras.

    Returns [N], or [N, T] for token credit, detached; in the rewards' units divided by the scale's. A response that
    is not valid, or whose rewards are all missing, is out of every statistic and gets 0; a group whose rewards are
    all equal gets exactly 0. A missing greedy reward takes a response out of a rule that compares with it.

    Warns (UserWarning) of infinite rewards, and of groups whose size does not fit the rule (`selection.keep`, the
    median of an even group), where that can be seen without waiting for a device; of a single reward function under
    `credit=decoupled`.
    Raises ValueError for a missing input, a wrong shape or a state that is not used; TypeError for an unknown input.
    Not done: no overlong penalty and no filtering; see `soft_overlong_penalty` and `keep_groups`.
    """
    variant = resolve(variant)
    rollouts = _as_rollouts(rewards, groups, inputs)
    _warn_of_sizes(variant, rollouts.groups)
    _warn_of_functions(variant, rollouts.rewards)
    return advantages_of(variant, rollouts, state)


def selected(
    variant: Variant | str,
    rewards: Any = None,
    groups: Any = None,
    *,
    state: Memory | None = None,
    **inputs: Any,
) -> Tensor:
    """Which of N responses a variant's selection leaves in the loss: train on these rows only.

    The arguments are those of `advantages`; a rule that remembers gets a copy of its memory.
    Returns [N] bool: all of the valid ones, unless the selection drops some (`max_variance`, `largest_advantage`).
    Raises ValueError as `advantages` does.
    """
    variant = resolve(variant)
    rollouts = _as_rollouts(rewards, groups, inputs)
    check_state(variant, state)
    check_rollouts(rollouts)
    # A copy, since asking which responses are selected must not teach the memory.
    return plain_advantages(variant, rollouts, copy.deepcopy(state))[1]


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
    a device, for numbers that are no mask or no log-probabilities. Nothing waits for the device. Not done: no
    entropy bonus, no division by the number of accumulated micro-batches.
    """
    objective = resolve(variant)
    check_tokens(x)
    check_values(x)
    check_counts(counts)
    if generator is not None and not objective.surrogate.draws:
        raise ValueError(f"generator= has no effect: {objective.name} draws nothing at random. Leave it out.")
    return computed(objective, x, counts, generator)


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
    x = read_tokens(x)
    weight = combined(resolve(variant).correction, x)
    ones = torch.ones_like(x.logp)
    return select(x.mask, ones if weight is None else ones * weight).detach()


def _as_rollouts(rewards: Any, groups: Any, inputs: dict[str, Any]) -> Rollouts:
    for name in inputs:
        if name not in ROLLOUT_INPUTS:
            raise TypeError(unknown(f"advantages() has no input {name!r}", name, ROLLOUT_INPUTS, "it takes"))
    if not isinstance(rewards, Rollouts):
        return Rollouts(rewards=rewards, groups=groups, **inputs)
    if groups is not None or inputs:
        given = ", ".join((["groups"] if groups is not None else []) + list(inputs))
        raise TypeError(f"Rollouts already holds every input; put {given} into it instead of beside it.")
    return rewards


def _warn_of_sizes(variant: Variant, groups: Any) -> None:
    """Say what the largest group makes of the rule, where that can be seen without waiting for a device."""
    if groups is None or not variant.minds_group_size:
        return
    ids = Groups.of(groups).ids
    if readable(ids) and len(ids):
        for doubt in variant.doubts(int(ids.bincount().max())):
            warnings.warn(f"{variant.name}: {doubt.text} Draw {doubt.draw} responses per prompt.", stacklevel=3)


def _warn_of_functions(variant: Variant, rewards: Any) -> None:
    """Say what the number of reward functions makes of a rule that takes them apart."""
    if not variant.credit.per_function:
        return
    table = None if rewards is None else as_floating(rewards, name="rewards")
    text = variant.credit.doubt_of(1 if table is None or table.dim() < 2 else table.shape[1])
    if text is not None:
        warnings.warn(f"{variant.name}: {text}", stacklevel=3)
