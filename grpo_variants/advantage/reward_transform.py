"""Transforms: what a response's reward counts for, before its baseline. Each maps (rewards [N], samples) -> [N]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_variants.advantage.group_size import Doubt
from grpo_variants.advantage.inputs import Samples
from grpo_variants.part import Part
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.masked import masked_mean, masked_sum
from grpo_variants.tensors.order import ranks


class Transform(Part):
    """What a response's reward counts for. of_group: the other responses to the prompt enter it."""

    of_group: ClassVar[bool] = False

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """What each response's reward counts for: [N] -> [N]."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoTransform(Transform):
    """The reward as it is."""

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """The rewards as they are."""
        return rewards


@dataclass(frozen=True, kw_only=True)
class Signed(Transform):
    r"""Right or wrong, \(r_i \mapsto\) `right` where \(r_i >\) `above`, else `wrong` (arXiv 2506.01347).

    Rewards of 0 and 1 or of -1 and 1 both do. W-REINFORCE lets the right ones count less, PSR and NSR drop one kind.
    """

    right: float = 1.0
    wrong: float = -1.0
    above: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("transform.right", self.right)
        check_number("transform.wrong", self.wrong)
        check_number("transform.above", self.above)
        if self.right == self.wrong:
            raise ValueError(f"transform.right and transform.wrong are both {self.right!r}: the reward has no effect.")

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """One of two numbers."""
        right, wrong = (torch.full_like(rewards, number) for number in (self.right, self.wrong))
        return torch.where(rewards > self.above, right, wrong)


@dataclass(frozen=True, kw_only=True)
class PassAtK(Transform):
    r"""Expected best reward of k draws that hold this response, \(r_i \mapsto E[\max_{j \in S} r_j \mid i \in S]\).

    S is a random subset of k responses of the group. The group's mean of it is pass@k itself, so that with
    baseline=group_mean the advantage is what the response adds to pass@k. With n rewards of 0 and 1, c of them 1, a
    right response counts 1 and a wrong one \(1 - \binom{n-c-1}{k-1} / \binom{n-1}{k-1}\) (arXiv 2508.10751). Of fewer
    than k responses all are drawn.
    k: how many are drawn.
    """

    k: int = 4
    of_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("transform.k", self.k, at_least=1)

    def doubt(self, size: int) -> Doubt | None:
        """Whether a group of this many responses is drawn whole, so that each of them counts its best reward."""
        if self.k == 1 or size > self.k:
            return None
        text = f"transform.k={self.k} draws every response of a group of {size}, so that all of them count the same."
        return Doubt(text, 2 * self.k)

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Expected maxima, computed from the order of the group's valid rewards: [N] -> [N]."""
        groups, valid = samples.groups, samples.valid
        size = groups.size(valid)[groups.ids].double()
        drawn = size.clamp(max=self.k)
        rank = ranks(groups, rewards, valid)
        low, high = (end[groups.ids] for end in groups.low_and_high(rewards, valid))
        # Above the lowest, so that a constant group keeps its value to the last digit.
        rise = torch.where(valid, rewards - low, 0.0).double()
        subsets = _log_choose(size - 1, drawn - 1)
        own = (_log_choose(rank.double(), drawn - 1) - subsets).exp() * rise
        best = (_log_choose(rank.double() - 1, drawn - 2) - subsets).exp() * rise
        value = low + (own + _sum_of_higher(best, rank, samples)).to(rewards.dtype)
        return torch.where(valid, torch.where(size > self.k, value, high), rewards)


@dataclass(frozen=True, kw_only=True)
class Unlikeliness(Transform):
    r"""A likely response counts less, \(r_i \mapsto r_i (1 - \mathrm{penalty}\, k_i / G)\) (arXiv 2506.02355).

    \(k_i\) is the place of the response among its group by log-probability when sampled, the least likely first.
    penalty: what the likeliest loses. of: the `mean` over its tokens, or their `sum`. first: the place of the least
    likely, `zero` or `one`. Ties go by order of appearance.
    """

    penalty: float = 0.25
    of: Literal["mean", "sum"] = "mean"
    first: Literal["zero", "one"] = "zero"
    of_group: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("mask", "old_logp")

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("transform.penalty", self.penalty, at_least=0)
        check_choice("transform.of", self.of, ("mean", "sum"))
        check_choice("transform.first", self.first, ("zero", "one"))

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Rewards less their share: [N] -> [N]; needs `old_logp` and `mask`."""
        mask = samples.need("mask", "transform=unlikeliness")
        reduce = masked_mean if self.of == "mean" else masked_sum
        likely = reduce(samples.need("old_logp", "transform=unlikeliness").double(), mask).squeeze(1)
        place = ranks(samples.groups, likely, samples.valid) + (self.first == "one")
        size = samples.groups.size(samples.valid).clamp(min=1)[samples.groups.ids]
        return rewards * (1 - self.penalty * place.to(rewards.dtype) / size)


def _sum_of_higher(value: Tensor, rank: Tensor, samples: Samples) -> Tensor:
    """Sum of `value` over the valid samples that rank higher in the group: [N] -> [N]."""
    groups = samples.groups
    order = (groups.ids * (len(rank) + 1) + rank).argsort()
    ends = torch.where(samples.valid, value, 0.0)[order].cumsum(0)
    members = torch.bincount(groups.ids, minlength=groups.count)
    total = ends[members.cumsum(0) - 1][groups.ids]
    upto = torch.empty_like(value)
    upto[order] = ends
    return total - upto


def _log_choose(n: Tensor, k: Tensor) -> Tensor:
    """Logarithm of a binomial coefficient, -inf where it is 0."""
    possible = (k >= 0) & (n >= k)
    n, k = torch.where(possible, n, 1.0), torch.where(possible, k, 1.0)
    value = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return torch.where(possible, value, -torch.inf)
