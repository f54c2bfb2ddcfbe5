"""The advantage end: from what verl hands an estimator to `gv.advantages`, and back to [B, T]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_variants.advantage import advantages
from grpo_variants.credit import Process, RewardToGo
from grpo_variants.inputs import Counts, Rollouts
from grpo_variants.masked import discounted_sum_to_go, select
from grpo_variants.names import PREFIX
from grpo_variants.objective import row_weights
from grpo_variants.variant import Variant
from grpo_variants.verl_findings import Finding, Fix, Refused
from grpo_variants.verl_limits import advantage_form
from grpo_variants.verl_words import STEP_REWARDS
from grpo_variants_verl.settings import carries_prompt_mean, estimator_choice, node_of


@dataclass(frozen=True)
class Estimator:
    """verl's advantage estimator for one variant; equal for equal names, so that verl accepts it twice."""

    name: str

    @property
    def __name__(self) -> str:
        """Name as verl shows it."""
        return PREFIX + self.name

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        config: Any = None,
        index: Any = None,
        reward_baselines: Tensor | None = None,
        **inputs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Advantages and returns, both [B, T], 0 outside the mask.

        token_level_rewards: [B, T], already less the KL penalty where the host takes one off. response_mask: [B, T],
        holes allowed; a row without a token stays in its group's statistics, unless it is verl's own padding.
        config: verl's `algorithm` section. index: B uids. reward_baselines: [B] rewards of greedy responses.
        inputs: old_log_probs and sum_pi_squared, where the host hands them over (`extend_host`).
        """
        if index is None:
            raise ValueError(f"{self.__name__}: verl gave no uid a row, so the prompts' groups are unknown.")
        variant = advantage_form(estimator_choice(self.name, config).variant)
        mask = response_mask.bool()
        rewards = settled(token_level_rewards, mask)
        rollouts = Rollouts(
            rewards=token_level_rewards.sum(1),
            groups=list(index),
            valid=~padding_rows(index, mask),
            mask=mask,
            token_rewards=rewards if variant.per_token else None,
            step_ends=_step_ends(variant, rewards, mask, config),
            greedy_rewards=reward_baselines,
            old_logp=inputs.get("old_log_probs"),
            sum_pi_squared=inputs.get("sum_pi_squared"),
        )
        values = advantages(variant, rollouts)
        spread = select(mask, values if values.dim() == 2 else values.unsqueeze(1))
        if carries_prompt_mean(variant):
            spread = spread * _prompt_scale(variant, mask, rollouts).unsqueeze(1)
        return spread, _returns(variant, spread, rewards, mask)


def settled(token_rewards: Tensor, mask: Tensor) -> Tensor:
    """Move a reward at a token that is no action (a tool's output) to the last action before it: [B, T].

    verl puts a response's reward at its last token; where a tool wrote that one, the reward would be lost.
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, position, -1).cummax(1).values
    earned = torch.where(last >= 0, token_rewards, torch.zeros_like(token_rewards))
    return torch.zeros_like(token_rewards).scatter_add(1, last.clamp(min=0), earned)


def padding_rows(index: Sequence[Any], mask: Tensor) -> Tensor:
    """Rows that verl's V1 trainer appended to fill up a batch, which are nobody's responses: [B] bool."""
    empty = ~mask.any(1)
    # Uids are looked at where there is no token only: thousands of strings take longer than the advantages.
    for row in empty.nonzero().squeeze(1).tolist():
        empty[row] = str(index[row]).startswith("pad")
    return empty


def _step_ends(variant: Variant, rewards: Tensor, mask: Tensor, config: Any) -> Tensor | None:
    """Where steps end, for process supervision: at every token with a reward."""
    if not isinstance(variant.credit, Process):
        return None
    if node_of(config).get("step_rewards") != "nonzero":
        raise Refused(step_rewards_needed(variant.name))
    return mask & (rewards != 0)


def step_rewards_needed(name: str) -> Finding:
    """Why process supervision does not run by a flag alone."""
    return Finding(
        f"{PREFIX}{name}: verl's reward managers give one reward a response, at its last token, and nothing says where "
        "steps end. With a reward manager that writes step rewards to the steps' last tokens (by step_scores), say "
        "that a step ends at every token whose reward is not 0.",
        (Fix({STEP_REWARDS: "nonzero"}),),
    )


def _prompt_scale(variant: Variant, mask: Tensor, rollouts: Rollouts) -> Tensor:
    """What turns the weight of token_mean into that of prompt_mean: [B]."""
    lengths, valid = mask.sum(1), torch.as_tensor(rollouts.valid)
    groups = list(rollouts.groups or ())
    prompts = len({uid for uid, real in zip(groups, valid.tolist(), strict=True) if real})
    counts = Counts(tokens=lengths.sum(), sequences=len(groups), prompts=prompts)
    return row_weights(variant, lengths, counts, groups) * lengths.sum()


def _returns(variant: Variant, spread: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    """verl's second output: the returns that credit=reward_to_go starts from, else the advantages themselves."""
    if isinstance(variant.credit, RewardToGo):
        return select(mask, discounted_sum_to_go(rewards, mask, variant.credit.gamma))
    return spread
