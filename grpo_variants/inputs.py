"""What goes in: rollouts for advantages, tokens and counts for the loss; checked and cast at the border."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Union

import numpy as np
import torch
from torch import Tensor

from grpo_variants.advantage.memory import Memory
from grpo_variants.tensors.checks import check_number
from grpo_variants.tensors.groups import Groups, count_ids
from grpo_variants.tensors.masked import select
from grpo_variants.tensors.values import (
    check_devices,
    check_flags,
    check_lengths,
    check_log_probabilities,
    check_tensor,
    readable,
)

Number = Union[int, float, Tensor]


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
            hint = _SUPPLIERS.get(name, "")
            raise ValueError(f"{wanted_by} needs {name}=; pass it to gv.advantages (or gv.Rollouts).{hint}")
        return value  # type: ignore[no-any-return]


# How a host comes by an input that not every rule reads.
_SUPPLIERS: Mapping[str, str] = {
    "entropy": " TRL's adapter computes it for the variants that read it; verl gives an estimator no entropies.",
    "sum_pi_squared": (
        " TRL does not compute it; verl does with actor_rollout_ref.actor.calculate_sum_pi_squared=True, and hands it "
        "to its own optimal_token_baseline."
    ),
    "greedy_rewards": " TRL's adapter draws a greedy response; verl does for its own remax.",
    "step_ends": " TRL's adapter takes them from reward functions; in verl a reward manager has to write them.",
}


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


def as_floating(value: Any, device: torch.device | None = None, *, name: str = "values") -> Tensor:
    """Tensor in float32, or float64 where it came as such; None becomes NaN; raises ValueError for no numbers."""
    tensor = value.to(device) if isinstance(value, Tensor) else _as_tensor(value, device, name)
    if tensor.is_complex():
        raise ValueError(f"{name} is of dtype {tensor.dtype}; allowed: real numbers.")
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _as_tensor(value: Any, device: torch.device | None, name: str) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    value = [_filled(row, name) for row in value] if isinstance(value, Sequence) else _filled(value, name)
    try:
        return torch.as_tensor(value, device=device)
    # Whatever it was given, torch says what is wrong with it, in one of these classes.
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{name} is no table of numbers ({error}); {_NUMBERS}") from None


_NUMBERS = "allowed: numbers, and None or NaN where one is missing."


def wide(value: Tensor) -> Tensor:
    """The precision for statistics: float64, or as it is on devices that need not have it.

    A sum of 65536 numbers in float32 is off by up to a percent, and the square of 1e20 is beyond it.
    """
    return value.double() if value.device.type in ("cpu", "cuda", "meta") else value


def narrow(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Back from `wide`; a number beyond the range of `dtype` is its largest."""
    if value.dtype == dtype:
        return value
    largest = torch.finfo(dtype).max
    return value.clamp(-largest, largest).to(dtype)


def as_rewards(value: Any, device: torch.device | None = None, *, name: str = "rewards") -> Tensor:
    """`as_floating` with an infinity as NaN: what is not finite is missing.

    Warns of infinities (UserWarning) where they can be seen without waiting for a device.
    """
    tensor = as_floating(value, device, name=name)
    if readable(tensor) and (found := infinite_entries(tensor)):
        warnings.warn(_infinity_text(name, found), UserWarning, stacklevel=2)
    return without_infinities(tensor)


class Infinite(NamedTuple):
    """An infinity among numbers [N] or [N, K]: whose row, which column (0 for [N]), and its value."""

    row: int
    column: int
    value: float


def infinite_entries(values: Tensor) -> list[Infinite]:
    """The infinities of [N] or [N, K], in order; waits for the device."""
    infinite = values.isinf()
    if not infinite.any():
        return []
    places = infinite.view(len(values), -1).nonzero().tolist()
    return [
        Infinite(row, column, value) for (row, column), value in zip(places, values[infinite].tolist(), strict=True)
    ]


def without_infinities(values: Tensor) -> Tensor:
    """The numbers with NaN, which stands for a missing one, in place of an infinity."""
    return values.masked_fill(values.isinf(), float("nan"))


def _infinity_text(name: str, found: list[Infinite]) -> str:
    first = found[0]
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"{name} holds {first.value:g} (row {first.row}, column {first.column}){others}: what is not finite counts as "
        "missing, so the response is left out unless another reward function scored it. Give None or NaN for a missing "
        "reward, or a large finite number."
    )


def _filled(value: Any, name: str) -> Any:
    """None as NaN, in a number or in a row of numbers."""
    if isinstance(value, (str, bytes)):
        raise ValueError(f"{name} holds the text {value!r}; {_NUMBERS}")
    if isinstance(value, (Mapping, Set)):
        raise ValueError(f"{name} holds {value!r} of type {type(value).__name__}; {_NUMBERS}")
    if isinstance(value, Sequence):
        return [_filled(x, name) for x in value]
    return float("nan") if value is None else value


def _components(rollouts: Rollouts, token_rewards: Tensor | None) -> Tensor:
    if rollouts.rewards is None:
        if token_rewards is None:
            raise ValueError("rewards= is missing: give [N] or [N, K] rewards, or token_rewards= [N, T].")
        return token_rewards.sum(1, keepdim=True)
    return read_table("rewards", rollouts.rewards, _home(rollouts))


def read_table(name: str, value: Any, device: torch.device | None = None) -> Tensor:
    """Rewards [N, K] from [N] or [N, K], NaN where missing; raises ValueError for another shape."""
    rewards = as_rewards(value, device, name=name)
    if rewards.dim() not in (1, 2):
        raise ValueError(f"{name} has shape {tuple(rewards.shape)}; allowed: [N], or [N, K] for K reward functions.")
    return rewards if rewards.dim() == 2 else rewards.unsqueeze(1)


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


def groups_of(groups: Any, components: Tensor) -> Groups:
    """Dense groups of the responses of rewards [N, K]."""
    count, width = components.shape
    if groups is None:
        raise ValueError("groups= is missing: give one hashable id per response (the prompt's index or uuid).")
    if width > 1 and count_ids(groups) == count * width:
        raise ValueError(
            f"groups has {count * width} entries and rewards is [{count}, {width}], which reads as {count} responses "
            f"with {width} reward functions; for one row per prompt give rewards.flatten()."
        )
    dense = Groups.of(groups, components.device)
    _check_length("groups", len(dense), count)
    return dense


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


def read_valid(value: Any, count: int, device: torch.device | None = None) -> Tensor:
    """Which responses are valid, [N] bool; raises ValueError for a shape or, where they can be read, for numbers."""
    flags = _vector("valid", value, device)
    _check_length("valid", len(flags), count)
    check_flags("valid", flags)
    return flags.bool()


def read_lengths(value: Any, device: torch.device | None = None) -> Tensor:
    """Lengths [N]; raises ValueError for a shape or, where they can be read, for what is no number of tokens."""
    lengths = _vector("lengths", value, device)
    check_lengths("lengths", lengths)
    return lengths


def _vector(name: str, value: Any, device: torch.device | None) -> Tensor:
    tensor = value.to(device) if isinstance(value, Tensor) else _as_tensor(value, device, name)
    if tensor.dim() != 1:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; allowed: [N].")
    return tensor


def _check_length(name: str, given: int, wanted: int) -> None:
    if given != wanted:
        raise ValueError(f"{name} has {given} entries for {wanted} responses; give one per response.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """The tokens of a (micro-)batch, for `policy_loss`.

    Shapes: B responses, T tokens.

    logp: [B, T] log-probabilities under the policy now; carries the gradient.
    mask: [B, T] loss mask (completion, not tool output, not truncated); holes are allowed.
    advantages: [B], or [B, T] for token credit.
    old_logp: [B, T] under the policy that sampled, recomputed by the trainer (default: `logp` detached).
    ref_logp: [B, T] under the reference; needed with a KL term in the loss.
    rollout_logp: [B, T] as reported by the rollout engine; needed with a correction.
    entropy: [B, T] entropy of the policy at each position, nats.
    groups: B hashable ids; needed with aggregation=prompt_mean.
    row_weights: [B] weight per response, where the host has computed it from the whole step (`row_weights`).
    correction: [B, T] or [B, 1] detached weights, where the host has computed them; used instead of the
        variant's own correction.
    keep: [B, T] or [B] bool, tokens or responses whose policy term counts; used instead of the variant's own
        token filter. The loss mask and the KL term are not touched.
    draws: [B, T] uniform random numbers, for parts that draw at random (default: drawn by `policy_loss`).
    extras: anything else that a user's own part reads.
    """

    logp: Tensor
    mask: Tensor
    advantages: Tensor
    old_logp: Tensor | None = None
    ref_logp: Tensor | None = None
    rollout_logp: Tensor | None = None
    entropy: Tensor | None = None
    groups: Groups | Sequence[Hashable] | Tensor | None = None
    row_weights: Tensor | None = None
    correction: Tensor | None = None
    keep: Tensor | None = None
    draws: Tensor | None = None
    extras: Mapping[str, Any] | None = None

    def need(self, name: str, wanted_by: str) -> Tensor:
        """An input that a part cannot do without; raises ValueError that names the input and the part."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{wanted_by} needs {name}=; pass it to gv.Tokens.")
        return value  # type: ignore[no-any-return]


def read_tokens(x: Tokens) -> Tokens:
    """Check shapes, cast to float32 (float64 stays) and replace padding by zeros, by selection.

    Only `logp` keeps its gradient. Advantages become [B, 1] or [B, T]. `old_logp` is filled in: on policy it is `logp`
    detached.
    """
    check_tokens(x)
    mask = x.mask.bool()
    old_logp = x.logp if x.old_logp is None else x.old_logp
    a = _upcast(x.advantages).detach()
    correction = None if x.correction is None else _upcast(x.correction).detach()
    return replace(
        x,
        mask=mask,
        logp=select(mask, _upcast(x.logp)),
        advantages=a.unsqueeze(1) if a.dim() == 1 else select(mask, a),
        old_logp=_clean(old_logp, mask),
        ref_logp=_clean(x.ref_logp, mask),
        rollout_logp=_clean(x.rollout_logp, mask),
        entropy=_clean(x.entropy, mask),
        draws=_clean(x.draws, mask),
        row_weights=None if x.row_weights is None else _upcast(x.row_weights).detach(),
        correction=correction if correction is None or correction.shape[1] == 1 else select(mask, correction),
        keep=None if x.keep is None else (x.keep.bool().unsqueeze(1) if x.keep.dim() == 1 else x.keep.bool()),
    )


def _upcast(value: Tensor) -> Tensor:
    return value if value.dtype == torch.float64 else value.float()


def _clean(value: Tensor | None, mask: Tensor) -> Tensor | None:
    return None if value is None else select(mask, _upcast(value)).detach()


_LOG_PROBABILITIES = ("logp", "old_logp", "ref_logp", "rollout_logp")


def check_values(x: Tokens) -> None:
    """Raise ValueError for numbers that are no mask and no log-probabilities, where looking at them costs nothing."""
    check_flags("mask", x.mask, " Weights of tokens go into correction=, weights of responses into row_weights=.")
    if x.keep is not None:
        check_flags("keep", x.keep, " Weights of tokens go into correction=.")
    for name in _LOG_PROBABILITIES:
        if getattr(x, name) is not None:
            check_log_probabilities(name, getattr(x, name), x.mask)


def check_tokens(x: Tokens) -> None:
    """Raise ValueError for what is no tensor or a whole one, on another device, or of a shape that is not allowed."""
    if not isinstance(x, Tokens):
        raise ValueError(
            f"the tokens are of type {type(x).__name__}; allowed: gv.Tokens(logp=..., mask=..., advantages=...)."
        )
    for name in ("logp", "mask", "advantages"):
        check_tensor(name, getattr(x, name))
    if x.logp.dim() != 2:
        raise ValueError(f"logp has shape {tuple(x.logp.shape)}; allowed: [B, T].")
    rows, width = x.logp.shape
    full, row, column = (rows, width), (rows,), (rows, 1)
    allowed = dict.fromkeys(("mask", "old_logp", "ref_logp", "rollout_logp", "entropy", "draws"), (full,))
    allowed |= {"advantages": (row, full), "row_weights": (row,)}  # type: ignore[dict-item]
    allowed |= {"correction": (full, column), "keep": (full, row)}  # type: ignore[dict-item]
    for name, shapes in allowed.items():
        value = getattr(x, name)
        if value is None:
            continue
        check_tensor(name, value)
        if tuple(value.shape) not in shapes:
            names = {full: "[B, T]", row: "[B]", column: "[B, 1]"}
            wanted = " or ".join(f"{names[s]} = {list(s)}" for s in shapes)
            raise ValueError(f"{name} has shape {list(value.shape)}; allowed with logp {list(full)}: {wanted}.")
    if x.groups is not None:
        _check_length("groups", count_ids(x.groups), rows)
    tensors = {name: value for name in ("logp", *allowed) if (value := getattr(x, name)) is not None}
    check_devices(tensors)
    for name in _LOG_PROBABILITIES:
        if name in tensors and not tensors[name].is_floating_point():
            raise ValueError(
                f"{name} is of dtype {tensors[name].dtype}; allowed: a floating one, as in {name}.float()."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """Counts of the whole optimizer step, over all micro-batches and ranks: what makes a split not matter.

    tokens: loss tokens. sequences: responses, empty ones included. prompts: prompt groups.
    nonempty: responses with at least one loss token; read by empty_rows=exclude only.
    length: the constant of aggregation=constant, usually the host's maximum completion length.
    grad_average: number of ranks whose gradients the host averages; the loss is multiplied by it.
    thresholds: precomputed statistics that span the batch, by name (`entropy` for top_entropy).
    lengths: [N] loss tokens of every response; read by aggregation=length_power only.
    Numbers, or 0-d tensors. Raises ValueError for a number that counts nothing; a tensor's is not read back from its
    device, so there a length or a grad_average that is not above 0 goes unseen.
    """

    tokens: Number
    sequences: Number
    prompts: Number | None = None
    nonempty: Number | None = None
    length: Number | None = None
    grad_average: Number = 1
    thresholds: Mapping[str, Number] | None = None
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if torch.compiler.is_compiling():  # a graph's sizes are symbols
            return
        for name in ("tokens", "sequences", "prompts", "nonempty", "length", "grad_average"):
            value = getattr(self, name)
            if value is not None or name in ("tokens", "sequences", "grad_average"):
                _check_count(name, value)

    @classmethod
    def of(cls, mask: Tensor, groups: Groups | Sequence[Hashable] | Tensor | None = None, **given: Any) -> Counts:
        """Count a batch [B, T] that is a whole optimizer step on one rank; `given` sets the other fields."""
        check_tensor("mask", mask)
        if mask.dim() != 2:
            raise ValueError(f"mask has shape {tuple(mask.shape)}; allowed: [B, T].")
        check_flags("mask", mask)
        return cls.of_lengths(mask.bool().sum(1), groups, **given)

    @classmethod
    def of_lengths(
        cls, lengths: Tensor, groups: Groups | Sequence[Hashable] | Tensor | None = None, **given: Any
    ) -> Counts:
        """Count the responses [B] of a whole optimizer step on one rank by their numbers of loss tokens."""
        counted = {
            "tokens": lengths.sum(),
            "sequences": lengths.shape[0],
            "nonempty": (lengths > 0).sum(),
            "lengths": lengths,
        }
        if groups is not None:
            counted["prompts"] = Groups.of(groups).count
        return cls(**{**counted, **given})


def check_counts(counts: object) -> None:
    """Raise ValueError for what is neither counts nor nothing."""
    if counts is not None and not isinstance(counts, Counts):
        raise ValueError(f"counts is of type {type(counts).__name__}; allowed: gv.Counts(...) of the step, or None.")


def _check_count(name: str, value: object) -> None:
    if isinstance(value, Tensor):
        if value.dim():
            raise ValueError(f"counts.{name} has shape {tuple(value.shape)}; allowed: a number or a 0-d tensor.")
        if not readable(value):
            return
    value = value.item() if isinstance(value, (Tensor, np.generic)) else value
    if name in ("length", "grad_average"):
        check_number(f"counts.{name}", value, above=0)
    else:
        check_number(f"counts.{name}", value, at_least=0)


def at_least_one(value: Number) -> Number:
    """A divisor that an empty batch cannot make 0: the loss of nothing is 0 and still runs backward."""
    return value.clamp(min=1) if isinstance(value, Tensor) else max(value, 1)


ROLLOUT_INPUTS = tuple(f.name for f in fields(Rollouts))
