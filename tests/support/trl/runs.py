"""Real TRL trainers on the tiny model, and what they did at each micro-batch."""

from itertools import groupby

import grpo_variants_trl as gvt
import torch
from peft import LoraConfig
from transformers import PrinterCallback

from support import tiny_model

EXTRAS = (
    "model",
    "train_dataset",
    "eval_dataset",
    "processing_class",
    "callbacks",
    "peft_config",
    "tools",
    "rollout_func",
)


def lora():
    return LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", exclude_modules=["lm_head"])


def make(folder, loss_type, trainer=gvt.VariantGRPOTrainer, config=gvt.VariantGRPOConfig, rewards=None, **flags):
    """A trainer on the tiny model with LoRA; `flags` are the config's, over defaults that suit a test."""
    defaults = dict(
        use_cpu=True,
        bf16=False,
        learning_rate=3e-3,
        num_generations=4,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        max_completion_length=6,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        max_steps=2,
        seed=1,
    )
    extra = {name: flags.pop(name) for name in EXTRAS if name in flags}
    usual = {"model": tiny_model.model(), "peft_config": lora(), "processing_class": tiny_model.tokenizer()}
    extra = {"train_dataset": tiny_model.dataset(), **usual, **extra}
    made = trainer(
        reward_funcs=rewards or [tiny_model.exact, tiny_model.ones],
        args=config(output_dir=str(folder), loss_type=loss_type, **{**defaults, **flags}),
        **extra,
    )
    made.remove_callback(PrinterCallback)
    return made


def weights(trainer):
    """Every trained parameter, as one vector."""
    return torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters() if p.requires_grad])


def recorded(trainer):
    """Record each micro-batch of a training run: inputs, log-probabilities (with `grad` afterwards), loss, step.

    The trainer then scores every response in the micro-batches that TRL makes, so that responses are recognised.
    """
    trainer._packing = None
    seen = []
    score, compute = trainer._score_tokens, trainer._compute_loss

    def scoring(model, inputs, **options):
        out = score(model, inputs, **options)
        if options.get("compute_entropy"):
            if out[0].requires_grad:
                out[0].retain_grad()
            seen.append({"logp": out[0], "entropy": out[1].detach().clone(), "draws": inputs.get("gv_draws")})
        return out

    def computing(model, inputs):
        before = len(seen)
        loss = compute(model, inputs)
        del seen[before:-1]  # a pass for the step's statistics
        seen[-1] |= {"inputs": inputs, "loss": loss.detach().clone(), "step": trainer.state.global_step}
        return loss

    trainer._score_tokens, trainer._compute_loss = scoring, computing
    return seen


def logged(trainer, key):
    """The values of a log entry, in order."""
    return [row[key] for row in trainer.state.log_history if key in row]


def join(values):
    """Micro-batches of different widths as one [B, T] tensor, or their rows as one [B]."""
    width = max(v.shape[-1] for v in values)
    return torch.cat([v if v.dim() == 1 else torch.nn.functional.pad(v, (0, width - v.shape[1])) for v in values])


def steps_of(trainer):
    seen = recorded(trainer)
    trainer.train()
    return [list(micro) for _, micro in groupby(seen, key=lambda m: m["step"])]
