"""Dense group ids and statistics over groups of responses, in two passes, without a loop over responses."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Groups:
    """Which group each of N samples belongs to: dense ids in [0, count).

    keys: what the groups are called, in the order of the dense ids. each: where every group lies in one piece and all
    are of one size, that size. `gv.advantages`, `gv.row_weights` and `gv.Tokens` take an object of this class for
    groups, so that ids are made dense once and not at every call.
    """

    ids: Tensor
    count: int
    keys: tuple[Hashable, ...] = ()
    each: int | None = None

    @classmethod
    def of(cls, groups: Groups | Sequence[Hashable] | Tensor, device: torch.device | str = "cpu") -> Groups:
        """Dense ids from any hashable ids (prompts, uuids, tuples, integers), in order of first appearance.

        Raises ValueError for what is no list of ids, TypeError for ids that cannot be hashed.
        """
        if isinstance(groups, Groups):
            return groups if groups.ids.device == torch.device(device) else replace(groups, ids=groups.ids.to(device))
        count_ids(groups)
        ids = groups.reshape(-1).tolist() if isinstance(groups, (Tensor, np.ndarray)) else list(groups)
        try:
            return cls._in_runs(ids, device) or cls._hashed(ids, device)
        except TypeError as error:
            raise TypeError(f"groups: ids must be hashable ({error}); give a string, an integer or a tuple.") from None

    @classmethod
    def _in_runs(cls, ids: list[Hashable], device: torch.device | str) -> Groups | None:
        """Groups of one size in one piece each, by comparing neighbours; None for any other."""
        hash(ids[0] if ids else None)
        size = next((n for n, key in enumerate(ids) if key != ids[0]), len(ids))
        if not size or len(ids) % size:
            return None
        keys = dict.fromkeys(ids[::size])
        heads = list(keys)
        if len(heads) * size != len(ids) or any(ids[n::size] != heads for n in range(1, size)):
            return None
        dense = torch.arange(len(heads), device=device).repeat_interleave(size)
        return cls(dense, len(heads), tuple(heads), size)

    @classmethod
    def _hashed(cls, ids: list[Hashable], device: torch.device | str) -> Groups:
        keys = tuple(dict.fromkeys(ids))
        place = {key: n for n, key in enumerate(keys)}
        dense = np.fromiter(map(place.__getitem__, ids), dtype=np.int64, count=len(ids))
        return cls(torch.from_numpy(dense).to(device), len(keys), keys)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.ids)

    def __getitem__(self, rows: Tensor) -> Groups:
        """The same groups for a selection of samples."""
        return Groups(self.ids[rows], self.count)

    def sum(self, value: Tensor, valid: Tensor) -> Tensor:
        """Sum of each group's valid samples: [N] -> [P]."""
        zero = torch.zeros(self.count, dtype=value.dtype, device=value.device)
        return zero.index_add(0, self.ids, torch.where(valid, value, torch.zeros_like(value)))

    def size(self, valid: Tensor) -> Tensor:
        """Number of each group's valid samples: [P], as integers."""
        return self.sum(torch.ones_like(self.ids), valid)

    def low_and_high(self, value: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest valid value of each group: two [P]; +inf and -inf for an empty group."""
        inf = torch.full((self.count,), float("inf"), dtype=value.dtype, device=value.device)
        low = inf.scatter_reduce(0, self.ids, value.masked_fill(~valid, float("inf")), "amin")
        high = (-inf).scatter_reduce(0, self.ids, value.masked_fill(~valid, float("-inf")), "amax")
        return low, high

    def mean(self, value: Tensor, valid: Tensor, weight: Tensor | None = None) -> Tensor:
        """Mean (weighted, if asked) of each sample's group: [N] -> [N].

        Values are added up relative to the group's lowest, so that a large offset takes no digits, and a group whose
        valid values are all equal has exactly that value as its mean: rounding in the sum would leave a residue of one
        sign, which a small standard deviation then blows up.
        """
        low, high = self.low_and_high(value, valid)
        above = value - low[self.ids]
        total = self.sum(above if weight is None else above * weight, valid)
        size = self.size(valid).to(value.dtype) if weight is None else self.sum(weight, valid)
        # The divisor is 0 for a group with no valid sample or no weight; the former's mean is not used.
        mean = low + total / torch.where(size == 0, torch.ones_like(size), size)
        return torch.where((size == 0) & (low != high), torch.zeros_like(low), mean)[self.ids]

    def std(self, value: Tensor, valid: Tensor, ddof: int) -> Tensor:
        """Standard deviation of each sample's group: [N] -> [N]; exactly 0 for a constant group.

        Squares are taken of shares of the largest deviation, so that they neither overflow nor vanish.
        """
        deviation = (value - self.mean(value, valid)).abs()
        unit = self.low_and_high(deviation, valid)[1].clamp(min=0)
        share = deviation / torch.where(unit == 0, torch.ones_like(unit), unit)[self.ids]
        freedom = (self.size(valid) - ddof).clamp(min=1).to(value.dtype)
        return (unit * (self.sum(share.square(), valid) / freedom).sqrt())[self.ids]

    def is_singleton(self, valid: Tensor) -> Tensor:
        """Whether a sample is the only valid one of its group: [N] bool."""
        return (self.size(valid) == 1)[self.ids] & valid


def count_ids(groups: object) -> int:
    """Number of responses that ids are given for; raises ValueError for what is no list of ids."""
    if isinstance(groups, Groups):
        return len(groups)
    if isinstance(groups, (Tensor, np.ndarray)):
        return math.prod(groups.shape)
    if not isinstance(groups, Collection) or isinstance(groups, (str, bytes, Mapping, Set)):
        raise ValueError(
            f"groups={groups!r} is no list of ids; give one hashable id per response, such as its prompt's index: "
            "groups=[0, 0, 1, 1] for two responses to each of two prompts."
        )
    return len(groups)


def whole(count: int, device: torch.device | str) -> Groups:
    """One group that holds every sample: batch statistics are group statistics over it."""
    return Groups(torch.zeros(count, dtype=torch.long, device=device), 1)
