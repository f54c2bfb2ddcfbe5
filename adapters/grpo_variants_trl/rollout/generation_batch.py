"""What happens to a generation batch: rewards to advantages, group filter, overlong rule."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from grpo_variants import Memory, Rollouts, Variant
from grpo_variants.advantage.compute import advantages_and_rows
from grpo_variants.objective.aggregation import with_signal
from grpo_variants.rollout.overlong import Penalty
from grpo_variants_trl.rollout.capture import Sampled
from grpo_variants_trl.rollout.greedy import GreedyPass
from grpo_variants_trl.rollout.prompts import task_text
from grpo_variants_trl.rollout.rewards import total_rewards
from grpo_variants_trl.rollout.signal import signal_of
from grpo_variants_trl.step.step_counts import GROUP, KEEP, loss_mask

_NO_IMAGES = (
    "a rule that remembers prompts goes by their text, and these hold something else, such as images. Choose a variant "
    "without memory for them."
)


class Gathered:
    """A generation batch as every rank knows it: rewards by function, groups, lengths and, on demand, tokens."""

    def __init__(self, trainer: Any, batch: Sampled, group_size: int) -> None:
        """Gather what the advantage rule reads."""
        self.accelerator = trainer.accelerator
        self.rewards = batch.rewards
        self.group_size = group_size
        self.groups = torch.arange(len(batch.rewards), device=batch.rewards.device) // group_size
        self.mask = loss_mask(batch.out)
        self.lengths = self.accelerator.gather(batch.out["completion_mask"].sum(1))
        self.loss_lengths = self.accelerator.gather(self.mask.sum(1))
        self.valid = batch.valid(trainer)
        self.steps = batch.steps

    def tokens(self, value: Tensor) -> Tensor:
        """A [B, T] tensor of every rank as [N, T], padded to the longest."""
        padded = self.accelerator.pad_across_processes(value, dim=1)
        return self.accelerator.gather(padded)

    def own(self, value: Tensor) -> Tensor:
        """Take the part of a gathered tensor that is this rank's, in its own width."""
        rows = len(self.mask)
        part = value[self.accelerator.process_index * rows :][:rows]
        return part if part.dim() == 1 else part[:, : self.mask.shape[1]]


def prompt_keys(trainer: Any, inputs: list[dict[str, Any]], out: dict[str, Any]) -> list[str]:
    """The prompt of every rank's responses as text, the same in every optimizer step: the keys of a memory.

    Raises ValueError for rollouts with images, wherever they come from: their prompts' texts do not tell them apart.
    """
    if "pixel_values" in out:
        raise ValueError(_NO_IMAGES)
    return gather_object([_key(trainer, row) for row in inputs])


def _key(trainer: Any, row: dict[str, Any]) -> str:
    text = task_text(trainer, row)
    if text is None:
        raise ValueError(_NO_IMAGES)
    return text


def variant_advantages(
    trainer: Any,
    out: dict[str, Any],
    seen: Gathered,
    greedy: GreedyPass | None,
    *,
    groups: list[str] | None = None,
    state: Memory | None = None,
) -> Tensor:
    """Advantages of every rank's responses under the variant: [N], or [N, T].

    groups, state: the prompts as text and the memory that is keyed by them, for a variant that remembers.
    """
    variant = trainer.variant
    rewards, tokens = _rewards(trainer, seen, greedy), _token_inputs(variant, out, seen)
    steps = seen.steps
    if steps is not None and variant.overlong.punishes:
        steps = steps.with_outcome(rewards["rewards"][:, -1])
    rollouts = Rollouts(
        groups=seen.groups if groups is None else groups,
        lengths=seen.loss_lengths,
        **rewards,
        **(tokens if steps is None else steps.inputs()),
    )
    value, kept = advantages_and_rows(variant, rollouts, state)
    if kept is not None:
        _keep(trainer, out, seen.own(kept))
    return value if steps is None else steps.spread(value, tokens["mask"])


def _rewards(trainer: Any, seen: Gathered, greedy: GreedyPass | None) -> dict[str, Any]:
    """Rewards, their weights, the greedy baseline and which responses count, with the punishment of length."""
    rule, limit = trainer.variant.overlong, trainer.max_completion_length
    rewards, weights, valid = seen.rewards, trainer.reward_weights.to(seen.rewards.device), seen.valid
    baseline = None if greedy is None else greedy.rewards
    if baseline is not None:
        valid = valid & ~total_rewards(trainer, baseline).isnan()
    if rule.punishes:
        rewards = _with_penalty(rewards, seen.lengths, rule, limit)
        baseline = None if greedy is None else _with_penalty(baseline, greedy.lengths, rule, limit)
        weights = torch.cat([weights, weights.new_ones(1)])
    return {"rewards": rewards, "reward_weights": weights, "greedy_rewards": baseline, "valid": valid}


def _token_inputs(variant: Variant, out: dict[str, Any], seen: Gathered) -> dict[str, Tensor]:
    """What the rule reads of every rank's tokens: [N, T] each."""
    named = {}
    if variant.reads_old_logp:
        named |= {"old_logp": "old_per_token_logps"}
    if variant.kl_in_reward:
        named |= {"ref_logp": "ref_per_token_logps"}
    if "entropy" in variant.rollout_inputs:
        named |= {"entropy": "entropy"}
    if not (named or variant.per_token):
        return {}
    found = {name: seen.tokens(out[in_trl]) for name, in_trl in named.items()}
    return found | {"mask": seen.tokens(seen.mask.int()).bool()}


def _with_penalty(rewards: Tensor, lengths: Tensor, rule: Penalty, limit: int) -> Tensor:
    """Rewards [N, K] with the soft overlong punishment as one more function: [N, K + 1]."""
    penalty = rule.penalty(lengths, limit)
    return torch.cat([rewards, penalty.unsqueeze(1).to(rewards.dtype)], dim=1)


def filter_groups(trainer: Any, batch: Sampled, seen: Gathered) -> Tensor | None:
    """Mark the responses of groups without signal as dropped; returns which of every rank's are kept, or None."""
    if not trainer.variant.filter.drops:
        return None
    kept = signal_of(trainer, batch, seen.group_size).kept
    _keep(trainer, batch.out, seen.own(kept))
    return kept


def drop_responses(trainer: Any, out: dict[str, Any]) -> None:
    """Mark responses without an advantage as dropped, where the variant's aggregation leaves them out."""
    if trainer.variant.aggregation.drops_rows:
        _keep(trainer, out, with_signal(out["advantages"], loss_mask(out)))


def _keep(trainer: Any, out: dict[str, Any], rows: Tensor) -> None:
    """Keep some of this rank's responses [B] in the loss, of those that are, and count what is left on every rank."""
    out[KEEP] = rows & out[KEEP] if KEEP in out else rows
    out["num_items_in_batch"] = trainer.accelerator.gather(loss_mask(out).sum()).sum()


def mark_groups(out: dict[str, Any], seen: Gathered) -> None:
    """Keep each response's group with the buffer, for an aggregation per prompt."""
    out[GROUP] = seen.own(seen.groups)
