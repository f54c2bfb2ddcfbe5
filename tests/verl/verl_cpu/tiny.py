"""A Qwen2 of 20 thousand parameters, a byte tokenizer and a data set, made in a folder: `python -m verl_cpu.tiny`."""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer():
    words = [PAD, START, END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=PAD, eos_token=END, additional_special_tokens=[START]
    )
    made.chat_template = TEMPLATE
    return made


def model(seed=0):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=2,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config)


def rows(count):
    return [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": f"Write letters, please: {i}"}],
            "ability": "letters",
            "reward_model": {"style": "rule", "ground_truth": "letters"},
            "extra_info": {"index": i},
        }
        for i in range(count)
    ]


def constant(data_source, solution_str, ground_truth, extra_info=None, **_):
    """A reward that teaches nothing."""
    return 1.0


def letters(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """Reward: the share of letters in what was written, which differs between almost all responses."""
    return sum(c.isascii() and c.isalpha() for c in solution_str) / 16


def make(folder):
    import pandas

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    for name, count in (("train", 32), ("val", 4)):
        pandas.DataFrame(rows(count)).to_parquet(folder / f"{name}.parquet")
    return folder


if __name__ == "__main__":
    make(sys.argv[1])
