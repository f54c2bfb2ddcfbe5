"""The advantage stage: from verl's inputs of an estimator to `gv.advantages`, and back to [B, T]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_variants.advantage.compute import advantages_of
from grpo_variants.advantage.credit import RewardToGo
from grpo_variants.advantage.inputs import Rollouts
from grpo_variants.functions import row_weights
from grpo_variants.names import PREFIX
from grpo_variants.objective.aggregation import Aggregation, with_signal
from grpo_variants.objective.inputs import Counts
from grpo_variants.tensors.masked import discounted_sum_to_go, select
from grpo_variants.tensors.reading import infinite_entries, without_infinities
from grpo_variants.trainers.verl.findings import Finding, Fix, Refused
from grpo_variants.trainers.verl.limits import advantage_form
from grpo_variants.trainers.verl.words import STEP_REWARDS, carried_over
from grpo_variants.variant import Variant
from grpo_variants_verl.settings import estimator_choice, node_of
from grpo_variants_verl.worker_check import LOG


@dataclass(frozen=True)
class Estimator:
    """verl's advantage estimator for one variant; equal for equal names, so that verl accepts it twice."""

    name: str

    @property
    def __name__(self) -> str:
        """Name as verl shows it."""
        return PREFIX + self.name

    def rule(self, config: Any) -> Variant:
        """The advantage rule under verl's `algorithm` section; verl has already taken a KL penalty off the rewards."""
        return advantage_form(estimator_choice(self.name, config).variant)

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

        token_level_rewards: [B, T], already less the KL penalty where verl takes one off; a response with one that is
        not finite has no reward. response_mask: [B, T], holes allowed; a row without a token stays in its group's
        statistics, unless it is verl's own padding. config: verl's `algorithm` section. index: B uids.
        reward_baselines: [B] rewards of greedy responses. inputs: old_log_probs and sum_pi_squared, where a
        patched verl passes them (`extend_host`).
        """
        values = self.values(token_level_rewards, response_mask, config, index, reward_baselines, **inputs)
        mask = response_mask.bool()
        spread = self.spread(values, mask, config, index)
        return spread, _returns(self.rule(config), spread, token_level_rewards, mask)

    def values(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        config: Any,
        index: Any,
        reward_baselines: Tensor | None = None,
        **inputs: Any,
    ) -> Tensor:
        """Advantages [B], or [B, T] for token credit, from the inputs that verl calls an estimator with."""
        if index is None:
            raise ValueError(f"{self.__name__}: verl gave no uid per response, so the prompts' groups are unknown.")
        variant, mask = self.rule(config), response_mask.bool()
        report_infinite(self.__name__, token_level_rewards, index)
        rewards = settled(without_infinities(token_level_rewards), mask)
        rollouts = Rollouts(
            rewards=without_infinities(without_infinities(token_level_rewards).sum(1)),
            groups=list(index),
            valid=~padding_rows(index, mask),
            mask=mask,
            token_rewards=rewards if variant.per_token else None,
            step_ends=_step_ends(variant, rewards, mask, config),
            greedy_rewards=reward_baselines,
            old_logp=inputs.get("old_log_probs"),
            sum_pi_squared=inputs.get("sum_pi_squared"),
        )
        return advantages_of(variant, rollouts)

    def spread(self, values: Tensor, mask: Tensor, config: Any, index: Any) -> Tensor:
        """Advantages on the tokens of the mask [B, T], with the weights that a loss in verl cannot apply."""
        variant = self.rule(config)
        spread = select(mask, values if values.dim() == 2 else values.unsqueeze(1))
        over = carried_over(variant.aggregation)
        if over is not None:
            spread = spread * _carried_weights(variant, over, spread, mask, index).unsqueeze(1)
        return spread


# Estimators whose infinite rewards were reported in this process.
_reported: set[str] = set()


def report_infinite(name: str, token_rewards: Tensor, index: Sequence[Any]) -> None:
    """Warn once per run that a reward is infinite, with its response."""
    if name in _reported or not (found := infinite_entries(token_rewards)):
        return
    _reported.add(name)
    row, token, value = found[0]
    LOG.warning(
        f"{name}: the reward of response {row} (uid {index[row]}) is {value:g} at token {token}. What is not finite is "
        "missing: such a response has advantage 0 and is in no statistic. Let the reward function return a finite "
        "number, or NaN for a response that it cannot judge. This warning comes once per run."
    )


def settled(token_rewards: Tensor, mask: Tensor) -> Tensor:
    """Move a reward at a tool's token to the policy's last token before it: [B, T].

    verl puts a response's reward at its last token; where that is a tool's, the reward would be lost.
    """
    position = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, position, -1).cummax(1).values
    earned = torch.where(last >= 0, token_rewards, torch.zeros_like(token_rewards))
    return torch.zeros_like(token_rewards).scatter_add(1, last.clamp(min=0), earned)


def padding_rows(index: Sequence[Any], mask: Tensor) -> Tensor:
    """Rows that verl's V1 trainer appended to fill up a batch, which are no responses: [B] bool."""
    empty = ~mask.any(1)
    # Only rows without a token are compared: thousands of strings would take longer than the advantages.
    for row in empty.nonzero().squeeze(1).tolist():
        empty[row] = str(index[row]).startswith("pad")
    return empty


def _step_ends(variant: Variant, rewards: Tensor, mask: Tensor, config: Any) -> Tensor | None:
    """Where steps end, for process supervision: at every token with a reward."""
    if "step_ends" not in variant.rollout_inputs:
        return None
    if node_of(config).get("step_rewards") != "nonzero":
        raise Refused(step_rewards_needed(variant.name))
    return mask & (rewards != 0)


def step_rewards_needed(name: str) -> Finding:
    """Why process supervision needs more than a flag."""
    return Finding(
        f"{PREFIX}{name}: verl's reward managers give one reward per response, at its last token, and nothing says "
        "where steps end. With a reward manager that writes step rewards to the steps' last tokens (by step_scores), "
        "say that a step ends at every token whose reward is not 0.",
        (Fix({STEP_REWARDS: "nonzero"}),),
    )


def _carried_weights(variant: Variant, over: Aggregation, spread: Tensor, mask: Tensor, index: Sequence[Any]) -> Tensor:
    """Factors from the weights of a loss's aggregation to the variant's own: [B]; spread: the advantages [B, T]."""
    groups, real = list(index), ~padding_rows(index, mask)
    prompts = len({uid for uid, one in zip(groups, real.tolist(), strict=True) if one})
    kept = mask.bool() & with_signal(spread, mask).unsqueeze(1) if variant.aggregation.drops_rows else mask
    pair = ((variant, kept), (replace(variant, aggregation=over), mask))
    # A constant length is the same in both.
    counts = [Counts.of(counted, prompts=prompts, length=1) for _, counted in pair]
    own, theirs = (row_weights(v, m.sum(1), c, groups) for (v, m), c in zip(pair, counts, strict=True))
    return own / theirs


def _returns(variant: Variant, spread: Tensor, token_rewards: Tensor, mask: Tensor) -> Tensor:
    """verl's second output: the returns that credit=reward_to_go starts from, else the advantages themselves."""
    if not isinstance(variant.credit, RewardToGo):
        return spread
    given = select(token_rewards.isfinite().all(1, keepdim=True), token_rewards)
    return select(mask, discounted_sum_to_go(settled(given, mask), mask, variant.credit.gamma))
