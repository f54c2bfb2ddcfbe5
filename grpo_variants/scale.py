"""Scales: what an advantage is divided by. Each maps (advantages [N] or [N, T], rewards, samples) -> the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from grpo_variants.checks import check_choice, check_number
from grpo_variants.groups import whole
from grpo_variants.inputs import Samples
from grpo_variants.masked import low_and_high

EpsIn = Literal["std", "var"]


class Rewards(NamedTuple):
    """A response's reward before and after its baseline is subtracted: both [N]."""

    raw: Tensor
    centred: Tensor


class Scale(Protocol):
    """The contract of a scale."""

    @property
    def per_token(self) -> bool:
        """Whether statistics are taken over tokens."""
        ...

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Scaled advantages, of the same shape."""
        ...


@dataclass(frozen=True, kw_only=True)
class NoScale:
    """No scaling (Dr. GRPO, arXiv 2503.20783)."""

    per_token: ClassVar[bool] = False

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """The advantages as they are."""
        return advantages


@dataclass(frozen=True, kw_only=True)
class GroupStd:
    r"""Standard deviation of the prompt's group, \(A_i / (\operatorname{std}_g(r) + \epsilon)\) (GRPO, 2402.03300).

    eps: added to the standard deviation (`eps_in=std`) or to the variance (`eps_in=var`).
    ddof: 1 for Bessel's correction, 0 for the population.
    """

    eps: float = 1e-6
    ddof: int = 1
    eps_in: EpsIn = "std"
    per_token: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the fields."""
        _check_std(self.eps, self.ddof, self.eps_in)

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Divide by the standard deviation of the group's valid rewards."""
        std = samples.groups.std(rewards.raw, samples.valid, self.ddof)
        if samples.singleton == "raw":
            std = torch.where(samples.groups.is_singleton(samples.valid), torch.ones_like(std), std)
        return divide(advantages, std, self.eps, self.eps_in)


@dataclass(frozen=True, kw_only=True)
class BatchStd:
    r"""Standard deviation of the batch (Lite PPO, 2508.08221), or whitening over its tokens (REINFORCE++, 2501.03262).

    over=responses: divide by the standard deviation of raw rewards (`of=raw`) or of rewards less their baseline
    (`of=centred`). over=tokens: whiten, \((A_{it} - \operatorname{mean}) / \operatorname{std}\) over every valid token
    of the batch, so that a long response weighs more; needs `of=centred`.
    """

    eps: float = 1e-6
    ddof: int = 1
    of: Literal["raw", "centred"] = "raw"
    over: Literal["responses", "tokens"] = "responses"
    eps_in: EpsIn = "std"

    def __post_init__(self) -> None:
        """Check the fields."""
        _check_std(self.eps, self.ddof, self.eps_in)
        check_choice("scale.of", self.of, ("raw", "centred"))
        check_choice("scale.over", self.over, ("responses", "tokens"))
        if self.over == "tokens" and self.of == "raw":
            raise ValueError("scale.over='tokens' whitens the centred advantages: set scale.of=centred with it.")

    @property
    def per_token(self) -> bool:
        """Whether statistics are taken over tokens."""
        return self.over == "tokens"

    def __call__(self, advantages: Tensor, rewards: Rewards, samples: Samples) -> Tensor:
        """Divide by the standard deviation of the batch, or whiten over its tokens."""
        if self.over == "tokens":
            return self._whiten(advantages, samples)
        value = rewards.raw if self.of == "raw" else rewards.centred
        std = whole(len(value), value.device).std(value, samples.valid, self.ddof)
        return divide(advantages, std, self.eps, self.eps_in)

    def _whiten(self, advantages: Tensor, samples: Samples) -> Tensor:
        weight = _token_weight(advantages, samples)
        counted = weight > 0
        low, high = low_and_high(advantages, counted)
        total = weight.sum().clamp(min=1)
        mean = torch.where(low == high, low, (advantages.nan_to_num() * weight).sum() / total)
        deviation = torch.where(counted, advantages - mean, torch.zeros_like(advantages))
        std = ((deviation.square() * weight).sum() / (total - self.ddof).clamp(min=1)).sqrt()
        return divide(deviation, std.expand(len(deviation)), self.eps, self.eps_in)


def _token_weight(advantages: Tensor, samples: Samples) -> Tensor:
    """How many tokens an entry of `advantages` stands for: the mask of [N, T], the lengths of [N]."""
    if advantages.dim() == 2:
        counted = samples.need("mask", "scale.over=tokens") & samples.valid.unsqueeze(1)
        return counted.to(advantages.dtype)
    lengths = samples.need("lengths", "scale.over=tokens")
    return torch.where(samples.valid, lengths, 0).to(advantages.dtype)


def divide(advantages: Tensor, std: Tensor, eps: float, eps_in: str) -> Tensor:
    """Divide [N] or [N, T] by a standard deviation [N]; where that is 0 there is no signal and the result is 0."""
    scale = std + eps if eps_in == "std" else (std.square() + eps).sqrt()
    flat = std == 0
    safe = torch.where(flat, torch.ones_like(scale), scale)
    if advantages.dim() == 2:
        flat, safe = flat.unsqueeze(1), safe.unsqueeze(1)
    return torch.where(flat, torch.zeros_like(advantages), advantages / safe)


def _check_std(eps: float, ddof: int, eps_in: str) -> None:
    check_number("scale.eps", eps, at_least=0)
    check_choice("scale.ddof", ddof, (0, 1))
    check_choice("scale.eps_in", eps_in, ("std", "var"))
