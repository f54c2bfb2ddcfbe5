"""Statistics of a whole optimizer step, known before its first loss: for objectives that depend on the whole batch.

A clip that balances the batch, a quantile of its entropies or a choice by covariance depends on every response of the
step. The buffer holds the step's responses at its first micro-batch. One pass without gradient over them, joined over
the ranks, gives the statistic. Each micro-batch then uses it, so the split into micro-batches and ranks does not
matter. Dropout is drawn anew in that pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from grpo_variants import Tokens

DRAWS = "gv_draws"


def with_draws(trainer: Any, batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The micro-batches of an optimizer step, with the random numbers that the objective reads, if any.

    They belong to the step and not to the buffer, from which a later step may take the same responses.
    """
    if not trainer.variant.surrogate.draws:
        return list(batches)
    masks = [batch["completion_mask"] for batch in batches]
    drawn = torch.rand(sum(map(len, masks)), masks[0].shape[1], device=masks[0].device)
    return [{**batch, DRAWS: part} for batch, part in zip(batches, drawn.split([len(m) for m in masks]), strict=True)]


def step_thresholds(trainer: Any, batches: Sequence[dict[str, Any]]) -> dict[str, Tensor] | None:
    """The statistics of an optimizer step over every rank, for `Counts.thresholds`; None without any."""
    if not trainer.variant.whole_batch:
        return None
    with torch.no_grad():
        scored = [trainer._score_tokens(trainer.model, batch, compute_entropy=True) for batch in batches]
        parts = [
            trainer._tokens(batch, logp, entropy, None)
            for batch, (logp, entropy, _) in zip(batches, scored, strict=True)
        ]
        return trainer.variant.thresholds(_everywhere(trainer.accelerator, _joined(parts)))


def _joined(parts: Sequence[Tokens]) -> Tokens:
    """The micro-batches of a generation as one; they have one width."""
    names = [f.name for f in fields(Tokens) if isinstance(getattr(parts[0], f.name), Tensor)]
    return replace(parts[0], **{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def _everywhere(accelerator: Any, own: Tokens) -> Tokens:
    """The rows of every rank, padded to the longest."""
    if accelerator.num_processes == 1:
        return own
    return replace(own, **{f.name: _gathered(accelerator, getattr(own, f.name)) for f in fields(Tokens)})


def _gathered(accelerator: Any, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    flags = value.dtype == torch.bool  # padding and some backends refuse booleans
    padded = value.int() if flags else value
    if value.dim() > 1:
        padded = accelerator.pad_across_processes(padded, dim=1)
    whole = accelerator.gather(padded)
    return whole.bool() if flags else whole
