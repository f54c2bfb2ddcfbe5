"""Rewards of reasoning steps as verl's token-level rewards, for a reward manager of the user's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from grpo_variants.rollout.steps import Step, step_ends


def step_scores(
    steps: Sequence[Sequence[Any]],
    ids: Sequence[Sequence[int]],
    width: int,
    *,
    tokenizer: Any = None,
    shift: float = 0.0,
) -> Tensor:
    """Token-level rewards [B, width] with each reasoning step's reward at its last token: verl's `rm_scores`.

    steps: for each response a list of `Step`, or of what `Step.of` takes; NaN or None leaves the response out. ids: the
    responses' tokens, without padding. tokenizer: needed for steps with `text=`.
    shift: added to every step reward. With step_rewards=nonzero a step ends where the reward is not 0, so rewards of 0
    and 1 need one (-0.5); since the group's mean is subtracted it changes no advantage.
    Raises ValueError, with the response, for positions outside it or out of order and for a reward that would be 0.
    """
    scores = torch.zeros(len(ids), width)
    for row, (own, tokens) in enumerate(zip(steps, ids, strict=True)):
        try:
            scores[row] = _placed([Step.of(step) for step in own], tokens, width, tokenizer, shift)
        except ValueError as error:
            raise ValueError(f"response {row}: {error}") from error
    return scores


def _placed(steps: list[Step], tokens: Sequence[int], width: int, tokenizer: Any, shift: float) -> Tensor:
    placed = torch.zeros(width)
    ends = step_ends(steps, tokens, lambda: tokenizer.decode(tokens, skip_special_tokens=True), tokenizer)
    for before, after in pairwise(ends):
        if before == after:
            raise ValueError(f"two steps end within token {after}, which has one reward in verl; merge them.")
    for step, end in zip(steps, ends, strict=True):
        reward = math.nan if step.reward is None else step.reward + shift
        if reward == 0:
            raise ValueError(f"a step's reward is 0 (with shift={shift:g}), which looks like no step. Set shift=.")
        placed[end] = reward
    return placed
