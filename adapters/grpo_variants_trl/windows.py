"""Counts of an optimizer step's window: what makes the loss exact whatever the gradient accumulation.

TRL picks micro-batch `_step % steps_per_generation` from its buffer, and an optimizer step is the next
`current_gradient_accumulation_steps` of them. With several iterations the same micro-batch falls into different
windows, so counts belong to the window and are never stored in the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_variants import Counts, Variant, row_weights
from grpo_variants.aggregation import TokenMean
from grpo_variants.filters import ZeroVariance

GROUP = "gv_group"
KEEP = "gv_keep"
# What the host pads in front; everything else of a response it pads behind.
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
class Window:
    """One optimizer step: its counts, how many micro-batches are left, and row weights where they are needed.

    batches: the micro-batches to score in place of the host's, where rows were packed; `counts` are then those of the
    scored rows, for metrics, and rows is the number of all. on_policy: whether no update lies between the sampling of
    the responses and this step.
    """

    counts: Counts
    left: int
    weights: list[Tensor] | None = None
    batches: list[dict[str, Any]] | None = None
    rows: Tensor | None = None
    on_policy: bool = False

    def next_batch(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The micro-batch that is next: the host's, or the packed one in its place."""
        return inputs if self.batches is None else self.batches[-self.left]

    def next_weights(self) -> Tensor | None:
        """Row weights [B] of the micro-batch that is next, or None."""
        return None if self.weights is None else self.weights[-self.left]


def spans_generations(gradient_accumulation: int, steps_per_generation: int, iterations: int) -> bool:
    """Whether some optimizer step's window holds micro-batches of two generations."""
    return (steps_per_generation * iterations) % gradient_accumulation != 0


def needs_whole_window(variant: Variant) -> bool:
    """Whether the weights depend on the responses' lengths over the whole window, and not on their number alone."""
    rule = variant.aggregation
    counts_tokens = isinstance(rule, TokenMean) or rule.of_group
    excludes = getattr(rule, "empty_rows", "count") == "exclude" or isinstance(variant.filter, ZeroVariance)
    return counts_tokens or excludes or variant.whole_batch


def may_be_approximate(variant: Variant) -> bool:
    """Whether TRL's rule can stand in for a step's own counts: for no weights by group, and no statistic."""
    return not (variant.aggregation.of_group or variant.whole_batch)


def open_window(variant: Variant, batches: Sequence[dict[str, Any]], accelerator: Any, length: int | None) -> Window:
    """Counts over the micro-batches of a window and over every rank."""
    masks = [loss_mask(batch) for batch in batches]
    lengths = torch.cat([mask.sum(1) for mask in masks])
    rows = torch.cat([_rows(batch) for batch in batches])
    local = torch.stack([lengths.sum(), rows.sum(), (lengths > 0).sum()]).float()
    tokens, sequences, nonempty = _total(accelerator, local).unbind()
    counts = Counts(
        tokens=tokens,
        sequences=sequences,
        nonempty=nonempty,
        length=length,
        grad_average=accelerator.num_processes,
    )
    window = Window(counts, len(batches))
    if variant.aggregation.of_group:
        groups = torch.cat([batch[GROUP] for batch in batches])
        _weigh_by_group(window, variant, lengths, groups, accelerator)
    return window


def approximate_window(inputs: dict[str, Any], accelerator: Any, share: float, length: int | None, left: int) -> Window:
    """Counts by TRL's rule: those of the generation batch, times the window's share of it."""
    mask, rows = loss_mask(inputs), _rows(inputs)
    counts = Counts(
        tokens=inputs["num_items_in_batch"].float() * share,
        sequences=_total(accelerator, rows.sum().float()) * left,
        nonempty=_total(accelerator, mask.any(1).sum().float()) * left,
        length=length,
        grad_average=accelerator.num_processes,
    )
    return Window(counts, left)


def _weigh_by_group(window: Window, variant: Variant, lengths: Tensor, groups: Tensor, accelerator: Any) -> None:
    """Row weights by the tokens that each prompt's group has in this window, on every rank."""
    every = accelerator.gather(torch.stack([lengths, groups], dim=1))
    trained = every[every[:, 0] > 0, 1]
    counts = Counts(**{**window.counts.__dict__, "prompts": trained.unique().numel()})
    weights = row_weights(variant, every[:, 0], counts, every[:, 1])
    mine = weights.view(accelerator.num_processes, -1)[accelerator.process_index]
    window.weights = list(mine.chunk(window.left))


def _total(accelerator: Any, value: Tensor) -> Tensor:
    return value if accelerator.num_processes == 1 else accelerator.reduce(value, reduction="sum")
