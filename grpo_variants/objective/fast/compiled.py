"""The analytic kernel as one compiled graph over the whole batch: every number is read once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from grpo_variants import fast_paths
from grpo_variants.objective.fast.analytic import BlockResult, analytic, differentiated
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.metrics import Loss
from grpo_variants.objective.rule import Objective, objective_of

_broken: list[str] = []  # why the compiler does not work here, once that is known


def compiled(objective: Objective, x: Tokens, counts: Counts, gradient: Tensor | None) -> BlockResult:
    """`differentiated` through `torch.compile`; where that does not work, without it, and the reason is logged once."""
    if not _broken:
        try:
            loss, metrics, extrema, units = _graph(objective_of(objective))(_contiguous(x), gradient)
            return BlockResult(Loss(loss, metrics, extrema), units)
        # torch.compile can fail with any exception type: fall back to the same kernel without it.
        except Exception as error:
            _broken.append(str(error).strip().split("\n")[0])
            fast_paths.say_once(logging.WARNING, f"torch.compile does not work here ({_broken[0]}): not compiled.")
    return analytic(objective, x, counts, gradient)


def is_broken() -> bool:
    """Whether `torch.compile` was tried here and does not work."""
    return bool(_broken)


def _contiguous(x: Tokens) -> Tokens:
    """One layout, so that another one does not compile anew."""
    return replace(x, logp=x.logp.detach(), row_weights=x.row_weights.contiguous())  # type: ignore[union-attr]


@cache
def _graph(objective: Objective) -> Callable[[Tokens, Tensor | None], Any]:
    def run(x: Tokens, gradient: Tensor | None) -> Any:
        with torch.no_grad():
            found = differentiated(objective, x, gradient)
        return found.loss.loss, dict(found.loss.metrics), dict(found.loss.extrema), dict(found.units)

    return torch.compile(run, dynamic=True, fullgraph=True)
