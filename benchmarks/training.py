"""Training in TRL: a whole step with the adapter, one in which most responses have no gradient, and the members whose
rule takes a statistic of the whole step.

A random Llama that never ends early samples for everybody, so that all contenders do the same work.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.testing import assert_close

from benchmarks.case import Case, Setup

STEPS = 1
GROUP = 8
VOCABULARY = 4096
SAME_AS_TRL = "dapo,filter=none,overlong=keep,conventions=trl"
AXES = ("hidden size", "responses", "% without a gradient")
MIB = 1 << 20


def model_and_tokenizer(hidden: int) -> tuple[Any, Any]:
    """A Llama of four layers, and a tokenizer of numbered words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

    words = {f"w{i}": i for i in range(VOCABULARY)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = {"eos_token": "w0", "pad_token": "w0", "padding_side": "left"}
    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config), PreTrainedTokenizerFast(tokenizer_object=backend, **ends)


def trainer_of(
    stock: bool, hidden: int, reward: Callable[..., list[float]], spec: str = SAME_AS_TRL, **flags: Any
) -> Any:
    """TRL's own trainer with its dapo loss, or the variant's: with the same objective, or with another one."""
    import grpo_variants_trl as gvt
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    trainer, config = (GRPOTrainer, GRPOConfig) if stock else (gvt.VariantGRPOTrainer, gvt.VariantGRPOConfig)
    variant = {"loss_type": f"gv_{spec}"}
    model, tokenizer = model_and_tokenizer(hidden)
    prompts = [" ".join(f"w{(7 * i + j) % 4000 + 1}" for j in range(16)) for i in range(64)]
    made = trainer(
        model=model,
        reward_funcs=reward,
        args=config(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            learning_rate=1e-4,
            num_generations=GROUP,
            max_completion_length=48,
            max_steps=STEPS,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            generation_kwargs={"suppress_tokens": [0]},
            **({"loss_type": "dapo", "epsilon_high": 0.28} if stock else variant),
            **flags,
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=tokenizer,
    )
    kept = [
        c
        for c in made.callback_handler.callbacks
        if type(c).__name__ not in ("CardWriter", "Opening", "HealthWatch", "PrinterCallback")
    ]
    made.callback_handler.callbacks = kept
    made.remove_callback(PrinterCallback)
    return made


def parameters(trainer: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def varied(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def whole_step(hidden: int, rows: int) -> Setup:
    """STEPS optimizer steps with their generation."""
    size: dict[str, Any] = {"hidden": hidden, "reward": varied, "per_device_train_batch_size": rows}
    stock, variant = trainer_of(True, **size), trainer_of(False, **size)

    def check() -> None:
        before = parameters(stock)
        for trainer in (stock, variant):
            torch.manual_seed(0)
            trainer.train()
        moved = parameters(stock) - before
        # Adam divides a gradient by its own size, so rounding shows where it is nearly 0.
        assert (parameters(variant) - before - moved).norm() < 1e-2 * moved.norm()

    return Setup(runs={"TRL dapo": stock.train, "gv_dapo": variant.train}, check=check, unit=MIB, unit_name="MiB")


def without_signal(percent: int) -> Callable[..., list[float]]:
    """Rewards of 0 and 1 in which that share of the groups is all wrong."""

    def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        groups = len(completion_ids) // GROUP
        dead = round(groups * percent / 100)
        return [float(i // GROUP >= dead and i % GROUP == 0) for i in range(len(completion_ids))]

    return reward


def contenders(hidden: int, rows: int, percent: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """TRL's trainer, the variant's that scores every response and the one that leaves out, and one sampled batch."""
    reward = without_signal(percent)
    size: dict[str, Any] = {"hidden": hidden, "reward": reward, "per_device_train_batch_size": rows}
    trainers = {
        "TRL dapo": trainer_of(True, **size),
        "every response": trainer_of(False, **size, skip_zero_gradient_rows=False),
        "only with a gradient": trainer_of(False, **size),
    }
    packed = trainers["only with a gradient"]
    batch = packed._generate_and_score_completions([dict(packed.train_dataset[i // GROUP]) for i in range(rows)])
    return trainers, batch


def gradients_agree(trainers: dict[str, Any], batch: dict[str, Any]) -> None:
    """Raises unless the three have one gradient, from the same parameters."""
    dense, *others = [gradient(trainer, batch) for trainer in trainers.values()]
    assert dense.abs().max() > 1e-4
    for other in others:
        assert_close(other, dense, rtol=0, atol=1e-6)


def gradient(trainer: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Forward and backward of the batch as one optimizer step."""
    trainer.model.train()
    trainer._buffered_inputs, trainer._step, trainer._step_counts = [batch], 0, None
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(trainer.model, dict(batch)).backward()
    found = torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])
    trainer.model.zero_grad()
    return found


def forward_and_backward(hidden: int, rows: int, percent: int) -> Setup:
    """The whole model on one sampled batch, part of whose groups has no signal."""
    trainers, batch = contenders(hidden, rows, percent)
    runs = {name: partial(gradient, trainer, batch) for name, trainer in trainers.items()}
    return Setup(runs=runs, check=partial(gradients_agree, trainers, batch), unit=MIB, unit_name="MiB")


def train_phase(hidden: int, rows: int, percent: int) -> Setup:
    """Optimizer steps of the trainers on one sampled batch: all that comes after the rollouts."""
    trainers, batch = contenders(hidden, rows, percent)
    check = partial(gradients_agree, trainers, batch)
    for trainer in trainers.values():
        trainer._generate_and_score_completions = lambda inputs: dict(batch)
    return Setup(runs={name: t.train for name, t in trainers.items()}, check=check, unit=MIB, unit_name="MiB")


def step_statistics(hidden: int, rows: int) -> Setup:
    """All that comes after the rollouts, for members with a statistic of the step and for their base without."""
    size: dict[str, Any] = {"hidden": hidden, "reward": varied, "per_device_train_batch_size": rows}
    specs = {"without a statistic": "grpo,kl=none", "m2po": "m2po", "bapo": "bapo", "top_entropy": "forking_tokens"}
    alike = ",filter=none,overlong=keep"
    trainers = {name: trainer_of(False, **size, spec=spec + alike) for name, spec in specs.items()}
    first = next(iter(trainers.values()))
    batch = first._generate_and_score_completions([dict(first.train_dataset[i // GROUP]) for i in range(rows)])
    for trainer in trainers.values():
        trainer._generate_and_score_completions = lambda inputs: dict(batch)

    def check() -> None:
        # On policy nothing is clipped: the members that clip have the gradient of their base.
        for name in ("m2po", "bapo"):
            found, wanted = gradient(trainers[name], batch), gradient(first, batch)
            assert_close(found / found.norm(), wanted / wanted.norm(), rtol=0, atol=1e-5)

    return Setup(runs={name: t.train for name, t in trainers.items()}, check=check, unit=MIB, unit_name="MiB")


os.environ.update(TRANSFORMERS_VERBOSITY="error")
CASES = (
    Case("TRL step", whole_step, quick=((256, 16),), full=((256, 16), (384, 16)), needs=("trl",), axes=AXES[:2]),
    Case(
        "TRL forward and backward",
        forward_and_backward,
        quick=((256, 32, 75),),
        full=((256, 32, 0), (256, 32, 50), (256, 32, 75)),
        needs=("trl",),
        axes=AXES,
    ),
    Case("TRL step statistic", step_statistics, quick=(), full=((256, 24), (384, 24)), needs=("trl",), axes=AXES[:2]),
    Case("TRL train phase", train_phase, quick=(), full=((256, 24, 66),), needs=("trl",), axes=AXES),
)
