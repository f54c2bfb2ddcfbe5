"""verl's own numbers where it differs from the papers: its column of docs/trainer-differences.md."""

import math

import numpy as np
import pytest
import torch
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import FSDPActorConfig

import grpo_variants as gv

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


def test_two_of_eight_right():
    found = estimate("grpo", [1.0, 0, 0, 0, 1, 0, 0, 0], ["a"] * 8)
    assert found[:2] == pytest.approx([1.6202, -0.5401], abs=5e-5)


def test_nearly_equal_rewards():
    assert estimate("grpo", [1.0, 1.00001], ["a", "a"]) == pytest.approx([-0.6196, 0.6196], abs=5e-5)


def here(spec, advantage, log_ratio, mask, counts=None):
    """The package's loss and gradient on the same tokens."""
    log_ratio, mask = torch.tensor(log_ratio, dtype=torch.float64), torch.tensor(mask, dtype=torch.bool)
    old = torch.full_like(log_ratio, -30.0)
    logp = (old + log_ratio).requires_grad_()
    x = gv.Tokens(logp=logp, mask=mask, advantages=torch.full((len(mask),), advantage), old_logp=old)
    found = gv.policy_loss(spec, x, counts).loss
    found.backward()
    return found.item(), logp.grad


def test_dual_clip_is_always_on(parity):
    """A = -1, ratio 5: the loss stops at 3 and has no gradient."""
    value, gradient = loss("vanilla", -1.0, [[math.log(5)]], [[1]])
    own, slope = here("grpo,kl=none", -1.0, [[math.log(5)]], [[1]])
    parity.differs(
        "grpo,kl=none",
        "loss vanilla",
        "loss and gradient at ratio 5, A = -1",
        here=([own, slope.item()], [5, 5]),
        there=([value, gradient.item()], [3, 0]),
        cause="dual clip at clip_ratio_c=3 is always on; surrogate.dual=3 is the same",
    )


@pytest.mark.parametrize("mode", ["seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_nan_under_the_mask_reaches_the_loss(parity, mode):
    nan = [[0.0, math.nan]]
    parity.differs(
        "grpo,kl=none",
        f"loss vanilla, loss_agg_mode={mode!r}",
        "loss of A = 1 with a NaN under the mask",
        here=(here("grpo,kl=none", 1.0, nan, [[1, 0]])[0], -1),
        there=(loss("vanilla", 1.0, nan, [[1, 0]], mode=mode)[0], math.nan),
        cause="the mask is a factor: NaN times 0; token-mean and token-sum select",
    )


def test_nan_under_the_mask_does_not_reach_a_token_mean():
    assert loss("vanilla", 1.0, [[0.0, math.nan]], [[1, 0]])[0] == pytest.approx(-1)


@pytest.mark.parametrize(("u", "number"), [(3.0, math.exp(3) - 4), (100.0, math.exp(20) - 21)])
def test_k3_is_clamped_at_ten(parity, u, number):
    """exp(3) - 3 - 1 = 16.0855 with gradient -19.0855; verl gives 10 and 0."""
    logp = torch.zeros(1, 1, requires_grad=True)
    value = core_algos.kl_penalty(logp, torch.tensor([[u]]), "k3")
    value.sum().backward()
    own = torch.full((1, 1), -u, requires_grad=True)
    x = gv.Tokens(logp=own, mask=torch.ones(1, 1).bool(), advantages=torch.zeros(1), ref_logp=torch.zeros(1, 1))
    found = gv.policy_loss("grpo,kl=k3,kl.beta=1", x).loss
    found.backward()
    parity.differs(
        "grpo,kl=k3,kl.beta=1",
        "kl_loss_type='low_var_kl'",
        f"value and gradient of k3 at u = {u:g}",
        here=([found.item(), own.grad.item()], [number, 1 - math.exp(3) if u == 3.0 else 0]),
        there=([value.item(), logp.grad.item()], [10, 0]),
        cause="the value is clamped at 10; kl.value_bound=10, part of conventions=verl, is the same",
    )


def test_the_constant_of_dr_grpo_is_the_micro_batchs_width(parity):
    """Two tokens of A = 1; padding alone changes the loss."""
    rows = [([[0.0] * width], [[1, 1] + [0] * (width - 2)]) for width in (4, 2)]
    counts = gv.Counts(tokens=2, sequences=1, length=8)
    parity.differs(
        "dr_grpo",
        "loss vanilla, loss_agg_mode='seq-mean-token-sum-norm'",
        "loss of two tokens of A = 1 in a batch 4 and 2 wide, longest response 8",
        here=([here("dr_grpo", 1.0, *row, counts)[0] for row in rows], [-0.25, -0.25]),
        there=([loss("vanilla", 1.0, *row, mode="seq-mean-token-sum-norm")[0] for row in rows], [-0.5, -1]),
        cause="without loss_scale_factor it divides by the micro-batch's width",
    )


def test_an_empty_row_counts_unless_the_batch_size_is_unknown(parity):
    """A row with one token of A = 1 beside an empty one."""
    rows, mask = [[0.0], [0.0]], [[1], [0]]
    known = {**STEP, "global_batch_size": 2}
    assert loss("vanilla", 1.0, rows, mask, known, "seq-mean-token-mean")[0] == pytest.approx(-0.5)
    parity.differs(
        "grpo,kl=none",
        "loss vanilla, loss_agg_mode='seq-mean-token-mean'",
        "loss of a token of A = 1 beside an empty response, without the step's counts",
        here=(here("grpo,kl=none", 1.0, rows, mask)[0], -0.5),
        there=(loss("vanilla", 1.0, rows, mask, {}, "seq-mean-token-mean")[0], -1),
        cause="an empty response counts only where global_batch_size is given",
    )


def test_clip_ratio_alone_does_nothing():
    """clip_ratio_low and clip_ratio_high are 0.2 by default, and win: at ratio 2 the loss of A = 1 stays -1.2."""
    assert loss("vanilla", 1.0, [[math.log(2)]], [[1]], clip_ratio=0.5)[0] == pytest.approx(-1.2)


@pytest.mark.parametrize(("log_ratio", "ratio"), [(25.0, math.exp(20)), (-25.0, math.exp(-20))])
def test_vanilla_bounds_the_log_ratio_at_20(log_ratio, ratio):
    """A = -1 without clip from above: dual clip out of the way at 1e30."""
    value, _ = loss("vanilla", -1.0, [[log_ratio]], [[1]], clip_ratio_c=1e30, clip_ratio_low=1.0)
    assert value == pytest.approx(ratio, rel=1e-5)


def test_gspo_follows_loss_agg_mode(parity):
    """A right response of one token and a wrong one of three, on policy; 0.9.0 had the mean over responses always."""
    step = {"dp_size": 1, "batch_num_tokens": 4, "global_batch_size": 2}
    mask, advantages, still = [[1, 0, 0], [1, 1, 1]], [[1.0], [-1.0]], [[0.0] * 3] * 2
    assert loss("gspo", advantages, still, mask, step, "seq-mean-token-mean")[0] == pytest.approx(0)
    logp = torch.full((2, 3), -1.0)
    x = gv.Tokens(logp=logp, mask=torch.tensor(mask), advantages=torch.tensor([1.0, -1.0]), old_logp=logp)
    assert gv.policy_loss("gspo_token,aggregation=token_mean", x).loss.item() == pytest.approx(0.5)
    parity.differs(
        "gspo_token",
        "loss gspo, loss_agg_mode='token-mean'",
        "loss of one token of A = 1 and three of A = -1",
        here=(gv.policy_loss("gspo_token", x).loss.item(), 0),
        there=(loss("gspo", advantages, still, mask, step, "token-mean")[0], 0.5),
        cause="its default mode is token-mean; 0.9.0 took the mean over responses whatever the mode",
    )


def test_gspo_bounds_the_log_ratio_at_ten_above_only(parity):
    assert loss("gspo", 1.0, [[-25.0]], [[1]])[0] == pytest.approx(-math.exp(-25), rel=1e-4)
    parity.differs(
        "gspo_token",
        "loss gspo",
        "loss at log ratio 25, A = -1",
        here=(here("gspo_token", -1.0, [[25.0]], [[1]])[0], math.exp(20)),
        there=(loss("gspo", -1.0, [[25.0]], [[1]])[0], math.exp(10)),
        cause="the log ratio is bounded at 10 above; here at 20 both ways",
    )


def test_rejection_bounds_are_those_of_the_inverse_weight(parity):
    """rollout_rs=seq_mean_k1 with 0.6_1.4 keeps weights from 1/1.4 = 0.714 to 1/0.6 = 1.667."""
    weights = torch.tensor([[0.65], [0.75], [1.0], [1.6], [1.7]])
    kept, _ = rollout_corr_helper.compute_rollout_rejection_mask(
        weights.log(), torch.ones(5, 1), rollout_rs="seq_mean_k1", rollout_rs_threshold="0.6_1.4"
    )
    logp = torch.full((5, 1), -1.0)
    x = gv.Tokens(
        logp=logp,
        mask=torch.ones(5, 1).bool(),
        advantages=torch.ones(5),
        old_logp=logp,
        rollout_logp=logp - weights.log(),
    )
    spec = "grpo,correction=geometric_mask,correction.low=0.6,correction.high=1.4"
    parity.differs(
        spec,
        "rollout_rs='seq_mean_k1', rollout_rs_threshold='0.6_1.4'",
        "responses kept of those with weights 0.65, 0.75, 1, 1.6, 1.7",
        here=(gv.correction_weights(spec, x).flatten().tolist(), [1, 1, 1, 0, 0]),
        there=(kept.flatten().tolist(), [0, 1, 1, 1, 0]),
        cause="the bounds are those of 1/w",
    )
