"""verl's own numbers where it differs from the papers: its column of docs/host-differences.md."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import FSDPActorConfig

STEP = {"dp_size": 1, "batch_num_tokens": 1, "global_batch_size": 1}


def estimate(name, rewards, uids):
    """Advantages of one-token responses."""
    given = {"index": np.array(uids, dtype=object)}
    found, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=torch.tensor(rewards)[:, None], response_mask=torch.ones(len(rewards), 1), **given
    )
    return found[:, 0].tolist()


def loss(name, advantage, log_ratio, mask, step=STEP, mode="token-mean", **fields):
    """verl's loss and gradient; old log-probabilities are 0."""
    config = FSDPActorConfig(rollout_n=2, ppo_micro_batch_size_per_gpu=2, loss_agg_mode=mode, **fields)
    config.global_batch_info.update(step)
    logp = torch.tensor(log_ratio).requires_grad_()
    mask = torch.tensor(mask, dtype=torch.bool)
    advantages = torch.tensor(advantage).expand_as(logp)
    found, _ = core_algos.get_policy_loss_fn(name)(
        torch.zeros_like(logp), logp, advantages, mask, loss_agg_mode=mode, config=config
    )
    found.backward()
    return found.item(), logp.grad


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized"])
def test_equal_rewards_of_seven_tenths(name):
    assert estimate(name, [0.7] * 8, ["a"] * 8) == pytest.approx([0.0560] * 8, abs=5e-5)


def test_two_of_eight_right():
    found = estimate("grpo", [1.0, 0, 0, 0, 1, 0, 0, 0], ["a"] * 8)
    assert found[:2] == pytest.approx([1.6202, -0.5401], abs=5e-5)


def test_nearly_equal_rewards():
    assert estimate("grpo", [1.0, 1.00001], ["a", "a"]) == pytest.approx([-0.6196, 0.6196], abs=5e-5)


@pytest.mark.parametrize(("name", "value"), [("grpo", 0.7), ("rloo", 0.7), ("opo", 0.7), ("rloo_vectorized", 0.0)])
def test_a_group_of_one(name, value):
    assert estimate(name, [0.7], ["a"]) == pytest.approx([value], abs=1e-6)


def test_dual_clip_is_always_on():
    """A = -1, ratio 5: the loss stops at 3 and has no gradient."""
    value, gradient = loss("vanilla", -1.0, [[math.log(5)]], [[1]])
    assert value == pytest.approx(3)
    assert gradient.item() == 0


@pytest.mark.parametrize("mode", ["seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_nan_under_the_mask_reaches_the_loss(mode):
    assert math.isnan(loss("vanilla", 1.0, [[0.0, math.nan]], [[1, 0]], mode=mode)[0])


def test_nan_under_the_mask_does_not_reach_a_token_mean():
    assert loss("vanilla", 1.0, [[0.0, math.nan]], [[1, 0]])[0] == pytest.approx(-1)


@pytest.mark.parametrize("u", [3.0, 100.0])
def test_k3_is_clamped_at_ten(u):
    """exp(3) - 3 - 1 = 16.0855 with gradient -19.0855; verl gives 10 and 0."""
    logp = torch.zeros(1, requires_grad=True)
    value = core_algos.kl_penalty(logp, torch.tensor([u]), "k3")
    value.sum().backward()
    assert (value.item(), logp.grad.item()) == (10.0, 0.0)


@pytest.mark.parametrize(("width", "value"), [(4, -0.5), (2, -1.0)])
def test_the_constant_of_dr_grpo_is_the_micro_batchs_width(width, value):
    """Two tokens of A = 1; padding alone changes the loss."""
    mask = [[1, 1] + [0] * (width - 2)]
    found, _ = loss("vanilla", 1.0, [[0.0] * width], mask, mode="seq-mean-token-sum-norm")
    assert found == pytest.approx(value)


def test_an_empty_row_counts_unless_the_batch_size_is_unknown():
    """A row with one token of A = 1 beside an empty one."""
    rows, mask = [[0.0], [0.0]], [[1], [0]]
    known = {**STEP, "global_batch_size": 2}
    assert loss("vanilla", 1.0, rows, mask, known, "seq-mean-token-mean")[0] == pytest.approx(-0.5)
    assert loss("vanilla", 1.0, rows, mask, {}, "seq-mean-token-mean")[0] == pytest.approx(-1)


def test_clip_ratio_alone_does_nothing():
    """clip_ratio_low and clip_ratio_high are 0.2 by default, and win: at ratio 2 the loss of A = 1 stays -1.2."""
    assert loss("vanilla", 1.0, [[math.log(2)]], [[1]], clip_ratio=0.5)[0] == pytest.approx(-1.2)


@pytest.mark.parametrize(("log_ratio", "ratio"), [(25.0, math.exp(20)), (-25.0, math.exp(-20))])
def test_vanilla_bounds_the_log_ratio_at_20(log_ratio, ratio):
    """A = -1 without clip from above: dual clip out of the way at 1e30."""
    value, _ = loss("vanilla", -1.0, [[log_ratio]], [[1]], clip_ratio_c=1e30, clip_ratio_low=1.0)
    assert value == pytest.approx(ratio, rel=1e-5)


def test_gspo_bounds_the_log_ratio_at_ten_above_only():
    assert loss("gspo", -1.0, [[25.0]], [[1]])[0] == pytest.approx(math.exp(10), rel=1e-5)
    assert loss("gspo", 1.0, [[-25.0]], [[1]])[0] == pytest.approx(-math.exp(-25), rel=1e-4)


def test_rejection_bounds_are_those_of_the_inverse_weight():
    """rollout_rs=token_k1 with 0.6_1.4 keeps weights from 1/1.4 = 0.714 to 1/0.6 = 1.667."""
    weights = torch.tensor([[0.65, 0.75, 1.0, 1.6, 1.7]])
    kept, _ = rollout_corr_helper.compute_rollout_rejection_mask(
        weights.log(), torch.ones(1, 5), rollout_rs="token_k1", rollout_rs_threshold="0.6_1.4"
    )
    assert_close(kept, torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0]]))
