"""What goes into the advantage rule: the rollouts of a batch; checked and cast at the border."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from grpo_variants.advantage.memory import Memory
from grpo_variants.tensors.groups import Groups
from grpo_variants.tensors.masked import select
from grpo_variants.tensors.precision import wide
from grpo_variants.tensors.reading import (
    _check_length,
    as_floating,
    as_rewards,
    groups_of,
    read_lengths,
    read_table,
    read_valid,
)
from grpo_variants.tensors.values import (
    check_devices,
    check_flags,
    check_log_probabilities,
    check_tensor,
    readable,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollouts:
    """N responses as they come from sampling, for `advantages`.

    Shapes: N responses, K reward functions, T tokens of a response.

    rewards: [N], or [N, K] with several reward functions; NaN, None or an infinity is a missing reward.
    groups: N hashable ids, equal for the responses of one prompt; may be uneven and interleaved. Or `Groups.of(ids)`
        of `grpo_variants.tensors.groups`, which saves making them dense at every call.
    lengths: [N] number of loss tokens (default: counted from `mask`).
    valid: [N] bool; a response that is not valid is out of every statistic and gets advantage 0.
    mask: [N, T] loss mask; holes (tool output) are allowed.
    token_rewards: [N, T] reward per token, for token credit; one that is not finite within the mask is a missing reward
        of the response.
    step_ends: [N, T] bool, True at the last token of each step, for process supervision.
    greedy_rewards: [N] or [N, K] reward of the policy's greedy response to the same prompt (ReMax); missing as rewards.
    reward_weights: [K] weight of each reward function, finite (default: 1). A function of weight 0 does not make a
        response count that no other function scored.
    old_logp, ref_logp: [N, T] log-probabilities when sampled and under the reference (KL in the reward).
    entropy, sum_pi_squared: [N, T] per-token statistics that some members of the wider family read.
    extras: anything else that a user's own rule reads.
    """

    rewards: Tensor | Sequence[Any] | None = None
    groups: Groups | Sequence[Hashable] | Tensor | None = None
    lengths: Tensor | Sequence[int] | None = None
    valid: Tensor | Sequence[bool] | None = None
    mask: Tensor | None = None
    token_rewards: Tensor | None = None
    step_ends: Tensor | None = None
    greedy_rewards: Tensor | Sequence[Any] | None = None
    reward_weights: Tensor | Sequence[float] | None = None
    old_logp: Tensor | None = None
    ref_logp: Tensor | None = None
    entropy: Tensor | None = None
    sum_pi_squared: Tensor | None = None
    extras: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Rollouts after the border: tensors of one dtype on one device, missing rewards marked invalid.

    Parts of the advantage rule read this, in float64 where the device has it; `dtype` is that of the result. `rewards`
    is the weighted total [N], `components` [N, K] holds each reward function with NaN where missing, `lengths` [N] and
    `greedy_rewards` [N] may be absent. `keys` [P] are the ids that the groups were given.
    """

    rewards: Tensor
    components: Tensor
    groups: Groups
    valid: Tensor
    mask: Tensor | None
    lengths: Tensor | None
    token_rewards: Tensor | None
    greedy_rewards: Tensor | None
    singleton: str
    rollouts: Rollouts
    keys: tuple[Hashable, ...]
    state: Memory | None
    dtype: torch.dtype

    def remembered(self) -> Memory:
        """The memory of a rule that has one; `keys` are its prompts, in the order of the dense group ids."""
        if self.state is None:
            raise ValueError("this rule remembers earlier steps and was given no state.")
        return self.state

    def need(self, name: str, wanted_by: str) -> Tensor:
        """An input that a part cannot do without; raises ValueError that names the input and the part."""
        value = getattr(self, name) if hasattr(self, name) else getattr(self.rollouts, name)
        if value is None:
            hints = " ".join(["", *SUPPLIERS.get(name, {}).values()])
            raise ValueError(f"{wanted_by} needs {name}=; pass it to gv.advantages (or gv.Rollouts).{hints}")
        return value  # type: ignore[no-any-return]


# How trainers come by an input that not every rule reads: a sentence per input and trainer, taught by their folders.
SUPPLIERS: dict[str, dict[str, str]] = {}


def read_rollouts(rollouts: Rollouts, singleton: str, state: Memory | None = None) -> Samples:
    """Check shapes, weigh and add reward functions, mark missing rewards, cast to the precision that is computed in."""
    token_rewards, mask, incomplete = token_inputs(rollouts)
    components = _components(rollouts, token_rewards)
    count = components.shape[0]
    for name, value in given_tokens(rollouts).items():
        _check_length(name, len(value), count)
    groups = groups_of(rollouts.groups, components)
    total = _total(components, rollouts.reward_weights)
    # A total beyond the numbers' range (weights may do that) is no reward either.
    missing = unscored(components, rollouts.reward_weights) | ~total.isfinite()
    if incomplete is not None:
        _check_length("token_rewards", len(incomplete), count)
        missing = missing | incomplete
    valid = ~missing
    if rollouts.valid is not None:
        valid = valid & read_valid(rollouts.valid, count, components.device)
    lengths = mask.sum(1) if rollouts.lengths is None and mask is not None else None
    if rollouts.lengths is not None:
        lengths = read_lengths(rollouts.lengths, components.device).long()
        _check_length("lengths", len(lengths), count)
    greedy = None if rollouts.greedy_rewards is None else _greedy_total(rollouts, components)
    # Responses that are equal stay equal: they are added in their own precision, and only then cast.
    return Samples(
        rewards=wide(select(~missing, total)),
        components=wide(components),
        groups=groups,
        valid=valid,
        mask=mask,
        lengths=lengths,
        token_rewards=None if token_rewards is None else wide(token_rewards),
        greedy_rewards=None if greedy is None else wide(greedy),
        singleton=singleton,
        rollouts=rollouts,
        keys=groups.keys,
        state=state,
        dtype=components.dtype,
    )


def _components(rollouts: Rollouts, token_rewards: Tensor | None) -> Tensor:
    if rollouts.rewards is None:
        if token_rewards is None:
            raise ValueError("rewards= is missing: give [N] or [N, K] rewards, or token_rewards= [N, T].")
        return token_rewards.sum(1, keepdim=True)
    return read_table("rewards", rollouts.rewards, _home(rollouts))


def unscored(components: Tensor, weights: Tensor | Sequence[float] | None) -> Tensor:
    """Responses [N] to which no function gave a reward; one of weight 0 is only logged, so its rewards score nobody."""
    absent = components.isnan()
    if weights is not None:
        absent = absent | (read_weights(weights, components) == 0)
    return absent.all(1)


def _home(rollouts: Rollouts) -> torch.device | None:
    """Where rewards that are no tensor go: to the token inputs."""
    if isinstance(rollouts.rewards, Tensor):
        return rollouts.rewards.device
    return next((value.device for value in given_tokens(rollouts).values()), None)


def _total(components: Tensor, weights: Tensor | Sequence[float] | None) -> Tensor:
    """Weighted sum over the reward functions that gave a value: [N, K] -> [N]."""
    if weights is not None:
        components = components * read_weights(weights, components)
    # Column by column: a reduction may add in another order in the last rows, so that equal rows get unequal sums.
    return functools.reduce(torch.add, select(~components.isnan(), components).unbind(1))


def read_weights(weights: Tensor | Sequence[float], components: Tensor) -> Tensor:
    """Weights [K] of the reward functions of [N, K], in its dtype; raises ValueError for a shape or a number."""
    w = as_floating(weights, components.device, name="reward_weights").to(components.dtype)
    if w.shape != (components.shape[1],):
        raise ValueError(
            f"reward_weights has shape {tuple(w.shape)}; rewards has {components.shape[1]} reward "
            f"function(s), so give [{components.shape[1]}] weights."
        )
    if readable(w) and not w.isfinite().all():
        raise ValueError(f"reward_weights={w.tolist()} holds a weight that is not finite; allowed: finite numbers.")
    return w


def _greedy_total(rollouts: Rollouts, components: Tensor) -> Tensor:
    value = as_rewards(rollouts.greedy_rewards, components.device, name="greedy_rewards")
    value = value.unsqueeze(1) if value.dim() == 1 else value
    _check_length("greedy_rewards", value.shape[0], components.shape[0])
    if value.shape[1] == 1 and components.shape[1] > 1:  # a total was given, already weighted
        return value.squeeze(1)
    if value.shape != components.shape:
        raise ValueError(
            f"greedy_rewards has shape {tuple(value.shape)}; allowed: [N], or {list(components.shape)} as the rewards."
        )
    total = _total(value, rollouts.reward_weights)
    return total.masked_fill(unscored(value, rollouts.reward_weights) | ~total.isfinite(), float("nan"))


def token_inputs(rollouts: Rollouts) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Token rewards [N, T] without padding and NaN, the mask, and which responses [N] miss a token's reward."""
    mask = None if rollouts.mask is None else rollouts.mask.bool()
    if rollouts.token_rewards is None:
        return None, mask, None
    tokens = as_floating(rollouts.token_rewards, name="token_rewards")
    tokens = as_rewards(tokens if mask is None else select(mask, tokens), name="token_rewards")
    given = ~tokens.isnan()
    return select(given, tokens), mask, ~given.all(1)


_TOKEN_INPUTS = ("mask", "token_rewards", "step_ends", "old_logp", "ref_logp", "entropy", "sum_pi_squared")


def given_tokens(rollouts: Rollouts) -> dict[str, Tensor]:
    """The token inputs that are there, by name."""
    named = {name: getattr(rollouts, name) for name in _TOKEN_INPUTS}
    return {name: value for name, value in named.items() if value is not None}


def check_rollouts(rollouts: Rollouts) -> None:
    """Raise ValueError for token inputs that are no tensors of one shape [N, T] on the rewards' device, for numbers
    where flags belong and, where they can be read, for log-probabilities above 0.
    """
    tokens = given_tokens(rollouts)
    for name, value in tokens.items():
        check_tensor(name, value)
    shapes = {name: tuple(value.shape) for name, value in tokens.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 2 for shape in shapes.values()):
        raise ValueError(f"token inputs must all be [N, T]; given: {shapes}.")
    check_devices(tokens if not isinstance(rollouts.rewards, Tensor) else {"rewards": rollouts.rewards, **tokens})
    for name in ("mask", "step_ends"):
        if name in tokens:
            check_flags(name, tokens[name])
    for name in ("old_logp", "ref_logp"):
        if name in tokens:
            check_log_probabilities(name, tokens[name], rollouts.mask)


ROLLOUT_INPUTS = tuple(f.name for f in fields(Rollouts))
