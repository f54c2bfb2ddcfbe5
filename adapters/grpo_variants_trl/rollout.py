"""What happens to a generation batch: rewards to advantages, group filter, overlong rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from grpo_variants import Rollouts, Variant, advantages, keep_groups, soft_overlong_penalty
from grpo_variants.filters import ZeroVariance
from grpo_variants.shaping import Penalty
from grpo_variants.token_credit import EntropyResponses, EntropyTokens
from grpo_variants_trl.greedy import GreedyPass
from grpo_variants_trl.windows import GROUP, KEEP, loss_mask

READS_ENTROPY = (EntropyTokens, EntropyResponses)


class Gathered:
    """A generation batch seen by every rank: per-function rewards, groups, lengths and, if asked for, token tensors."""

    def __init__(self, trainer: Any, out: dict[str, Any], rewards: Tensor, group_size: int) -> None:
        """Gather what the advantage rule reads; `rewards` [N, K] are gathered already."""
        self.accelerator = trainer.accelerator
        self.rewards = rewards
        self.groups = torch.arange(len(rewards), device=rewards.device) // group_size
        self.mask = loss_mask(out)
        self.lengths = self.accelerator.gather(out["completion_mask"].sum(1))
        self.loss_lengths = self.accelerator.gather(self.mask.sum(1))
        self.truncated = self.accelerator.gather(_is_truncated(trainer, out))

    def tokens(self, value: Tensor) -> Tensor:
        """A [B, T] tensor of every rank as [N, T], padded to the longest."""
        padded = self.accelerator.pad_across_processes(value, dim=1)
        return self.accelerator.gather(padded)

    def own(self, value: Tensor) -> Tensor:
        """Take the part of a gathered tensor that is this rank's, in its own width."""
        rows = len(self.mask)
        part = value[self.accelerator.process_index * rows :][:rows]
        return part if part.dim() == 1 else part[:, : self.mask.shape[1]]


def _is_truncated(trainer: Any, out: dict[str, Any]) -> Tensor:
    """Whether a completion does not end in a stop token: [B] bool; one that TRL has masked is."""
    length = out["completion_mask"].sum(1)
    last = out["completion_ids"].gather(1, (length - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    stops = torch.tensor([*trainer.eos_token_ids, trainer._tokenizer.pad_token_id], device=last.device)
    return ~torch.isin(last, stops) | (length == 0)


def prompt_keys(inputs: list[dict[str, Any]]) -> list[str]:
    """The prompt of every rank's responses as text, the same in every step: what a memory goes by."""
    return gather_object([_prompt_text(row["prompt"]) for row in inputs])


def _prompt_text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    try:
        return json.dumps(prompt, sort_keys=True, ensure_ascii=False)
    except TypeError as error:
        raise ValueError(
            f"a rule that remembers prompts needs them as text, and this one holds something else ({error}); choose a "
            "variant without memory for prompts with images."
        ) from None


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
    valid = ~rewards.isnan().all(1)
    if variant.overlong.statistics == "drop":
        valid &= ~seen.truncated
    baseline = None
    if greedy is not None:
        baseline = greedy.rewards
        valid &= ~baseline.isnan().all(1)
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
    keys = memory.pop("keys", None)
    return advantages(
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


def _with_penalty(rewards: Tensor, lengths: Tensor, rule: Penalty, limit: int) -> Tensor:
    """Rewards [N, K] with the soft overlong punishment as one more function: [N, K + 1]."""
    penalty = soft_overlong_penalty(lengths, limit, rule.buffer, rule.factor)
    return torch.cat([rewards, penalty.unsqueeze(1).to(rewards.dtype)], dim=1)


def filter_groups(trainer: Any, variant: Variant, out: dict[str, Any], seen: Gathered) -> Tensor | None:
    """Mark the responses of groups without signal as dropped; returns which of every rank's are kept, or None."""
    if not isinstance(variant.filter, ZeroVariance):
        return None
    values = seen.rewards * trainer.reward_weights.to(seen.rewards.device)
    missing = values.isnan().all(1)
    if variant.filter.metric is None:
        values = values.nansum(1)
    else:
        values = seen.rewards[:, trainer.reward_func_names.index(variant.filter.metric)]
    kept = keep_groups(values, seen.groups, ~missing)
    out[KEEP] = seen.own(kept)
    out["num_items_in_batch"] = trainer.accelerator.gather(loss_mask(out).sum()).sum()
    return kept


def mark_groups(out: dict[str, Any], seen: Gathered) -> None:
    """Keep each response's group with the buffer, for an aggregation by prompt."""
    out[GROUP] = seen.own(seen.groups)


@contextmanager
def recorded_rewards(trainer: Any) -> Iterator[list[Tensor]]:
    """Collect what `_calculate_rewards` returns in a block, [N, K] gathered; what a subclass makes of it included."""
    calculate, own = trainer._calculate_rewards, vars(trainer).get("_calculate_rewards")
    seen: list[Tensor] = []

    def record(*args: Any, **kwargs: Any) -> Tensor:
        seen.append(calculate(*args, **kwargs))
        return seen[-1]

    trainer._calculate_rewards = record
    try:
        yield seen
    finally:
        del trainer._calculate_rewards
        if own is not None:
            trainer._calculate_rewards = own
