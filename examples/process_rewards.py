"""A reward for each step against one reward at the end: a model of a few thousand parameters learns to make tea.

    python examples/process_rewards.py

Tea is six steps, one per line, in one order. Chance finds it once in some hundred thousand answers. With one reward per
recipe there is nothing to learn from. With a reward per step in its place (`grpo_process`) there is, from the start.
Two CPU cores, about a minute. Needs: pip install ".[trl]"
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import grpo_variants_trl as gvt
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, set_seed

RECIPE = ["boil water", "warm the pot", "add the leaves", "pour the water", "wait four minutes", "fill the cup"]
PROMPT = "tea\n"


@gvt.step_rewards(at="lines")
def right_steps(steps: list[list[str]], **columns: Any) -> list[list[float]]:
    """1 for each step in its place, 0 for another; `steps` holds the lines of each answer. A missing step costs 1.

    Without that cost an answer would do well to stop after its right steps: a step below the group's mean counts less
    than none.
    """
    scored = [[float(step == right) for step, right in zip(answer, RECIPE, strict=False)] for answer in steps]
    for rewards in scored:
        rewards[-1] -= len(RECIPE) - len(rewards)
    return scored


def tea_made(completions: list[str], **columns: Any) -> list[float]:
    """1 for the whole recipe."""
    return [float(answer.splitlines() == RECIPE) for answer in completions]


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a line."""
    words = ["<end>", PROMPT, *(f"{step}\n" for step in RECIPE)]
    own = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>"))
    own.pre_tokenizer = pre_tokenizers.Split(Regex("\n"), behavior="merged_with_previous")
    own.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<end>", pad_token="<end>", padding_side="left")


def model(vocabulary: int) -> LlamaForCausalLM:
    set_seed(0)
    size = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    ends = dict(bos_token_id=None, eos_token_id=0, pad_token_id=0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, max_position_embeddings=32, **size, **ends))


def config(loss_type: str, steps: int, folder: str) -> gvt.VariantGRPOConfig:
    return gvt.VariantGRPOConfig(
        output_dir=folder,
        loss_type=loss_type,
        max_steps=steps,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        per_device_train_batch_size=128,
        num_generations=32,
        max_completion_length=len(RECIPE),
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def train(loss_type: str, reward: Any, steps: int) -> list[tuple[float, float]]:
    """Train from the same start; share of right steps and of whole recipes, at every optimizer step."""
    history = []

    def watched(completions: list[str], **columns: Any) -> Any:
        right = [a == b for answer in completions for a, b in zip(answer.splitlines(), RECIPE, strict=False)]
        made = tea_made(completions)
        history.append((sum(right) / len(made) / len(RECIPE), sum(made) / len(made)))
        return reward(completions=completions, **columns)

    words = tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        trainer = gvt.VariantGRPOTrainer(
            model=model(len(words)),
            reward_funcs=watched,
            args=config(loss_type, steps, folder),
            train_dataset=Dataset.from_list([{"prompt": PROMPT}] * 64),
            processing_class=words,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return history


def main(steps: int = 121) -> None:
    runs = {
        "one reward for the whole recipe (grpo)": train("gv_grpo,kl=none", tea_made, steps),
        "a reward for each step (grpo_process)": train("gv_grpo_process,kl=none", right_steps, steps),
    }
    for name, history in runs.items():
        print(f"\n{name}\n  after    right steps    whole recipes")
        for step in range(0, steps, 20):
            right, made = history[step]
            print(f"  {step:>5} {right:>14.0%} {made:>16.0%}")


if __name__ == "__main__":
    main()
