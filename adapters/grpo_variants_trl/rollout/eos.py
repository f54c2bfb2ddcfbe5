"""End-of-sequence tokens: TRL's truncation test, and so every overlong rule, depends on them.

TRL counts a response as truncated unless its last token is padding or an end of sequence of the model or the
tokenizer. It ignores the stop tokens in `generation_kwargs`, although generation ends there, and the token that closes
an assistant's turn, where a chat engine ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError
from trl import GRPOConfig

from grpo_variants.variant import Variant

_STOP_KEYS = ("eos_token_id", "stop_token_ids")
_TEXT_KEYS = ("stop", "stop_strings")
_MARK = "response"


def stop_tokens(trainer: Any) -> list[int]:
    """Tokens at which generation stops: TRL's, and those of `generation_kwargs`."""
    given = trainer.args.generation_kwargs or {}
    more = [token for key in _STOP_KEYS for token in _as_list(given.get(key))]
    return list(dict.fromkeys([*trainer.eos_token_ids, *more]))


def turn_ends(trainer: Any) -> list[int]:
    """The special token that the chat template puts after an assistant's message; empty where there is none.

    Generation is not stopped there: a model may close one message and open the next within its response.
    """
    tokenizer = trainer._tokenizer
    template = getattr(trainer, "chat_template", None) or tokenizer.chat_template
    if template is None:
        return []
    chat = [{"role": "user", "content": "prompt"}, {"role": "assistant", "content": _MARK}]
    try:
        text = tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False)
    except TemplateError:  # a template for another kind of conversation: nothing is known about its turns
        return []
    before, _, after = text.rpartition(_MARK)
    ids = tokenizer(after.strip(), add_special_tokens=False)["input_ids"] if before else []
    special = {*tokenizer.all_special_ids, *(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)}
    return [ids[0]] if ids and ids[0] in special else []


def _as_list(value: Any) -> list[int]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


@contextmanager
def stopping_at(trainer: Any, tokens: list[int]) -> Iterator[None]:
    """Let TRL's generation cut responses at these tokens and no others."""
    every, trainer.eos_token_ids = trainer.eos_token_ids, tokens
    try:
        yield
    finally:
        trainer.eos_token_ids = every


def eos_refusals(variant: Variant, args: GRPOConfig, given: Mapping[str, Any]) -> Iterator[str]:
    """A stop string leaves no token that tells a finished response from a truncated one, for an overlong rule."""
    if not variant.overlong.masks and variant.overlong.statistics == "keep":
        return
    texts = [key for key in _TEXT_KEYS if (args.generation_kwargs or {}).get(key)]
    if texts and given.get("rollout_func") is None:
        yield (
            f"generation_kwargs has {texts[0]}={args.generation_kwargs[texts[0]]!r}, and a response that ends at a "
            "text looks truncated, so that it would be left out. Give stop_token_ids (vLLM) or eos_token_id instead, "
            "or set overlong=keep."
        )
