"""What the machine can do: the floors that stand beside every result."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

GEMM = 512


def floors(unit: int) -> Mapping[str, Callable[[], object]]:
    """A copy of one unit, a kernel that reads two and writes one, and a product of two square matrices."""
    one, two = torch.rand(max(unit // 4, 1)), torch.rand(max(unit // 4, 1))
    out, square = torch.empty_like(one), torch.rand(GEMM, GEMM)
    return {
        "floor: copy": lambda: out.copy_(one),
        "floor: read two, write one": lambda: torch.add(one, two, out=out),
        f"floor: product of {GEMM} x {GEMM}": lambda: square @ square,
    }
