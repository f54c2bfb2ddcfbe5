"""Advantages of whole groups that lie side by side, all of one size: a matrix with a group a row.

Rewards are taken relative to their group's first one, so that a constant group is 0 to the last bit without looking for
its minimum and maximum; mean and deviation are taken in two passes. Nothing but the result is as long as the rewards.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from grpo_variants import fast_paths
from grpo_variants.advantage.baseline import GroupMean, LeaveOneOut, LengthWeighted, NoBaseline
from grpo_variants.advantage.credit import Outcome
from grpo_variants.advantage.inputs import Rollouts, given_tokens, read_weights, token_inputs
from grpo_variants.advantage.reward_transform import NoTransform
from grpo_variants.advantage.rule import AdvantageRule
from grpo_variants.advantage.scale import GroupStd, NoScale, divisor
from grpo_variants.advantage.selection import Everyone
from grpo_variants.tensors.groups import Groups
from grpo_variants.tensors.precision import narrow, wide
from grpo_variants.tensors.reading import as_floating, read_lengths, read_valid

# Variances below it are left to the plain path, which scales before it squares.
SMALLEST = 1e-30
# Responses of a group that are added up in float32: more, and the rounding of the sum outgrows that of the numbers.
FEW = 32


@torch.no_grad()
def fast_advantages(variant: AdvantageRule, rollouts: Rollouts) -> Tensor | None:
    """`gv.advantages` [N], or None where the plain path has to do it: uneven groups, gaps, rules beyond the tables."""
    if fast_paths.current() == fast_paths.OFF or not covers(variant) or rollouts.groups is None:
        return None
    total = _total(rollouts)
    if total is None or not _is_whole(rollouts, len(total)):
        return None
    groups = Groups.of(rollouts.groups)
    if groups.each is None or groups.each < 2 or len(groups) != len(total):
        return None
    rewards = (total if groups.each <= FEW else wide(total)).view(-1, groups.each)
    centred = rewards - rewards[:, :1]
    centred -= _weighted_sum(centred, 1 / groups.each)
    scale = DIVISORS[type(variant.scale)](variant.scale, centred)
    if scale is not None and _vanishes(centred, scale):
        return None
    value = BASELINES[type(variant.baseline)](rewards, centred, rollouts)
    return value if value is None else narrow((value if scale is None else value.div_(scale)).view(-1), total.dtype)


def covers(variant: AdvantageRule) -> bool:
    """Whether the tables have every part of the advantage rule."""
    others = tuple(map(type, (variant.credit, variant.selection, variant.transform))) == (
        Outcome,
        Everyone,
        NoTransform,
    )
    return (
        others and not variant.kl_in_reward and type(variant.baseline) in BASELINES and type(variant.scale) in DIVISORS
    )


def _total(rollouts: Rollouts) -> Tensor | None:
    """Rewards [N], several functions weighted and added; None where one is missing, or a shape is not allowed."""
    if rollouts.rewards is None:
        return None
    rewards = as_floating(rollouts.rewards, name="rewards")
    # On a CPU nothing has to be waited for.
    if rewards.device.type != "cpu" or rewards.dim() not in (1, 2) or not rewards.numel():
        return None
    rewards = rewards.unsqueeze(1) if rewards.dim() == 1 else rewards
    columns = list(rewards.unbind(1))
    if rollouts.reward_weights is not None:
        weights = read_weights(rollouts.reward_weights, rewards)
        columns = [column * weight for column, weight in zip(columns, weights, strict=True)]
    total = functools.reduce(torch.add, columns).contiguous()
    # Finite where every reward is, and where their squares are.
    return total if math.isfinite(torch.dot(total, total).item()) else None


def _is_whole(rollouts: Rollouts, count: int) -> bool:
    """Whether every response is there, and every shape is right."""
    if rollouts.greedy_rewards is not None or any(len(value) != count for value in given_tokens(rollouts).values()):
        return False
    if rollouts.lengths is not None and len(read_lengths(rollouts.lengths)) != count:
        return False
    present = rollouts.valid is None or bool(read_valid(rollouts.valid, count).all())
    return present and not _misses_token_reward(rollouts, count)


def _misses_token_reward(rollouts: Rollouts, count: int) -> bool:
    if rollouts.token_rewards is None:
        return False
    *_, incomplete = token_inputs(rollouts)
    return incomplete is None or len(incomplete) != count or bool(incomplete.any())


def _none(rewards: Tensor, centred: Tensor, rollouts: Rollouts) -> Tensor:
    return rewards.clone()


def _group_mean(rewards: Tensor, centred: Tensor, rollouts: Rollouts) -> Tensor:
    return centred


def _leave_one_out(rewards: Tensor, centred: Tensor, rollouts: Rollouts) -> Tensor:
    size = rewards.shape[1]
    return centred.mul_(size / (size - 1))


def _length_weighted(rewards: Tensor, centred: Tensor, rollouts: Rollouts) -> Tensor | None:
    lengths = rollouts.lengths
    if lengths is None:
        if rollouts.mask is None:
            return None
        lengths = rollouts.mask.bool().sum(1)
    weight = read_lengths(lengths).to(rewards.dtype).view(rewards.shape)
    total = weight.sum(1, keepdim=True)
    return None if bool((total == 0).any()) else centred - (centred * weight).sum(1, keepdim=True) / total


BASELINES: Mapping[type, Callable[[Tensor, Tensor, Rollouts], Tensor | None]] = {
    NoBaseline: _none,
    GroupMean: _group_mean,
    LeaveOneOut: _leave_one_out,
    LengthWeighted: _length_weighted,
}


def _weighted_sum(values: Tensor, weight: float) -> Tensor:
    """Sum of each group [P, G] times a weight [P, 1], a product of matrices: twice as fast as `sum` on short rows."""
    return torch.mv(values, values.new_full(values.shape[1:], weight)).unsqueeze(1)


def _no_divisor(rule: NoScale, centred: Tensor) -> None:
    return None


def _group_std(rule: GroupStd, centred: Tensor) -> Tensor:
    """What a group's advantages are divided by [P, 1]; infinity for a constant group, which then has advantage 0."""
    freedom = max(centred.shape[1] - rule.ddof, 1)
    variance = _weighted_sum(centred.square(), 1 / freedom)
    return divisor(variance.sqrt(), rule.eps, rule.eps_in).masked_fill_(variance < SMALLEST, float("inf"))


def _vanishes(centred: Tensor, scale: Tensor) -> bool:
    """Whether a group is not constant and its variance yet beyond the range of the numbers, or next to nothing."""
    flat = scale.isinf()
    return bool(flat.any()) and bool(centred[flat.squeeze(1)].any())


DIVISORS: Mapping[type, Callable[..., Tensor | None]] = {NoScale: _no_divisor, GroupStd: _group_std}
