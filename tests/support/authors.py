"""Steps far off policy for the tests that write an authors' rule down once more, and both sides of the comparison."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

import grpo_variants as gv

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
Step = dict[str, Tensor]


def step(seed: int, spread: float = 0.8, rows: int = 16, width: int = 7) -> Step:
    """Responses of uneven length with holes, advantages of both signs and one of 0."""
    random = np.random.default_rng(seed)
    mask = np.arange(width) < random.integers(1, width + 1, rows)[:, None]
    mask[:, 1:] &= random.random((rows, width - 1)) > 0.2
    old = -random.exponential(2.0, (rows, width)) - 0.01
    advantages = random.normal(size=rows)
    advantages[3] = 0.0
    arrays = {
        "logp": np.minimum(old + spread * random.normal(size=old.shape), -1e-3),
        "old_logp": old,
        "ref_logp": np.minimum(old + 3 * random.normal(size=old.shape), -1e-3),
        "advantages": advantages,
        "mask": mask,
    }
    return {name: torch.as_tensor(value) for name, value in arrays.items()}


Token = tuple[Tensor, float, Tensor, Tensor]


def tokens(x: Step) -> list[list[Token]]:
    """For each response its tokens: log-probability now, advantage, log-probabilities of old policy and reference."""
    return [
        [(x["logp"][i, t], a, x["old_logp"][i, t], x["ref_logp"][i, t]) for t in mask.nonzero().flatten().tolist()]
        for i, (a, mask) in enumerate(zip(x["advantages"].tolist(), x["mask"], strict=True))
    ]


def flat(x: Step) -> list[Token]:
    return [token for response in tokens(x) for token in response]


def ppo(rho: Tensor, a: float, low: float, high: float, dual: float | None = None) -> Tensor:
    """PPO's loss of a token between two bounds of the ratio, with the dual clip of a negative advantage."""
    loss = torch.max(-a * rho, -a * rho.clamp(low, high))
    return torch.min(loss, rho.new_tensor(-a * dual)) if dual is not None and a < 0 else loss


def of_the_rule(rule: Callable[[Step], Tensor], x: Step) -> tuple[Tensor, Tensor]:
    leaf = x["logp"].clone().requires_grad_()
    loss = rule({**x, "logp": leaf})
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def of_the_package(spec: str, x: Step) -> tuple[Tensor, Tensor]:
    leaf = x["logp"].clone().requires_grad_()
    out = gv.policy_loss(spec, gv.Tokens(**{**x, "logp": leaf}))
    return out.loss.detach(), torch.autograd.grad(out.loss, leaf)[0]
