"""One call of TRL's generation, captured: what it returned, what it scored, and what it wrote into the logs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_variants_trl.rollout.process_rewards import ReasoningSteps, gathered_steps
from grpo_variants_trl.rollout.rewards import total_rewards
from grpo_variants_trl.step.log import mode_of

TABLES = ("prompt", "completion", "advantages", "images")
NESTED_TABLES = ("rewards", "extra")


@dataclass(eq=False)
class Sampled:
    """Responses of a batch: this rank's inputs and tensors, and what every rank knows of all N of them.

    inputs: the data set's row of each of this rank's responses. out: TRL's tensors [B, ...] of this rank.
    rewards: [N, K] by reward function, NaN where one gave none. lengths: [N] tokens of the policy's own.
    truncated: [N] whether a response ended at the length limit. fingerprints: [N] integers, equal for equal responses.
    steps: with process supervision, the reasoning steps of all N.
    """

    inputs: list[dict[str, Any]]
    out: dict[str, Any]
    rewards: Tensor
    lengths: Tensor
    truncated: Tensor
    fingerprints: Tensor
    steps: ReasoningSteps | None = None

    def valid(self, trainer: Any) -> Tensor:
        """Which responses count in the variant's statistics: those with a reward that no rule leaves out, [N] bool."""
        valid = ~total_rewards(trainer, self.rewards).isnan()
        if trainer.variant.overlong.statistics == "drop":
            valid &= ~self.truncated
        return valid if self.steps is None else valid & self.steps.valid


class Recorder:
    """Records what `_generate` and `_calculate_rewards` return during one call."""

    rewards: Tensor
    lengths: Tensor
    truncated: Tensor
    fingerprints: Tensor

    def __init__(self, trainer: Any, inputs: list[dict[str, Any]]) -> None:
        """Bind the trainer whose methods are recorded, and the rows of the data set that it is given."""
        self.trainer = trainer
        self.prompts = [row.get("prompt") for row in inputs]

    def take_rewards(self, rewards: Tensor) -> Tensor:
        """Rewards by function [N, K], what a subclass made of them included, without infinities."""
        self.rewards = self.trainer._reward_border(rewards, self.prompts)
        return self.rewards

    def take_responses(self, generated: Any) -> Any:
        """Lengths, truncation and fingerprints of the responses as they were generated, before any mask."""
        completion_ids, tool_mask = generated[1], generated[2]
        trainer = self.trainer
        ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}
        own = completion_ids if tool_mask is None else tool_mask
        lengths = [len(ids) if tool_mask is None else sum(ids) for ids in own]
        truncated = [not ids or ids[-1] not in ends for ids in completion_ids]
        told = [hash(tuple(ids)) for ids in completion_ids]  # of integers: the same in every process
        columns = torch.tensor([lengths, truncated, told], device=trainer.accelerator.device)
        self.lengths, ended, self.fingerprints = trainer.accelerator.gather(columns.T.contiguous()).unbind(1)
        self.truncated = ended.bool()
        return generated


def capture(trainer: Any, generate: Any, inputs: list[dict[str, Any]]) -> Sampled:
    """Generate and score by TRL's own `generate`, and keep what it computes on the way."""
    recorder = Recorder(trainer, inputs)
    hooks = {"_calculate_rewards": recorder.take_rewards, "_generate": recorder.take_responses}
    with _observed(trainer, hooks):
        out = generate(inputs)
    steps = None if trainer.scored is None else gathered_steps(trainer, trainer.scored, recorder.rewards)
    columns = (recorder.rewards, recorder.lengths, recorder.truncated, recorder.fingerprints)
    return Sampled(inputs, out, *columns, steps)


@contextmanager
def _observed(trainer: Any, hooks: dict[str, Any]) -> Iterator[None]:
    """Pass the results of some methods through hooks, whichever class defines the method."""
    own = {name: vars(trainer)[name] for name in hooks if name in vars(trainer)}

    def through(method: Any, hook: Any) -> Any:
        return lambda *args, **kwargs: hook(method(*args, **kwargs))

    for name, hook in hooks.items():
        setattr(trainer, name, through(getattr(trainer, name), hook))
    try:
        yield
    finally:
        for name in hooks:
            delattr(trainer, name)
        vars(trainer).update(own)


class Log:
    """What one call wrote into TRL's metrics and tables, kept apart from the rest of the log."""

    def __init__(self, metrics: dict[str, list[float]], tables: dict[str, Any]) -> None:
        """Take the metrics of a mode and the tables of responses."""
        self.metrics = metrics
        self.tables = tables

    def rows(self) -> dict[tuple[str, ...], list[Any]]:
        """The tables' columns by path, those of which the call wrote something.

        Raises ValueError for a column without one value per response.
        """
        flat = {(name,): self.tables[name] for name in TABLES}
        flat |= {(name, column): rows for name in NESTED_TABLES for column, rows in self.tables[name].items()}
        count = len(self.tables["prompt"])
        for path, rows in flat.items():
            if len(rows) not in (0, count):
                raise ValueError(
                    f"log_extra({path[-1]!r}) was given {len(rows)} values for {count} responses; give one per "
                    "response."
                )
        return {path: list(rows) for path, rows in flat.items() if rows}


@contextmanager
def own_log(trainer: Any) -> Iterator[Log]:
    """Let a block write into an empty log, and put TRL's own back afterwards."""
    mode = mode_of(trainer)
    metrics, tables = trainer._metrics[mode], trainer._logs

    def empty() -> deque[Any]:
        return deque(maxlen=tables["prompt"].maxlen)

    fresh: dict[str, Any] = {name: empty() for name in TABLES} | {name: defaultdict(empty) for name in NESTED_TABLES}
    trainer._metrics[mode], trainer._logs = defaultdict(list), fresh
    try:
        yield Log(trainer._metrics[mode], fresh)
    finally:
        trainer._metrics[mode], trainer._logs = metrics, tables


def write_rows(trainer: Any, rows: dict[tuple[str, ...], list[Any]]) -> None:
    """Append columns of rows to TRL's tables."""
    for path, values in rows.items():
        table = trainer._logs
        for name in path:
            table = table[name]
        table.extend(values)
