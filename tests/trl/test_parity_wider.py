"""The wider family against TRL 1.16's own losses, and where the two disagree, both numbers."""

from types import SimpleNamespace

import pytest
import torch
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer
from trl_stock_loss import batch, stock_loss, stub

import grpo_variants as gv


def ours(spec, data):
    logp = data["logp"].clone().requires_grad_(True)
    names = ("mask", "advantages", "old_logp", "ref_logp", "rollout_logp", "entropy")
    loss = gv.policy_loss(spec, gv.Tokens(logp=logp, **{name: data[name] for name in names})).loss
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


def assert_same(spec, data, loss, gradient):
    own, slope = ours(spec, data)
    torch.testing.assert_close(own, loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slope, gradient, rtol=1e-9, atol=1e-12)
    assert gradient.abs().max() > 1e-3, "the case is degenerate: nothing was compared"


def vllm_weight(data, mode, low, high):
    """TRL's weight at the import of rollouts: of the tokens or of the whole response, cut or zeroed."""
    log_weight = (data["old_logp"] - data["rollout_logp"]) * data["mask"]
    weight = (log_weight.sum(-1, keepdim=True) if mode.startswith("sequence") else log_weight).exp()
    if mode.endswith("truncate"):
        return weight.clamp(max=high)
    outside = weight > high if low is None else (weight < low) | (weight > high)
    return weight.masked_fill(outside, 0.0)


CASES = {
    "two_sided": dict(loss_type="dapo", delta=4, beta=0.001, use_bias_correction_kl=False),
    "luspo": dict(loss_type="luspo", importance_sampling_level="sequence", epsilon=2e-3, epsilon_high=2.5e-3),
    "forking_tokens": dict(loss_type="dapo", epsilon_high=0.28, top_entropy_quantile=0.2),
    "deepseek_v32": dict(loss_type="grpo", beta=0.001, off_policy_mask_threshold=0.5),
    "cispo": dict(loss_type="cispo", epsilon_high=5),
    "sapo": dict(loss_type="sapo"),
    "vespo": dict(loss_type="vespo"),
    "cispo,surrogate.cap=0.2": dict(loss_type="cispo"),
    "cispo,surrogate.cap=1.1,kl=k3,kl.beta=0.1": dict(loss_type="cispo", epsilon_high=1.1, beta=0.1),
    "sapo,surrogate.tau_pos=2,surrogate.tau_neg=3": dict(
        loss_type="sapo", sapo_temperature_pos=2, sapo_temperature_neg=3
    ),
    "sapo,ratio=sequence": dict(loss_type="sapo", importance_sampling_level="sequence"),
    "vespo,surrogate.k_pos=1,surrogate.k_neg=4,surrogate.lambda_pos=2,surrogate.lambda_neg=1": dict(
        loss_type="vespo", vespo_k_pos=1, vespo_k_neg=4, vespo_lambda_pos=2, vespo_lambda_neg=1
    ),
    "luspo,correction=off_policy_mask,correction.threshold=0.05": dict(
        loss_type="luspo",
        importance_sampling_level="sequence",
        epsilon=2e-3,
        epsilon_high=2.5e-3,
        off_policy_mask_threshold=0.05,
    ),
}
# The spec's KL is the paper's, which TRL multiplies by the ratio unless it is told not to.
# TRL holds SAPO's temperatures in float32.
TAU = "surrogate.tau_neg=1.0499999523162842"
CONVENTIONS = {
    "two_sided": "conventions=trl,kl.weighted=none",
    "sapo": f"conventions=trl,{TAU}",
    "sapo,ratio=sequence": f"conventions=trl,{TAU}",
}


@pytest.fixture
def gamma_weights(monkeypatch):
    """The stub of a trainer has TRL's own weights of VESPO, too."""
    made = stub

    def with_weights(*args, **flags):
        trainer = made(*args, **flags)
        trainer.get_gamma_weights = GRPOTrainer.get_gamma_weights
        return trainer

    monkeypatch.setattr("trl_stock_loss.stub", with_weights)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("spec", CASES)
def test_loss_and_gradient_equal_the_host(spec, seed, gamma_weights):
    data = batch(seed, spread=0.2 if "vespo" in spec else 0.4)
    if "luspo" in spec:  # its clip range is narrow: some ratios inside it, some outside
        data["old_logp"] = data["logp"] + (data["old_logp"] - data["logp"]) * 0.01
    loss, gradient, _ = stock_loss(data, **CASES[spec])
    assert_same(f"{spec},{CONVENTIONS.get(spec, 'conventions=trl')}", data, loss, gradient)


@pytest.mark.parametrize(
    ("spec", "mode", "low", "high", "loss_type"),
    [
        ("tis", "token_truncate", None, 2.0, "dapo"),
        ("seq_mis", "sequence_mask", None, 3.0, "dapo"),
        ("icepop", "token_mask", 0.5, 5.0, "grpo"),
    ],
)
def test_rollout_corrections_equal_the_host(spec, mode, low, high, loss_type):
    data = batch(3, spread=0.8)
    data["importance_sampling_ratio"] = vllm_weight(data, mode, low, high)
    assert (data["importance_sampling_ratio"] == 0).any() or mode.endswith("truncate")
    loss, gradient, _ = stock_loss(
        data,
        loss_type=loss_type,
        epsilon_high=0.28 if loss_type == "dapo" else None,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=low,
        vllm_importance_sampling_clip_max=high,
    )
    assert_same(f"{spec},conventions=trl", data, loss, gradient)


def gmpo_loss(data, beta=0.0):
    """TRL's experimental GMPO trainer's loss on a stub."""
    logp = data["logp"].clone().requires_grad_(True)
    trainer = stub(logp, data["entropy"], loss_type="grpo", beta=beta, epsilon=0.4)
    mask, rows = data["mask"].long(), len(data["mask"])
    inputs = {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.long),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": data["advantages"],
        "old_per_token_logps": data["old_logp"],
        "ref_per_token_logps": data["ref_logp"],
    }
    loss = GMPOTrainer._compute_loss(SimpleNamespace(**vars(trainer)), None, inputs)
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


@pytest.mark.parametrize(("beta", "options"), [(0.0, ""), (0.1, ",kl=k3,kl.beta=0.1,kl.weighted=none")])
def test_gmpo_equals_the_hosts_trainer(beta, options):
    data = batch(2)
    assert_same(f"gmpo,conventions=trl{options}", data, *gmpo_loss(data, beta))


def one_token(advantage, log_ratio, logp=-1.0):
    value = torch.tensor([[logp]], dtype=torch.float64)
    return {
        "logp": value,
        "old_logp": value - log_ratio,
        "ref_logp": value,
        "rollout_logp": value,
        "entropy": torch.ones(1, 1),
        "mask": torch.ones(1, 1, dtype=torch.bool),
        "advantages": torch.tensor([advantage], dtype=torch.float64),
    }


def test_the_hosts_default_caps_every_weight_of_cispo_at_0_2():
    """On policy, A = 1: TRL's epsilon_high defaults to epsilon, 0.2, the weight itself: gradient -0.2, not -1."""
    data = one_token(1.0, 0.0)
    assert stock_loss(data, loss_type="cispo")[1].item() == pytest.approx(-0.2)
    assert ours("cispo", data)[1].item() == -1
    assert ours("cispo,surrogate.cap=0.2", data)[1].item() == pytest.approx(-0.2)


def test_the_host_multiplies_rollout_weights_into_vespos_ratio(gamma_weights):
    """One token, ratio 1, weight 0.5, A = 1: TRL's phi is e^3 0.25 e^-1.5 = 1.1204, here 0.5 phi(1) = 0.5."""
    data = one_token(1.0, 0.0)
    data["importance_sampling_ratio"] = torch.full((1, 1), 0.5, dtype=torch.float64)
    flags = dict(vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=2.0)
    gradient = stock_loss(data, loss_type="vespo", **flags)[1]
    assert gradient.item() == pytest.approx(-1.1204222675845161)
    data["rollout_logp"] = data["old_logp"] + 0.6931471805599453
    assert ours("vespo,correction=token_truncate", data)[1].item() == pytest.approx(-0.5)


def test_luspo_at_token_level_is_not_luspo_in_the_host():
    """TRL's default level is token: a sum over tokens of PPO's clip; luspo here has the response's ratio."""
    data = batch(4)
    data["old_logp"] = data["logp"] + (data["old_logp"] - data["logp"]) * 0.01
    token = stock_loss(data, loss_type="luspo", epsilon=2e-3, epsilon_high=2.5e-3)[0]
    assert_close = torch.testing.assert_close
    assert_close(ours("luspo,ratio=token,conventions=trl", data)[0], token, rtol=1e-9, atol=1e-12)
    assert abs(token - ours("luspo,conventions=trl", data)[0]) > 1e-5
