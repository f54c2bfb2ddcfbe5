"""Loss, gradient and metrics equal TRL's own `_compute_loss` under conventions=trl."""

import pytest
import torch
from support.parity import words
from support.trl.stock_loss import batch, own_loss, stock_loss

import grpo_variants as gv


def assert_same(parity, spec, data, counts=None, builtin=None, **flags):
    loss, gradient, metrics = stock_loss(data, **flags)
    out, own = own_loss(spec, data, counts)
    pairs = {"loss": (out.loss, loss), "gradient": (own, gradient)}
    parity.equal(spec, builtin or words("", flags), rtol=1e-9, atol=1e-12, **pairs)
    assert gradient.abs().max() > 1e-3, "the case is degenerate: nothing was compared"
    return out, metrics


# Aggregations and clip bounds; TRL's flags on the right say the same thing.
CASES = {
    "grpo": ("grpo", dict(loss_type="grpo", beta=0.04)),
    "grpo without KL": ("grpo,kl=none", dict(loss_type="grpo")),
    "grpo, plain KL": ("grpo,kl.weighted=none", dict(loss_type="grpo", beta=0.04, use_bias_correction_kl=False)),
    "dapo": ("dapo", dict(loss_type="dapo", epsilon_high=0.28)),
    "dapo with KL": ("dapo,kl=k3,kl.beta=0.1", dict(loss_type="dapo", epsilon_high=0.28, beta=0.1)),
    "bnpo": ("dapo,surrogate.high=0.2", dict(loss_type="bnpo")),
    "two-sided": ("dapo,surrogate.dual=1.5", dict(loss_type="dapo", epsilon_high=0.28, delta=1.5)),
    "gspo": (
        "gspo",
        dict(loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4),
    ),
    "gspo with KL": (
        "gspo,kl=k3,kl.beta=0.04,surrogate.low=0.2,surrogate.high=0.2",
        dict(loss_type="grpo", importance_sampling_level="sequence", beta=0.04),
    ),
    "off-policy mask": (
        "grpo,correction=off_policy_mask,correction.threshold=0.05",
        dict(loss_type="grpo", beta=0.04, off_policy_mask_threshold=0.05),
    ),
    "80/20": (
        "dapo,tokens=top_entropy,tokens.fraction=0.25",
        dict(loss_type="dapo", epsilon_high=0.28, top_entropy_quantile=0.25),
    ),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_the_trainer(parity, name, seed):
    spec, flags = CASES[name]
    assert_same(parity, f"{spec},conventions=trl", batch(seed), **flags)


@pytest.mark.parametrize("seed", [0, 1])
def test_dr_grpo_equals_the_trainer(parity, seed):
    data = batch(seed)
    counts = gv.Counts.of(data["mask"], length=50)
    assert_same(parity, "dr_grpo,conventions=trl", data, counts, loss_type="dr_grpo", max_completion_length=50)


def test_advantages_a_token_equal_the_trainer(parity):
    data = batch(3)
    data["advantages"] = data["advantages"].unsqueeze(1) * torch.linspace(0.5, 2, 7, dtype=torch.float64)
    flags = dict(loss_type="dapo", epsilon_high=0.28)
    builtin = f"{words('', flags)}; an advantage per token"
    assert_same(parity, "dapo,conventions=trl", data, builtin=builtin, **flags)


def test_metrics_equal_the_trainer(parity):
    spec, flags = "dapo,kl=k3,kl.beta=0.1,conventions=trl", dict(loss_type="dapo", epsilon_high=0.28, beta=0.1)
    out, metrics = assert_same(parity, spec, batch(spread=0.8), **flags)
    pairs = {
        "kl": "kl",
        "entropy": "entropy",
        "clip/low": "clip_ratio/low_mean",
        "clip/high": "clip_ratio/high_mean",
        "clip/region": "clip_ratio/region_mean",
    }
    for own, theirs in pairs.items():
        pair = {f"metric {own}": (out.metrics[own], metrics[theirs])}
        parity.equal(spec, words("", flags), rtol=1e-6, atol=1e-12, **pair)
    assert metrics["clip_ratio/low_mean"] > 0 < metrics["clip_ratio/high_mean"]


def test_sequence_level_clip_fraction_counts_responses_as_the_trainer_does(parity):
    flags = CASES["gspo"][1]
    out, metrics = assert_same(parity, "gspo,conventions=trl", batch(), **flags)
    pair = {"metric clip/region": (out.metrics["clip/region"], metrics["clip_ratio/region_mean"])}
    parity.equal("gspo,conventions=trl", words("", flags), rtol=1e-6, atol=1e-12, **pair)
    assert 0 < metrics["clip_ratio/region_mean"] < 1


def test_tool_tokens_leave_the_loss_as_in_the_trainer(parity):
    data = batch(7)
    tools = torch.ones_like(data["mask"]).long()
    tools[:, 1] = 0
    completion = data["mask"]
    data |= {"tool_mask": tools, "num_items": (completion & tools.bool()).sum()}
    flags = dict(loss_type="dapo", epsilon_high=0.28)
    loss, gradient, _ = stock_loss(data, **flags)
    data["mask"] = completion & tools.bool()
    out, own = own_loss("dapo,conventions=trl", data)
    pairs = {"loss": (out.loss, loss), "gradient": (own, gradient)}
    parity.equal("dapo,conventions=trl", f"{words('', flags)}; tool tokens", rtol=1e-9, atol=1e-12, **pairs)
    assert own[:, 1].abs().max() == 0


def test_trls_token_mean_is_right_in_aggregate_only():
    """Two optimizer steps on one generation: TRL divides both by half of the generation's tokens.

    The first micro-batch has 2 tokens and the second 10: TRL divides each by 12/2 = 6, where the token means of the
    two steps divide by 2 and by 10. Here each optimizer step is exact.
    """
    data = batch(11, rows=2, width=10)
    data["mask"] = torch.arange(10) < torch.tensor([[2], [10]])
    rows = [{key: value[i : i + 1] for key, value in data.items()} | {"num_items": torch.tensor(12)} for i in (0, 1)]
    for row, tokens in zip(rows, (2, 10), strict=True):
        loss, gradient, _ = stock_loss(row, accumulation=1, steps=2, loss_type="dapo", epsilon_high=0.28)
        out, own = own_loss("dapo,conventions=trl", row)
        torch.testing.assert_close(out.loss.detach() * tokens, loss * 6, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(own * tokens, gradient * 6, rtol=1e-9, atol=1e-12)
