"""Credit that reads what happened at each token: entropies, or how far each token moved the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_variants.advantage.credit import AdvantageParts, Credit, penalty_of, rewards_of_tokens
from grpo_variants.advantage.inputs import Samples
from grpo_variants.advantage.scale import divide
from grpo_variants.part import added
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.groups import Groups
from grpo_variants.tensors.masked import masked_mean, reverse_cumsum, select


@dataclass(frozen=True, kw_only=True)
class _EntropyCredit(Credit):
    r"""Reward shaped by entropy, right and wrong responses apart (arXiv 2508.04349).

    A response is right where its reward is above `above`. Right: \(\tilde r = \mathrm{base}\, r + \mathrm{bonus}\, n\,
    H / \sum H\) over the n right ones of the group; wrong: \(\tilde r = -(\mathrm{base} + \mathrm{bonus}\, m\, H^{-1} /
    \sum H^{-1})\) over the m wrong ones. The advantage is \(\tilde r\) less its mean over its deviation, which is the
    rule's own baseline and scale.
    eps: added to an entropy before it is inverted, and to the deviation.
    """

    base: float = 1.0
    bonus: float = 0.1
    above: float = 0.0
    eps: float = 1e-8
    of_outcome: ClassVar[bool] = True
    own_rule: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("mask", "entropy")

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("credit.base", self.base, at_least=0)
        check_number("credit.bonus", self.bonus, at_least=0)
        check_number("credit.above", self.above)
        check_number("credit.eps", self.eps, above=0)

    def _sides(self, samples: Samples) -> Groups:
        """The wrong and the right responses of each group apart."""
        return Groups(samples.groups.ids * 2 + (samples.rewards > self.above), 2 * samples.groups.count)

    def _shaped(self, entropy: Tensor, here: Tensor, samples: Samples) -> Tensor:
        """Shaped rewards [N, T] from entropies [N, T] that count where `here` [N, T] holds."""
        right = (samples.rewards > self.above).unsqueeze(1)
        weight = torch.where(right, entropy, 1 / (entropy + self.eps))
        share = self.bonus * _share(select(here, weight), here, self._sides(samples))
        gain = self.base * samples.rewards.unsqueeze(1) + share
        return select(here, torch.where(right, gain, -self.base - share))

    def _normalised(self, shaped: Tensor, here: Tensor, groups: Groups) -> Tensor:
        """Shaped rewards [N, T] less their mean over their deviation, both over the tokens of each of `groups`."""
        value, counted = shaped.flatten(), here.flatten()
        every = Groups(groups.ids.unsqueeze(1).expand_as(here).flatten(), groups.count)
        std = every.std(value, counted, 1)
        value = divide(value - every.mean(value, counted), std, self.eps, "std")
        return select(here, value.view_as(shaped))


def _share(weight: Tensor, here: Tensor, sides: Groups) -> Tensor:
    """Each weight [N, T] over the mean of those of its side at the same position; 0 where they add up to 0."""
    empty = weight.new_zeros(sides.count, weight.shape[1])
    total = empty.index_add(0, sides.ids, weight)[sides.ids]
    alive = empty.index_add(0, sides.ids, here.to(weight.dtype))[sides.ids]
    # Entropies that are all 0 have no shares, and 0 / 0 would be NaN.
    return torch.where(total > 0, weight * alive / torch.where(total > 0, total, 1.0), 0.0)


@dataclass(frozen=True, kw_only=True)
class EntropyTokens(_EntropyCredit):
    """One advantage per token, by its entropy against that of its siblings at the same position (GTPO, 2508.04349).

    Mean and deviation are those of the group's right tokens, or of its wrong ones.
    """

    per_token: ClassVar[bool] = True

    def __call__(self, samples: Samples, rule: AdvantageParts) -> Tensor:
        """Advantages [N, T]; needs `entropy` and `mask`."""
        mask = samples.need("mask", "credit=entropy_tokens")
        entropy = samples.need("entropy", "credit=entropy_tokens").to(samples.rewards.dtype)
        here = mask & samples.valid.unsqueeze(1)
        return self._normalised(self._shaped(select(mask, entropy), here, samples), here, self._sides(samples))


@dataclass(frozen=True, kw_only=True)
class EntropyResponses(_EntropyCredit):
    """One advantage per response, by its mean entropy against that of its siblings (GRPO-S, arXiv 2508.04349).

    over: mean and deviation of the whole `group`, or of its right and of its wrong responses apart (`side`), where a
        wrong response can get a positive advantage.
    """

    over: Literal["group", "side"] = added("group", before="side")

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_choice("credit.over", self.over, ("group", "side"))

    def __call__(self, samples: Samples, rule: AdvantageParts) -> Tensor:
        """Advantages [N]; needs `entropy` and `mask`."""
        mask = samples.need("mask", "credit=entropy_responses")
        entropy = samples.need("entropy", "credit=entropy_responses").to(samples.rewards.dtype)
        here = samples.valid.unsqueeze(1)
        shaped = self._shaped(masked_mean(select(mask, entropy), mask), here, samples)
        groups = samples.groups if self.over == "group" else self._sides(samples)
        return self._normalised(shaped, here, groups).squeeze(1)


@dataclass(frozen=True, kw_only=True)
class OptimalToken(Credit):
    r"""Reward from each token on, less the baseline of least variance at that token (OTB, arXiv 2602.07078).

    \(A_{it} = G_{it} - B_t\), \(B_t = \sum_i G_{it} W_{it} / (\sum_i W_{it} + \epsilon)\) over the group's responses
    that have a token at t, \(W_{it} = \sum_{j\le t} (1 - 2\pi_{ij} + \sum_v \pi_{ij}(v)^2)\).
    tail: where only the longest response is left, a baseline of `zero`, or its `own` return.
    Not done: weights of a mismatch between the trainer and the rollout engine.
    """

    eps: float = 1e-8
    tail: Literal["zero", "own"] = "zero"
    per_token: ClassVar[bool] = True
    of_group: ClassVar[bool] = True
    own_rule: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("mask", "sum_pi_squared", "old_logp")

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("credit.eps", self.eps, at_least=0)
        check_choice("credit.tail", self.tail, ("zero", "own"))

    def __call__(self, samples: Samples, rule: AdvantageParts) -> Tensor:
        """Advantages [N, T]; needs `sum_pi_squared`, `old_logp` and `mask`."""
        wanted_by = "credit=optimal_token"
        mask = samples.need("mask", wanted_by)
        dtype, here = samples.rewards.dtype, mask & samples.valid.unsqueeze(1)
        squares = samples.need("sum_pi_squared", wanted_by).to(dtype)
        logp = select(mask, samples.need("old_logp", wanted_by).to(dtype))
        rewards = rewards_of_tokens(samples, mask)
        if rule.penalty is not None:
            rewards = rewards - penalty_of(samples, rule.penalty)
        returns = reverse_cumsum(select(mask, rewards))
        moved = select(here, 1 - 2 * logp.exp() + squares).cumsum(1)
        return select(here, returns - self._baseline(returns, moved, here, samples))

    def _baseline(self, returns: Tensor, moved: Tensor, here: Tensor, samples: Samples) -> Tensor:
        ids = samples.groups.ids
        zeros = returns.new_zeros(samples.groups.count, returns.shape[1])

        def group_sum(value: Tensor) -> Tensor:
            return zeros.index_add(0, ids, select(here, value))[ids]

        position = torch.arange(here.shape[1], device=here.device)
        ends = (here * (position + 1)).amax(1, keepdim=True)
        left = zeros.index_add(0, ids, (position < ends).to(zeros.dtype))[ids]
        value = group_sum(returns * moved) / (group_sum(moved) + self.eps)
        if self.tail == "zero":
            # Alone at this position, a response would be its own baseline and learn nothing there.
            value = torch.where(left > 1, value, 0.0)
        alone = samples.groups.is_singleton(samples.valid).unsqueeze(1)
        return torch.where(alone, returns if samples.singleton == "zero" else 0.0, value)
