"""A whole TRL training step with the variant trainer against the stock one, interleaved, as a ratio.

    python benchmarks/trl_step.py [--rounds 9] [--hidden 256] [--layers 4]

Needs grpo-variants[trl]. Takes about two minutes on two CPU cores. The two trainers share settings, model size and
sampled lengths; each round times a few optimizer steps of one, then of the other, and the medians' ratio is printed.
Absolute times say nothing: only the ratio within one run does.
"""

import argparse
import os
import statistics
import tempfile
import time

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")

import torch
from datasets import Dataset
from grpo_variants_trl import VariantGRPOConfig, VariantGRPOTrainer
from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

STEPS = 3


def model_and_tokenizer(hidden, layers):
    """A random Llama over 4096 words that never ends early, so that both trainers do the same work."""
    words = {f"w{i}": i for i in range(4096)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
        eos_token="w0",
        pad_token="w0",
        padding_side="left",
    )
    tokenizer._tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    set_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config), tokenizer


def build(trainer, config, loss_type, hidden, layers, **flags):
    model, tokenizer = model_and_tokenizer(hidden, layers)
    prompts = [" ".join(f"w{(7 * i + j) % 4000 + 1}" for j in range(16)) for i in range(64)]
    made = trainer(
        model=model,
        reward_funcs=lambda completion_ids, **kwargs: [sum(ids) % 97 / 97 for ids in completion_ids],
        args=config(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            loss_type=loss_type,
            num_generations=8,
            per_device_train_batch_size=16,
            max_completion_length=48,
            max_steps=STEPS,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            generation_kwargs={"suppress_tokens": [0]},
            **flags,
        ),
        train_dataset=Dataset.from_list([{"prompt": p} for p in prompts]),
        processing_class=tokenizer,
    )
    made.remove_callback(PrinterCallback)
    return made


def timed(trainer):
    start = time.process_time()
    trainer.train()
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rounds": 9, "hidden": 256, "layers": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)
    size = (given.hidden, given.layers)
    variant = build(VariantGRPOTrainer, VariantGRPOConfig, "gv_dapo,filter=none,overlong=keep", *size)
    stock = build(GRPOTrainer, GRPOConfig, "dapo", *size, epsilon_high=0.28)
    variant.callback_handler.callbacks = [
        c for c in variant.callback_handler.callbacks if type(c).__name__ != "CardWriter"
    ]
    timed(variant), timed(stock)
    pairs = [(timed(variant), timed(stock)) for _ in track(range(given.rounds), "timing")]
    ratio = statistics.median(a / b for a, b in pairs)
    console = Console(highlight=False)
    console.print(f"whole TRL step, gv_dapo against stock dapo: median ratio {ratio:.3f} over {given.rounds} rounds")
    console.print(f"  ratios: {' '.join(f'{a / b:.3f}' for a, b in pairs)}")
    console.print(f"  torch {torch.__version__}, 1 thread, {size[1]} layers of {size[0]}, batch 16, 48 tokens")


if __name__ == "__main__":
    main()
