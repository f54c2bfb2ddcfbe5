"""The wider family against verl 0.9.1's own policy losses, and where the two disagree, both numbers."""

import math

import pytest
import torch
from torch.testing import assert_close
from verl.trainer.ppo import core_algos
from verl.workers.config import FSDPActorConfig, PolicyLossConfig

import grpo_variants as gv

AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
}
OWN = "conventions=verl,ratio.anchor=old"


def batch(drift=0.5, rows=6, width=7):
    """Log-probabilities off policy and below 0, holes in the mask, no empty row."""
    torch.manual_seed(5)
    mask = torch.rand(rows, width) < 0.7
    mask[:, 0] = True
    old = -2 * torch.rand(rows, width, dtype=torch.float64) - 0.1
    logp = (old + drift * torch.randn(rows, width, dtype=torch.float64)).clamp(max=-0.01)
    advantages = torch.randn(rows, 1, dtype=torch.float64).expand(rows, width) * mask
    return {"old_log_prob": old, "log_prob": logp, "advantages": advantages, "response_mask": mask}


def actor(loss_mode, step=None, **fields):
    loss = {name: fields.pop(name) for name in list(fields) if name in PolicyLossConfig.__dataclass_fields__}
    config = FSDPActorConfig(
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=2,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode, **loss),
        **fields,
    )
    config.global_batch_info.update(step or {})
    return config


def host(loss_mode, tensors, weights=None, mode="token-mean", step=None, **fields):
    """verl's loss and gradient."""
    logp = tensors["log_prob"].clone().requires_grad_()
    loss, _ = core_algos.get_policy_loss_fn(loss_mode)(
        **{**tensors, "log_prob": logp},
        loss_agg_mode=mode,
        config=actor(loss_mode, step, **fields),
        rollout_is_weights=weights,
    )
    loss.backward()
    return loss.detach(), logp.grad


def ours(spec, tensors, weights=None, **others):
    logp = tensors["log_prob"].clone().requires_grad_()
    loss = gv.policy_loss(
        spec,
        gv.Tokens(
            logp=logp,
            mask=tensors["response_mask"],
            advantages=tensors["advantages"],
            old_logp=tensors["old_log_prob"],
            correction=weights,
            **others,
        ),
    ).loss
    loss.backward()
    return loss.detach(), logp.grad


def assert_same(found, wanted):
    assert_close(found[0], wanted[0], atol=1e-9, rtol=1e-6)
    assert_close(found[1], wanted[1], atol=1e-9, rtol=1e-6)
    assert wanted[1].abs().max() > 1e-4


# Losses with an aggregation of the user's; the fields of the actor's configuration on the right.
LOSSES = {
    "cispo,surrogate.cap=none,surrogate.low=0.2,surrogate.high=0.2": ("cispo", {}),
    "cispo": ("cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}),
    "dppo_tv,surrogate.cap=3": ("dppo_tv", {}),
    "dppo_tv": ("dppo_tv", {"clip_ratio_c": 1e9}),
    "dppo_tv,surrogate.cap=5,surrogate.low=0.02,surrogate.high=0.05": (
        "dppo_tv",
        {"clip_ratio_c": 5.0, "clip_ratio_low": 0.02, "clip_ratio_high": 0.05},
    ),
    "dppo_kl": ("dppo_kl", {"clip_ratio_c": 1e9, "clip_ratio_low": 0.05, "clip_ratio_high": 0.05}),
    "kl_cov": ("kl_cov", {"ppo_kl_coef": 1.0}),
    "kl_cov,surrogate.coef=0.1,surrogate.fraction=0.3": ("kl_cov", {"kl_cov_ratio": 0.3}),
    "kimi_k15,ratio=token,surrogate.tau=0.3": ("dro", {"dro_beta": 0.3}),
    "two_sided,kl=none,surrogate.dual=4": ("vanilla", {"clip_ratio_c": 4.0}),
}


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("drift", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("spec", LOSSES)
def test_loss_and_gradient_equal_the_host(spec, drift, mode):
    loss_mode, fields = LOSSES[spec]
    tensors = batch(drift)
    found = ours(f"{spec},{OWN},aggregation={AGGREGATIONS[mode]}", tensors)
    assert_same(found, host(loss_mode, tensors, mode=mode, **fields))


@pytest.mark.parametrize("drift", [0.0, 0.5, 3.0, 30.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_sapo_equals_the_host(drift, weighted):
    tensors = batch(drift)
    weights = torch.rand(6, 7, dtype=torch.float64) * 2 if weighted else None
    assert_same(ours(f"sapo,{OWN}", tensors, weights), host("sapo", tensors, weights))
    wanted = host("sapo", tensors, weights, tau_pos=2.0, tau_neg=0.5)
    assert_same(ours(f"sapo,{OWN},surrogate.tau_pos=2,surrogate.tau_neg=0.5", tensors, weights), wanted)


def test_gpg_is_the_score_function_without_a_ratio():
    tensors = batch()
    assert_same(ours("reinforce,aggregation=token_mean", tensors), host("gpg", tensors))


@pytest.mark.parametrize("fraction", [2e-4, 0.3])
def test_clip_cov_equals_the_host_for_the_same_draws(fraction, monkeypatch):
    """verl permutes the candidates in row order and takes the first: the numbers of that permutation's places."""
    tensors = batch()
    low, high = -0.2, 0.8
    mask, drawn = tensors["response_mask"], []

    def permutation(count):
        drawn.append(torch.arange(count - 1, -1, -1))  # from the last candidate backwards
        return drawn[-1]

    monkeypatch.setattr(torch, "randperm", permutation)
    wanted = host("clip_cov", tensors, clip_cov_ratio=fraction, clip_cov_lb=low, clip_cov_ub=high)
    assert len(drawn[0]) > 4
    places = torch.arange(mask.numel(), 0, -1).reshape(mask.shape) / mask.numel()
    spec = f"clip_cov,{OWN},surrogate.fraction={fraction},surrogate.cov_low={low},surrogate.cov_high={high}"
    found = ours(spec, tensors, draws=places)
    assert_same(found, wanted)
    assert (found[1] == 0)[mask].sum() >= max(int(fraction * mask.sum()), 1)


def test_geo_mean_equals_the_host_where_the_micro_batch_is_the_step():
    tensors = batch()
    wanted = host("geo_mean", tensors, clip_ratio_low=0.4, clip_ratio_high=0.4)
    assert_same(ours(f"gmpo,{OWN}", tensors), wanted)


def one(log_ratio, advantage, logp=-1.0):
    number = torch.ones(1, 1, dtype=torch.float64)
    return {
        "old_log_prob": (logp - log_ratio) * number,
        "log_prob": logp * number,
        "advantages": advantage * number,
        "response_mask": number.bool(),
    }


def test_geo_mean_in_the_host_ignores_the_steps_counts():
    """One response of a step of four, A = 1: verl's loss is -1, where the mean over the step gives -1/4."""
    tensors = one(0.0, 1.0)
    step = {"dp_size": 1, "batch_num_tokens": 4, "global_batch_size": 4}
    assert host("geo_mean", tensors, step=step)[0].item() == pytest.approx(-1)
    logp = tensors["log_prob"].clone().requires_grad_()
    x = gv.Tokens(logp=logp, mask=tensors["response_mask"], advantages=tensors["advantages"])
    assert gv.policy_loss("gmpo", x, gv.Counts(tokens=4, sequences=4)).loss.item() == pytest.approx(-0.25)


def test_dppo_in_the_host_caps_weights_at_3_unless_it_is_told():
    """Ratio e^2 = 7.389 and a probability that rises from 0.0025 to 0.018, A = 1: gradient -3 there, -7.389 here."""
    tensors = one(2.0, 1.0, logp=-4.0)
    assert host("dppo_tv", tensors)[1].item() == pytest.approx(-3)
    assert host("dppo_tv", tensors, clip_ratio_c=1e9)[1].item() == pytest.approx(-math.exp(2))
    assert ours("dppo_tv,ratio.anchor=old,aggregation=token_mean", tensors)[1].item() == pytest.approx(-math.exp(2))


def test_cispo_in_the_host_weighs_between_0_8_and_1_2_unless_it_is_told():
    """Ratio e^-2, A = 1: verl's weight is its floor of 0.8, the paper's e^-2 = 0.1353."""
    tensors = one(-2.0, 1.0)
    assert host("cispo", tensors)[1].item() == pytest.approx(-0.8)
    assert ours("cispo", tensors)[1].item() == pytest.approx(-0.1353352832366127)


def test_kl_cov_in_the_host_penalises_by_0_1_unless_it_is_told():
    """Two responses; the first token has the highest covariance, ratio e^-1: its gradient is -e^-1 A less the "
    "coefficient."""
    tensors = {
        "old_log_prob": torch.tensor([[0.0], [-2.0]], dtype=torch.float64),
        "log_prob": torch.tensor([[-1.0], [-3.0]], dtype=torch.float64),
        "advantages": torch.tensor([[1.0], [-1.0]], dtype=torch.float64),
        "response_mask": torch.ones(2, 1, dtype=torch.bool),
    }
    tensors["advantages"] = tensors["advantages"] * torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    default, paper = host("kl_cov", tensors)[1], ours("kl_cov", tensors)[1]
    assert default[0].item() == pytest.approx((-math.exp(-1) - 0.1) / 2)
    assert paper[0].item() == pytest.approx((-math.exp(-1) - 1.0) / 2)


def test_an_empty_response_counts_in_the_hosts_mean_and_adds_nothing_in_either():
    """verl: 1e-8 in the denominator, so the empty row's ratio is 1, but its advantage 0: the mean is over both rows."""
    tensors = {
        "old_log_prob": torch.zeros(2, 1, dtype=torch.float64) - 1,
        "log_prob": torch.zeros(2, 1, dtype=torch.float64) - 1,
        "advantages": torch.tensor([[1.0], [5.0]], dtype=torch.float64),
        "response_mask": torch.tensor([[True], [False]]),
    }
    assert host("geo_mean", tensors)[0].item() == pytest.approx(-0.5, rel=1e-6)
    assert ours("gmpo", tensors)[0].item() == pytest.approx(-0.5)
