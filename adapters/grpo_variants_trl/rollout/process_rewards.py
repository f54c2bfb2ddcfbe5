"""Process supervision in TRL: reward functions that score the reasoning steps of a response.

TRL wants one number per response from a reward function. While it scores a batch, each function is wrapped: its
reasoning steps are placed on the response's tokens and kept. TRL gets the sum of their rewards, and logs that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from trl.trainer.utils import is_async_callable

from grpo_variants import keep_groups
from grpo_variants.rollout.steps import Step, completion_text, step_ends
from grpo_variants_trl.step.log import current_metrics

# A reasoning step by its last token (from 1) and, from the back, its place among those of one function that end there.
Key = tuple[int, int]


@dataclass(frozen=True, eq=False)
class ScoredSteps:
    """Reasoning steps of this rank's responses, as reward functions scored them.

    ends: [B, S] last tokens, counted from 1; 0 where there is no step. rewards: [B, S], weighted. given: [B, K] whether
    a function gave steps for a response. last: [B] tokens of the response.
    """

    ends: Tensor
    rewards: Tensor
    given: Tensor
    last: Tensor


def score_steps(
    trainer: Any,
    calculate: Callable[[], Tensor],
    prompts: Sequence[Any],
    completion_ids: Sequence[Sequence[int]],
) -> tuple[Tensor, ScoredSteps]:
    """TRL's rewards [N, K] by `calculate`, and the reasoning steps of this rank's responses.

    Functions that score the same step (it ends at the same token) are added with their weights, as TRL adds the
    functions' rewards. Raises ValueError, with the function and the response, for steps outside the response.
    """
    own = trainer.reward_funcs
    scored: dict[int, list[dict[Key, float] | None]] = {}
    trainer.reward_funcs = [
        function if isinstance(function, nn.Module) else _recording(trainer, function, k, prompts, scored)
        for k, function in enumerate(own)
    ]
    try:
        rewards = calculate()
    finally:
        trainer.reward_funcs = own
    columns = [scored.get(k, [None] * len(completion_ids)) for k in range(len(own))]
    cells = list(zip(*columns, strict=True))
    rows = [_added(row, trainer.reward_weights.tolist()) for row in cells]
    found = ScoredSteps(
        ends=pad_sequence([torch.tensor([end for end, _ in row] or [0]) for row in rows], batch_first=True),
        rewards=pad_sequence([torch.tensor([*row.values()] or [0.0]) for row in rows], batch_first=True),
        given=torch.tensor([[cell is not None for cell in row] for row in cells]),
        last=torch.tensor([len(ids) for ids in completion_ids]),
    )
    return rewards, ScoredSteps(**{name: value.to(rewards.device) for name, value in vars(found).items()})


def _added(cells: Sequence[dict[Key, float] | None], weights: Sequence[float]) -> dict[Key, float]:
    """One response's steps by all functions whose weight is not 0, in order."""
    total: dict[Key, float] = {}
    for cell, weight in zip(cells, weights, strict=True):
        if weight == 0:
            continue
        for key, reward in (cell or {}).items():
            total[key] = total.get(key, 0.0) + weight * reward
    return dict(sorted(total.items(), key=lambda item: (item[0][0], -item[0][1])))


def _recording(
    trainer: Any, function: Any, k: int, prompts: Sequence[Any], scored: dict[int, Any]
) -> Callable[..., Any]:
    """The function with numbers for TRL; its steps are kept under `scored[k]`."""
    name = trainer.reward_func_names[k]

    def keep(values: Sequence[Any], completions: Sequence[Any], completion_ids: Sequence[Sequence[int]]) -> list[Any]:
        if len(values) != len(completions):  # TRL raises an error with the number that it wants
            return [0.0] * len(values)
        cells = [
            _placed(trainer, f"reward function {name}, response {i}", value, completions[i], completion_ids[i])
            for i, value in enumerate(values)
        ]
        placed = [
            cell if cell is None else trainer._reward_border.of_steps(cell, name, row, prompts[row])
            for row, cell in enumerate(cells)
        ]
        scored[k] = placed
        return [value if cell is None else sum(cell.values()) for value, cell in zip(values, placed, strict=True)]

    def now(*, completions: Any, completion_ids: Any, **columns: Any) -> list[Any]:
        values = function(completions=completions, completion_ids=completion_ids, **columns)
        return keep(values, completions, completion_ids)

    async def later(*, completions: Any, completion_ids: Any, **columns: Any) -> list[Any]:
        values = await function(completions=completions, completion_ids=completion_ids, **columns)
        return keep(values, completions, completion_ids)

    return later if is_async_callable(function) else now


def _placed(trainer: Any, where: str, value: Any, completion: Any, ids: Sequence[int]) -> dict[Key, float] | None:
    """A response's steps by their last token, or None where the function gave one number or nothing."""
    if not isinstance(value, (list, tuple)):
        return None
    try:
        steps = [Step.of(step) for step in value]
        ends = step_ends(steps, ids, partial(completion_text, completion), trainer._tokenizer)
        rewards = [float("nan") if step.reward is None else float(step.reward) for step in steps]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error
    placed: dict[Key, float] = {}
    seen: Counter[int] = Counter()
    for end, reward in zip(reversed(ends), reversed(rewards), strict=True):
        placed[(end + 1, seen[end])] = reward
        seen[end] += 1
    return placed


@dataclass(frozen=True, eq=False)
class ReasoningSteps:
    """Reasoning steps of every rank's responses.

    ends: [N, S] last tokens, counted from 1; 0 where there is no step. rewards: [N, S]. last: [N] tokens of each.
    """

    ends: Tensor
    rewards: Tensor
    last: Tensor

    @property
    def exist(self) -> Tensor:
        """Which entries hold a step: [N, S] bool."""
        return self.ends > 0

    @property
    def valid(self) -> Tensor:
        """Responses without a step reward that is NaN: [N] bool."""
        return ~(self.rewards.isnan() & self.exist).any(1)

    def with_outcome(self, outcome: Tensor) -> ReasoningSteps:
        """Add a reward of the whole response [N], NaN where there is none: to the step that ends with it, or as one."""
        given = ~outcome.isnan()
        at_end = self.exist & (self.ends == self.last.clamp(min=1).unsqueeze(1))
        at_end &= at_end.int().flip(1).cumsum(1).flip(1) == 1  # the last of them, if several end there
        has_step = at_end.any(1)
        added = torch.where(at_end & given.unsqueeze(1), outcome.unsqueeze(1), torch.zeros_like(self.rewards))
        own = given & ~has_step
        ends = torch.where(own, self.last.clamp(min=1), torch.zeros_like(self.last))
        rewards = torch.where(own, outcome, torch.zeros_like(outcome))
        return replace(
            self,
            ends=torch.cat([self.ends, ends.unsqueeze(1)], 1),
            rewards=torch.cat([self.rewards + added, rewards.unsqueeze(1)], 1),
        )

    def replaced(self, other: ReasoningSteps, target: Tensor, source: Tensor) -> ReasoningSteps:
        """Responses `target` become the responses `source` of another batch."""
        width = max(self.ends.shape[1], other.ends.shape[1])
        own, new = ([pad(x, (0, width - x.shape[1])) for x in (part.ends, part.rewards)] for part in (self, other))
        pairs = zip((*own, self.last), (*new, other.last), strict=True)
        return ReasoningSteps(*(value.index_copy(0, target, fresh[source]) for value, fresh in pairs))

    def with_signal(self, groups: Tensor, valid: Tensor) -> Tensor:
        """Which responses belong to a group whose steps, of all its valid responses, differ in reward: [N] bool."""
        usable = self.exist & valid.unsqueeze(1)
        kept = keep_groups(self.rewards.flatten(), groups.repeat_interleave(usable.shape[1]), usable.flatten())
        return kept.view_as(usable)[:, 0]

    def inputs(self) -> dict[str, Tensor]:
        """What `gv.advantages` reads, with one entry per reasoning step in place of one per token."""
        return {"mask": self.exist, "step_ends": self.exist, "token_rewards": self.rewards}

    def spread(self, value: Tensor, mask: Tensor) -> Tensor:
        """Give each token [N, T] the advantage of the first step that ends at it or after it; 0 after the last step."""
        position = torch.arange(1, mask.shape[1] + 1, device=mask.device).expand(len(mask), -1).contiguous()
        # An entry without a step repeats the end before it, so that the search finds the step itself.
        place = torch.searchsorted(self.ends.cummax(1).values, position)
        padded = torch.cat([value, torch.zeros_like(value[:, :1])], 1)
        return torch.where(mask, padded.gather(1, place), torch.zeros((), dtype=value.dtype, device=value.device))


def gathered_steps(trainer: Any, own: ScoredSteps, rewards: Tensor) -> ReasoningSteps:
    """Every rank's reasoning steps, with outcome rewards: those of functions that gave no steps for a response.

    rewards: [N, K] gathered. Raises ValueError for a run whose first batch has no steps at all.
    """
    accelerator = trainer.accelerator
    ends, values = (accelerator.pad_across_processes(value, dim=1) for value in (own.ends, own.rewards))
    ends, values, given, last = map(accelerator.gather, (ends, values, own.given, own.last))
    if trainer.state.global_step == 0 and not given.any():
        raise ValueError(
            "credit=process needs step rewards, and no reward function gave any: return a list of gvt.Step (or of "
            "(token index, reward), ((start, end), reward)) for each response, or use @gvt.step_rewards."
        )
    outcome = rewards.masked_fill(given, float("nan")) * trainer.reward_weights.to(rewards.device)
    missing = outcome.isnan().all(1)
    steps = ReasoningSteps(ends, values, last).with_outcome(outcome.nansum(1).masked_fill(missing, float("nan")))
    log = current_metrics(trainer)
    log["gv/steps_per_response"].append(steps.exist.sum(1).float().mean().item())
    log["gv/step_reward"].append(steps.rewards[steps.exist].nanmean().item())
    return steps
