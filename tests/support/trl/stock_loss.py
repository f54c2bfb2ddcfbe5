"""TRL's own `_compute_loss`, called on a stub that holds the attributes it reads: parity in milliseconds."""

from collections import defaultdict
from types import SimpleNamespace

import torch
from trl import GRPOConfig, GRPOTrainer

import grpo_variants as gv

FIELDS = ("mask", "advantages", "old_logp", "ref_logp", "rollout_logp", "entropy")


class OneProcess:
    num_processes = 1
    process_index = 0
    sync_gradients = True

    def gather(self, value):
        return value

    gather_for_metrics = gather

    def reduce(self, value, reduction="sum"):
        return value

    def pad_across_processes(self, value, dim=0, pad_index=0):
        return value


def batch(seed=0, rows=8, width=7, spread=0.4):
    """Off-policy tokens of ragged responses, spread wide enough for every clip to bind somewhere."""
    g = torch.Generator().manual_seed(seed)

    def normal(scale, shift=0.0):
        return torch.randn(rows, width, generator=g, dtype=torch.float64) * scale + shift

    def near(logp):
        """Another policy's log-probabilities, at most 0 too."""
        return (logp + normal(spread)).clamp(max=-0.001)

    lengths = torch.randint(1, width + 1, (rows,), generator=g)
    logp = normal(0.5, -1.5).clamp(max=-0.001)
    return {
        "logp": logp,
        "old_logp": near(logp),
        "ref_logp": near(logp),
        "rollout_logp": near(logp),
        "entropy": normal(0.3, 1.0).abs().float(),
        "mask": torch.arange(width) < lengths.unsqueeze(1),
        "advantages": torch.randn(rows, generator=g, dtype=torch.float64),
    }


def stub(logp, entropy, training=True, accumulation=1, steps=1, **flags):
    """A trainer that answers the forward pass with the given log-probabilities."""
    args = GRPOConfig(
        output_dir="unused",
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=steps,
        **flags,
    )
    trainer = SimpleNamespace(
        args=args,
        accelerator=OneProcess(),
        model=SimpleNamespace(training=training),
        aux_loss_enabled=False,
        beta=args.beta,
        current_gradient_accumulation_steps=accumulation,
        entropy_coef=args.entropy_coef,
        epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        epsilon_low=args.epsilon,
        importance_sampling_level=args.importance_sampling_level,
        loss_type=args.loss_type,
        max_completion_length=args.max_completion_length,
        off_policy_mask_threshold=args.off_policy_mask_threshold,
        top_entropy_quantile=args.top_entropy_quantile,
        use_adaptive_entropy=args.use_adaptive_entropy,
        use_vllm="vllm_importance_sampling_mode" in flags,
        vllm_importance_sampling_correction=args.vllm_importance_sampling_correction,
        _entropy_bonus_enabled=args.entropy_coef != 0.0,
        _entropy_window_stats=None,
        _last_world_entropy=float("inf"),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *a, **k: (logp, entropy, None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
    )
    trainer.get_high_entropy_mask = GRPOTrainer.get_high_entropy_mask.__get__(trainer)
    return trainer


def stock_inputs(batch):
    """A micro-batch in TRL's names; what only some batches have is left out where it is not given."""
    mask = batch["mask"].long()
    prompt = torch.ones(len(mask), 1, dtype=torch.long)
    inputs = {
        "prompt_ids": torch.zeros_like(prompt),
        "prompt_mask": prompt,
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": batch["advantages"],
        "num_items_in_batch": batch.get("num_items", mask.sum()),
        "old_per_token_logps": batch["old_logp"],
        "ref_per_token_logps": batch["ref_logp"],
        "sampling_per_token_logps": batch["rollout_logp"],
    }
    return inputs | {name: batch[name] for name in ("tool_mask", "importance_sampling_ratio") if name in batch}


def stock_loss(batch, accumulation=1, steps=1, training=True, **flags):
    """TRL's loss, its gradient with respect to logp, and its metrics."""
    logp = batch["logp"].clone().requires_grad_(True)
    trainer = stub(logp, batch["entropy"], training, accumulation, steps, **flags)
    loss = GRPOTrainer._compute_loss(trainer, None, stock_inputs(batch))
    (gradient,) = torch.autograd.grad(loss, logp)
    return loss.detach(), gradient, {key: value[-1] for key, value in trainer._metrics["train"].items()}


def own_loss(spec, batch, counts=None):
    """The package's result on the same batch, and its gradient with respect to logp."""
    logp = batch["logp"].clone().requires_grad_(True)
    x = gv.Tokens(logp=logp, **{name: batch[name] for name in FIELDS})
    out = gv.policy_loss(spec, x, counts)
    (gradient,) = torch.autograd.grad(out.loss, logp)
    return out, gradient
