"""Iterative GRPO: rounds of rollouts, a reward model that is trained again on fresh answers, a reference that moves.

    python examples/iterative_grpo.py

A policy of a few thousand parameters writes up to eight digits. A judge, who only ever says which of two answers is
better, likes answers that alternate, 0 1 0 1 ..., from the start. A reward model learns the judge's taste from pairs,
and the policy learns from the reward model. After each round the reward model is trained again with TRL's
RewardTrainer, on pairs of fresh answers and 10 % of old pairs, and the reference of the KL term becomes the policy
(`reset_reference_every`), as in DeepSeekMath, algorithm 1. With `--frozen` the first round's reward model is kept: it
has never seen good answers, and its opinion of them is worth little.
Two CPU cores, one to two minutes. Needs: pip install ".[trl]"
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TQDM_DISABLE", "1")

import grpo_variants_trl as gvt
import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
    set_seed,
)
from trl import RewardConfig, RewardTrainer

LENGTH, PROMPT = 8, "write"
Pair = dict[str, str]
QUIET = dict(
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    save_strategy="no",
    report_to="none",
    logging_steps=1,
    disable_tqdm=True,
)


def judged(answer: str) -> int:
    """What the judge likes: how many digits alternate from the start, beginning with 0."""
    digits = answer.split()
    return next((i for i, digit in enumerate(digits) if digit != str(i % 2)), len(digits))


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({"<end>": 0, "0": 1, "1": 2, PROMPT: 3}, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>", padding_side="left")


def shape(**more: Any) -> LlamaConfig:
    size = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    ends = dict(bos_token_id=None, eos_token_id=0, pad_token_id=0)
    return LlamaConfig(vocab_size=4, max_position_embeddings=32, **ends, **size, **more)


class RewardModel:
    """A small classifier, the pairs it was trained on, and its scores as a reward function."""

    __name__ = "reward_model"

    def __init__(self, folder: str) -> None:
        self.model = LlamaForSequenceClassification(shape(num_labels=1))
        self.words, self.folder, self.old = tokenizer(), folder, []

    @torch.no_grad()
    def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        texts = [f"{PROMPT} {answer} <end>" for answer in completions]
        batch = self.words(texts, padding=True, padding_side="right", return_tensors="pt")
        return self.model.eval()(batch["input_ids"], batch["attention_mask"]).logits[:, 0].tolist()

    def agreement(self, pairs: list[Pair]) -> float:
        """Share of pairs that it orders as the judge does; NaN where there are none."""
        if not pairs:
            return float("nan")
        better, worse = (self([pair[side] for pair in pairs]) for side in ("chosen", "rejected"))
        return sum(b > w for b, w in zip(better, worse, strict=True)) / len(pairs)

    def train(self, fresh: list[Pair], seed: int) -> None:
        """On fresh pairs and a tenth as many old ones."""
        replayed = random.Random(seed).sample(self.old, min(len(self.old), len(fresh) // 10))
        self.old += fresh
        rows = [{side: f"{PROMPT} {pair[side]}" for side in pair} for pair in fresh + replayed]
        config = RewardConfig(
            output_dir=self.folder,
            num_train_epochs=10,
            per_device_train_batch_size=64,
            learning_rate=3e-3,
            seed=seed,
            **QUIET,
        )
        trainer = RewardTrainer(self.model, config, train_dataset=Dataset.from_list(rows), processing_class=self.words)
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def pairs_of(answers: list[str], seed: int) -> list[Pair]:
    """Pairs of which the judge likes one better."""
    draw = random.Random(seed)
    drawn = [draw.sample(answers, 2) for _ in range(4 * len(answers))]
    ranked = [sorted(pair, key=judged) for pair in drawn if judged(pair[0]) != judged(pair[1])]
    return [{"chosen": better, "rejected": worse} for worse, better in ranked][: 2 * len(answers)]


class Rounds(TrainerCallback):
    """What happens between two rounds, and a line about it."""

    def __init__(self, reward: RewardModel, steps: int, frozen: bool) -> None:
        self.reward, self.steps, self.frozen = reward, steps, frozen
        self.kl: list[float] = []
        self.lines: list[dict[str, float]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            print("         judge's   reward model agrees with judge       KL to the reference")
            print("round   score/8    before     after training      first step       last")
            self.next_round(0, kwargs["model"])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "kl" not in logs:
            return
        self.kl.append(logs["kl"])
        if state.global_step % self.steps == 0:
            self.next_round(state.global_step // self.steps, kwargs["model"])

    def next_round(self, done: int, model: Any) -> None:
        """Fresh answers, the judge's opinion of them, and a reward model that has heard it."""
        answers = sampled(model, self.reward.words, seed=done)
        pairs = pairs_of(answers, seed=done)
        half = len(pairs) // 2
        before = self.reward.agreement(pairs[half:])
        if pairs and not (self.frozen and done):
            self.reward.train(pairs[:half], seed=done)
        first, last = (self.kl[-self.steps], self.kl[-1]) if self.kl else (float("nan"),) * 2
        line = {
            "round": done,
            "judge": sum(map(judged, answers)) / len(answers),
            "before": before,
            "after": self.reward.agreement(pairs[half:]),
            "kl_first": first,
            "kl_last": last,
        }
        self.lines.append(line)
        kl = "" if not done else f"{first:15.6f} {last:10.4f}"
        print(f"{done:>5} {line['judge']:>9.2f} {before:>9.0%} {line['after']:>12.0%} {kl}", flush=True)


@torch.no_grad()
def sampled(model: Any, words: Any, seed: int, count: int = 512) -> list[str]:
    torch.manual_seed(seed)
    prompt = words([PROMPT] * count, return_tensors="pt")
    training = model.training
    ids = model.eval().generate(**prompt, max_new_tokens=LENGTH, do_sample=True, pad_token_id=0)
    model.train(training)
    return words.batch_decode(ids[:, 1:], skip_special_tokens=True)


def main(rounds: int = 7, steps: int = 15, frozen: bool = False) -> list[dict[str, float]]:
    disable_progress_bars()
    set_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        policy = str(Path(folder) / "policy")
        LlamaForCausalLM(shape()).save_pretrained(policy)  # a full reference is loaded from where the policy came from
        reward = RewardModel(str(Path(folder) / "reward"))
        between = Rounds(reward, steps, frozen)
        config = gvt.VariantGRPOConfig(
            output_dir=str(Path(folder) / "runs"),
            loss_type="gv_grpo,kl.beta=0.04",
            reset_reference_every=steps,
            max_steps=rounds * steps,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            per_device_train_batch_size=64,
            num_generations=16,
            max_completion_length=LENGTH,
            **QUIET,
        )
        trainer = gvt.VariantGRPOTrainer(
            model=policy,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": PROMPT}] * 64),
            processing_class=tokenizer(),
            callbacks=[between],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return between.lines


if __name__ == "__main__":
    main(frozen="--frozen" in sys.argv)
