"""TRL's own words for the parts of a variant: what each of its flags sets, and what the flags say of a variant.

Functions on variants, one a flag; nothing of TRL is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from grpo_variants.advantage.credit import Decoupled, Outcome
from grpo_variants.axes import choice_name
from grpo_variants.objective.correction import (
    OffPolicyMask,
    SequenceMask,
    SequenceTruncate,
    TokenMask,
    TokenTruncate,
)
from grpo_variants.objective.surrogate import Cispo, Clip, Gmpo
from grpo_variants.objective.token_filter import TopEntropy
from grpo_variants.spec import configure
from grpo_variants.spelling import spelt
from grpo_variants.tensors.checks import unknown
from grpo_variants.variant import Variant

# (variant, value, every flag that is given) -> the variant that the flag makes of it
Tune = Callable[[Variant, Any, Mapping[str, Any]], Variant]

# TRL's flags that are fields of one surrogate, by the surrogate that has them.
_OWN_FIELDS: Mapping[str, Mapping[str, str]] = {
    "sapo": {"sapo_temperature_neg": "tau_neg", "sapo_temperature_pos": "tau_pos"},
    "vespo": {f"vespo_{field}": field for field in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")},
}
_MASKS: Mapping[str, Any] = {"token_mask": TokenMask, "sequence_mask": SequenceMask}
_TRUNCATIONS: Mapping[str, Any] = {"token_truncate": TokenTruncate, "sequence_truncate": SequenceTruncate}


# What TRL 1.16 takes for the flags of its rollout correction where they are not given.
VLLM_MODE, VLLM_CLIP_MAX = "sequence_mask", 3.0


class FlagError(ValueError):
    """A TRL flag that the variant cannot honour."""


def _beta(variant: Variant, value: float, given: Mapping[str, Any]) -> Variant:
    if value == 0:
        return configure(variant, {"kl": "none"})
    options = {} if variant.kl is not None else {"kl": "k3"}  # k3 is TRL's only estimator
    return configure(variant, {**options, "kl.beta": value})


def _epsilon(variant: Variant, value: float, given: Mapping[str, Any]) -> Variant:
    if isinstance(variant.surrogate, Cispo):
        raise FlagError(
            f"epsilon={value!r} has no effect on gv_{variant.name}, whose weights have no lower bound in TRL. Set "
            "epsilon_high, the largest weight itself, or surrogate.low."
        )
    clip = _clip(variant, "epsilon", value, (Clip, Gmpo))
    if given.get("epsilon_high") is not None:
        return configure(variant, {"surrogate.low": value})
    if clip.low != clip.high:
        raise FlagError(
            f"epsilon={value!r} alone sets both clip bounds in TRL, but gv_{variant.name} clips at -{clip.low:g} and "
            f"+{clip.high:g}. Set epsilon_high too (for example epsilon_high={clip.high:g})."
        )
    return configure(variant, {"surrogate.low": value, "surrogate.high": value})


def _epsilon_high(variant: Variant, value: float, given: Mapping[str, Any]) -> Variant:
    if isinstance(variant.surrogate, Cispo):
        return configure(variant, {"surrogate.cap": value, "surrogate.high": "none"})
    _clip(variant, "epsilon_high", value, (Clip, Gmpo))
    return configure(variant, {"surrogate.high": value})


def _delta(variant: Variant, value: float | None, given: Mapping[str, Any]) -> Variant:
    clip = _clip(variant, "delta", value, (Clip,))
    if value is not None and value < 1 + clip.high:
        raise FlagError(
            f"delta={value!r} is below 1 + {clip.high:g}, where TRL's two-sided clip also binds for positive "
            f"advantages; allowed for gv_{variant.name}: at least {1 + clip.high:g}."
        )
    return configure(variant, {"surrogate.dual": value})


def _clip(variant: Variant, flag: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """The surrogate, which has TRL's clip bounds; raises FlagError for another kind."""
    if not isinstance(variant.surrogate, kinds):
        from grpo_variants.advice import completed

        clips = completed(variant, {}, {"surrogate": "clip"})
        raise FlagError(
            f"{flag}={value!r} has no effect: gv_{variant.name} has surrogate="
            f"{choice_name('surrogate', variant.surrogate)}, which does not clip as TRL does. Remove it, or set the "
            f"surrogate's own fields{'' if clips is None else f', or choose {spelt(clips)}'}."
        )
    return variant.surrogate


def _scale_rewards(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    words = {"group": "group_std", "batch": "batch_std", "none": "none"}
    return _same_or(
        variant, "scale", words[_word("scale_rewards", value, words, {True: "group", False: "none", None: "none"})]
    )


def _importance_sampling_level(variant: Variant, value: str, given: Mapping[str, Any]) -> Variant:
    _word("importance_sampling_level", value, ("token", "sequence"))
    return _same_or(variant, "ratio", value)


def _mask_truncated(variant: Variant, value: bool, given: Mapping[str, Any]) -> Variant:
    masks = variant.overlong.masks
    return variant if value == masks else configure(variant, {"overlong": "mask" if value else "keep"})


def _top_entropy(variant: Variant, value: float, given: Mapping[str, Any]) -> Variant:
    if value == 1.0:
        return _same_or(variant, "tokens", "all")
    return configure(_same_or(variant, "tokens", "top_entropy"), {"tokens.fraction": value})


def _bias_correction_kl(variant: Variant, value: bool, given: Mapping[str, Any]) -> Variant:
    if variant.kl is None:
        if value:
            raise FlagError(
                f"use_bias_correction_kl={value!r} has no effect: gv_{variant.name} has no KL term. Set beta too, or "
                "remove it."
            )
        return variant
    return configure(variant, {"kl.weighted": "ratio" if value else "none"})


def _multi_objective(variant: Variant, value: str, given: Mapping[str, Any]) -> Variant:
    words = {"sum_then_normalize": "outcome", "normalize_then_sum": "decoupled"}
    wanted = words[_word("multi_objective_aggregation", value, words)]
    if isinstance(variant.credit, (Outcome, Decoupled)):
        return _same_or(variant, "credit", wanted)
    if wanted == "decoupled":
        raise FlagError(
            f"multi_objective_aggregation={value!r} cannot be honoured: gv_{variant.name} has credit="
            f"{choice_name('credit', variant.credit)}, and normalising each reward function is credit=decoupled. "
            "Remove it, or choose credit=outcome."
        )
    return variant


def _off_policy_mask(variant: Variant, value: float | None, given: Mapping[str, Any]) -> Variant:
    others = tuple(part for part in variant.correction if not isinstance(part, OffPolicyMask))
    own = () if value is None else (OffPolicyMask(threshold=value),)
    return replace(variant, correction=(*others, *own))


def _vllm_correction(variant: Variant, value: bool, given: Mapping[str, Any]) -> Variant:
    kept = tuple(part for part in variant.correction if isinstance(part, OffPolicyMask))
    if not value:
        return replace(variant, correction=kept)
    return replace(variant, correction=(_vllm_part(given), *kept))


def _vllm_part(given: Mapping[str, Any]) -> Any:
    """The correction that TRL's vLLM flags describe, with TRL's defaults for those that are not set."""
    mode = given.get("vllm_importance_sampling_mode") or VLLM_MODE
    high = given.get("vllm_importance_sampling_clip_max", VLLM_CLIP_MAX)
    low = given.get("vllm_importance_sampling_clip_min")
    _word("vllm_importance_sampling_mode", mode, (*_TRUNCATIONS, *_MASKS))
    if mode in _MASKS:
        return _MASKS[mode](low=low, high=high)
    if high is None:
        raise FlagError(f"vllm_importance_sampling_mode={mode!r} needs vllm_importance_sampling_clip_max, a number.")
    return _TRUNCATIONS[mode](cap=high, floor=low or 0.0)


def _vllm_detail(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    if given.get("vllm_importance_sampling_correction") is False:
        raise FlagError("no effect with vllm_importance_sampling_correction=False. Remove one of the two.")
    return _vllm_correction(variant, True, given)


def _field_of(surrogate: str, flag: str) -> Tune:
    """A flag that is a field of one surrogate."""
    field = _OWN_FIELDS[surrogate][flag]

    def tune(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
        if choice_name("surrogate", variant.surrogate) == surrogate:
            return configure(variant, {f"surrogate.{field}": value})
        raise FlagError(
            f"no effect on gv_{variant.name}, whose surrogate is {choice_name('surrogate', variant.surrogate)}; the "
            f"flag belongs to TRL's loss_type={surrogate!r}. Remove it, or use gv_{surrogate}."
        )

    return tune


def _deprecated(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    raise FlagError("deprecated in TRL; use vllm_importance_sampling_clip_max.")


def _same_or(variant: Variant, axis: str, choice: str) -> Variant:
    """The variant with a choice on an axis; fields are kept where it has that choice already."""
    same = choice_name(axis, getattr(variant, axis)) == choice
    return variant if same else configure(variant, {axis: choice})


def _word(flag: str, value: Any, allowed: Any, aliases: Mapping[Any, str] | None = None) -> str:
    word = (aliases or {}).get(value, value)
    if word not in allowed:
        raise FlagError(unknown(f"{flag}={value!r} is unknown", str(value), allowed))
    return str(word)


FLAGS: Mapping[str, Tune] = {
    "importance_sampling_level": _importance_sampling_level,
    "scale_rewards": _scale_rewards,
    "multi_objective_aggregation": _multi_objective,
    "beta": _beta,
    "use_bias_correction_kl": _bias_correction_kl,
    "epsilon": _epsilon,
    "epsilon_high": _epsilon_high,
    "delta": _delta,
    "mask_truncated_completions": _mask_truncated,
    "top_entropy_quantile": _top_entropy,
    "vllm_importance_sampling_correction": _vllm_correction,
    "vllm_importance_sampling_mode": _vllm_detail,
    "vllm_importance_sampling_clip_max": _vllm_detail,
    "vllm_importance_sampling_clip_min": _vllm_detail,
    "vllm_importance_sampling_cap": _deprecated,
    "off_policy_mask_threshold": _off_policy_mask,
    "sapo_temperature_neg": _field_of("sapo", "sapo_temperature_neg"),
    "sapo_temperature_pos": _field_of("sapo", "sapo_temperature_pos"),
    "vespo_k_pos": _field_of("vespo", "vespo_k_pos"),
    "vespo_lambda_pos": _field_of("vespo", "vespo_lambda_pos"),
    "vespo_k_neg": _field_of("vespo", "vespo_k_neg"),
    "vespo_lambda_neg": _field_of("vespo", "vespo_lambda_neg"),
}

# What a flag speaks about even where it leaves the value as it was: shown as its origin on the card.
FLAG_KEYS: Mapping[str, tuple[str, ...]] = {
    "multi_objective_aggregation": ("credit",),
    "importance_sampling_level": ("ratio",),
    "scale_rewards": ("scale",),
    "beta": ("kl", "kl.beta"),
    "use_bias_correction_kl": ("kl.weighted",),
    "epsilon": ("surrogate.low",),
    "epsilon_high": ("surrogate.high",),
    "delta": ("surrogate.dual",),
    "mask_truncated_completions": ("overlong",),
    "top_entropy_quantile": ("tokens",),
    "sapo_temperature_neg": ("surrogate.tau_neg",),
    "sapo_temperature_pos": ("surrogate.tau_pos",),
    "vespo_k_pos": ("surrogate.k_pos",),
    "vespo_lambda_pos": ("surrogate.lambda_pos",),
    "vespo_k_neg": ("surrogate.k_neg",),
    "vespo_lambda_neg": ("surrogate.lambda_neg",),
}


def flag_values(variant: Variant) -> dict[str, Any]:
    """The flags that set a variant's own values; without those whose values it does not have."""
    correction = (pair for part in variant.correction for pair in _correction_values(part).items())
    return {
        **_advantage_values(variant),
        **_objective_values(variant),
        **_surrogate_values(variant.surrogate),
        **dict(correction),
        # TRL computes the old log-probabilities a correction reads only where its own correction is on.
        "vllm_importance_sampling_correction": variant.needs_rollout_logp,
    }


def _advantage_values(variant: Variant) -> dict[str, Any]:
    scales = {"group_std": "group", "batch_std": "batch"}
    decoupled = isinstance(variant.credit, Decoupled)
    return {
        "scale_rewards": scales.get(choice_name("scale", variant.scale), "none"),
        "multi_objective_aggregation": "normalize_then_sum" if decoupled else "sum_then_normalize",
        "mask_truncated_completions": variant.overlong.masks,
    }


def _objective_values(variant: Variant) -> dict[str, Any]:
    values: dict[str, Any] = {"beta": 0.0}
    if variant.kl is not None:
        values |= {"beta": variant.kl.beta, "use_bias_correction_kl": variant.kl.weighted == "ratio"}
    if choice_name("ratio", variant.ratio) == "sequence":
        values["importance_sampling_level"] = "sequence"
    if isinstance(variant.tokens, TopEntropy):
        values["top_entropy_quantile"] = variant.tokens.fraction
    return values


def _surrogate_values(surrogate: Any) -> dict[str, Any]:
    if isinstance(surrogate, Cispo):
        return {"epsilon_high": surrogate.ceiling}
    bounds = {"epsilon": "low", "epsilon_high": "high", "delta": "dual"}
    known = bounds if isinstance(surrogate, (Clip, Gmpo)) else _OWN_FIELDS.get(choice_name("surrogate", surrogate), {})
    return {flag: getattr(surrogate, field) for flag, field in known.items() if hasattr(surrogate, field)}


def _correction_values(part: Any) -> dict[str, Any]:
    if isinstance(part, OffPolicyMask):
        return {"off_policy_mask_threshold": part.threshold}
    word, name = choice_name("correction", part), "vllm_importance_sampling_{}".format
    if word in _MASKS:
        return {name("mode"): word, name("clip_min"): part.low, name("clip_max"): part.high}
    if word in _TRUNCATIONS:
        return {name("mode"): word, name("clip_min"): part.floor or None, name("clip_max"): part.cap}
    return {}
