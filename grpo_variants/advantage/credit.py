"""Credit: which tokens of a response a reward is credited to. Each maps (samples, rule) -> [N] or [N, T]."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from grpo_variants.advantage.baseline import Baseline
from grpo_variants.advantage.inputs import Samples, read_weights
from grpo_variants.advantage.scale import EPS_IN, BatchStd, EpsIn, Rewards, Scale
from grpo_variants.objective.kl import KL
from grpo_variants.part import Part
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.masked import discounted_sum_to_go, reverse_cumsum, select


class AdvantageParts(NamedTuple):
    """How rewards become advantages: what credit assignment composes. `penalty` is a KL in the reward, or None."""

    baseline: Baseline
    scale: Scale
    penalty: KL | None


class Credit(Part):
    """Which tokens of a response a reward is credited to.

    per_token: it gives one advantage per token. of_outcome: it reads one reward per response, which a transform may
    change. of_group: the other responses to the prompt enter it beside baseline and scale. own_rule: it has a baseline
    and a scale of its own. per_function: it takes the reward functions apart.
    """

    per_token: ClassVar[bool] = False
    of_outcome: ClassVar[bool] = False
    of_group: ClassVar[bool] = False
    own_rule: ClassVar[bool] = False
    per_function: ClassVar[bool] = False

    @staticmethod
    def doubt_of(functions: int) -> str | None:
        """What the rule is with this many reward functions, where that is not what it is for."""
        return None

    def __call__(self, samples: Samples, rule: AdvantageParts) -> Tensor:
        """Advantages [N], or [N, T] for token credit."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Outcome(Credit):
    r"""One advantage per response, \(A_i = (r_i - b_i)/\mathrm{scale}\), for all of its tokens."""

    of_outcome: ClassVar[bool] = True

    def __call__(self, samples: Samples, rule: AdvantageParts) -> Tensor:
        """Advantages [N]."""
        reward = samples.rewards
        if rule.penalty is not None:
            reward = reward - penalty_of(samples, rule.penalty).sum(1)
        centred = reward - rule.baseline(reward, samples)
        return rule.scale(centred, Rewards(reward, centred, rule.baseline), samples)


@dataclass(frozen=True, kw_only=True)
class Decoupled(Credit):
    r"""Each reward function normalised by itself, then weighted, added and normalised again (GDPO, 2601.05242).

    \(a_i = \sum_k w_k (r_{ik} - b_k)/\mathrm{scale}_k\) over the functions that gave the response a reward, and
    \(A_i = (a_i - \operatorname{mean}_b a)/(\operatorname{std}_b a + \epsilon)\): a function with large rewards does
    not drown the others. over: a batch of responses, or of tokens, where a long response weighs more.
    """

    eps: float = 1e-4
    ddof: int = 1
    over: Literal["responses", "tokens"] = "responses"
    eps_in: EpsIn = "std"
    per_function: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("credit.eps", self.eps, at_least=0)
        check_choice("credit.ddof", self.ddof, (0, 1))
        check_choice("credit.over", self.over, ("responses", "tokens"))
        check_choice("credit.eps_in", self.eps_in, EPS_IN)

    @property
    def reads(self) -> tuple[str, ...]:
        """Lengths, where it counts tokens."""
        return ("lengths",) if self.over == "tokens" else ()

    @staticmethod
    def doubt_of(functions: int) -> str | None:
        """What the rule is with this many reward functions, where that is not what it is for."""
        if functions > 1:
            return None
        return (
            "credit=decoupled normalises a single reward function twice, where the authors' code (NVlabs/GDPO) is "
            "plain GRPO. Set credit=outcome for that."
        )

    def __call__(self, samples: Samples, rule: AdvantageParts) -> Tensor:
        """Advantages [N]; reads rewards [N, K]."""
        columns = samples.components.unbind(1)
        given = samples.rollouts.reward_weights
        weights = [1.0] * len(columns) if given is None else read_weights(given, samples.components).tolist()
        parts = [w * _normalised(column, samples, rule) for w, column in zip(weights, columns, strict=True)]
        total = torch.stack(parts).sum(0)
        mean: Literal["keep", "subtract"] = "subtract" if self.over == "responses" else "keep"
        whole = BatchStd(eps=self.eps, ddof=self.ddof, of="centred", over=self.over, eps_in=self.eps_in, mean=mean)
        return whole(total, Rewards(total, total, rule.baseline), samples)


def _normalised(reward: Tensor, samples: Samples, rule: AdvantageParts) -> Tensor:
    """One reward function's advantages [N], 0 where it gave none."""
    # A function may leave out a response that another one scored.
    given = samples.valid & ~reward.isnan()
    reward = torch.where(given, reward, torch.zeros_like(reward))
    own = replace(samples, rewards=reward, valid=given)
    centred = reward - rule.baseline(reward, own)
    return torch.where(
        given, rule.scale(centred, Rewards(reward, centred, rule.baseline), own), torch.zeros_like(reward)
    )


@dataclass(frozen=True, kw_only=True)
class RewardToGo(Credit):
    r"""Reward from each token on, \(A_{it} = (\sum_{t' \ge t} \gamma^{t'-t} r_{it'} - b_i)/\mathrm{scale}\).

    Token rewards are `token_rewards`, or the response's reward at its last token. The baseline is that of the
    response's total reward, which counts without a token to put it at, too. Only valid tokens are actions: a hole in
    the mask is not discounted.
    """

    gamma: float = 1.0
    per_token: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("mask",)

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("credit.gamma", self.gamma, above=0)
        if self.gamma > 1:
            raise ValueError(f"credit.gamma={self.gamma!r} is out of range; allowed: above 0 and at most 1.")

    def __call__(self, samples: Samples, rule: AdvantageParts) -> Tensor:
        """Advantages [N, T]; 0 outside the mask."""
        mask = samples.need("mask", "credit=reward_to_go")
        token_rewards = rewards_of_tokens(samples, mask)
        reward = samples.rewards if samples.token_rewards is None else token_rewards.sum(1)
        if rule.penalty is not None:
            penalty = penalty_of(samples, rule.penalty)
            token_rewards, reward = token_rewards - penalty, reward - penalty.sum(1)
        baseline = rule.baseline(reward, samples)
        advantages = discounted_sum_to_go(token_rewards, mask, self.gamma) - baseline.unsqueeze(1)
        if rule.baseline.of_group and samples.singleton == "zero":
            # Without a sibling there is nothing to compare with: raw returns would push every token one way.
            alone = samples.groups.is_singleton(samples.valid)
            advantages = advantages.masked_fill(alone.unsqueeze(1), 0.0)
        return select(mask, rule.scale(advantages, Rewards(reward, reward - baseline, rule.baseline), samples))


@dataclass(frozen=True, kw_only=True)
class Process(Credit):
    r"""Process supervision: step rewards normalised over all steps of the group, then summed from each token on.

    \(\tilde r_j = (r_j - b)/\mathrm{scale}\) over every step of the group, and
    \(A_{it} = \sum_{j:\ \mathrm{end}(j) \ge t} \tilde r_j\) (arXiv 2402.03300, section 4.1.3). Normalise first, then
    sum: the other order is another algorithm.
    """

    per_token: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("mask", "token_rewards", "step_ends")

    def __call__(self, samples: Samples, rule: AdvantageParts) -> Tensor:
        """Advantages [N, T]; needs `token_rewards`, `step_ends` and `mask`."""
        mask = samples.need("mask", "credit=process")
        token_rewards = samples.need("token_rewards", "credit=process")
        ends = samples.need("step_ends", "credit=process").bool() & mask
        row, position = ends.nonzero(as_tuple=True)
        step_rewards = token_rewards[row, position]
        steps = replace(
            samples,
            groups=samples.groups[row],
            valid=samples.valid[row],
            rewards=step_rewards,
        )
        centred = step_rewards - rule.baseline(step_rewards, steps)
        normalised = rule.scale(centred, Rewards(step_rewards, centred, rule.baseline), steps)
        placed = torch.zeros_like(token_rewards)
        placed[row, position] = torch.where(steps.valid, normalised, torch.zeros_like(normalised))
        return select(mask, reverse_cumsum(placed))


def rewards_of_tokens(samples: Samples, mask: Tensor) -> Tensor:
    """The given token rewards, or the response's reward at its last valid token: [N, T]."""
    if samples.token_rewards is not None:
        return samples.token_rewards
    position = torch.arange(mask.shape[1], device=mask.device)
    # The last token of the mask, which may have holes; -1 for an empty one, which no position equals.
    last = (mask * (position + 1)).amax(1, keepdim=True) - 1
    return torch.where(position == last, samples.rewards.unsqueeze(1), torch.zeros((), dtype=samples.rewards.dtype))


def penalty_of(samples: Samples, kl: KL) -> Tensor:
    """beta * kl of each valid token: [N, T]."""
    wanted_by = "kl.placement=reward"
    mask = samples.need("mask", wanted_by)
    old, ref = samples.need("old_logp", wanted_by), samples.need("ref_logp", wanted_by)
    dtype = samples.rewards.dtype
    return kl.penalty(select(mask, old.to(dtype)), select(mask, ref.to(dtype)))
