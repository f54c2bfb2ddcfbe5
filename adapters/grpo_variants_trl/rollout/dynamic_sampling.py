"""Dynamic sampling: groups without signal are replaced by new prompts' until the batch is full or the rounds are spent.

Each round draws one batch of new prompts, the same on every rank, and deals their responses evenly to the ranks. Every
rank knows all rewards, so all ranks take the same decisions without communication. A group stays whole; it may move to
the rank of the place that it takes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn.functional import pad

from grpo_variants.variant import Variant
from grpo_variants_trl.rollout.capture import Log, Sampled, own_log, write_rows
from grpo_variants_trl.rollout.prompts import PromptStream, task_text
from grpo_variants_trl.rollout.rewards import total_rewards
from grpo_variants_trl.rollout.signal import Signal, signal_of
from grpo_variants_trl.step.log import current_metrics
from grpo_variants_trl.step.step_counts import PROMPT_SIDE

Generate = Callable[[list[dict[str, Any]]], Sampled]

# TRL's own correction, which its loss reads and a variant's does not.
_UNUSED = ("importance_sampling_ratio",)


class NoSignalError(RuntimeError):
    """No sampled prompt has responses of different reward, so there is nothing to learn from."""


def draws_again(variant: Variant | None) -> bool:
    """Whether a variant draws new prompts for groups without signal."""
    return variant is not None and variant.filter.draws_again


@dataclass(eq=False)
class FilledBatch:
    """A batch after its rounds, and what they cost.

    batch: the responses to train on. drawn: everything that was sampled, round by round. rounds: how often new prompts
    were drawn.
    """

    batch: Sampled
    drawn: list[Sampled]
    rounds: int

    def costs(self, kept: Tensor) -> dict[str, float]:
        """Rounds, share of the sampled responses that train, and tokens sampled and discarded."""
        sampled = sum(len(part.lengths) for part in self.drawn)
        tokens = sum(int(part.lengths.sum()) for part in self.drawn)
        used = int(self.batch.lengths[kept].sum())
        return {
            "filter/rounds": float(self.rounds),
            "filter/kept_share": int(kept.sum()) / sampled,
            "filter/tokens_generated": float(tokens),
            "filter/tokens_discarded": float(tokens - used),
        }


class DynamicSampling:
    """Fills a batch with groups that have signal."""

    def __init__(self, trainer: Any) -> None:
        """Bind the trainer and its data set."""
        self.trainer = trainer
        args = trainer.args
        # Another seed than the sampler's, so that a new prompt is not one of the next batch.
        self.stream = PromptStream(trainer.train_dataset, seed=args.seed + 1, shuffle=trainer.shuffle_dataset)
        self.size = trainer.num_generations
        self.ranks = trainer.accelerator.num_processes

    def __call__(self, generate: Generate, inputs: list[dict[str, Any]]) -> FilledBatch:
        """Sample a batch and fill it up; raises NoSignalError where no sampled group has signal."""
        with own_log(self.trainer) as log:
            batch = generate(inputs)
        _refuse_images(batch)
        logs, drawn, rows, tried = [log], [batch], log.rows(), self._tasks(batch)
        alive = self._with_signal(batch)
        seen, good, rounds = len(alive), int(alive.sum()), 0
        limit = self.trainer.variant.filter.max_rounds
        while not alive.all() and rounds < limit:
            rounds += 1
            with own_log(self.trainer) as log:
                more = generate(self._draw(self._round_size(alive, good / seen), tried))
            tried |= self._tasks(more)
            fresh = self._with_signal(more)
            seen, good = seen + len(fresh), good + int(fresh.sum())
            place = Placement.of(alive, fresh, self.size)
            batch, rows = place.merged(self.trainer, batch, more), place.merged_rows(rows, log.rows())
            alive = self._with_signal(batch)
            logs.append(log)
            drawn.append(more)
        if good == 0:
            raise NoSignalError(self._no_signal_text(drawn, rounds))
        write_rows(self.trainer, rows)
        _write_metrics(self.trainer, batch, logs, [len(part.lengths) for part in drawn])
        return FilledBatch(batch, drawn, rounds)

    def _with_signal(self, batch: Sampled) -> Tensor:
        """Which groups have signal, [P] bool; they lie one after the other."""
        return signal_of(self.trainer, batch, self.size).of_groups

    def _round_size(self, alive: Tensor, share: float) -> int:
        """Prompts of a round: as many as should fill the batch at the share seen, at most a whole batch.

        Their responses have to be a multiple of the ranks, as a whole batch's are.
        """
        missing = int((~alive).sum())
        unit = self.ranks // math.gcd(self.ranks, self.size)
        wanted = len(alive) if share == 0 else math.ceil(missing / share)
        return min(len(alive), math.ceil(wanted / unit) * unit)

    def _draw(self, count: int, tried: set[str]) -> list[dict[str, Any]]:
        """Rows of `count` new prompts, one per response: this rank's part of them."""
        rows = [self._used(row) for row in self._new(count, tried) for _ in range(self.size)]
        part = len(rows) // self.ranks
        first = self.trainer.accelerator.process_index * part
        # Each response has a row of its own, as in TRL: a rollout may write into it.
        return [copy.deepcopy(row) for row in rows[first : first + part]]

    def _new(self, count: int, tried: set[str]) -> list[dict[str, Any]]:
        return self.stream.take(count, lambda row: task_text(self.trainer, row) in tried)

    def _tasks(self, batch: Sampled) -> set[str]:
        """The tasks of every rank's responses, as text."""
        texts = gather_object([task_text(self.trainer, row) for row in batch.inputs])
        return {text for text in texts if text is not None}

    def _used(self, row: dict[str, Any]) -> dict[str, Any]:
        """The columns that TRL's own batches have."""
        if not self.trainer.args.remove_unused_columns:
            return dict(row)
        self.trainer._set_signature_columns_if_needed()
        return {name: value for name, value in row.items() if name in self.trainer._signature_columns}

    def _no_signal_text(self, drawn: list[Sampled], rounds: int) -> str:
        seen = Signal.joined([signal_of(self.trainer, part, self.size) for part in drawn])
        tried = (
            f"filter=zero_variance found no group with signal among {len(seen.of_groups)} prompts, in {rounds} rounds "
            f"of new ones (filter.max_rounds={self.trainer.variant.filter.max_rounds}) from "
            f"{_size(self.stream.dataset)}: "
        )
        if not seen.valid.any():
            return (
                f"{tried}no response counts, since no reward function gave one a number or, with "
                "overlong.statistics=drop, all are truncated. Look at what the reward functions return."
            )
        found, mean = seen.counted(), float(seen.totals[seen.valid].nanmean())
        rate = "" if found.success_rate.isnan() else f", success rate {float(found.success_rate):.3g}"
        return (
            f"{tried}{int(found.all_right)} all right, {int(found.all_wrong)} all wrong, {int(found.constant)} "
            f"constant at another reward; mean reward {mean:.4g}{rate}. The task is too hard or too easy for the model "
            "as it is: change the prompts or the reward, raise "
            f"num_generations={self.size} or filter.max_rounds, or set filter=none."
        )


def _size(dataset: Any) -> str:
    return f"a data set of {len(dataset)} prompts" if hasattr(dataset, "__len__") else "a stream of prompts"


def _refuse_images(batch: Sampled) -> None:
    if "pixel_values" in batch.out:
        raise ValueError(
            "filter=zero_variance draws new groups for text prompts only, and these have images. Set "
            "filter.max_rounds=0, which drops groups without signal and draws no new ones, or filter=none."
        )


@dataclass(eq=False)
class Placement:
    """Where the groups with signal of a round go: row `target[i]` of the batch is row `source[i]` of the round."""

    target: Tensor
    source: Tensor

    @classmethod
    def of(cls, alive: Tensor, fresh: Tensor, size: int) -> Placement:
        """The first places without signal take the first groups with it; groups stay whole."""
        empty, good = (~alive).nonzero().flatten(), fresh.nonzero().flatten()
        count = min(len(empty), len(good))
        member = torch.arange(size, device=alive.device)
        rows = [(groups[:count, None] * size + member).flatten() for groups in (empty, good)]
        return cls(*rows)

    def merged(self, trainer: Any, batch: Sampled, more: Sampled) -> Sampled:
        """The batch with the round's good groups in their places, on every rank."""
        accelerator = trainer.accelerator
        rows = len(batch.inputs)
        first = accelerator.process_index * rows
        mine = (self.target >= first) & (self.target < first + rows)
        inputs, new = list(batch.inputs), gather_object(more.inputs)
        for target, source in zip((self.target[mine] - first).tolist(), self.source[mine].tolist(), strict=True):
            inputs[target] = new[source]
        out = _spliced(trainer, batch.out, more.out, self.target[mine] - first, self.source[mine])
        everywhere = {
            name: getattr(batch, name).index_copy(0, self.target, getattr(more, name)[self.source])
            for name in ("rewards", "lengths", "truncated", "fingerprints")
        }
        if batch.steps is not None:
            everywhere["steps"] = batch.steps.replaced(more.steps, self.target, self.source)
        return Sampled(inputs=inputs, out=out, **everywhere)

    def merged_rows(self, rows: dict[Any, list[Any]], new: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
        """The same for the tables of the log; a column that one of the two lacks holds None there."""
        count = max((len(column) for column in rows.values()), default=0)
        found = {}
        for path in {**rows, **new}:
            column = list(rows.get(path, [None] * count))
            fresh = new.get(path)
            for target, source in zip(self.target.tolist(), self.source.tolist(), strict=True):
                column[target] = None if fresh is None else fresh[source]
            found[path] = column
        return found


def _spliced(trainer: Any, out: dict[str, Any], new: dict[str, Any], target: Tensor, source: Tensor) -> dict[str, Any]:
    """TRL's tensors with rows of another call, which may be on other ranks; every rank has to call it."""
    accelerator, merged = trainer.accelerator, {}
    for name, value in out.items():
        if name in _UNUSED or not isinstance(value, Tensor) or value.dim() == 0:
            continue
        left = name in PROMPT_SIDE
        fill = _padding(trainer, name)
        fresh = new[name]
        if fresh.dim() > 1:
            fresh = accelerator.pad_across_processes(fresh, dim=1, pad_index=fill, pad_first=left)
        fresh = accelerator.gather(fresh)[source]
        if value.dim() > 1:
            width = max(value.shape[1], fresh.shape[1])
            value, fresh = (_widened(x, width, left, fill) for x in (value, fresh))
        merged[name] = value.index_copy(0, target, fresh)
    return merged | {"num_items_in_batch": out["num_items_in_batch"]}


def _padding(trainer: Any, name: str) -> int:
    if name.endswith("_ids"):
        return trainer._tokenizer.pad_token_id
    return 1 if name == "tool_mask" else 0


def _widened(value: Tensor, width: int, left: bool, fill: int) -> Tensor:
    missing = width - value.shape[1]
    return pad(value, (missing, 0) if left else (0, missing), value=fill)


def _write_metrics(trainer: Any, batch: Sampled, logs: list[Log], sizes: list[int]) -> None:
    """The batch's own rewards and lengths, as TRL would log them; the rest as the mean over all sampled responses."""
    log = current_metrics(trainer)
    own = _of_responses(trainer, batch)
    for name in {key: None for part in logs for key in part.metrics}:
        if name == "num_tokens":
            log[name] = logs[-1].metrics[name]
            continue
        parts = [(value, size) for part, size in zip(logs, sizes, strict=True) for value in part.metrics.get(name, [])]
        known = [(value, size) for value, size in parts if not math.isnan(value)]
        total = sum(size for _, size in known)
        mean = sum(value * size for value, size in known) / total if total else math.nan
        log[name].append(own.get(name, mean))


def _of_responses(trainer: Any, batch: Sampled) -> dict[str, float]:
    rewards, lengths = batch.rewards, batch.lengths.float()
    total = total_rewards(trainer, rewards)
    total = total[~total.isnan()]
    ended = lengths[~batch.truncated]
    ended = ended if len(ended) else lengths.new_zeros(1)
    found = {
        "completions/mean_length": lengths.mean(),
        "completions/min_length": lengths.min(),
        "completions/max_length": lengths.max(),
        "completions/clipped_ratio": batch.truncated.float().mean(),
        "completions/mean_terminated_length": ended.mean(),
        "completions/min_terminated_length": ended.min(),
        "completions/max_terminated_length": ended.max(),
        "reward": total.mean(),
        "reward_std": total.std(),
    }
    for name, column in zip(trainer.reward_func_names, rewards.unbind(1), strict=True):
        given = column[~column.isnan()]
        found |= {f"rewards/{name}/mean": given.mean(), f"rewards/{name}/std": given.std()}
    return {name: float(value) for name, value in found.items()}
