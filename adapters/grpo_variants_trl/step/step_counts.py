"""Counts of an optimizer step: they make the loss exact whatever the gradient accumulation.

TRL picks micro-batch `_step % steps_per_generation` from its buffer, and an optimizer step is the next
`current_gradient_accumulation_steps` of them. With several iterations the same micro-batch is part of several optimizer
steps, so its counts are never stored in the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from grpo_variants import Counts, Variant, row_weights
from grpo_variants.objective.metrics import divisors

GROUP = "gv_group"
KEEP = "gv_keep"
# What TRL pads in front; everything else of a response it pads at the end.
PROMPT_SIDE = ("prompt_ids", "prompt_mask")


def loss_mask(inputs: dict[str, Any]) -> Tensor:
    """Completion, not tool output, not dropped by the group filter: [B, T] bool."""
    mask = inputs["completion_mask"].bool()
    if inputs.get("tool_mask") is not None:
        mask = mask & inputs["tool_mask"].bool()
    return mask if KEEP not in inputs else mask & inputs[KEEP].bool().unsqueeze(1)


def _rows(inputs: dict[str, Any]) -> Tensor:
    """Which responses count as sequences: [B] bool; one that the filter dropped is not part of the batch."""
    mask = inputs["completion_mask"]
    return inputs[KEEP].bool() if KEEP in inputs else torch.ones_like(mask[:, 0], dtype=torch.bool)


@dataclass
class StepCounts:
    """An optimizer step: its counts, how many micro-batches are left, and row weights where they are needed.

    batches: the micro-batches to score in place of TRL's, where responses were packed; `counts` are then those of the
    scored responses, for metrics, and rows is the number of all. on_policy: whether no update lies between the
    sampling of the responses and this step. exact: whether the counts are those of the whole step.
    """

    counts: Counts
    left: int
    weights: list[Tensor] | None = None
    batches: list[dict[str, Any]] | None = None
    rows: Tensor | None = None
    on_policy: bool = False
    exact: ClassVar[bool] = True

    def next_batch(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The micro-batch that is next: TRL's, or the packed one in its place."""
        return inputs if self.batches is None else self.batches[-self.left]

    def next_weights(self) -> Tensor | None:
        """Row weights [B] of the micro-batch that is next, or None."""
        return None if self.weights is None else self.weights[-self.left]

    def tokens(self) -> Tensor:
        """Tokens over which the step's metrics are means, on every rank: 0-d."""
        return torch.as_tensor(self.counts.tokens)

    def joined(self, parts: Sequence[Mapping[str, Tensor]], per_response: frozenset[str]) -> dict[str, Tensor]:
        """The rank's part of the step's metrics, which are additive, from those of its micro-batches.

        per_response: names of those that are means over responses and not over tokens.
        """
        return {name: torch.stack([part[name] for part in parts]).sum() for name in parts[0]}


@dataclass
class SpanningStepCounts(StepCounts):
    """An optimizer step over two generations, whose counts are not known before its last micro-batch.

    Each micro-batch is weighted by TRL's rule: by the counts of its own generation, times the step's share of it.
    `counts` and `weights` are those of the micro-batch that is next; counts are its own, over which its metrics are
    means.
    """

    seen: list[Counts] = field(default_factory=list)
    exact: ClassVar[bool] = False

    def next_weights(self) -> Tensor | None:
        """Row weights [B] of the micro-batch that is next."""
        return None if self.weights is None else self.weights[0]

    def enter(
        self,
        variant: Variant,
        inputs: dict[str, Any],
        generation: Sequence[dict[str, Any]],
        share: float,
        accelerator: Any,
    ) -> None:
        """Count the micro-batch that is next, and its generation, of which a step is `share`; over every rank."""
        own, whole = _total(accelerator, torch.cat([_counted([inputs]), _counted(generation)])).view(2, 3)
        self.counts = _counts(own, self.counts)
        rule = _counts(whole * share, self.counts)
        self.weights = [row_weights(variant, loss_mask(inputs).sum(1), rule)]
        self.seen.append(self.counts)

    def tokens(self) -> Tensor:
        """Tokens over which the step's metrics are means, on every rank: 0-d."""
        return torch.stack([torch.as_tensor(counts.tokens) for counts in self.seen]).sum()

    def joined(self, parts: Sequence[Mapping[str, Tensor]], per_response: frozenset[str]) -> dict[str, Tensor]:
        """The rank's part of the step's metrics: means, each weighted by what it is a mean over."""
        units = {unit: torch.stack([divisors(counts)[unit] for counts in self.seen]) for unit in ("tokens", "rows")}
        found = {}
        for name in parts[0]:
            values = torch.stack([part[name] for part in parts])
            unit = units["rows" if name in per_response else "tokens"]
            found[name] = values.sum() if name == "policy_loss" else (values * unit).sum() / unit.sum()
        return found


def spans_generations(gradient_accumulation: int, steps_per_generation: int, iterations: int) -> bool:
    """Whether some optimizer step holds micro-batches of two generations."""
    return (steps_per_generation * iterations) % gradient_accumulation != 0


def has_entropy_bonus(args: Any) -> bool:
    """Whether TRL's options add an entropy bonus to the loss."""
    return args.entropy_coef != 0 or args.use_adaptive_entropy


def needs_whole_step(variant: Variant, *, entropy_bonus: bool = False) -> bool:
    """Whether the loss depends on all responses of the optimizer step, and not on their number alone.

    An entropy bonus does, since it is a mean over the step's tokens.
    """
    rule = variant.aggregation
    excludes = "nonempty" in rule.counts_read or variant.filter.drops
    return rule.of_tokens or excludes or variant.whole_batch or entropy_bonus


def may_be_approximate(variant: Variant) -> bool:
    """Whether TRL's rule can replace the step's own counts: not for weights by single lengths, nor for a statistic."""
    rule = variant.aggregation
    return not (rule.of_group or rule.of_step or variant.whole_batch)


def count_step(variant: Variant, batches: Sequence[dict[str, Any]], accelerator: Any, length: int | None) -> StepCounts:
    """Counts over the micro-batches of an optimizer step and over every rank."""
    blank = Counts(tokens=0, sequences=0, length=length, grad_average=accelerator.num_processes)
    step = StepCounts(_counts(_total(accelerator, _counted(batches)), blank), len(batches))
    lengths = torch.cat([loss_mask(batch).sum(1) for batch in batches])
    if variant.aggregation.of_step:
        step.counts = replace(step.counts, lengths=accelerator.gather(lengths))
    if variant.aggregation.of_group:
        groups = torch.cat([batch[GROUP] for batch in batches])
        _weigh_by_group(step, variant, lengths, groups, accelerator)
    return step


def spanning_step(accelerator: Any, length: int | None, size: int) -> SpanningStepCounts:
    """An optimizer step of `size` micro-batches of two generations, each to be counted when it is next."""
    blank = Counts(tokens=0, sequences=0, length=length, grad_average=accelerator.num_processes)
    return SpanningStepCounts(blank, size)


def _counted(batches: Sequence[dict[str, Any]]) -> Tensor:
    """The rank's tokens, responses and responses with a token: [3] floats."""
    lengths = torch.cat([loss_mask(batch).sum(1) for batch in batches])
    rows = torch.cat([_rows(batch) for batch in batches])
    return torch.stack([lengths.sum(), rows.sum(), (lengths > 0).sum()]).float()


def _counts(numbers: Tensor, other: Counts) -> Counts:
    tokens, sequences, nonempty = numbers.unbind()
    return replace(other, tokens=tokens, sequences=sequences, nonempty=nonempty)


def _weigh_by_group(step: StepCounts, variant: Variant, lengths: Tensor, groups: Tensor, accelerator: Any) -> None:
    """Row weights by the tokens that each prompt's group has in this optimizer step, on every rank."""
    every = accelerator.gather(torch.stack([lengths, groups], dim=1))
    trained = every[every[:, 0] > 0, 1]
    counts = Counts(**{**step.counts.__dict__, "prompts": trained.unique().numel()})
    weights = row_weights(variant, every[:, 0], counts, every[:, 1])
    mine = weights.view(accelerator.num_processes, -1)[accelerator.process_index]
    step.weights = list(mine.chunk(step.left))


def _total(accelerator: Any, value: Tensor) -> Tensor:
    return value if accelerator.num_processes == 1 else accelerator.reduce(value, reduction="sum")
