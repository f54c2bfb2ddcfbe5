"""What goes into the objective: tokens and the counts of the optimizer step; checked and cast at the border."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_variants.tensors.checks import check_number
from grpo_variants.tensors.groups import Groups, count_ids
from grpo_variants.tensors.masked import select
from grpo_variants.tensors.precision import Number
from grpo_variants.tensors.reading import _check_length
from grpo_variants.tensors.values import (
    check_devices,
    check_flags,
    check_log_probabilities,
    check_tensor,
    readable,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """The tokens of a (micro-)batch, for `policy_loss`.

    Shapes: B responses, T tokens.

    logp: [B, T] log-probabilities under the policy now; carries the gradient.
    mask: [B, T] loss mask (completion, not tool output, not truncated); holes are allowed.
    advantages: [B], or [B, T] for token credit.
    old_logp: [B, T] under the policy that sampled, recomputed by the trainer (default: `logp` detached).
    ref_logp: [B, T] under the reference; needed with a KL term in the loss.
    rollout_logp: [B, T] as reported by the rollout engine; needed with a correction.
    entropy: [B, T] entropy of the policy at each position, nats.
    groups: B hashable ids; needed with aggregation=prompt_mean.
    row_weights: [B] weight per response, where the trainer has computed it from the whole step (`row_weights`).
    correction: [B, T] or [B, 1] detached weights, where the trainer has computed them; used instead of the
        variant's own correction.
    keep: [B, T] or [B] bool, tokens or responses whose policy term counts; used instead of the variant's own
        token filter. The loss mask and the KL term are not touched.
    draws: [B, T] uniform random numbers, for parts that draw at random (default: drawn by `policy_loss`).
    extras: anything else that a user's own part reads.
    """

    logp: Tensor
    mask: Tensor
    advantages: Tensor
    old_logp: Tensor | None = None
    ref_logp: Tensor | None = None
    rollout_logp: Tensor | None = None
    entropy: Tensor | None = None
    groups: Groups | Sequence[Hashable] | Tensor | None = None
    row_weights: Tensor | None = None
    correction: Tensor | None = None
    keep: Tensor | None = None
    draws: Tensor | None = None
    extras: Mapping[str, Any] | None = None

    def need(self, name: str, wanted_by: str) -> Tensor:
        """An input that a part cannot do without; raises ValueError that names the input and the part."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{wanted_by} needs {name}=; pass it to gv.Tokens.")
        return value  # type: ignore[no-any-return]


def read_tokens(x: Tokens) -> Tokens:
    """Check shapes, cast to float32 (float64 stays) and replace padding by zeros, by selection.

    Only `logp` keeps its gradient. Advantages become [B, 1] or [B, T]. `old_logp` is filled in: on policy it is `logp`
    detached.
    """
    check_tokens(x)
    mask = x.mask.bool()
    old_logp = x.logp if x.old_logp is None else x.old_logp
    a = _upcast(x.advantages).detach()
    correction = None if x.correction is None else _upcast(x.correction).detach()
    return replace(
        x,
        mask=mask,
        logp=select(mask, _upcast(x.logp)),
        advantages=a.unsqueeze(1) if a.dim() == 1 else select(mask, a),
        old_logp=_clean(old_logp, mask),
        ref_logp=_clean(x.ref_logp, mask),
        rollout_logp=_clean(x.rollout_logp, mask),
        entropy=_clean(x.entropy, mask),
        draws=_clean(x.draws, mask),
        row_weights=None if x.row_weights is None else _upcast(x.row_weights).detach(),
        correction=correction if correction is None or correction.shape[1] == 1 else select(mask, correction),
        keep=None if x.keep is None else (x.keep.bool().unsqueeze(1) if x.keep.dim() == 1 else x.keep.bool()),
    )


def _upcast(value: Tensor) -> Tensor:
    return value if value.dtype == torch.float64 else value.float()


def _clean(value: Tensor | None, mask: Tensor) -> Tensor | None:
    return None if value is None else select(mask, _upcast(value)).detach()


_LOG_PROBABILITIES = ("logp", "old_logp", "ref_logp", "rollout_logp")


def check_values(x: Tokens) -> None:
    """Raise ValueError for numbers that are no mask and no log-probabilities, where looking at them costs nothing."""
    check_flags("mask", x.mask, " Weights of tokens go into correction=, weights of responses into row_weights=.")
    if x.keep is not None:
        check_flags("keep", x.keep, " Weights of tokens go into correction=.")
    for name in _LOG_PROBABILITIES:
        if getattr(x, name) is not None:
            check_log_probabilities(name, getattr(x, name), x.mask)


def check_tokens(x: Tokens) -> None:
    """Raise ValueError for what is no tensor or a whole one, on another device, or of a shape that is not allowed."""
    if not isinstance(x, Tokens):
        raise ValueError(
            f"the tokens are of type {type(x).__name__}; allowed: gv.Tokens(logp=..., mask=..., advantages=...)."
        )
    for name in ("logp", "mask", "advantages"):
        check_tensor(name, getattr(x, name))
    if x.logp.dim() != 2:
        raise ValueError(f"logp has shape {tuple(x.logp.shape)}; allowed: [B, T].")
    rows, width = x.logp.shape
    full, row, column = (rows, width), (rows,), (rows, 1)
    allowed = dict.fromkeys(("mask", "old_logp", "ref_logp", "rollout_logp", "entropy", "draws"), (full,))
    allowed |= {"advantages": (row, full), "row_weights": (row,)}  # type: ignore[dict-item]
    allowed |= {"correction": (full, column), "keep": (full, row)}  # type: ignore[dict-item]
    for name, shapes in allowed.items():
        value = getattr(x, name)
        if value is None:
            continue
        check_tensor(name, value)
        if tuple(value.shape) not in shapes:
            names = {full: "[B, T]", row: "[B]", column: "[B, 1]"}
            wanted = " or ".join(f"{names[s]} = {list(s)}" for s in shapes)
            raise ValueError(f"{name} has shape {list(value.shape)}; allowed with logp {list(full)}: {wanted}.")
    if x.groups is not None:
        _check_length("groups", count_ids(x.groups), rows)
    tensors = {name: value for name in ("logp", *allowed) if (value := getattr(x, name)) is not None}
    check_devices(tensors)
    for name in _LOG_PROBABILITIES:
        if name in tensors and not tensors[name].is_floating_point():
            raise ValueError(
                f"{name} is of dtype {tensors[name].dtype}; allowed: a floating one, as in {name}.float()."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """Counts of the whole optimizer step, over all micro-batches and ranks: what makes a split not matter.

    tokens: loss tokens. sequences: responses, empty ones included. prompts: prompt groups.
    nonempty: responses with at least one loss token; read by empty_rows=exclude only.
    length: the constant of aggregation=constant, usually the trainer's maximum completion length.
    grad_average: number of ranks whose gradients the trainer averages; the loss is multiplied by it.
    thresholds: precomputed statistics that span the batch, by name (`entropy` for top_entropy).
    lengths: [N] loss tokens of every response; read by aggregation=length_power only.
    Numbers, or 0-d tensors. Raises ValueError for a number that counts nothing; a tensor's is not read back from its
    device, so there a length or a grad_average that is not above 0 goes unseen.
    """

    tokens: Number
    sequences: Number
    prompts: Number | None = None
    nonempty: Number | None = None
    length: Number | None = None
    grad_average: Number = 1
    thresholds: Mapping[str, Number] | None = None
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        if torch.compiler.is_compiling():  # a graph's sizes are symbols
            return
        for name in ("tokens", "sequences", "prompts", "nonempty", "length", "grad_average"):
            value = getattr(self, name)
            if value is not None or name in ("tokens", "sequences", "grad_average"):
                _check_count(name, value)

    @classmethod
    def of(cls, mask: Tensor, groups: Groups | Sequence[Hashable] | Tensor | None = None, **given: Any) -> Counts:
        """Count a batch [B, T] that is a whole optimizer step on one rank; `given` sets the other fields."""
        check_tensor("mask", mask)
        if mask.dim() != 2:
            raise ValueError(f"mask has shape {tuple(mask.shape)}; allowed: [B, T].")
        check_flags("mask", mask)
        return cls.of_lengths(mask.bool().sum(1), groups, **given)

    @classmethod
    def of_lengths(
        cls, lengths: Tensor, groups: Groups | Sequence[Hashable] | Tensor | None = None, **given: Any
    ) -> Counts:
        """Count the responses [B] of a whole optimizer step on one rank by their numbers of loss tokens."""
        counted = {
            "tokens": lengths.sum(),
            "sequences": lengths.shape[0],
            "nonempty": (lengths > 0).sum(),
            "lengths": lengths,
        }
        if groups is not None:
            counted["prompts"] = Groups.of(groups).count
        return cls(**{**counted, **given})


def check_counts(counts: object) -> None:
    """Raise ValueError for what is neither counts nor nothing."""
    if counts is not None and not isinstance(counts, Counts):
        raise ValueError(f"counts is of type {type(counts).__name__}; allowed: gv.Counts(...) of the step, or None.")


def _check_count(name: str, value: object) -> None:
    if isinstance(value, Tensor):
        if value.dim():
            raise ValueError(f"counts.{name} has shape {tuple(value.shape)}; allowed: a number or a 0-d tensor.")
        if not readable(value):
            return
    value = value.item() if isinstance(value, (Tensor, np.generic)) else value
    if name in ("length", "grad_average"):
        check_number(f"counts.{name}", value, above=0)
    else:
        check_number(f"counts.{name}", value, at_least=0)
