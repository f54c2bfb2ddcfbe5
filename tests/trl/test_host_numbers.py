"""TRL's column of docs/host-differences.md, out of TRL's own code: a host that mends a number breaks its test here."""

import math

import pytest
import torch
from trl_stock_loss import stock_loss


def tokens(logp, advantages, mask=None, **given):
    """A micro-batch from nested lists; what is not given is on policy and equal to the reference."""
    logp = torch.tensor(logp)
    same = dict.fromkeys(("old_logp", "ref_logp", "rollout_logp", "entropy"), logp)
    mask = torch.ones_like(logp) if mask is None else torch.tensor(mask)
    return {**same, **given, "logp": logp, "advantages": torch.tensor(advantages), "mask": mask.bool()}


def one_token(advantage=0.0, log_ratio=0.0, u=0.0, **flags):
    """Loss and gradient of one response of one token."""
    logp = torch.tensor([[-1.0]])
    batch = tokens([[-1.0]], [advantage], old_logp=logp - log_ratio, ref_logp=logp + u)
    loss, gradient, _ = stock_loss(batch, loss_type="grpo", **flags)
    return loss.item(), gradient.item()


def test_no_dual_clip():
    assert one_token(advantage=-1.0, log_ratio=math.log(5)) == pytest.approx((5, 5), rel=1e-5)


def test_no_bound_on_the_log_ratio():
    assert one_token(advantage=-1.0, log_ratio=25.0)[0] == pytest.approx(math.exp(25), rel=1e-4)


def test_k3_has_no_bound():
    assert one_token(u=3.0, beta=1.0, use_bias_correction_kl=False) == pytest.approx((16.0855, -19.0855), rel=1e-5)
    assert one_token(u=100.0, beta=1.0, use_bias_correction_kl=False)[0] == math.inf


def test_the_kl_is_multiplied_by_the_ratio_unless_told_otherwise():
    """With u = 1 and a ratio of 2: 2 (e - 2) and 2 (1 - e) + 2 (e - 2) = -2; without the ratio e - 2 and 1 - e."""
    inputs = {"u": 1.0, "log_ratio": math.log(2), "beta": 1.0}
    assert one_token(**inputs) == pytest.approx((2 * (math.e - 2), -2), rel=1e-5)
    plain = one_token(**inputs, use_bias_correction_kl=False)
    assert plain == pytest.approx((math.e - 2, 1 - math.e), rel=1e-5)


def test_nan_under_the_mask_is_nan():
    nan = float("nan")
    loss, _, _ = stock_loss(tokens([[-1.0, nan]], [2.0], mask=[[1, 0]]), loss_type="grpo", beta=0.04)
    assert math.isnan(loss.item())


def test_an_empty_row_counts_in_the_sequence_mean():
    loss, _, _ = stock_loss(tokens([[0.0], [0.0]], [1.0, 1.0], mask=[[1], [0]]), loss_type="grpo")
    assert loss.item() == pytest.approx(-0.5)


def test_the_token_mean_of_two_steps_is_that_of_their_generation():
    """100 and 300 tokens in one generation batch of two steps: a token weighs 1/200 in both, not 1/100 and 1/300."""
    for length in (100, 300):
        batch = tokens([[0.0] * length], [1.0]) | {"num_items": torch.tensor(400)}
        _, gradient, _ = stock_loss(batch, accumulation=1, steps=2, loss_type="dapo")
        assert gradient[0, 0].item() == pytest.approx(-1 / 200)


def test_bnpo_is_the_mean_of_a_micro_batch():
    """3 tokens and 1 token, in two micro-batches: a token weighs 1/(2 * 3) and 1/(2 * 1), not 1/4."""
    for length, weight in ((3, 1 / 6), (1, 1 / 2)):
        batch = tokens([[0.0] * length], [1.0])
        _, gradient, _ = stock_loss(batch, accumulation=2, steps=2, loss_type="bnpo")
        assert gradient[0, 0].item() == pytest.approx(-weight)


def test_epsilon_high_is_epsilon_unless_set():
    """The cap of TRL's CISPO, an absolute one, is then 0.2: every token's weight is 0.2."""
    logp = torch.tensor([[-1.0]])
    _, gradient, _ = stock_loss(tokens([[-1.0]], [1.0], old_logp=logp), loss_type="cispo")
    assert gradient.item() == pytest.approx(-0.2)
    assert one_token(advantage=1.0, log_ratio=math.log(1.25)) == pytest.approx((-1.2, 0), abs=1e-6)
