"""From what a caller gives to tensors: numbers, rewards, lengths, flags and groups, checked at the border."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grpo_variants.tensors.groups import Groups, count_ids
from grpo_variants.tensors.values import (
    check_flags,
    check_lengths,
    readable,
)


def as_floating(value: Any, device: torch.device | None = None, *, name: str = "values") -> Tensor:
    """Tensor in float32, or float64 where it came as such; None becomes NaN; raises ValueError for no numbers."""
    tensor = value.to(device) if isinstance(value, Tensor) else _as_tensor(value, device, name)
    if tensor.is_complex():
        raise ValueError(f"{name} is of dtype {tensor.dtype}; allowed: real numbers.")
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _as_tensor(value: Any, device: torch.device | None, name: str) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    value = [_filled(row, name) for row in value] if isinstance(value, Sequence) else _filled(value, name)
    try:
        return torch.as_tensor(value, device=device)
    # Whatever it was given, torch says what is wrong with it, in one of these classes.
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{name} is no table of numbers ({error}); {_NUMBERS}") from None


_NUMBERS = "allowed: numbers, and None or NaN where one is missing."


def as_rewards(value: Any, device: torch.device | None = None, *, name: str = "rewards") -> Tensor:
    """`as_floating` with an infinity as NaN: what is not finite is missing.

    Warns of infinities (UserWarning) where they can be seen without waiting for a device.
    """
    tensor = as_floating(value, device, name=name)
    if readable(tensor) and (found := infinite_entries(tensor)):
        warnings.warn(_infinity_text(name, found), UserWarning, stacklevel=2)
    return without_infinities(tensor)


class Infinite(NamedTuple):
    """An infinity among numbers [N] or [N, K]: whose row, which column (0 for [N]), and its value."""

    row: int
    column: int
    value: float


def infinite_entries(values: Tensor) -> list[Infinite]:
    """The infinities of [N] or [N, K], in order; waits for the device."""
    infinite = values.isinf()
    if not infinite.any():
        return []
    places = infinite.view(len(values), -1).nonzero().tolist()
    return [
        Infinite(row, column, value) for (row, column), value in zip(places, values[infinite].tolist(), strict=True)
    ]


def without_infinities(values: Tensor) -> Tensor:
    """The numbers with NaN, which stands for a missing one, in place of an infinity."""
    return values.masked_fill(values.isinf(), float("nan"))


def _infinity_text(name: str, found: list[Infinite]) -> str:
    first = found[0]
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"{name} holds {first.value:g} (row {first.row}, column {first.column}){others}: what is not finite counts as "
        "missing, so the response is left out unless another reward function scored it. Give None or NaN for a missing "
        "reward, or a large finite number."
    )


def _filled(value: Any, name: str) -> Any:
    """None as NaN, in a number or in a row of numbers."""
    if isinstance(value, (str, bytes)):
        raise ValueError(f"{name} holds the text {value!r}; {_NUMBERS}")
    if isinstance(value, (Mapping, Set)):
        raise ValueError(f"{name} holds {value!r} of type {type(value).__name__}; {_NUMBERS}")
    if isinstance(value, Sequence):
        return [_filled(x, name) for x in value]
    return float("nan") if value is None else value


def read_table(name: str, value: Any, device: torch.device | None = None) -> Tensor:
    """Rewards [N, K] from [N] or [N, K], NaN where missing; raises ValueError for another shape."""
    rewards = as_rewards(value, device, name=name)
    if rewards.dim() not in (1, 2):
        raise ValueError(f"{name} has shape {tuple(rewards.shape)}; allowed: [N], or [N, K] for K reward functions.")
    return rewards if rewards.dim() == 2 else rewards.unsqueeze(1)


def groups_of(groups: Any, components: Tensor) -> Groups:
    """Dense groups of the responses of rewards [N, K]."""
    count, width = components.shape
    if groups is None:
        raise ValueError("groups= is missing: give one hashable id per response (the prompt's index or uuid).")
    if width > 1 and count_ids(groups) == count * width:
        raise ValueError(
            f"groups has {count * width} entries and rewards is [{count}, {width}], which reads as {count} responses "
            f"with {width} reward functions; for one row per prompt give rewards.flatten()."
        )
    dense = Groups.of(groups, components.device)
    _check_length("groups", len(dense), count)
    return dense


def read_valid(value: Any, count: int, device: torch.device | None = None) -> Tensor:
    """Which responses are valid, [N] bool; raises ValueError for a shape or, where they can be read, for numbers."""
    flags = _vector("valid", value, device)
    _check_length("valid", len(flags), count)
    check_flags("valid", flags)
    return flags.bool()


def read_lengths(value: Any, device: torch.device | None = None) -> Tensor:
    """Lengths [N]; raises ValueError for a shape or, where they can be read, for what is no number of tokens."""
    lengths = _vector("lengths", value, device)
    check_lengths("lengths", lengths)
    return lengths


def _vector(name: str, value: Any, device: torch.device | None) -> Tensor:
    tensor = value.to(device) if isinstance(value, Tensor) else _as_tensor(value, device, name)
    if tensor.dim() != 1:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; allowed: [N].")
    return tensor


def _check_length(name: str, given: int, wanted: int) -> None:
    if given != wanted:
        raise ValueError(f"{name} has {given} entries for {wanted} responses; give one per response.")
