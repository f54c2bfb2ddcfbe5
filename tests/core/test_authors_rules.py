"""Members against the rules of their authors' papers and code, written down once more from these: the yardstick.

Each rule is about one response after the other, in plain float64 tensors and with autograd, and says where it was read.
It knows nothing of the package's parts. The step is far off policy: every bound is passed, under advantages of both
signs.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import grpo_variants as gv

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


class Response(NamedTuple):
    """The tokens of a response: log-probabilities now, of the trainer's old policy, the engine, the reference."""

    lp: Tensor
    old: Tensor
    mu: Tensor
    ref: Tensor
    a: float

    @property
    def length(self) -> int:
        return len(self.lp)


def step(seed: int, rows: int = 24, width: int = 9) -> dict[str, Tensor]:
    """Tokens of one step: responses of uneven length with holes, advantages of both signs and one of 0."""
    random = np.random.default_rng(seed)
    mask = np.arange(width) < random.integers(1, width + 1, rows)[:, None]
    mask[:, 1:] &= random.random((rows, width - 1)) > 0.2
    logp = -random.exponential(1.2, (rows, width)) - 0.01
    arrays = {"logp": logp, "mask": mask, "advantages": random.normal(size=rows).round(3)}
    arrays["advantages"][3] = 0.0
    for name, spread in (("old_logp", 0.6), ("rollout_logp", 0.9), ("ref_logp", 0.6)):
        arrays[name] = np.minimum(logp + spread * random.normal(size=logp.shape), -0.001)
    return {name: torch.as_tensor(value) for name, value in arrays.items()}


def responses(x: dict[str, Tensor]) -> list[Response]:
    """The step's responses, without what the mask hides."""
    names = ("logp", "old_logp", "rollout_logp", "ref_logp")
    chosen = [[x[name][i][own] for name in names] for i, own in enumerate(x["mask"])]
    return [Response(*parts, a=a) for parts, a in zip(chosen, x["advantages"].tolist(), strict=True)]


def clipped(r: Response, low: float, high: float) -> Tensor:
    """PPO's term of each token, to be maximised."""
    rho = (r.lp - r.old).exp()
    return torch.minimum(rho * r.a, rho.clamp(1 - low, 1 + high) * r.a)


def glm5(batch: list[Response]) -> Tensor:
    """arXiv 2602.15763, equation 1: pop keeps a ratio of trainer to engine from 1/beta to beta, and is 0 outside."""
    beta, total = 2.0, 0.0
    for r in batch:
        w = (r.old - r.mu).exp()
        pop = torch.where((w >= 1 / beta) & (w <= beta), w, 0.0)
        total = total + (pop * clipped(r, 0.2, 0.28)).sum() / r.length
    return -total / len(batch)


def raft_pp(batch: list[Response]) -> Tensor:
    """RLHFlow/Minimal-RL, core_algos.py: PPO's clip and low_var_kl, both over the tokens of all responses."""
    policy = sum(clipped(r, 0.2, 0.2).sum() for r in batch)
    kl = sum(((r.ref - r.lp).exp() - (r.ref - r.lp) - 1).sum() for r in batch)
    return (0.001 * kl - policy) / sum(r.length for r in batch)


def opmd(batch: list[Response]) -> Tensor:
    """horizon-rl/OpenKimi, openkimi/pmd/core_algos.py: a square of what is left between A/tau and the log ratio."""
    tau, total = 0.01, 0.0
    for r in batch:
        total = total + tau / 2 * (r.a / tau - (r.lp.sum() - r.old.sum())) ** 2 / r.length
    return total / len(batch)


def prime_rl(batch: list[Response], *, ipo: bool = False) -> Tensor:
    """PrimeIntellect-ai/prime-rl, loss.py: the ratio itself has the gradient, all of the step's tokens pay."""
    total = 0.0
    for r in batch:
        moved = r.lp.detach().exp() - r.mu.exp()
        outside = moved.abs() > 0.1 if ipo else moved > 0.2 if r.a > 0 else moved < -0.2
        gain = torch.where(outside, 0.0, r.a * (r.lp - r.mu).exp())
        total = total + (1e-3 * (r.lp - r.mu) ** 2 - gain).sum()
    return total / sum(r.length for r in batch)


def hmpo(batch: list[Response]) -> Tensor:
    """callsys/GMPO, train_zero_math_hmpo.py: one over the mean of one over the ratios, clipped one-sidedly in logs."""
    total = 0.0
    for r in batch:
        d = r.lp - r.old
        d = d.clamp(max=0.4) if r.a >= 0 else d.clamp(min=-0.4)
        total = total - r.a / (1 / d.exp()).mean()
    return total / len(batch)


def minirl(batch: list[Response]) -> Tensor:
    """arXiv 2512.01374, equation 7: summed over tokens, with two ratios, of which the mask's is to the old policy."""
    total = 0.0
    for r in batch:
        now, weight = r.lp.detach(), (r.lp.detach() - r.mu).exp().clamp(max=5)
        ratio = (now - r.old).exp()
        out = ratio > 1.27 if r.a > 0 else ratio < 0.8
        total = total - (torch.where(out & (r.a != 0), 0.0, weight) * r.a * r.lp).sum()
    return total / len(batch)


def reinforce_rej(batch: list[Response]) -> Tensor:
    """RLHFlow/Minimal-RL, core_algos.py: no ratio, and low_var_kl, both over the tokens of all responses."""
    policy = sum(r.a * r.lp.sum() for r in batch)
    kl = sum(((r.ref - r.lp).exp() - (r.ref - r.lp) - 1).sum() for r in batch)
    return (0.001 * kl - policy) / sum(r.length for r in batch)


def double_sided(batch: list[Response], *, low: float, high: float) -> Tensor:
    """arXiv 2602.15763, section 4.1.2: the ratio to the engine is a weight between two bounds and 0 from them on."""
    total = 0.0
    for r in batch:
        rho = (r.lp.detach() - r.mu).exp()
        f = torch.where((rho > 1 - low) & (rho < 1 + high), rho, 0.0)
        total = total - (f * r.a * r.lp).sum()
    return total / sum(r.length for r in batch)


def rewarding_the_unlikely(batch: list[Response]) -> Tensor:
    """AndreHe02/rewarding-unlikely-release, core_algos.py: PPO's clip and low_var_kl, both token means."""
    policy = sum(clipped(r, 0.2, 0.2).sum() for r in batch)
    kl = sum(((r.ref - r.lp).exp() - (r.ref - r.lp) - 1).sum() for r in batch)
    return (0.1 * kl - policy) / sum(r.length for r in batch)


Rule = Callable[[list[Response]], Tensor]
# Losses by the spec that runs them: value and gradient are the authors', or the gradient alone.
LOSSES: dict[str, Rule] = {
    "glm5": glm5,
    "raft_pp": raft_pp,
    "unlikeliness": rewarding_the_unlikely,
    "hmpo": hmpo,
    "reinforce_rej": reinforce_rej,
    "glm5_agentic": partial(double_sided, low=0.2, high=0.2),
    "glm5_agentic,surrogate.low=0.5,surrogate.high=4": partial(double_sided, low=0.5, high=4),
    "minirl": minirl,
}
GRADIENTS: dict[str, Rule] = {
    "pmd_mean": opmd,
    "pmd_partition": opmd,
    "prime_rl": prime_rl,
    "prime_rl,surrogate.drops=both,surrogate.low=0.1,surrogate.high=0.1": partial(prime_rl, ipo=True),
}


def leave_one_out(rewards: list[float]) -> list[float]:
    """Each reward less the mean of the others; a group of one is not among the cases."""
    return [r - (sum(rewards) - r) / (len(rewards) - 1) for r in rewards]


def ploo(rewards: list[float], floor: float = 1e-8) -> list[float]:
    """horizon-rl/OpenKimi, openkimi/pmd/core_algos.py: relative to the group's best, the mean is held above a floor."""
    tau, best, found = 0.01, max(rewards), []
    for i, own in enumerate(rewards):
        others = [np.exp((r - best) / tau) for j, r in enumerate(rewards) if j != i]
        found.append(own - (best + tau * float(np.log(max(np.mean(others), floor)))))
    return found


# Advantages of one group, by the spec that runs them.
ADVANTAGES: dict[str, Callable[[list[float]], list[float]]] = {
    "pmd_mean": leave_one_out,
    "prime_rl": lambda rewards: [r - sum(rewards) / len(rewards) for r in rewards],
    "raft_pp": lambda rewards: [max(r, 0.0) for r in rewards],
    "reinforce_rej": lambda rewards: rewards if np.std(rewards) > 0 else [0.0] * len(rewards),
    "pmd_partition": ploo,
    # Of the formula, which has no floor: e^-100 is far above the smallest float.
    "pmd_partition,baseline.floor=none": partial(ploo, floor=0.0),
    "minirl": lambda rewards: [r - sum(rewards) / len(rewards) for r in rewards],
}
GROUPS = ([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0, 1.0, 1.0, 0.0])


def loss_and_gradient(rule: Rule, x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    leaf = x["logp"].clone().requires_grad_()
    loss = rule(responses({**x, "logp": leaf}))
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def of_the_package(spec: str, x: dict[str, Tensor]) -> tuple[Tensor, Tensor, gv.Loss]:
    leaf = x["logp"].clone().requires_grad_()
    out = gv.policy_loss(spec, gv.Tokens(**{**x, "logp": leaf}))
    out.loss.backward()
    return out.loss.detach(), leaf.grad, out


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spec", [*LOSSES, *GRADIENTS])
def test_loss_and_gradient_are_the_authors(spec, seed):
    x = step(seed)
    wanted, slope = loss_and_gradient((LOSSES | GRADIENTS)[spec], x)
    found, gradient, out = of_the_package(spec, x)
    if spec in LOSSES:
        torch.testing.assert_close(found, wanted, **CLOSE)
    torch.testing.assert_close(gradient, slope, **CLOSE)
    assert slope.abs().max() > 1e-3
    for side in ("clip/low", "clip/high"):
        assert out.metrics.get(side, torch.tensor(1.0)) > 0, f"{side}: no bound was passed"


@pytest.mark.parametrize("spec", ADVANTAGES)
def test_advantages_are_the_authors(spec):
    rewards = [r for group in GROUPS for r in group]
    places = [place for place, group in enumerate(GROUPS) for _ in group]
    found = gv.advantages(spec, torch.tensor(rewards, dtype=torch.float64), places)
    wanted = [a for group in GROUPS for a in ADVANTAGES[spec](group)]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), **CLOSE)


@pytest.mark.parametrize("seed", range(3))
def test_the_unlikely_are_rewarded_as_by_the_authors(seed):
    """AndreHe02/rewarding-unlikely-release, _compute_advantages; the paper's formula has another place and no mean."""
    x = step(seed)
    rewards = np.random.default_rng(seed).integers(0, 2, len(x["mask"])).astype(float)
    ids = [n // 6 for n in range(len(rewards))]
    for spec, length, first in (
        ("unlikeliness", True, 0),
        ("unlikeliness,transform.of=sum,transform.first=one", False, 1),
    ):
        wanted: list[float] = []
        for start in range(0, len(rewards), 6):
            old = [x["old_logp"][i][x["mask"][i]] for i in range(start, start + 6)]
            score = [float(lp.mean() if length else lp.sum()) for lp in old]
            place = np.argsort(np.argsort(score)) + first
            changed = rewards[start : start + 6] * (1 - 0.25 * place / 6)
            wanted += list((changed - changed.mean()) / (changed.std(ddof=1) + 1e-6))
        found = gv.advantages(spec, torch.tensor(rewards), ids, mask=x["mask"], old_logp=x["old_logp"])
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), **CLOSE)


def test_numbers_of_the_unlikely():
    old = torch.tensor([[-0.5], [-0.2], [-0.1], [-0.9]], dtype=torch.float64)
    inputs = {"mask": torch.ones(4, 1, dtype=torch.bool), "old_logp": old}
    rewards = torch.tensor([1.0, 1, 0, 1], dtype=torch.float64)
    found = gv.advantages("unlikeliness", rewards, ["q"] * 4, **inputs)
    assert found.tolist() == pytest.approx([0.497062063, 0.364512179, -1.491186189, 0.629611946], abs=1e-8)
