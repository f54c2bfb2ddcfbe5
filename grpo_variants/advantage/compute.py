"""Advantages: baseline x scale x credit; the one public function `advantages`."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_variants.advantage.baseline import Greedy
from grpo_variants.advantage.credit import Decoupled, Rule
from grpo_variants.advantage.fast import fast_advantages
from grpo_variants.advantage.group_size import doubts, is_choosy
from grpo_variants.advantage.memory import Memory
from grpo_variants.inputs import (
    ROLLOUT_INPUTS,
    Rollouts,
    Samples,
    as_floating,
    check_rollouts,
    narrow,
    read_rollouts,
)
from grpo_variants.spec import resolve
from grpo_variants.tensors.checks import unknown
from grpo_variants.tensors.groups import Groups
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

    variant: a `Variant`, or a spec string.
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
    _check_state(variant, state)
    check_rollouts(rollouts)
    return _plain_advantages(variant, rollouts, copy.deepcopy(state))[1]


def advantages_of(variant: Variant, rollouts: Rollouts, state: Memory | None = None) -> Tensor:
    """`advantages` without a word on the sizes of groups, which a trainer's adapter says once, at the start."""
    return advantages_and_rows(variant, rollouts, state)[0]


def advantages_and_rows(
    variant: Variant, rollouts: Rollouts, state: Memory | None = None
) -> tuple[Tensor, Tensor | None]:
    """Advantages, and which responses [N] stay in the loss where the selection drops some; None where all do."""
    _check_state(variant, state)
    check_rollouts(rollouts)
    value = fast_advantages(variant, rollouts)
    if value is not None:
        return value, None
    value, kept = _plain_advantages(variant, rollouts, state)
    return value, kept if variant.selection.drops else None


def _plain_advantages(variant: Variant, rollouts: Rollouts, state: Memory | None) -> tuple[Tensor, Tensor]:
    """Advantages part by part, and which responses are learnt from."""
    samples = read_rollouts(rollouts, variant.singleton, state)
    _check_matrix(variant, samples)
    try:
        return _by_parts(variant, samples)
    except NotImplementedError:
        if not samples.rewards.is_meta:
            raise
        raise ValueError(
            f"rewards is on the meta device, which holds no numbers, and {variant.name} has to look at them; give "
            "tensors on another device."
        ) from None


@torch.no_grad()
def _by_parts(variant: Variant, samples: Samples) -> tuple[Tensor, Tensor]:
    penalty = variant.kl if variant.kl is not None and variant.kl.placement == "reward" else None
    samples = replace(samples, valid=_with_baseline(variant, samples))
    samples = replace(samples, valid=variant.selection(samples))
    samples = replace(samples, rewards=variant.transform(samples.rewards, samples))
    value = variant.credit(samples, Rule(variant.baseline, variant.scale, penalty))
    kept = variant.selection.by_advantage(value, samples)
    learnt = kept if value.dim() == 1 else kept.unsqueeze(1)
    return narrow(torch.where(learnt, value, torch.zeros_like(value)), samples.dtype), kept


def _check_matrix(variant: Variant, samples: Samples) -> None:
    """Raise ValueError for rewards [P, G] with an id per prompt, read as [N, K]: no response then has a sibling."""
    count, width = samples.components.shape
    compares = any(getattr(part, "of_group", False) for part in (variant.baseline, variant.scale))
    named = samples.rollouts.reward_weights is not None
    if compares and not named and width > 1 and count == samples.groups.count:
        responses = "one response" if count == 1 else f"{count} responses"
        raise ValueError(
            f"rewards is [{count}, {width}] and each row has a group of its own: {responses} without a sibling, "
            f"and {width} reward functions. For {width} responses to each of {count} prompts give "
            f"rewards.flatten() and groups=[p for p in range({count}) for _ in range({width})]; for {width} reward "
            "functions give reward_weights= too."
        )


def _warn_of_sizes(variant: Variant, groups: Any) -> None:
    """Say what the largest group makes of the rule, where that can be seen without waiting for a device."""
    if groups is None or not is_choosy(variant):
        return
    ids = Groups.of(groups).ids
    if readable(ids) and len(ids):
        for doubt in doubts(variant, int(ids.bincount().max())):
            warnings.warn(f"{variant.name}: {doubt.text} Draw {doubt.draw} responses per prompt.", stacklevel=3)


def _warn_of_functions(variant: Variant, rewards: Any) -> None:
    """Say what the number of reward functions makes of a rule that takes them apart."""
    if not isinstance(variant.credit, Decoupled):
        return
    table = None if rewards is None else as_floating(rewards, name="rewards")
    text = variant.credit.doubt_of(1 if table is None or table.dim() < 2 else table.shape[1])
    if text is not None:
        warnings.warn(f"{variant.name}: {text}", stacklevel=3)


def _with_baseline(variant: Variant, samples: Samples) -> Tensor:
    """Valid responses [N] whose baseline is there: a greedy reward may be missing as any other."""
    if samples.greedy_rewards is None or not isinstance(variant.baseline, Greedy):
        return samples.valid
    return samples.valid & ~samples.greedy_rewards.isnan()


def _check_state(variant: Variant, state: Memory | None) -> None:
    if not variant.remembers and state is not None:
        raise ValueError(f"state= has no effect: {variant.name} remembers nothing of earlier steps. Leave it out.")
    if variant.remembers and not isinstance(state, Memory):
        raise ValueError(
            f"{variant.name} remembers earlier steps by prompt and needs state=: make one gv.Memory() for the run, "
            "pass it to every call, and give groups ids that mean the same prompt in every step, such as its text."
        )


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
