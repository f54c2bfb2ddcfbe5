"""From which distribution TRL samples: whether the trainer's log-probabilities are those of the responses it gets.

TRL scores responses by the softmax of the logits over the temperature. top_p, top_k and their like leave tokens out
and give the rest more probability; a vLLM engine reports log-probabilities of that distribution, and transformers'
generation reports none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trl import GRPOConfig

from grpo_variants.mismatch import WEIGHS_TOKENS, misled_by_truncation
from grpo_variants.variant import Variant

_FLAGS = ("top_p", "top_k", "min_p", "repetition_penalty")

# Sampling settings of TRL, transformers and vLLM that change the distribution, and how they look where they do not.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (None, 1),
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "typical_p": (None, 1),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
    "top_h": (None,),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "min_new_tokens": (None, 0),
    "min_tokens": (None, 0),
    "num_beams": (None, 1),
    "logit_bias": (None, {}),
    "sequence_bias": (None, {}),
    "bad_words": (None, []),
    "bad_words_ids": (None, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
}


def reshaped(args: GRPOConfig) -> dict[str, Any]:
    """Settings with which responses are drawn from another distribution than the one whose log-probabilities train."""
    given = {name: getattr(args, name) for name in _FLAGS} | (args.generation_kwargs or {})
    return {name: value for name, value in given.items() if value not in NEUTRAL.get(name, (value,))}


def decoding_refusals(variant: Variant, args: GRPOConfig, given: Mapping[str, Any]) -> Iterator[str]:
    """What makes old log-probabilities or weights wrong; a rollout_func samples by itself, and TRL's settings are not
    read there.
    """
    if given.get("rollout_func") is not None:
        return
    heat = (args.generation_kwargs or {}).get("temperature")
    if heat is not None and heat != args.temperature:
        yield (
            f"generation_kwargs has temperature={heat!r}, at which responses are drawn, and TRL computes their "
            f"log-probabilities at temperature={args.temperature!r}. Set temperature={heat!r} itself."
        )
    settings = reshaped(args)
    readers = misled_by_truncation(variant) if args.use_vllm and settings else []
    if readers:
        neutral = ", ".join(f"{name}={NEUTRAL[name][-1]!r}" for name in settings)
        yield (
            f"with {_text(settings)} vLLM samples from, and reports log-probabilities of, another distribution than "
            f"the trainer's, and {' and '.join(readers)} would take that for mismatch, more so the longer a response. "
            f"Set {neutral}, or correction=token_truncate, whose weights are right for it."
        )


def decoding_note(variant: Variant, args: GRPOConfig) -> str | None:
    """What the card says about a run that samples from a reshaped distribution; None where it does not."""
    settings = reshaped(args)
    if not settings:
        return None
    if args.use_vllm and any(isinstance(part, WEIGHS_TOKENS) for part in variant.correction):
        return (
            f"Responses are drawn with {_text(settings)}; the correction's weights take that into account, and what "
            "is logged as mismatch holds it too."
        )
    return (
        f"Responses are drawn with {_text(settings)}, so from another distribution than the one whose "
        "log-probabilities are trained; nothing corrects for it."
    )


def _text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
