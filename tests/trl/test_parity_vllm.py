"""The weights that TRL's own code computes for vLLM's mismatch, and the losses that they multiply."""

import pytest
import torch
from support.parity import words
from support.trl.rewards import MIXED, given
from support.trl.runs import make
from support.trl.stock_loss import own_loss, stock_loss
from trl import GRPOConfig, GRPOTrainer

import grpo_variants as gv

# mode, bounds, and the loss that it multiplies; the spec on the left says the same thing.
CASES = {
    "grpo,kl=none,correction=token_truncate,correction.cap=1.2": ("token_truncate", None, 1.2, "grpo"),
    "grpo,kl=none,correction=token_truncate,correction.cap=1.2,correction.floor=0.7": (
        "token_truncate",
        0.7,
        1.2,
        "grpo",
    ),
    "grpo,kl=none,correction=token_mask,correction.low=0.7,correction.high=1.2": ("token_mask", 0.7, 1.2, "grpo"),
    "grpo,kl=none,correction=sequence_truncate,correction.cap=1.2": ("sequence_truncate", None, 1.2, "grpo"),
    "grpo,kl=none,correction=sequence_mask,correction.low=0.5,correction.high=2": ("sequence_mask", 0.5, 2.0, "grpo"),
    "tis": ("token_truncate", None, 2.0, "dapo"),
    "seq_mis": ("sequence_mask", None, 10.0, "dr_grpo"),
    "icepop": ("token_mask", 0.5, 5.0, "grpo"),
    "glm5": ("token_mask", 0.5, 2.0, "grpo"),
}


LENGTH = 8  # of Dr. GRPO's constant


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory):
    """TRL's batch for each spec: 16 responses whose engine was off by some noise."""
    made = make(
        tmp_path_factory.mktemp("vllm"),
        "grpo",
        GRPOTrainer,
        GRPOConfig,
        rewards=given(MIXED),
        per_device_train_batch_size=16,
    )
    inputs = [{"prompt": "0 0 1", "t": 1}] * 16
    generated = list(made._generate([row["prompt"] for row in inputs]))
    made.use_vllm = made.vllm_importance_sampling_correction = True
    made._generate = lambda prompts: tuple(generated)
    generated[4] = [[0.0] * len(ids) for ids in generated[1]]
    old = made._generate_and_score_completions(inputs)["old_per_token_logps"]
    noise = torch.randn(old.shape, generator=torch.Generator().manual_seed(0)) * 0.8
    generated[4] = [(old + noise).clamp(max=-0.001)[i, : len(ids)].tolist() for i, ids in enumerate(generated[1])]

    def run(mode, low, high, _):
        made.vllm_importance_sampling_mode = mode
        made.vllm_importance_sampling_clip_min, made.vllm_importance_sampling_clip_max = low, high
        return made._generate_and_score_completions(inputs)

    return {spec: run(*case) for spec, case in CASES.items()}


def batch(out):
    """TRL's batch in float64, with a policy that has moved since."""
    old = out["old_per_token_logps"].double()
    drift = torch.randn(old.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.3
    data = {
        "logp": (old + drift).clamp(max=-0.001),
        "old_logp": old,
        "ref_logp": old,
        "rollout_logp": out["sampling_per_token_logps"].double(),
        "entropy": torch.ones_like(out["old_per_token_logps"]),
        "mask": out["completion_mask"].bool(),
        "advantages": out["advantages"].double(),
        "importance_sampling_ratio": out["importance_sampling_ratio"].double(),
    }
    return data


@pytest.mark.parametrize("spec", CASES)
def test_weights_loss_and_gradient_equal_the_trainer(parity, rollouts, spec):
    mode, low, high, loss_type = CASES[spec]
    data, bounds = batch(rollouts[spec]), {"mode": mode, "clip_min": low, "clip_max": high}
    flags = {"loss_type": loss_type, **({"epsilon_high": 0.28} if gv.get(spec).surrogate.high == 0.28 else {})}
    flags |= {f"vllm_importance_sampling_{name}": value for name, value in bounds.items() if value is not None}
    loss, gradient, _ = stock_loss(data, **flags, max_completion_length=LENGTH)
    out, own = own_loss(f"{spec},conventions=trl", data, gv.Counts.of(data["mask"], length=LENGTH))
    x = gv.Tokens(
        logp=data["logp"], **{name: data[name] for name in ("mask", "advantages", "old_logp", "rollout_logp")}
    )
    weights = [w.expand_as(x.logp)[x.mask] for w in (gv.correction_weights(spec, x), data["importance_sampling_ratio"])]
    # TRL's weights are float32.
    pairs = {"weights": weights, "loss": (out.loss, loss), "gradient": (own, gradient)}
    parity.equal(f"{spec},conventions=trl", words("", flags), rtol=2e-6, atol=1e-7, **pairs)
    assert torch.isclose(weights[1], torch.tensor([[0.0], [high]]).double()).any(), "no bound has acted"
    assert gradient.abs().max() > 1e-3
