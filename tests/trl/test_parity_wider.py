"""The wider family against TRL 1.16's own losses, and where the two disagree, both numbers."""

import pytest
import torch
from support.parity import words
from support.trl.stock_loss import batch, own_loss, stock_inputs, stock_loss, stub
from trl import GRPOTrainer, RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer


def ours(spec, data):
    out, gradient = own_loss(spec, data)
    return out.loss.detach(), gradient


def assert_same(parity, spec, builtin, data, loss, gradient):
    own, slope = ours(spec, data)
    pairs = {"loss": (own, loss), "gradient": (slope, gradient)}
    parity.equal(spec, builtin, rtol=1e-9, atol=1e-12, **pairs)
    assert gradient.abs().max() > 1e-3, "the case is degenerate: nothing was compared"


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

    monkeypatch.setattr("support.trl.stock_loss.stub", with_weights)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("spec", CASES)
def test_loss_and_gradient_equal_the_trainer(parity, spec, seed, gamma_weights):
    data = batch(seed, spread=0.2 if "vespo" in spec else 0.4)
    if "luspo" in spec:  # its clip range is narrow: some ratios inside it, some outside
        data["old_logp"] = data["logp"] + (data["old_logp"] - data["logp"]) * 0.01
    loss, gradient, _ = stock_loss(data, **CASES[spec])
    spec, builtin = f"{spec},{CONVENTIONS.get(spec, 'conventions=trl')}", words("", CASES[spec])
    assert_same(parity, spec, builtin, data, loss, gradient)


def gmpo_loss(data, **flags):
    """TRL's experimental GMPO trainer's loss on a stub."""
    logp = data["logp"].clone().requires_grad_(True)
    trainer = stub(logp, data["entropy"], loss_type="grpo", epsilon=0.4, **flags)
    loss = GMPOTrainer._compute_loss(trainer, None, stock_inputs(data))
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


@pytest.mark.parametrize(("beta", "options"), [(0.0, ""), (0.1, ",kl=k3,kl.beta=0.1,kl.weighted=none")])
def test_gmpo_equals_the_trainers_trainer(parity, beta, options):
    data = batch(2)
    builtin = words("experimental GMPOTrainer", {"beta": beta} if beta else {})
    assert_same(parity, f"gmpo,conventions=trl{options}", builtin, data, *gmpo_loss(data, beta=beta))


def test_the_trainers_gmpo_drops_tokens_from_the_geometric_mean(parity):
    """Two tokens of log ratio 0.2 and -0.2, A = 1, the first kept: e^0.2 in TRL; here half of a mean of e^0."""
    data = two_tokens(0.2, -0.2) | {"entropy": torch.tensor([[2.0, 1.0]])}
    spec = "gmpo,tokens=top_entropy,tokens.fraction=0.5"
    parity.differs(
        spec,
        "experimental GMPOTrainer, top_entropy_quantile=0.5",
        "loss of two tokens with log ratios 0.2 and -0.2 of which one is kept, A = 1",
        here=(ours(spec, data)[0].item(), -0.5),
        there=(gmpo_loss(data, top_entropy_quantile=0.5)[0].item(), -1.2214027581601699),
        cause="a dropped token leaves the geometric mean there; here it loses its share of the response's loss",
    )


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


def two_tokens(*log_ratios):
    """A response of two tokens, A = 1."""
    data = {name: value.expand(1, 2) for name, value in one_token(1.0, 0.0).items() if value.dim() == 2}
    data["old_logp"] = data["logp"] - torch.tensor([log_ratios], dtype=torch.float64)
    return data | {"advantages": torch.ones(1, dtype=torch.float64)}


def test_the_trainers_default_caps_every_weight_of_cispo_at_0_2(parity):
    data = one_token(1.0, 0.0)
    assert ours("cispo,surrogate.cap=0.2", data)[1].item() == pytest.approx(-0.2)
    parity.differs(
        "cispo",
        "loss_type='cispo'",
        "gradient on policy, A = 1",
        here=(ours("cispo", data)[1].item(), -1),
        there=(stock_loss(data, loss_type="cispo")[1].item(), -0.2),
        cause="epsilon_high is the cap itself, and epsilon (0.2) where it is not set",
    )


def test_the_trainer_multiplies_rollout_weights_into_vespos_ratio(parity, gamma_weights):
    """One token, ratio 1, weight 0.5, A = 1: TRL's phi is e^3 0.25 e^-1.5 = 1.1204, here 0.5 phi(1) = 0.5."""
    data = one_token(1.0, 0.0)
    data["importance_sampling_ratio"] = torch.full((1, 1), 0.5, dtype=torch.float64)
    flags = dict(vllm_importance_sampling_mode="token_truncate", vllm_importance_sampling_clip_max=2.0)
    gradient = stock_loss(data, loss_type="vespo", **flags)[1]
    data["rollout_logp"] = data["old_logp"] + 0.6931471805599453
    parity.differs(
        "vespo,correction=token_truncate",
        words("", {"loss_type": "vespo", **flags}),
        "gradient at ratio 1, rollout weight 0.5, A = 1",
        here=(ours("vespo,correction=token_truncate", data)[1].item(), -0.5),
        there=(gradient.item(), -1.1204222675845161),
        cause="the weight is part of the ratio there, and a factor of the loss here",
    )


def test_luspo_at_token_level_is_not_luspo_in_the_trainer(parity):
    """Ratios e^0.5 and e^-0.5 of two tokens, A = 1: clipped 1.0025 and 0.6065 a token, or twice the response's 1."""
    flags = dict(loss_type="luspo", epsilon=2e-3, epsilon_high=2.5e-3)
    data = two_tokens(0.5, -0.5)
    loss, gradient, _ = stock_loss(data, **flags)
    assert_same(parity, "luspo,ratio=token,conventions=trl", words("", flags), data, loss, gradient)
    parity.differs(
        "luspo",
        words("", flags),
        "loss of two tokens with ratios e^0.5 and e^-0.5, A = 1",
        here=(ours("luspo", data)[0].item(), -2),
        there=(loss.item(), -1.0025 - 0.6065306597126334),
        cause="the level is token unless importance_sampling_level='sequence' is set",
    )


def test_the_loss_of_the_trainers_rloo_trainer(parity):
    """It clips the product of the ratios, one per response."""
    data = batch(6, spread=0.2)
    logp = data["logp"].clone().requires_grad_(True)
    inputs = {**stock_inputs(data), "old_logps": (data["old_logp"] * data["mask"]).sum(1)}
    loss = RLOOTrainer._compute_loss(stub(logp, data["entropy"]), None, inputs)
    (gradient,) = torch.autograd.grad(loss, logp)
    spec = "rloo,ratio=sequence_product,surrogate=clip,aggregation=sequence_mean,conventions=trl"
    assert_same(parity, spec, "RLOOTrainer, beta=0", data, loss.detach(), gradient)
