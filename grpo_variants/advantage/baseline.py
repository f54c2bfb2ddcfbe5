"""Baselines: what a response's reward is compared with. Each maps (rewards [N], samples) -> [N]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_variants.advantage.group_size import Doubt, no_middle
from grpo_variants.advantage.inputs import Samples
from grpo_variants.part import Part, added
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.groups import whole
from grpo_variants.tensors.order import at_rank, median, quantile, ranks

Even = Literal["lower", "mean"]
EVEN: tuple[Even, ...] = ("lower", "mean")


class Baseline(Part):
    """What a response's reward is compared with.

    of_group: the other responses to the prompt enter it. remembers: it keeps what it learns in `Samples.remembered`.
    """

    of_group: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Baseline of each response: [N] -> [N]."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoBaseline(Baseline):
    r"""No baseline, \(b_i = 0\)."""

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Zeros: [N] -> [N]."""
        return torch.zeros_like(rewards)


@dataclass(frozen=True, kw_only=True)
class GroupMean(Baseline):
    r"""Mean reward of the prompt's group, \(b_i = \operatorname{mean}_g(r)\) (GRPO, arXiv 2402.03300)."""

    of_group: ClassVar[bool] = True

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Mean of the group's valid rewards: [N] -> [N]."""
        return _singletons(samples, rewards, samples.groups.mean(rewards, samples.valid))


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(Baseline):
    r"""Mean reward of the others of the group, \(b_i = \frac{1}{G-1}\sum_{j \ne i} r_j\) (RLOO, arXiv 2402.14740)."""

    of_group: ClassVar[bool] = True

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Mean of the group's other valid rewards: [N] -> [N]."""
        mean = samples.groups.mean(rewards, samples.valid)
        # A group of one has no others; what is divided by 1 here is replaced below.
        others = (samples.groups.size(samples.valid) - 1).clamp(min=1)[samples.groups.ids]
        # mean + (mean - r) / (G - 1) equals (sum - r) / (G - 1) without the cancellation of a large sum.
        return _singletons(samples, rewards, mean + (mean - rewards) / others)


@dataclass(frozen=True, kw_only=True)
class LengthWeighted(Baseline):
    r"""Length-weighted mean of the group, \(b_i = \sum_j l_j r_j / \sum_j l_j\) (OPO, arXiv 2505.23585)."""

    of_group: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("lengths",)

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Length-weighted mean of the group's valid rewards: [N] -> [N]; needs `lengths` or `mask`."""
        weight = samples.need("lengths", "baseline=length_weighted").to(rewards.dtype)
        return _singletons(samples, rewards, samples.groups.mean(rewards, samples.valid, weight))


@dataclass(frozen=True, kw_only=True)
class BatchMean(Baseline):
    r"""Mean reward of the whole batch, \(b_i = \operatorname{mean}_{batch}(r)\) (REINFORCE++, arXiv 2501.03262)."""

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Mean of all valid rewards: [N] -> [N]."""
        return whole(len(rewards), rewards.device).mean(rewards, samples.valid)


@dataclass(frozen=True, kw_only=True)
class Greedy(Baseline):
    r"""Reward of the policy's greedy response, \(b_i = r(\hat y)\) (ReMax, arXiv 2310.10505)."""

    reads: ClassVar[tuple[str, ...]] = ("greedy_rewards",)

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """The given greedy rewards: [N] -> [N]; needs `greedy_rewards`."""
        return samples.need("greedy_rewards", "baseline=greedy").to(rewards.dtype)


@dataclass(frozen=True, kw_only=True)
class SecondBest(Baseline):
    r"""Only the best response of the group learns, \(A = r_{(1)} - r_{(2)}\) (best of k, arXiv 2503.19595).

    What leaving the best one out costs the maximum of the group; every other response is its own baseline.
    """

    of_group: ClassVar[bool] = True

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Second largest reward for the best response, its own reward for any other: [N] -> [N]."""
        groups, valid = samples.groups, samples.valid
        size = groups.size(valid)
        second = at_rank(groups, rewards, valid, (size - 2).clamp(min=0))[groups.ids]
        best = ranks(groups, rewards, valid) == (size - 1)[groups.ids]
        return _singletons(samples, rewards, torch.where(best, second, rewards))


@dataclass(frozen=True, kw_only=True)
class GroupMedian(Baseline):
    r"""Median reward of the group, \(b_i = \operatorname{median}_g(r)\) (MC-GRPO, arXiv 2601.22582).

    even: in a group of an even number, the `lower` of the middle two rewards or their `mean`.
    """

    even: Even = added("lower", before="mean")
    of_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_choice("baseline.even", self.even, EVEN)

    def doubt(self, size: int) -> Doubt | None:
        """Whether a group of this many responses has no median response."""
        return no_middle(size, self.even)

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Median of the group's valid rewards: [N] -> [N]."""
        return _singletons(samples, rewards, median(samples.groups, rewards, samples.valid, self.even))


@dataclass(frozen=True, kw_only=True)
class GroupQuantile(Baseline):
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
        value = quantile(samples.groups, rewards, samples.valid, self.level, self.interpolation)
        return _singletons(samples, rewards, value)


@dataclass(frozen=True, kw_only=True)
class Partition(Baseline):
    r"""Log-partition function of the others, \(b_i = \tau \log \frac{1}{G-1} \sum_{j \ne i} e^{r_j / \tau}\).

    tau: temperature; the smaller, the nearer to the best of the others. floor: the mean is taken of
    \(e^{(r_j - M) / \tau}\), with M the best of the whole group, and held above floor, as the authors' code does: the
    baseline is never below \(M + \tau \ln\) floor. none is the formula.
    Reference: "Approximation of Log-Partition Function in Policy Mirror Descent Induces Implicit Regularization for LLM
    Post-Training", arXiv 2602.05933.
    """

    tau: float = 0.01
    floor: float | None = 1e-8
    of_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("baseline.tau", self.tau, above=0)
        check_number("baseline.floor", self.floor, above=0, below=1, optional=True)

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Logarithm of the mean of the others' exponentials, times tau: [N] -> [N]."""
        groups, valid = samples.groups, samples.valid
        best = groups.low_and_high(rewards, valid)[1]
        top = valid & (rewards == best[groups.ids])
        # A response that is the best by itself leaves others whose exponentials would vanish beside its own.
        alone = top & (groups.size(top) == 1)[groups.ids]
        next_best = groups.low_and_high(rewards, valid & ~alone)[1]
        value = torch.where(
            alone,
            self._mean_of_others(rewards, next_best, samples, alone),
            self._mean_of_others(rewards, best, samples),
        )
        if self.floor is not None:
            value = torch.maximum(value, best[groups.ids] + self.tau * math.log(self.floor))
        return _singletons(samples, rewards, value)

    def _mean_of_others(
        self, rewards: Tensor, origin: Tensor, samples: Samples, without: Tensor | None = None
    ) -> Tensor:
        """Their log-mean-exp over tau, relative to an origin [P]; without: responses that no sum holds."""
        groups = samples.groups
        counted = samples.valid if without is None else samples.valid & ~without
        power = torch.where(counted, (rewards - origin[groups.ids]) / self.tau, -torch.inf).exp()
        total = groups.sum(power, counted)[groups.ids] - power
        others = (groups.size(samples.valid) - 1).clamp(min=1)[groups.ids]
        return origin[groups.ids] + self.tau * (total / others).log()


@dataclass(frozen=True, kw_only=True)
class Tracked(Baseline):
    r"""Tracked success rate of the prompt, \(b = \alpha / (\alpha + \beta)\) (single-stream SPO, arXiv 2509.13232).

    After each step \(\alpha \leftarrow \rho\alpha + \sum r\) and \(\beta \leftarrow \rho\beta + \sum (1 - r)\) over the
    prompt's valid responses, of which there may be one. Rewards have to lie in [0, 1].
    forgetting: rho. prior: alpha and beta of a prompt that is new.
    Not done: a rho that follows how far the policy has moved, and drawing prompts by their uncertainty.
    """

    forgetting: float = 0.875
    prior: float = 0.5
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("baseline.forgetting", self.forgetting, at_least=0)
        if self.forgetting > 1:
            raise ValueError(f"baseline.forgetting={self.forgetting!r} is out of range; allowed: from 0 to 1.")
        check_number("baseline.prior", self.prior, above=0)

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """Rate before this step, [N] -> [N]; the step's rewards are then remembered."""
        groups, valid, state = samples.groups, samples.valid, samples.remembered()
        counts = state.recall("tracked", samples.keys, (self.prior, self.prior)).to(rewards.device)
        right = groups.sum(rewards.double(), valid)
        new = torch.stack([right, groups.size(valid) - right], 1)
        state.store("tracked", samples.keys, self.forgetting * counts + new, groups.size(valid) > 0)
        # The rate before this step: with its own rewards in it the baseline would be biased.
        return (counts[:, 0] / counts.sum(1)).to(rewards.dtype)[groups.ids]


@dataclass(frozen=True, kw_only=True)
class Kalman(Baseline):
    r"""Kalman filter over the group's rewards in their order (KRPO, arXiv 2505.07527).

    \(P^- = P + Q\), \(K = P^-/(P^- + R)\), \(x \leftarrow x + K(r - x)\), \(P \leftarrow (1 - K)P^-\); the baseline
    is x after the response's own reward went in. A new filter starts with each group, and the order of its responses
    matters. process, measurement: Q and R. mean, variance: x and P at the start.
    """

    process: float = 1e-5
    measurement: float = 1e-2
    mean: float = 0.0
    variance: float = 1.0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("baseline.process", self.process, at_least=0)
        check_number("baseline.measurement", self.measurement, above=0)
        check_number("baseline.mean", self.mean)
        check_number("baseline.variance", self.variance, at_least=0)

    def __call__(self, rewards: Tensor, samples: Samples) -> Tensor:
        """State of the filter after each response: [N] -> [N]."""
        groups, valid = samples.groups, samples.valid
        # Equal keys rank by order of appearance, and a row per group runs every filter at once.
        place = ranks(groups, torch.zeros_like(rewards), valid)
        width = int(place.max()) + 1 if len(place) else 0
        table = rewards.new_zeros(groups.count, width)
        table[groups.ids, place] = torch.where(valid, rewards, torch.zeros_like(rewards))
        state, states = rewards.new_full((groups.count,), self.mean), []
        gains = kalman_gains(self.process, self.measurement, self.variance, width)
        for (gain, _), column in zip(gains, table.unbind(1), strict=True):
            state = state + gain * (column - state)
            states.append(state)
        return torch.stack(states, 1)[groups.ids, place] if states else rewards


def kalman_gains(process: float, measurement: float, variance: float, steps: int) -> list[tuple[float, float]]:
    """Gain and variance after each of some steps; they do not depend on what is measured."""
    found = []
    for _ in range(steps):
        predicted = variance + process
        gain = predicted / (predicted + measurement)
        variance = (1 - gain) * predicted
        found.append((gain, variance))
    return found


def _singletons(samples: Samples, rewards: Tensor, baseline: Tensor) -> Tensor:
    """A group of one has no siblings: advantage 0 (singleton=zero) or the raw reward (singleton=raw)."""
    alone = rewards if samples.singleton == "zero" else torch.zeros_like(rewards)
    return torch.where(samples.groups.is_singleton(samples.valid), alone, baseline)
