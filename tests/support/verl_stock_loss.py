"""verl's own policy losses on small tensors, and the package's on the same: parity in milliseconds."""

import torch
from verl.trainer.ppo import core_algos
from verl.workers.config import FSDPActorConfig, PolicyLossConfig

import grpo_variants as gv

AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant",
}


def batch(drift=0.5, rows=6, width=7):
    """Log-probabilities off policy and below 0, holes in the mask, no empty row."""
    torch.manual_seed(5)
    mask = torch.rand(rows, width) < 0.7
    mask[:, 0] = True
    old = -2 * torch.rand(rows, width, dtype=torch.float64) - 0.1
    logp = (old + drift * torch.randn(rows, width, dtype=torch.float64)).clamp(max=-0.01)
    advantages = torch.randn(rows, 1, dtype=torch.float64).expand(rows, width) * mask
    return {"old_log_prob": old, "log_prob": logp, "advantages": advantages, "response_mask": mask}


def one(log_ratio, advantage, logp=-1.0):
    """A response of one token."""
    number = torch.ones(1, 1, dtype=torch.float64)
    return {
        "old_log_prob": (logp - log_ratio) * number,
        "log_prob": logp * number,
        "advantages": advantage * number,
        "response_mask": number.bool(),
    }


def actor(loss_mode, step=None, **fields):
    """verl's actor configuration; a field of its policy_loss section is put there. step: the step's counts."""
    loss = {name: fields.pop(name) for name in list(fields) if name in PolicyLossConfig.__dataclass_fields__}
    config = FSDPActorConfig(
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=2,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode, **loss),
        **fields,
    )
    config.global_batch_info.update(step or {})
    return config


def verls_own(loss_mode, tensors, weights=None, mode="token-mean", step=None, **fields):
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


def ours(spec, tensors, weights=None, counts=None, **others):
    """The package's loss and gradient."""
    logp = tensors["log_prob"].clone().requires_grad_()
    x = gv.Tokens(
        logp=logp,
        mask=tensors["response_mask"],
        advantages=tensors["advantages"],
        old_logp=tensors["old_log_prob"],
        correction=weights,
        **others,
    )
    loss = gv.policy_loss(spec, x, counts).loss
    loss.backward()
    return loss.detach(), logp.grad


def equal(parity, spec, builtin, found, wanted, atol=1e-9):
    """Loss and gradient of the two agree, and there is a gradient."""
    pairs = {"loss": (found[0], wanted[0]), "gradient": (found[1], wanted[1])}
    parity.equal(spec, builtin, rtol=1e-6, atol=atol, **pairs)
    assert wanted[1].abs().max() > 1e-4
