"""What ReMax's greedy pass costs beside the sampled rollouts, as a ratio on SmolLM2-135M-Instruct.

    python benchmarks/greedy_pass.py [--rounds 3] [--tiny]

Needs grpo-variants[trl] and gguf; the model comes from a 93 MB wheel and is kept (see examples/smollm2.py). Takes about
two minutes on two CPU cores; --tiny takes a random model instead and half a minute. Each round times one generation
batch of gv_rloo, then one of gv_remax with the same prompts: 4 prompts of 8 responses, 24 tokens each. The bar is 1/8
of the rollouts' cost plus 10 %. Absolute times say nothing: only the ratio within one run does.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import smollm2
import torch
from datasets import Dataset
from grpo_variants_trl import VariantGRPOConfig, VariantGRPOTrainer
from rich.console import Console
from rich.progress import track
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

GROUP, PROMPTS, TOKENS = 8, 4, 24
NOUNS = ("animal", "colour", "river", "metal")


def model_and_tokenizer(tiny):
    """SmolLM2, or a random model of its shape in small."""
    folder = smollm2.folder()
    if not folder.exists():
        smollm2.make(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tiny:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer
    config = AutoConfig.from_pretrained(folder, hidden_size=96, intermediate_size=192, num_hidden_layers=4)
    set_seed(0)
    return AutoModelForCausalLM.from_config(config), tokenizer


def build(loss_type, tiny):
    model, tokenizer = model_and_tokenizer(tiny)
    rows = [{"prompt": [{"role": "user", "content": f"Tell me about one {noun}."}]} for noun in NOUNS]
    return VariantGRPOTrainer(
        model=model,
        reward_funcs=lambda completion_ids, **kwargs: [float(len(set(ids))) for ids in completion_ids],
        args=VariantGRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=True,
            bf16=False,
            loss_type=loss_type,
            num_generations=GROUP,
            per_device_train_batch_size=GROUP * PROMPTS,
            max_completion_length=TOKENS,
            # Every response has the same length, so that rounds differ by noise only.
            generation_kwargs={"min_new_tokens": TOKENS},
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )


def timed(trainer):
    inputs = [dict(trainer.train_dataset[i // GROUP]) for i in range(GROUP * PROMPTS)]
    trainer.model.train()
    start = time.process_time()
    trainer._generate_and_score_completions(inputs)
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    plain, greedy = build("gv_rloo", given.tiny), build("gv_remax", given.tiny)
    timed(plain), timed(greedy)
    pairs = [(timed(greedy), timed(plain)) for _ in track(range(given.rounds), "timing")]
    ratio = statistics.median(a / b for a, b in pairs)
    console = Console(highlight=False)
    model = "a random model" if given.tiny else smollm2.NAME
    console.print(f"generation batch with a greedy pass, {model}: {ratio:.3f} of one without, {given.rounds} rounds")
    console.print(f"  ratios: {' '.join(f'{a / b:.3f}' for a, b in pairs)}; bar: {1 + 1 / GROUP + 0.1:.3f}")
    console.print(f"  torch {torch.__version__}, 1 thread, {PROMPTS} prompts of {GROUP} responses, {TOKENS} tokens")


if __name__ == "__main__":
    main()
