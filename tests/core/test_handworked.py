"""Every variant against numbers worked by hand; the derivations are in tests/support/handworked/variants.py."""

from collections.abc import Sequence

import pytest
import torch
from support.cases.variants import compute_advantages
from support.handworked import variants as handworked

import grpo_variants as gv
from grpo_variants.catalogue import CATALOGUE

NAMES = [variant.name for variant in CATALOGUE]
CLOSE = {"rtol": 1e-8, "atol": 1e-10}

every_variant = pytest.mark.parametrize("name", NAMES)


def float64(value):
    """Rewards and token rewards come as numbers: float64, so that eps is seen."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, Sequence) else value


def rollout_inputs(case):
    numeric = ("rewards", "token_rewards", "greedy_rewards")
    inputs = {name: float64(value) if name in numeric else value for name, value in case.rollouts.items()}
    return inputs | {name: torch.tensor(inputs[name]) for name in ("mask", "step_ends") if name in inputs}


def worked_loss(name):
    case = handworked.CASES[name]
    x = case.tokens()
    counts = gv.Counts.of(x.mask, x.groups, **case.counts)
    return case, x, gv.policy_loss(name, x, counts if case.counts else None)


@every_variant
def test_advantages(name):
    case = handworked.CASES[name]
    expected = torch.tensor(case.advantages, dtype=torch.float64)
    torch.testing.assert_close(compute_advantages(name, **rollout_inputs(case)), expected, **CLOSE)


@every_variant
def test_loss(name):
    case, _, out = worked_loss(name)
    assert out.loss.item() == pytest.approx(case.loss, rel=1e-8, abs=1e-10)


@every_variant
def test_gradient(name):
    case, x, out = worked_loss(name)
    out.loss.backward()
    torch.testing.assert_close(x.logp.grad, handworked.numbers(case.gradient, 0.0), **CLOSE)


@every_variant
def test_the_inputs_are_not_degenerate(name):
    """Signs of both kinds, a ragged mask, a clip that binds, a KL that is not 0: else a wrong term could hide."""
    case, x, out = worked_loss(name)
    valid = x.mask if x.advantages.dim() == 2 else slice(None)
    assert x.advantages[valid].min() < 0 < x.advantages[valid].max()
    assert len(set(x.mask.sum(1).tolist())) > 1
    assert case.loss != 0
    for metric in ("clip/region", "kl"):
        assert out.metrics.get(metric, torch.tensor(1.0)) > 0


def test_the_worked_example_of_eight_responses_two_right():
    # Mean 0.25; variance (2 * 0.75^2 + 6 * 0.25^2)/7 = 12/56; std 0.462910049886, + 1e-6.
    # 0.75 / 0.462911049886 = 1.620181674610 and -0.25 / 0.462911049886 = -0.540060558203.
    rewards = torch.tensor([1, 0, 0, 0, 1, 0, 0, 0], dtype=torch.float64)
    advantages = gv.advantages("grpo", rewards, ["q"] * 8)
    right, wrong = torch.tensor([1.620181674610, -0.540060558203], dtype=torch.float64)
    torch.testing.assert_close(advantages, torch.where(rewards == 1, right, wrong), **CLOSE)
    assert [round(a, 2) for a in advantages.tolist()] == [1.62, -0.54, -0.54, -0.54, 1.62, -0.54, -0.54, -0.54]
