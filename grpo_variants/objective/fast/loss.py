"""`policy_loss` row block by row block: a block is a micro-batch, and the losses of micro-batches add up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_variants import fast_paths
from grpo_variants.objective.autograd import plain_loss, row_weights_of, step_of
from grpo_variants.objective.fast.analytic import BlockResult, analytic, covers
from grpo_variants.objective.fast.compiled import compiled
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.metrics import Loss, divisors
from grpo_variants.objective.rule import Objective
from grpo_variants.tensors.precision import Number

# Tokens of a block. On a CPU what a block needs then fits into the core's own cache; elsewhere it bounds the memory.
CPU_TOKENS, OTHER_TOKENS = 1 << 17, 1 << 24

Kernel = Callable[[Objective, Tokens, Counts, "Tensor | None"], BlockResult]


def fast_loss(objective: Objective, x: Tokens, counts: Counts | None) -> Loss | None:
    """`policy_loss` with less memory and time, or None where only the plain path will do; the reason is logged once."""
    # A compiler fuses the plain path by itself, and nothing can be logged in its graph.
    if torch.compiler.is_compiling() or (mode := fast_paths.current()) == fast_paths.OFF:
        return None
    for applies, reason in REFUSALS:
        if applies(objective, x):
            fast_paths.say_once(logging.INFO, f"{objective.name}: the plain path is used, since {reason}.")
            return None
    with torch.no_grad():
        step = step_of(counts, x, objective)
        x = replace(x, row_weights=row_weights_of(objective, x, counts, None).squeeze(1))
    kernel = _kernel(objective, mode)
    if not (torch.is_grad_enabled() and x.logp.requires_grad):
        loss = _over_blocks(kernel, objective, x, step, None)
        return replace(loss, loss=loss.loss * step.grad_average)

    def once_more() -> tuple[Loss, Tensor]:
        gradient = torch.empty(x.logp.shape, dtype=_working(x.logp), device=x.logp.device)
        return _over_blocks(kernel, objective, x, step, gradient), gradient

    def with_graph(logp: Tensor) -> Tensor:
        return plain_loss(objective, replace(x, logp=logp), step).loss

    loss, gradient = once_more()
    again = _Again(lambda: once_more()[1], with_graph)
    linked: Tensor = _Known.apply(x.logp, loss.loss, gradient, step.grad_average, again)  # type: ignore[no-untyped-call]
    return replace(loss, loss=linked)


class _Again(NamedTuple):
    """The gradient anew, and the loss of logp with autograd's graph."""

    gradient: Callable[[], Tensor]
    with_graph: Callable[[Tensor], Tensor]


def _kernel(objective: Objective, mode: str) -> Kernel:
    if covers(objective):
        return compiled if mode == fast_paths.COMPILED else analytic
    if mode == fast_paths.COMPILED:
        parts = f"surrogate {type(objective.surrogate).__name__} on {type(objective.ratio).__name__}"
        fast_paths.say_once(logging.INFO, f"{objective.name}: not compiled, no derivative by hand for {parts}.")
    return by_autograd


REFUSALS: tuple[tuple[Callable[[Objective, Tokens], bool], str], ...] = (
    (lambda v, x: v.surrogate.whole_batch, "a statistic of its surrogate spans the batch"),
    (
        lambda v, x: v.tokens.whole_batch and (x.keep is None or v.tokens.denominator == "kept"),
        "its token filter spans the batch",
    ),
    (lambda v, x: x.extras is not None, "extras are not cut into rows"),
    (lambda v, x: x.logp.numel() == 0, "there are no tokens"),
    (lambda v, x: len({_working(t) for t in _floats(x)}) > 1, "float32 and float64 inputs are mixed"),
    (
        lambda v, x: any(type(t) not in (Tensor, torch.nn.Parameter) for t in _tensors(x)),
        "a tensor subclass may give rows a meaning of its own",
    ),
    (lambda v, x: torch._C._are_functorch_transforms_active(), "a function transform differentiates it"),
    (
        lambda v, x: torch.autograd.forward_ad.unpack_dual(x.logp).tangent is not None,  # type: ignore[no-untyped-call]
        "forward-mode differentiation is on",
    ),
)


def _tensors(x: Tokens) -> list[Tensor]:
    return [value for f in fields(x) if isinstance(value := getattr(x, f.name), Tensor)]


def _floats(x: Tokens) -> list[Tensor]:
    return [t for t in _tensors(x) if t.is_floating_point() and t is not x.groups and t is not x.mask]


def _working(value: Tensor) -> torch.dtype:
    return torch.float64 if value.dtype == torch.float64 else torch.float32


def by_autograd(objective: Objective, x: Tokens, counts: Counts, gradient: Tensor | None) -> BlockResult:
    """A block by the plain path, for parts whose derivatives the tables do not have: less memory, in cache."""
    leaf = x.logp.detach().requires_grad_(gradient is not None)
    with torch.set_grad_enabled(gradient is not None):
        loss = plain_loss(objective, replace(x, logp=leaf), replace(counts, grad_average=1))
    if gradient is not None:
        gradient.copy_(torch.autograd.grad(loss.loss, leaf)[0])
    metrics, extrema = (
        {name: value.reshape(1) for name, value in table.items()} for table in (loss.metrics, loss.extrema)
    )
    return BlockResult(Loss(loss.loss.detach().reshape(1), metrics, extrema, loss.per_response), {})


@torch.no_grad()
def _over_blocks(kernel: Kernel, objective: Objective, x: Tokens, counts: Counts, gradient: Tensor | None) -> Loss:
    """Losses and metrics added up, extrema joined, gradients [B, T] put together."""
    found = [
        kernel(objective, _rows_of(x, rows), counts, None if gradient is None else gradient[rows])
        for rows in _blocks(x, whole=kernel is compiled)
    ]
    return _total(found, divisors(counts))


def _total(found: list[BlockResult], counted: Mapping[str, Number]) -> Loss:
    """The blocks' losses and metrics added up and divided, their extrema joined."""
    losses, units = [one.loss for one in found], found[0].units
    loss = torch.cat([one.loss for one in losses]).sum()
    metrics = {name: torch.cat([one.metrics[name] for one in losses]).sum() for name in losses[0].metrics}
    metrics |= {name: metrics[name] / counted[unit] for name, unit in units.items()}
    if "clip/low" in units and "clip/high" in units:
        # No token is clipped from both sides: each side belongs to one sign of the advantage, or of the log ratio.
        metrics["clip/region"] = metrics["clip/low"] + metrics["clip/high"]
        units = {**units, "clip/region": units["clip/low"]}
    extrema = {name: _joined(name, [one.extrema[name] for one in losses]) for name in losses[0].extrema}
    low, high = extrema["ratio/min"], extrema["ratio/max"]
    extrema["ratio/max"] = torch.where((low == float("inf")) & (high == 0), -float("inf"), high)  # no token at all
    of_rows = frozenset(name for name, unit in units.items() if unit == "rows")
    return Loss(loss, metrics, extrema, losses[0].per_response | of_rows)


def _joined(name: str, values: list[Tensor]) -> Tensor:
    return torch.cat(values).amin() if name.endswith("/min") else torch.cat(values).amax()


def _blocks(x: Tokens, whole: bool) -> Iterator[slice]:
    rows, width = x.logp.shape
    tokens = CPU_TOKENS if x.logp.device.type == "cpu" else OTHER_TOKENS
    size = rows if whole else max(1, tokens // width)
    return (slice(start, start + size) for start in range(0, rows, size))


def _rows_of(x: Tokens, rows: slice) -> Tokens:
    """A selection of rows; groups have done their part in the rows' weights."""
    cut: dict[str, Any] = {f.name: value[rows] for f in fields(x) if isinstance(value := getattr(x, f.name), Tensor)}
    return replace(x, **{**cut, "groups": None})


class _Known(torch.autograd.Function):
    """A loss whose gradient with respect to logp is known already."""

    @staticmethod
    def forward(ctx: Any, logp: Tensor, loss: Tensor, gradient: Tensor, scale: Number, again: _Again) -> Tensor:
        """The loss, scaled; `gradient` is that of the unscaled one."""
        ctx.save_for_backward(logp)
        ctx.gradient, ctx.scale, ctx.again = gradient, scale, again
        return loss * scale

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The known gradient, scaled in place, and so computed anew for a second backward.

        Where it is to be differentiated itself it is that of the plain path, with its graph.
        """
        (logp,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            (slope,) = torch.autograd.grad(ctx.again.with_graph(logp), logp, create_graph=True)
            return upstream * slope, None, None, None, None
        gradient = ctx.again.gradient() if ctx.gradient is None else ctx.gradient
        ctx.gradient = None
        return gradient.mul_(upstream * ctx.scale).to(logp.dtype), None, None, None, None
