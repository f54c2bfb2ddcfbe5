"""Order statistics within groups: ranks, quantiles and medians, without a loop over responses."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_variants.tensors.groups import Groups


def ranks(groups: Groups, value: Tensor, valid: Tensor) -> Tensor:
    """Place of each sample among its group's valid ones, from 0 for the smallest: [N] -> [N] integers.

    Ties go by order of appearance; samples that are not valid come after all valid ones.
    """
    order = value.argsort(stable=True)
    for key in ((~valid).long(), groups.ids):
        order = order[key[order].argsort(stable=True)]
    members = torch.bincount(groups.ids, minlength=groups.count)
    starts = members.cumsum(0) - members
    place = torch.empty_like(groups.ids)
    place[order] = torch.arange(len(order), device=order.device) - starts[groups.ids[order]]
    return place


def at_rank(groups: Groups, value: Tensor, valid: Tensor, rank: Tensor) -> Tensor:
    """Value of the sample at a rank of its group, one rank per group: [P] -> [P]; 0 where there is none."""
    return groups.sum(value, valid & (ranks(groups, value, valid) == rank[groups.ids]))


def quantile(groups: Groups, value: Tensor, valid: Tensor, q: float, interpolation: str = "linear") -> Tensor:
    r"""Quantile of each sample's group: [N] -> [N].

    linear: between the two nearest, as NumPy and PyTorch do. inverse: \(\inf\{x : F(x) \ge q\}\), which occurs.
    """
    size = groups.size(valid)
    if interpolation == "inverse":
        # q * size is off by rounding: 0.1 * 30 is above 3.
        rank = (q * size.double() - 1e-9).ceil().long() - 1
        return at_rank(groups, value, valid, rank.clamp(min=0))[groups.ids]
    position = q * (size - 1).clamp(min=0).double()
    below = at_rank(groups, value, valid, position.floor().long())
    above = at_rank(groups, value, valid, position.ceil().long())
    share = (position - position.floor()).to(value.dtype)
    return (below + (above - below) * share)[groups.ids]


def median(groups: Groups, value: Tensor, valid: Tensor, even: str) -> Tensor:
    """Median of each sample's group: [N] -> [N]; of an even one the `lower` of the middle two, or their `mean`."""
    return quantile(groups, value, valid, 0.5, "inverse" if even == "lower" else "linear")
