"""verl's own estimators and losses as variants, for the card and for the parity tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from grpo_variants.objective.aggregation import Aggregation, SequenceMean
from grpo_variants.spec import configure, get
from grpo_variants.trainers.verl import words
from grpo_variants.variant import Variant

ESTIMATORS: Mapping[str, str] = {
    "grpo": "grpo,conventions=verl",
    "grpo_vectorized": "grpo,conventions=verl",
    "rloo": "rloo,conventions=verl",
    "rloo_vectorized": "rloo,conventions=verl,singleton=zero",
    "reinforce_plus_plus": "reinforce_pp,conventions=verl",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline,conventions=verl",
    "remax": "remax,conventions=verl",
    "opo": "opo,conventions=verl",
    "grpo_passk": "passk,scale=group_std,conventions=verl",
    "gdpo": "gdpo,conventions=verl",
    "optimal_token_baseline": "otb,conventions=verl",
}
# Estimators that do not divide under algorithm.norm_adv_by_std_in_grpo=False; the others do not read it.
SCALED_BY_FLAG = ("grpo", "grpo_passk")


@dataclass(frozen=True)
class BuiltinLoss:
    """A policy loss of verl's as a variant.

    fields: what verl's configuration sets: field of the surrogate -> keys below the actor, the first that is set.
    aggregation: the one that it has whatever loss_agg_mode is. note: what has no counterpart here.
    """

    spec: str
    fields: words.Fields
    aggregation: Aggregation | None = None
    note: str | None = None


# These losses of verl's exponentiate the log ratio as it is.
_UNBOUNDED = "conventions=verl,ratio.bound_low=none,ratio.bound_high=none"

LOSSES: Mapping[str, BuiltinLoss] = {
    "vanilla": BuiltinLoss("grpo,kl=none,conventions=verl", words.DUAL_CLIP),
    "dppo_tv": BuiltinLoss("dppo_tv,conventions=verl,ratio.anchor=old", words.CAPPED_CLIP),
    "dppo_kl": BuiltinLoss("dppo_kl,conventions=verl,ratio.anchor=old", words.CAPPED_CLIP),
    "gspo": BuiltinLoss("gspo_token,conventions=verl", words.CLIP),
    "sapo": BuiltinLoss("sapo,conventions=verl", words.TAUS, SequenceMean()),
    "gpg": BuiltinLoss("reinforce,conventions=verl", {}),
    "clip_cov": BuiltinLoss(f"clip_cov,{_UNBOUNDED}", words.CLIP_COV),
    "kl_cov": BuiltinLoss(f"kl_cov,{_UNBOUNDED}", words.KL_COV),
    "geo_mean": BuiltinLoss(
        f"gmpo,{_UNBOUNDED}",
        words.CLIP,
        SequenceMean(),
        "verl's geo_mean is a mean over the responses of each micro-batch, whatever the step's counts.",
    ),
    "dro": BuiltinLoss(f"kimi_k15,ratio=token,{_UNBOUNDED}", words.DRO),
    "cispo": BuiltinLoss("cispo,conventions=verl,surrogate.cap=none,surrogate.low=0.2,surrogate.high=0.2", words.CLIP),
    "bypass_mode, ppo_clip": BuiltinLoss("grpo,kl=none,conventions=verl,ratio.anchor=rollout", words.DUAL_CLIP),
}


def loss(name: str, value: words.Get) -> BuiltinLoss | None:
    """The description of a policy loss of verl's under a configuration; None for one that has none."""
    return LOSSES.get(name) or LOSSES.get(f"{name}, {value(words.BYPASS_LOSS) or 'ppo_clip'}")


def objective(builtin: BuiltinLoss, value: words.Get) -> Variant:
    """What a policy loss of verl's computes under a configuration, but for the terms that verl adds to every loss."""
    variant = get(builtin.spec)
    aggregation = builtin.aggregation or words.read_aggregation(value) or variant.aggregation
    return configure(replace(variant, aggregation=aggregation), _settings(builtin, value))


def _settings(builtin: BuiltinLoss, value: words.Get) -> dict[str, Any]:
    found = {
        f"surrogate.{field}": next((v for v in (value(f"{words.ACTOR}.{key}") for key in keys) if v is not None), None)
        for field, keys in builtin.fields.items()
    }
    return {field: float(v) for field, v in found.items() if v is not None}
