"""Sampling parameters: whether TRL samples from the distribution whose log-probabilities the trainer computes.

TRL scores responses by the softmax of the logits over the temperature. top_p, top_k, allowed tokens, structured outputs
and the like leave tokens out and give the rest more probability. A vLLM engine reports log-probabilities of that
distribution; transformers' generation reports none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trl import GRPOConfig

from grpo_variants.trainers.sampling import misled_by_truncation
from grpo_variants.variant import Variant

_FLAGS = ("top_p", "top_k", "min_p", "repetition_penalty", "vllm_structured_outputs_regex")

# Sampling parameters of TRL, transformers and vLLM that change the distribution, with their values that do not.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (None, 1),
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "top_h": (None,),
    "typical_p": (None, 1),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "encoder_repetition_penalty": (None, 1),
    "diversity_penalty": (None, 0),
    "penalty_alpha": (None, 0),
    "guidance_scale": (None, 1),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "exponential_decay_length_penalty": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "min_tokens": (None, 0),
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "logit_bias": (None, {}),
    "sequence_bias": (None, {}),
    "bad_words": (None, []),
    "bad_words_ids": (None, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "allowed_token_ids": (None, []),
    "structured_outputs": (None, {}),
    "vllm_structured_outputs_regex": (None, ""),
    "logits_processors": (None, []),
}
# Parameters that leave the distribution as it is: when a response ends, what is returned, how it is computed. Any
# other name may change it.
_HARMLESS = (
    *("temperature", "do_sample", "seed", "n", "num_return_sequences", "max_tokens", "max_new_tokens", "max_length"),
    *("max_time", "stop", "stop_token_ids", "stop_strings", "eos_token_id", "bos_token_id", "pad_token_id"),
    *("ignore_eos", "include_stop_str_in_output", "early_stopping", "logprobs", "prompt_logprobs", "flat_logprobs"),
    *("detokenize", "skip_special_tokens", "spaces_between_special_tokens", "output_kind", "output_attentions"),
    *("output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "use_cache", "use_mtp"),
    *("cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile", "low_memory"),
    *("prefill_chunk_size", "continuous_batching_config", "renormalize_logits", "remove_invalid_values"),
    *("truncate_prompt_tokens", "skip_reading_prefix_cache", "length_penalty"),
)


def reshaped(args: GRPOConfig) -> dict[str, Any]:
    """Parameters with which responses are drawn from another distribution than the one that is trained."""
    own = {name: getattr(args, name) for name in _FLAGS}
    more = {name: value for name, value in (args.generation_kwargs or {}).items() if name not in _HARMLESS}
    return {name: value for name, value in (own | more).items() if value not in NEUTRAL.get(name, (None,))}


def sampling_refusals(variant: Variant, args: GRPOConfig, given: Mapping[str, Any]) -> Iterator[str]:
    """What makes old log-probabilities or weights wrong, or all responses of a group the same.

    A rollout_func does its own sampling, without TRL's parameters.
    """
    if given.get("rollout_func") is not None:
        return
    settings = args.generation_kwargs or {}
    heat = settings.get("temperature")
    if heat is not None and heat != args.temperature:
        yield (
            f"generation_kwargs has temperature={heat!r}, at which responses are drawn, and TRL computes their "
            f"log-probabilities at temperature={args.temperature!r}. Set temperature={heat!r} itself."
        )
    if args.temperature <= 0:
        yield (
            f"temperature={args.temperature!r} draws the same response again and again, and log-probabilities at it "
            "are not defined. Set a number above 0."
        )
    yield from _vllm_breaks(settings, args) if args.use_vllm else _transformers_breaks(settings)
    yield from _misled(variant, args)


def _vllm_breaks(settings: Mapping[str, Any], args: GRPOConfig) -> Iterator[str]:
    """Settings of a vLLM engine with which TRL takes wrong numbers, too many responses, or one response many times."""
    colocated = args.vllm_mode == "colocate"
    if settings.get("logprobs", 0) != 0:
        yield (
            f"generation_kwargs has logprobs={settings['logprobs']!r}, and TRL takes the first log-probability that "
            "comes back for the sampled token's, which it is with logprobs=0 only. Remove it."
        )
    if settings.get("n", 1) != 1 or ("n" in settings and not colocated):
        yield (
            f"generation_kwargs has n={settings['n']!r}, and TRL sets itself how many responses it asks for. Remove "
            "it, and set num_generations."
        )
    if settings.get("seed") is not None and colocated:
        yield (
            f"generation_kwargs has seed={settings['seed']!r}. TRL asks a colocated engine for each response alone, so "
            "all responses of a prompt would be the same. Remove it; the config's seed is the run's."
        )


def _transformers_breaks(settings: Mapping[str, Any]) -> Iterator[str]:
    """The same for transformers' generation."""
    if settings.get("do_sample") is False:
        yield (
            "generation_kwargs has do_sample=False, with which all responses of a prompt are the same. Remove it. A "
            "greedy response as the baseline is baseline=greedy, as in gv_remax."
        )
    if settings.get("num_return_sequences", 1) not in (None, 1):
        yield (
            f"generation_kwargs has num_return_sequences={settings['num_return_sequences']!r}, and TRL expects one "
            "response per prompt of its batch. Remove it, and set num_generations."
        )
    if settings.get("return_dict_in_generate"):
        yield "generation_kwargs has return_dict_in_generate=True, and TRL expects plain token ids. Remove it."


def _misled(variant: Variant, args: GRPOConfig) -> Iterator[str]:
    """What reads an engine's log-probabilities and would take a reshaped distribution for mismatch."""
    settings = reshaped(args)
    readers = misled_by_truncation(variant) if args.use_vllm and settings else []
    if readers:
        yield (
            f"with {_text(settings)} vLLM samples from, and reports log-probabilities of, another distribution than "
            f"the trainer's, and {' and '.join(readers)} would take that for mismatch, and more so for longer "
            f"responses. {_without(settings)}, or set correction=token_truncate, whose weights are right for it."
        )


def _without(settings: Mapping[str, Any]) -> str:
    """How to undo parameters: those with a number are set, others are removed."""
    neutral = {name: NEUTRAL.get(name, (None,))[-1] for name in settings}
    numbers = ", ".join(f"{name}={value}" for name, value in neutral.items() if isinstance(value, int))
    others = ", ".join(name for name, value in neutral.items() if not isinstance(value, int))
    text = " and ".join([f"set {numbers}"] * bool(numbers) + [f"remove {others}"] * bool(others))
    return text[0].upper() + text[1:]


def sampling_note(variant: Variant, args: GRPOConfig) -> str | None:
    """What the card says about a run that samples from a reshaped distribution; None where it does not."""
    settings = reshaped(args)
    if not settings:
        return None
    if args.use_vllm and any(part.weighs_tokens for part in variant.correction):
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
