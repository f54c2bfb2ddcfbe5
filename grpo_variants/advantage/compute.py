"""The advantages of a rule: the fast path where it applies, part by part otherwise."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from grpo_variants.advantage.credit import AdvantageParts
from grpo_variants.advantage.fast import fast_advantages
from grpo_variants.advantage.inputs import Rollouts, Samples, check_rollouts, read_rollouts
from grpo_variants.advantage.memory import Memory
from grpo_variants.advantage.rule import AdvantageRule
from grpo_variants.tensors.precision import narrow


def advantages_of(rule: AdvantageRule, rollouts: Rollouts, state: Memory | None = None) -> Tensor:
    """`advantages` without a word on the sizes of groups, which a trainer's adapter says once, at the start."""
    return advantages_and_rows(rule, rollouts, state)[0]


def advantages_and_rows(
    rule: AdvantageRule, rollouts: Rollouts, state: Memory | None = None
) -> tuple[Tensor, Tensor | None]:
    """Advantages, and which responses [N] stay in the loss where the selection drops some; None where all do."""
    check_state(rule, state)
    check_rollouts(rollouts)
    value = fast_advantages(rule, rollouts)
    if value is not None:
        return value, None
    value, kept = plain_advantages(rule, rollouts, state)
    return value, kept if rule.selection.drops else None


def plain_advantages(rule: AdvantageRule, rollouts: Rollouts, state: Memory | None) -> tuple[Tensor, Tensor]:
    """Advantages part by part, and which responses are learnt from."""
    samples = read_rollouts(rollouts, rule.singleton, state)
    _check_matrix(rule, samples)
    try:
        return _by_parts(rule, samples)
    except NotImplementedError:
        if not samples.rewards.is_meta:
            raise
        raise ValueError(
            f"rewards is on the meta device, which holds no numbers, and {rule.name} has to look at them; give "
            "tensors on another device."
        ) from None


@torch.no_grad()
def _by_parts(rule: AdvantageRule, samples: Samples) -> tuple[Tensor, Tensor]:
    penalty = rule.kl if rule.kl is not None and rule.kl.placement == "reward" else None
    # Validity first, then the selection: a response without a baseline must not take a place in it.
    samples = replace(samples, valid=_with_baseline(rule, samples))
    samples = replace(samples, valid=rule.selection(samples))
    samples = replace(samples, rewards=rule.transform(samples.rewards, samples))
    value = rule.credit(samples, AdvantageParts(rule.baseline, rule.scale, penalty))
    kept = rule.selection.by_advantage(value, samples)
    learnt = kept if value.dim() == 1 else kept.unsqueeze(1)
    return narrow(torch.where(learnt, value, torch.zeros_like(value)), samples.dtype), kept


def _check_matrix(rule: AdvantageRule, samples: Samples) -> None:
    """Raise ValueError for rewards [P, G] with an id per prompt, read as [N, K]: no response then has a sibling."""
    count, width = samples.components.shape
    compares = rule.baseline.of_group or rule.scale.of_group
    named = samples.rollouts.reward_weights is not None
    if compares and not named and width > 1 and count == samples.groups.count:
        responses = "one response" if count == 1 else f"{count} responses"
        raise ValueError(
            f"rewards is [{count}, {width}] and each row has a group of its own: {responses} without a sibling, "
            f"and {width} reward functions. For {width} responses to each of {count} prompts give "
            f"rewards.flatten() and groups=[p for p in range({count}) for _ in range({width})]; for {width} reward "
            "functions give reward_weights= too."
        )


def _with_baseline(rule: AdvantageRule, samples: Samples) -> Tensor:
    """Valid responses [N] whose baseline is there: a greedy reward may be missing as any other."""
    if samples.greedy_rewards is None or "greedy_rewards" not in rule.baseline.reads:
        return samples.valid
    return samples.valid & ~samples.greedy_rewards.isnan()


def check_state(rule: AdvantageRule, state: Memory | None) -> None:
    """Raise ValueError for a memory that is not used, and for a rule that lacks one."""
    if not rule.remembers and state is not None:
        raise ValueError(f"state= has no effect: {rule.name} remembers nothing of earlier steps. Leave it out.")
    if rule.remembers and not isinstance(state, Memory):
        raise ValueError(
            f"{rule.name} remembers earlier steps by prompt and needs state=: make one gv.Memory() for the run, "
            "pass it to every call, and give groups ids that mean the same prompt in every step, such as its text."
        )
