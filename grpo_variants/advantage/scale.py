"""Scales: what an advantage is divided by. Each maps (advantages [N] or [N, T], rewards, samples) -> the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor

from grpo_variants.advantage.baseline import EVEN, Baseline, Even, Kalman, kalman_gains
from grpo_variants.advantage.group_size import Doubt, no_middle
from grpo_variants.advantage.inputs import Samples
from grpo_variants.part import Part, added
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.groups import whole
from grpo_variants.tensors.masked import low_and_high, select
from grpo_variants.tensors.order import at_rank, median, ranks

EpsIn = Literal["std", "var", "floor"]
EPS_IN: tuple[EpsIn, ...] = ("std", "var", "floor")


class Rewards(NamedTuple):
    """A response's reward before and after its baseline is subtracted, both [N], and the rule of that baseline."""

    raw: Tensor
    centred: Tensor
    rule: Baseline


class Scale(Part):
    """What an advantage is divided by.

    of_group: the other responses to the prompt enter it. per_token: its statistics are taken over tokens. remembers: it
    keeps what it learns in `Samples.remembered`.
    """

    of_group: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    @property
    def per_token(self) -> bool:
        """Whether statistics are taken over tokens."""
        return False

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Scaled advantages, of the same shape."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoScale(Scale):
    """No scaling (Dr. GRPO, arXiv 2503.20783)."""

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """The advantages as they are."""
        return advantages


@dataclass(frozen=True, kw_only=True)
class GroupStd(Scale):
    r"""Standard deviation of the prompt's group, \(A_i / (\operatorname{std}_g(r) + \epsilon)\) (GRPO, 2402.03300).

    eps: added to the standard deviation (`eps_in=std`) or to the variance (`eps_in=var`), or the least variance that
    divides (`eps_in=floor`).
    ddof: 1 for Bessel's correction, 0 for the population.
    """

    eps: float = 1e-6
    ddof: int = 1
    eps_in: EpsIn = "std"
    of_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        _check_std(self.eps, self.ddof, self.eps_in)

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Divide by the standard deviation of the group's valid rewards."""
        std = _singletons(samples, samples.groups.std(rewards.raw, samples.valid, self.ddof))
        return divide(advantages, std, self.eps, self.eps_in)


@dataclass(frozen=True, kw_only=True)
class BatchStd(Scale):
    r"""Standard deviation of the batch (Lite PPO, 2508.08221), or whitening over its tokens (REINFORCE++, 2501.03262).

    over=responses: divide by the standard deviation of raw rewards (`of=raw`) or of rewards less their baseline
    (`of=centred`); mean=subtract takes the mean of the latter off first. over=tokens: whiten,
    \((A_{it} - \operatorname{mean}) / \operatorname{std}\) over every valid token of the batch, so that a long response
    weighs more; needs `of=centred`.
    """

    eps: float = 1e-6
    ddof: int = 1
    of: Literal["raw", "centred"] = "raw"
    over: Literal["responses", "tokens"] = "responses"
    eps_in: EpsIn = "std"
    mean: Literal["keep", "subtract"] = "keep"

    def __post_init__(self) -> None:
        """Check the fields."""
        _check_std(self.eps, self.ddof, self.eps_in)
        check_choice("scale.of", self.of, ("raw", "centred"))
        check_choice("scale.over", self.over, ("responses", "tokens"))
        check_choice("scale.mean", self.mean, ("keep", "subtract"))
        if self.over == "tokens" and self.mean == "subtract":
            raise ValueError("scale.over='tokens' subtracts the mean over tokens already: leave scale.mean out.")
        if self.over == "tokens" and self.of == "raw":
            raise ValueError("scale.over='tokens' whitens the centred advantages: set scale.of=centred with it.")

    @property
    def per_token(self) -> bool:
        """Whether statistics are taken over tokens."""
        return self.over == "tokens"

    @property
    def reads(self) -> tuple[str, ...]:
        """Lengths, where it counts tokens."""
        return ("lengths",) if self.per_token else ()

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Divide by the standard deviation of the batch, or whiten over its tokens."""
        if self.over == "tokens":
            return self._whiten(advantages, samples)
        value = rewards.raw if self.of == "raw" else rewards.centred
        batch = whole(len(value), value.device)
        if self.mean == "subtract":
            centre = batch.mean(rewards.centred, samples.valid)
            advantages = advantages - (centre if advantages.dim() == 1 else centre.unsqueeze(1))
        return divide(advantages, batch.std(value, samples.valid, self.ddof), self.eps, self.eps_in)

    def _whiten(self, advantages: Tensor, samples: Samples) -> Tensor:
        weight = _token_weight(advantages, samples)
        counted, total = weight > 0, weight.sum().clamp(min=1)
        low, _ = low_and_high(advantages, counted)
        above = select(counted, advantages - low)
        deviation = select(counted, above - (above * weight).sum() / total)
        # Squares of shares of the largest deviation neither overflow nor vanish.
        unit = low_and_high(deviation.abs(), counted)[1].clamp(min=0)
        share = deviation / torch.where(unit == 0, torch.ones_like(unit), unit)
        std = unit * ((share.square() * weight).sum() / (total - self.ddof).clamp(min=1)).sqrt()
        return divide(deviation, std.expand(len(deviation)), self.eps, self.eps_in)


@dataclass(frozen=True, kw_only=True)
class MeanReward(Scale):
    r"""Mean reward of the group, \(A_i / (\operatorname{mean}_g(r) + \epsilon)\) (MaxRL, arXiv 2602.02710).

    With rewards of 0 and 1 the expected gradient is that of \(\log p\) truncated at the group's size. A group whose
    mean is not above 0 has no success to learn from and gets 0.
    """

    eps: float = 1e-6
    of_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("scale.eps", self.eps, at_least=0)

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Divide by the mean of the group's valid rewards."""
        # A negative mean would turn the advantages round; 0 stands for no signal.
        mean = samples.groups.mean(rewards.raw, samples.valid).clamp(min=0)
        return divide(advantages, _singletons(samples, mean), self.eps, "std")


@dataclass(frozen=True, kw_only=True)
class SignalShare(Scale):
    r"""Share of responses whose group has a signal, \(A_i \cdot B / (B - M)\) (GPG, arXiv 2504.02546).

    M of the B valid responses lie in groups whose rewards are all equal; the others are raised to make up for them.
    Not done: drawing again where few groups have a signal.
    """

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Divide by the share of valid responses in groups that are not constant."""
        low, high = samples.groups.low_and_high(rewards.raw, samples.valid)
        mixed = (low < high)[samples.groups.ids] & samples.valid
        # In float64: counts of a large batch are not whole in float32.
        share = mixed.sum().double() / samples.valid.sum().clamp(min=1)
        return divide(advantages, share.to(advantages.dtype).expand(len(advantages)), 0.0, "std")


@dataclass(frozen=True, kw_only=True)
class GroupMad(Scale):
    r"""Median absolute deviation of the group, \(A_i / (\operatorname{MAD}_g(r) + \epsilon)\) (MC-GRPO, 2601.22582).

    \(\operatorname{MAD}_g(r) = \operatorname{median}_g |r - \operatorname{median}_g r|\). It is 0 as soon as more than
    half of the rewards are equal: then only eps divides.
    even: in a group of an even number, the `lower` of the middle two or their `mean`.
    compensate: `group` for advantages times the group's size over the number of those that are not 0 (above 1e-6).
    """

    eps: float = 1e-3
    even: Even = added("lower", before="mean")
    compensate: Literal["none", "group"] = added("none")
    of_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("scale.eps", self.eps, at_least=0)
        check_choice("scale.even", self.even, EVEN)
        check_choice("scale.compensate", self.compensate, ("none", "group"))

    def doubt(self, size: int) -> Doubt | None:
        """Whether a group of this many responses has no median response."""
        return no_middle(size, self.even)

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Divide by the median distance of the group's valid rewards from their median, plus eps."""
        groups, valid = samples.groups, samples.valid
        distance = (rewards.raw - median(groups, rewards.raw, valid, self.even)).abs()
        scale = _singletons(samples, median(groups, distance, valid, self.even)) + self.eps
        if self.compensate == "group":
            scale = scale / self._raised(divide(rewards.centred, scale, 0.0, "std"), samples)
        return divide(advantages, scale, 0.0, "std")

    def _raised(self, value: Tensor, samples: Samples) -> Tensor:
        """What each response's advantage is multiplied by: [N] -> [N]."""
        groups, signal = samples.groups, samples.valid & (value.abs() > 1e-6)
        factor = groups.size(samples.valid).to(value.dtype) / groups.size(signal).clamp(min=1)
        return torch.where(signal, factor[groups.ids], 1.0)


@dataclass(frozen=True, kw_only=True)
class Bernoulli(Scale):
    r"""Deviation of a yes or no, \(A_i / (\sqrt{p(1 - p)} + \epsilon)\) with p the group's mean (arXiv 2508.10751).

    For rewards of 0 and 1 that is the population's standard deviation; for pass@k rewards, that of the k draws.
    """

    eps: float = 1e-6
    of_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("scale.eps", self.eps, at_least=0)

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Divide by the deviation that the group's mean implies; a mean outside [0, 1] implies none and gives 0."""
        p = samples.groups.mean(rewards.raw, samples.valid)
        # p outside [0, 1] has no such deviation: the root is taken of 0, which means no signal.
        return divide(advantages, _singletons(samples, (p * (1 - p)).clamp(min=0).sqrt()), self.eps, "std")


@dataclass(frozen=True, kw_only=True)
class BetaDensity(Scale):
    r"""Density of a Beta distribution at the group's mean, \(A_i / f(p_g; 1 + a/3, 1 + b/3)\) (BNPO, arXiv 2506.02864).

    \(a = (m(1-m)/v - 1)\,m\) and \(b = (m(1-m)/v - 1)(1-m)\) fit Beta(a, b) to the means of the batch's groups, which
    have mean m and variance v; neither parameter of f falls below 1. Rewards have to lie in [0, 1]: a group whose mean
    does not lie inside has no density and gets 0.
    cap: the largest factor 1/f.
    """

    cap: float = 1e6
    of_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("scale.cap", self.cap, above=0)

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Divide by the density at the group's mean."""
        p = samples.groups.mean(rewards.raw, samples.valid)
        density = self._density(p, samples)
        inside = (p > 0) & (p < 1)
        safe = torch.where(inside, density, torch.ones_like(density)).clamp(min=1 / self.cap)
        safe = _singletons(samples, torch.where(inside, safe, torch.zeros_like(safe)))
        return divide(advantages, safe, 0.0, "std")

    def _density(self, p: Tensor, samples: Samples) -> Tensor:
        first = ranks(samples.groups, torch.zeros_like(p), samples.valid) == 0
        one_each, batch = first & samples.valid, whole(len(p), p.device)
        m, v = batch.mean(p, one_each), batch.std(p, one_each, 1).square()
        flat = v == 0  # one group, or all alike: nothing to fit, and 1 + 0/3 makes the density flat
        spread = torch.where(flat, 0.0, m * (1 - m) / torch.where(flat, 1.0, v) - 1)
        alpha, beta = (1 + spread * share / 3 for share in (m, 1 - m))
        # Inside (0, 1) the logarithms are finite; below 1 a parameter would make the density infinite at an end.
        return torch.exp(_log_beta_density(p.clamp(1e-12, 1 - 1e-7), alpha.clamp(min=1), beta.clamp(min=1)))


def _log_beta_density(p: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    constant = torch.lgamma(alpha + beta) - torch.lgamma(alpha) - torch.lgamma(beta)
    return constant + (alpha - 1) * p.log() + (beta - 1) * (-p).log1p()


@dataclass(frozen=True, kw_only=True)
class KalmanStd(Scale):
    r"""Deviation of a Kalman filter at the response's place in its group, \(A_i / (\sqrt{P_i} + \epsilon)\) (KRPO).

    The filter is that of baseline=kalman, with its fields; arXiv 2505.07527.
    """

    eps: float = 1e-8

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("scale.eps", self.eps, at_least=0)

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Divide by the filter's deviation, which grows smaller from response to response."""
        place = ranks(samples.groups, torch.zeros_like(rewards.raw), samples.valid)
        width = int(place.max()) + 1 if len(place) else 0
        rule = cast(Kalman, rewards.rule)
        gains = kalman_gains(rule.process, rule.measurement, rule.variance, width)
        variances = rewards.raw.new_tensor([variance for _, variance in gains])
        return divide(advantages, variances.sqrt()[place], self.eps, "std")


@dataclass(frozen=True, kw_only=True)
class SmoothedStd(Scale):
    r"""Standardised within the step and over all steps of the prompt, whichever mix is smaller (DCPO, 2509.02333).

    With i the number of steps that have seen the prompt, this one included, \(A^1 = \frac1i A^{tot} + \frac{i-1}i
    A^{new}\) and \(A^2 = \frac1i A^{new} + \frac{i-1}i A^{tot}\); the one nearer to 0 counts. \(A^{new}\) takes mean
    and deviation of this step's group, \(A^{tot}\) those of every step's together, each step of the same weight. A
    group without a signal of its own so gets one from its history.
    """

    ddof: int = 1
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_choice("scale.ddof", self.ddof, (0, 1))

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Advantages [N] from this step's and the remembered statistics, which are then brought up to date."""
        groups, valid, raw = samples.groups, samples.valid, rewards.raw
        mean, std = groups.mean(raw, valid), groups.std(raw, valid, self.ddof)
        seen = groups.size(valid) > 0
        new = torch.stack([at_rank(groups, n, valid, torch.zeros_like(seen, dtype=torch.long)) for n in (mean, std)], 1)
        steps, total = self._total(new.double(), seen, samples)
        share = (1 / steps).to(raw.dtype)[groups.ids]
        total_mean, total_std = (column[groups.ids] for column in total.to(raw.dtype).unbind(1))
        now = divide(raw - mean, std, 0.0, "std")
        ever = divide(raw - total_mean, total_std, 0.0, "std")
        first, second = share * ever + (1 - share) * now, share * now + (1 - share) * ever
        return torch.where(first.abs() < second.abs(), first, second)

    def _total(self, new: Tensor, seen: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
        """Number of steps [P], mean and deviation [P, 2] of each prompt with this step in; remembered."""
        state = samples.remembered()
        before = state.recall("smoothed_std", samples.keys, (0.0, 0.0, 0.0)).to(new.device)
        earlier, steps = before[:, 0], before[:, 0] + 1
        mean = (before[:, 1] * earlier + new[:, 0]) / steps
        between = (earlier / steps).sqrt() * (new[:, 0] - before[:, 1])
        # By hypot, so that squares neither overflow nor vanish.
        std = torch.hypot(torch.hypot(before[:, 2] * earlier.sqrt(), new[:, 1]), between) / steps.sqrt()
        total = torch.stack([mean, std], 1)
        state.store("smoothed_std", samples.keys, torch.cat([steps.unsqueeze(1), total], 1), seen)
        return steps, total


def _singletons(samples: Samples, scale: Tensor) -> Tensor:
    """A group of one that keeps its raw reward (singleton=raw) is not scaled."""
    if samples.singleton == "zero":
        return scale
    return torch.where(samples.groups.is_singleton(samples.valid), torch.ones_like(scale), scale)


def _token_weight(advantages: Tensor, samples: Samples) -> Tensor:
    """How many tokens an entry of `advantages` stands for: the mask of [N, T], the lengths of [N]."""
    if advantages.dim() == 2:
        counted = samples.need("mask", "scale.over=tokens") & samples.valid.unsqueeze(1)
        return counted.to(advantages.dtype)
    lengths = samples.need("lengths", "scale.over=tokens")
    return torch.where(samples.valid, lengths, 0).to(advantages.dtype)


def divide(advantages: Tensor, std: Tensor, eps: float, eps_in: str) -> Tensor:
    """Divide [N] or [N, T] by a standard deviation [N]; where that is 0 there is no signal and the result is 0."""
    scale = divisor(std, eps, eps_in)
    flat = std == 0
    safe = torch.where(flat, torch.ones_like(scale), scale)
    if advantages.dim() == 2:
        flat, safe = flat.unsqueeze(1), safe.unsqueeze(1)
    return torch.where(flat, torch.zeros_like(advantages), advantages / safe)


def divisor(std: Tensor, eps: float, eps_in: str) -> Tensor:
    """What a standard deviation divides by: with eps added to it or to its square, or its square held above eps."""
    if eps_in == "std":
        return std + eps
    root = std.new_tensor(eps).sqrt()
    return torch.hypot(std, root) if eps_in == "var" else torch.maximum(std, root)


def _check_std(eps: float, ddof: int, eps_in: str) -> None:
    check_number("scale.eps", eps, at_least=0)
    check_choice("scale.ddof", ddof, (0, 1))
    check_choice("scale.eps_in", eps_in, EPS_IN)
