"""Baselines: what a response's reward is compared with. Each maps (rewards [N], samples) -> [N]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from grpo_variants.checks import check_choice, check_number
from grpo_variants.groups import whole
from grpo_variants.inputs import Samples


class Baseline(Protocol):
    """The contract of a baseline."""

    @property
    def of_group(self) -> bool:
        """Whether siblings of the same prompt enter it."""
        ...

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Baseline of each response: [N] -> [N]."""
        ...


@dataclass(frozen=True, kw_only=True)
class NoBaseline:
    r"""No baseline, \(b_i = 0\)."""

    of_group: ClassVar[bool] = False

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Zeros: [N] -> [N]."""
        return torch.zeros_like(rewards)


@dataclass(frozen=True, kw_only=True)
class GroupMean:
    r"""Mean reward of the prompt's group, \(b_i = \operatorname{mean}_g(r)\) (GRPO, arXiv 2402.03300)."""

    of_group: ClassVar[bool] = True

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Mean of the group's valid rewards: [N] -> [N]."""
        return _singletons(samples, rewards, samples.groups.mean(rewards, samples.valid))


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut:
    r"""Mean reward of the others of the group, \(b_i = \frac{1}{G-1}\sum_{j \ne i} r_j\) (RLOO, arXiv 2402.14740)."""

    of_group: ClassVar[bool] = True

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Mean of the group's other valid rewards: [N] -> [N]."""
        mean = samples.groups.mean(rewards, samples.valid)
        others = (samples.groups.size(samples.valid) - 1).clamp(min=1)[samples.groups.ids]
        # mean + (mean - r) / (G - 1) equals (sum - r) / (G - 1) without the cancellation of a large sum.
        return _singletons(samples, rewards, mean + (mean - rewards) / others)


@dataclass(frozen=True, kw_only=True)
class LengthWeighted:
    r"""Length-weighted mean of the group, \(b_i = \sum_j l_j r_j / \sum_j l_j\) (OPO, arXiv 2505.23585)."""

    of_group: ClassVar[bool] = True

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Length-weighted mean of the group's valid rewards: [N] -> [N]; needs `lengths` or `mask`."""
        weight = samples.need("lengths", "baseline=length_weighted").to(rewards.dtype)
        return _singletons(samples, rewards, samples.groups.mean(rewards, samples.valid, weight))


@dataclass(frozen=True, kw_only=True)
class BatchMean:
    r"""Mean reward of the whole batch, \(b_i = \operatorname{mean}_{batch}(r)\) (REINFORCE++, arXiv 2501.03262)."""

    of_group: ClassVar[bool] = False

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Mean of all valid rewards: [N] -> [N]."""
        return whole(len(rewards), rewards.device).mean(rewards, samples.valid)


@dataclass(frozen=True, kw_only=True)
class Greedy:
    r"""Reward of the policy's greedy response, \(b_i = r(\hat y)\) (ReMax, arXiv 2310.10505)."""

    of_group: ClassVar[bool] = False

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """The given greedy rewards: [N] -> [N]; needs `greedy_rewards`."""
        return samples.need("greedy_rewards", "baseline=greedy").to(rewards.dtype)


@dataclass(frozen=True, kw_only=True)
class SecondBest:
    r"""Only the best response of the group learns, \(A = r_{(1)} - r_{(2)}\) (best of k, arXiv 2503.19595).

    What leaving the best one out costs the maximum of the group; every other response is its own baseline.
    """

    of_group: ClassVar[bool] = True

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Second largest reward for the best response, its own reward for any other: [N] -> [N]."""
        groups, valid = samples.groups, samples.valid
        size = groups.size(valid)
        second = groups.at_rank(rewards, valid, (size - 2).clamp(min=0))[groups.ids]
        best = groups.ranks(rewards, valid) == (size - 1)[groups.ids]
        return _singletons(samples, rewards, torch.where(best, second, rewards))


@dataclass(frozen=True, kw_only=True)
class GroupMedian:
    r"""Median reward of the group, \(b_i = \operatorname{median}_g(r)\) (MC-GRPO, arXiv 2601.22582)."""

    of_group: ClassVar[bool] = True

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Median of the group's valid rewards, the mean of the middle two for an even number: [N] -> [N]."""
        return _singletons(samples, rewards, samples.groups.quantile(rewards, samples.valid, 0.5))


@dataclass(frozen=True, kw_only=True)
class GroupQuantile:
    r"""Quantile of the group's rewards, \(b_i = Q_K(r)\) (QAE, arXiv 2509.22611).

    level: K. With rewards of 0 and 1 the baseline is 0 where the share of ones is at most 1 - K, and 1 above it.
    interpolation: `inverse` for the value at which the distribution reaches K, as in the paper; `linear` between the
        two nearest, as the authors' code has it.
    """

    level: float = 0.4
    interpolation: Literal["inverse", "linear"] = "inverse"
    of_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("baseline.level", self.level, above=0)
        if self.level >= 1:
            raise ValueError(f"baseline.level={self.level!r} is out of range; allowed: above 0 and below 1.")
        check_choice("baseline.interpolation", self.interpolation, ("inverse", "linear"))

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Quantile of the group's valid rewards: [N] -> [N]."""
        value = samples.groups.quantile(rewards, samples.valid, self.level, self.interpolation)
        return _singletons(samples, rewards, value)


def _singletons(samples: Samples, rewards: Tensor, baseline: Tensor) -> Tensor:
    """A group of one has no siblings: advantage 0 (singleton=zero) or the raw reward (singleton=raw, as verl)."""
    alone = rewards if samples.singleton == "zero" else torch.zeros_like(rewards)
    return torch.where(samples.groups.is_singleton(samples.valid), alone, baseline)
