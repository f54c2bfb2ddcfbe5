"""Loss, gradient and metrics equal TRL's own `_compute_loss` under conventions=trl."""

import pytest
import torch
from trl_stock_loss import batch, stock_loss

import grpo_variants as gv


def ours(spec, data, counts=None, **more):
    logp = data["logp"].clone().requires_grad_(True)
    names = ("mask", "advantages", "old_logp", "ref_logp", "rollout_logp", "entropy")
    x = gv.Tokens(logp=logp, **{name: data[name] for name in names}, **more)
    out = gv.policy_loss(spec, x, counts)
    (gradient,) = torch.autograd.grad(out.loss, logp)
    return out, gradient


def assert_same(spec, data, counts=None, **flags):
    loss, gradient, metrics = stock_loss(data, **flags)
    out, own = ours(spec, data, counts)
    torch.testing.assert_close(out.loss.detach(), loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(own, gradient, rtol=1e-9, atol=1e-12)
    assert gradient.abs().max() > 1e-3, "the case is degenerate: nothing was compared"
    return out, metrics


# Aggregations and clip bounds; the stock flags on the right say the same thing.
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
def test_loss_and_gradient_equal_the_host(name, seed):
    spec, flags = CASES[name]
    assert_same(f"{spec},conventions=trl", batch(seed), **flags)


@pytest.mark.parametrize("seed", [0, 1])
def test_dr_grpo_equals_the_host(seed):
    data = batch(seed)
    counts = gv.Counts.of(data["mask"], length=50)
    assert_same("dr_grpo,conventions=trl", data, counts, loss_type="dr_grpo", max_completion_length=50)


def test_advantages_a_token_equal_the_host():
    data = batch(3)
    data["advantages"] = data["advantages"].unsqueeze(1) * torch.linspace(0.5, 2, 7, dtype=torch.float64)
    assert_same("dapo,conventions=trl", data, loss_type="dapo", epsilon_high=0.28)


def test_metrics_equal_the_host():
    out, metrics = assert_same(
        "dapo,kl=k3,kl.beta=0.1,conventions=trl", batch(spread=0.8), loss_type="dapo", epsilon_high=0.28, beta=0.1
    )
    for own, host in {
        "kl": "kl",
        "entropy": "entropy",
        "clip/low": "clip_ratio/low_mean",
        "clip/high": "clip_ratio/high_mean",
        "clip/region": "clip_ratio/region_mean",
    }.items():
        assert out.metrics[own].item() == pytest.approx(metrics[host], rel=1e-6)
    assert metrics["clip_ratio/low_mean"] > 0 < metrics["clip_ratio/high_mean"]


def test_sequence_level_clip_fraction_counts_responses_as_the_host_does():
    out, metrics = assert_same(
        "gspo,conventions=trl",
        batch(),
        loss_type="grpo",
        importance_sampling_level="sequence",
        epsilon=3e-4,
        epsilon_high=4e-4,
    )
    assert out.metrics["clip/region"].item() == pytest.approx(metrics["clip_ratio/region_mean"])
    assert 0 < metrics["clip_ratio/region_mean"] < 1


# TRL computes the vLLM weight when it generates; these are its formulas, in NumPy's terms.
def _vllm_weight(data, mode, low, high):
    difference = torch.where(data["mask"], data["old_logp"] - data["rollout_logp"], 0.0)
    ratio = (difference.sum(1, keepdim=True) if mode.startswith("sequence") else difference).exp()
    if mode.endswith("truncate"):
        return ratio.clamp(min=low, max=high)
    outside = (ratio < (low or 0.0)) | (ratio > high)
    return ratio.masked_fill(outside, 0.0)


@pytest.mark.parametrize(
    ("mode", "low", "high", "fields"),
    [
        ("token_truncate", None, 1.2, "correction.cap=1.2"),
        ("token_truncate", 0.7, 1.2, "correction.cap=1.2,correction.floor=0.7"),
        ("token_mask", 0.7, 1.2, "correction.low=0.7,correction.high=1.2"),
        ("sequence_truncate", None, 1.2, "correction.cap=1.2"),
        ("sequence_mask", None, 3.0, "correction.low=none,correction.high=3.0"),
        ("sequence_mask", 0.5, 2.0, "correction.low=0.5,correction.high=2.0"),
    ],
)
def test_rollout_correction_equals_the_host(mode, low, high, fields):
    data = batch(5)
    data["importance_sampling_ratio"] = _vllm_weight(data, mode, low, high)
    assert_same(
        f"grpo,conventions=trl,correction={mode},{fields}",
        data,
        loss_type="grpo",
        beta=0.04,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=low,
        vllm_importance_sampling_clip_max=high,
    )


def test_tool_tokens_leave_the_loss_as_in_the_host():
    data = batch(7)
    tools = torch.ones_like(data["mask"]).long()
    tools[:, 1] = 0
    completion = data["mask"]
    data |= {"tool_mask": tools, "num_items": (completion & tools.bool()).sum()}
    loss, gradient, _ = stock_loss(data, loss_type="dapo", epsilon_high=0.28)
    data["mask"] = completion & tools.bool()
    out, own = ours("dapo,conventions=trl", data)
    torch.testing.assert_close(out.loss.detach(), loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(own, gradient, rtol=1e-9, atol=1e-12)
    assert own[:, 1].abs().max() == 0


def test_the_hosts_token_mean_is_right_in_aggregate_only():
    """Two optimizer steps on one generation: TRL divides both by half of the generation's tokens.

    The first micro-batch has 2 tokens and the second 10: TRL divides each by 12/2 = 6, where the token means of the
    two steps divide by 2 and by 10. Here each optimizer step is exact.
    """
    data = batch(11, rows=2, width=10)
    data["mask"] = torch.arange(10) < torch.tensor([[2], [10]])
    rows = [{key: value[i : i + 1] for key, value in data.items()} | {"num_items": torch.tensor(12)} for i in (0, 1)]
    for row, tokens in zip(rows, (2, 10), strict=True):
        loss, gradient, _ = stock_loss(row, accumulation=1, steps=2, loss_type="dapo", epsilon_high=0.28)
        out, own = ours("dapo,conventions=trl", row)
        torch.testing.assert_close(out.loss.detach() * tokens, loss * 6, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(own * tokens, gradient * 6, rtol=1e-9, atol=1e-12)
