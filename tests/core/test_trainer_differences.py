"""This package's numbers in docs/trainer-differences.md; the trainers' own are pinned in tests/trl and tests/verl."""

import math

import pytest
import torch

import grpo_variants as gv

NAN = float("nan")


@pytest.mark.parametrize("conventions", ["paper", "trl", "verl"])
def test_eight_equal_rewards_give_exactly_zero_under_every_convention(conventions):
    advantages = gv.advantages(f"grpo,conventions={conventions}", torch.full((8,), 0.7), ["q"] * 8)
    assert advantages.tolist() == [0.0] * 8


@pytest.mark.parametrize(
    ("spec", "rewards", "expected"),
    [
        ("grpo", [1, 1, 0, 0, 0, 0, 0, 0], [1.6202] * 2 + [-0.5401] * 6),
        ("grpo,conventions=trl", [1, 1, 0, 0, 0, 0, 0, 0], [1.6198] * 2 + [-0.5399] * 6),
        ("grpo", [1, 1.00001], [-0.6196, 0.6196]),
        ("grpo,conventions=trl", [1, 1.00001], [-0.0468, 0.0468]),
        ("grpo", [0.7], [0]),
        ("grpo,conventions=verl", [0.7], [0.7]),
        ("rloo", [0.7], [0]),
        ("rloo,singleton=raw", [0.7], [0.7]),
    ],
)
def test_advantages_here(spec, rewards, expected):
    advantages = gv.advantages(spec, torch.tensor(rewards, dtype=torch.float32), ["q"] * len(rewards))
    assert advantages.tolist() == pytest.approx(expected, abs=6e-5)


def one_token(spec, advantage=0.0, log_ratio=0.0, u=0.0):
    """Loss and gradient of one response of one token."""
    logp = torch.tensor([[-1.0 - u]], requires_grad=True)
    x = gv.Tokens(
        logp=logp,
        mask=torch.ones(1, 1, dtype=torch.bool),
        advantages=torch.tensor([advantage]),
        old_logp=logp.detach() - log_ratio,
        ref_logp=logp.detach() + u,
    )
    loss = gv.policy_loss(spec, x).loss
    loss.backward()
    return loss.item(), logp.grad.item()


K3 = "grpo,kl=k3,kl.beta=1"


@pytest.mark.parametrize(
    ("spec", "inputs", "loss", "gradient"),
    [
        ("grpo", {"advantage": -1, "log_ratio": math.log(5)}, 5, 5),
        ("grpo,surrogate.dual=3", {"advantage": -1, "log_ratio": math.log(5)}, 3, 0),
        ("grpo,conventions=verl", {"advantage": -1, "log_ratio": math.log(5)}, 3, 0),
        (K3, {"u": 3}, 16.0855, -19.0855),
        (f"{K3},kl.value_bound=10", {"u": 3}, 10, 0),
        (f"{K3},conventions=verl", {"u": 3}, 10, 0),
        (K3, {"u": 100}, math.exp(20) - 21, 0),
        # KL times the ratio 2, and its gradient: 2 * (1 - e) + 2 * (e - 2)
        (f"{K3},kl.weighted=ratio", {"u": 1, "log_ratio": math.log(2)}, 2 * (math.e - 2), -2),
        (K3, {"u": 1, "log_ratio": math.log(2)}, math.e - 2, 1 - math.e),
        ("grpo", {"advantage": -1, "log_ratio": 25}, math.exp(20), 0),
        ("grpo,conventions=trl", {"advantage": -1, "log_ratio": 25}, math.exp(25), math.exp(25)),
    ],
)
def test_loss_here(spec, inputs, loss, gradient):
    found = one_token(spec, **inputs)
    assert found == pytest.approx((loss, gradient), rel=1e-5, abs=1e-6)


def test_nan_under_the_mask_has_no_effect_here():
    logp = torch.tensor([[-1.0, NAN]], requires_grad=True)
    x = gv.Tokens(
        logp=logp,
        mask=torch.tensor([[True, False]]),
        advantages=torch.tensor([[2.0, NAN]]),
        ref_logp=torch.tensor([[-1.0, NAN]]),
    )
    loss = gv.policy_loss("grpo", x).loss
    loss.backward()
    assert loss.item() == -2
    assert logp.grad.tolist() == [[-2, 0]]


def counted(spec, mask, **counts):
    """Loss of on-policy responses with advantage 1."""
    mask = torch.tensor(mask, dtype=torch.bool)
    x = gv.Tokens(logp=torch.zeros(mask.shape), mask=mask, advantages=torch.ones(len(mask)))
    return gv.policy_loss(spec, x, gv.Counts.of(mask, **counts)).loss.item()


@pytest.mark.parametrize(
    ("spec", "mask", "counts", "loss"),
    [
        ("grpo,kl=none", [[1], [0]], {}, -0.5),
        ("grpo,kl=none,aggregation.empty_rows=exclude", [[1], [0]], {}, -1),
        # the padded width is irrelevant: 2 tokens over L = 8
        ("dr_grpo", [[1, 1, 0, 0]], {"length": 8}, -0.25),
        ("dr_grpo", [[1, 1]], {"length": 8}, -0.25),
        # one token of a step of 100 and of 300
        ("dapo", [[1]], {"tokens": 100}, -1 / 100),
        ("dapo", [[1]], {"tokens": 300}, -1 / 300),
    ],
)
def test_counts_here(spec, mask, counts, loss):
    assert counted(spec, mask, **counts) == pytest.approx(loss, rel=1e-6)
