"""What happens to a generation batch: rewards to advantages, group filter, overlong rule."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from grpo_variants import Rollouts, Variant, advantages, soft_overlong_penalty
from grpo_variants.filters import ZeroVariance
from grpo_variants.shaping import Penalty
from grpo_variants.token_credit import EntropyResponses, EntropyTokens
from grpo_variants_trl.greedy import GreedyPass
from grpo_variants_trl.prompts import task_text
from grpo_variants_trl.sampling import Sampled
from grpo_variants_trl.signal import signal_of
from grpo_variants_trl.windows import GROUP, KEEP, loss_mask

READS_ENTROPY = (EntropyTokens, EntropyResponses)


class Gathered:
    """A generation batch seen by every rank: per-function rewards, groups, lengths and, if asked for, token tensors."""

    def __init__(self, trainer: Any, batch: Sampled, group_size: int) -> None:
        """Gather what the advantage rule reads."""
        self.accelerator = trainer.accelerator
        self.rewards = batch.rewards
        self.group_size = group_size
        self.groups = torch.arange(len(batch.rewards), device=batch.rewards.device) // group_size
        self.mask = loss_mask(batch.out)
        self.lengths = self.accelerator.gather(batch.out["completion_mask"].sum(1))
        self.loss_lengths = self.accelerator.gather(self.mask.sum(1))
        self.valid = batch.valid(trainer.variant)
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


def prompt_keys(trainer: Any, inputs: list[dict[str, Any]]) -> list[str]:
    """The prompt of every rank's responses as text, the same in every step: what a memory goes by."""
    return gather_object([_key(trainer, row) for row in inputs])


def _key(trainer: Any, row: dict[str, Any]) -> str:
    text = task_text(trainer, row)
    if text is None:
        raise ValueError(
            "a rule that remembers prompts needs them as text, and this one holds something else; choose a variant "
            "without memory for prompts with images."
        )
    return text


def variant_advantages(
    trainer: Any,
    variant: Variant,
    out: dict[str, Any],
    seen: Gathered,
    greedy: GreedyPass | None,
    **memory: Any,
) -> Tensor:
    """Advantages of every rank's responses under the variant: [N], or [N, T].

    memory: `state` and, as `keys`, the prompts that it goes by, for a variant that remembers.
    """
    rewards, weights = seen.rewards, trainer.reward_weights.to(seen.rewards.device)
    valid, baseline = seen.valid, None
    if greedy is not None:
        baseline = greedy.rewards
        valid = valid & ~baseline.isnan().all(1)
    if isinstance(variant.overlong, Penalty):
        limit = trainer.max_completion_length
        rewards = _with_penalty(rewards, seen.lengths, variant.overlong, limit)
        baseline = None if greedy is None else _with_penalty(baseline, greedy.lengths, variant.overlong, limit)
        weights = torch.cat([weights, weights.new_ones(1)])
    token_inputs = {}
    reads_entropy = isinstance(variant.credit, READS_ENTROPY)
    if variant.per_token or variant.kl_in_reward or reads_entropy:
        token_inputs["mask"] = seen.tokens(seen.mask.int()).bool()
    if variant.kl_in_reward:
        token_inputs |= {
            "old_logp": seen.tokens(out["old_per_token_logps"]),
            "ref_logp": seen.tokens(out["ref_per_token_logps"]),
        }
    if reads_entropy:
        token_inputs["entropy"] = seen.tokens(out["entropy"])
    steps = seen.steps
    if steps is not None:
        every_mask = token_inputs["mask"]
        if isinstance(variant.overlong, Penalty):
            steps = steps.with_outcome(rewards[:, -1])
        token_inputs |= steps.inputs()
    keys = memory.pop("keys", None)
    value = advantages(
        variant,
        Rollouts(
            rewards=rewards,
            groups=seen.groups if keys is None else keys,
            lengths=seen.loss_lengths,
            valid=valid,
            reward_weights=weights,
            greedy_rewards=baseline,
            **token_inputs,
        ),
        **memory,
    )
    return value if steps is None else steps.spread(value, every_mask)


def _with_penalty(rewards: Tensor, lengths: Tensor, rule: Penalty, limit: int) -> Tensor:
    """Rewards [N, K] with the soft overlong punishment as one more function: [N, K + 1]."""
    penalty = soft_overlong_penalty(lengths, limit, rule.buffer, rule.factor)
    return torch.cat([rewards, penalty.unsqueeze(1).to(rewards.dtype)], dim=1)


def filter_groups(trainer: Any, variant: Variant, batch: Sampled, seen: Gathered) -> Tensor | None:
    """Mark the responses of groups without signal as dropped; returns which of every rank's are kept, or None."""
    if not isinstance(variant.filter, ZeroVariance):
        return None
    kept = signal_of(trainer, batch, seen.group_size).kept
    batch.out[KEEP] = seen.own(kept)
    batch.out["num_items_in_batch"] = trainer.accelerator.gather(loss_mask(batch.out).sum()).sum()
    return kept


def mark_groups(out: dict[str, Any], seen: Gathered) -> None:
    """Keep each response's group with the buffer, for an aggregation by prompt."""
    out[GROUP] = seen.own(seen.groups)
