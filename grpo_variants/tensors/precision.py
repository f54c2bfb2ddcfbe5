"""The precision that statistics are computed in, and divisors that an empty batch cannot make 0."""

from __future__ import annotations

from typing import Union

import torch
from torch import Tensor

Number = Union[int, float, Tensor]


def wide(value: Tensor) -> Tensor:
    """The precision for statistics: float64, or as it is on devices that need not have it.

    A sum of 65536 numbers in float32 is off by up to a percent, and the square of 1e20 is beyond it.
    """
    return value.double() if value.device.type in ("cpu", "cuda", "meta") else value


def narrow(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Back from `wide`; a number beyond the range of `dtype` is its largest."""
    if value.dtype == dtype:
        return value
    largest = torch.finfo(dtype).max
    return value.clamp(-largest, largest).to(dtype)


def at_least_one(value: Number) -> Number:
    """A divisor that an empty batch cannot make 0: the loss of nothing is 0 and still runs backward."""
    return value.clamp(min=1) if isinstance(value, Tensor) else max(value, 1)
