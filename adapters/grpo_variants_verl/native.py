"""verl's own estimators and losses as members of the family, for the card and for the parity tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from grpo_variants import verl_words as words
from grpo_variants.aggregation import Aggregation, SequenceMean
from grpo_variants.options import configure, get
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
# Estimators that algorithm.norm_adv_by_std_in_grpo=False keeps from dividing; the others do not read it.
SCALED_BY_FLAG = ("grpo", "grpo_passk")


@dataclass(frozen=True)
class NativeLoss:
    """A policy loss of verl's as a member of the family.

    fields: what verl's configuration sets, our field -> keys below the actor; the first that is set counts.
    aggregation: the one that it has whatever loss_agg_mode says. note: what of it has no counterpart here.
    """

    spec: str
    fields: Mapping[str, tuple[str, ...]]
    aggregation: Aggregation | None = None
    note: str | None = None


_CLIP = {
    "surrogate.low": ("clip_ratio_low", "clip_ratio"),
    "surrogate.high": ("clip_ratio_high", "clip_ratio"),
}
_PPO = {**_CLIP, "surrogate.dual": ("clip_ratio_c",)}
_DPPO = {**_CLIP, "surrogate.cap": ("clip_ratio_c",)}
_TAUS = {"surrogate.tau_pos": ("tau_pos",), "surrogate.tau_neg": ("tau_neg",)}
_CLIP_COV = {
    **_CLIP,
    "surrogate.fraction": ("policy_loss.clip_cov_ratio",),
    "surrogate.cov_low": ("policy_loss.clip_cov_lb",),
    "surrogate.cov_high": ("policy_loss.clip_cov_ub",),
}
_KL_COV = {"surrogate.fraction": ("policy_loss.kl_cov_ratio",), "surrogate.coef": ("policy_loss.ppo_kl_coef",)}
_DRO = {"surrogate.tau": ("policy_loss.dro_beta",)}
# These losses of verl's exponentiate the log ratio as it is.
_UNBOUNDED = "conventions=verl,ratio.bound_low=none,ratio.bound_high=none"

LOSSES: Mapping[str, NativeLoss] = {
    "vanilla": NativeLoss("grpo,kl=none,conventions=verl", _PPO),
    "dppo_tv": NativeLoss("dppo_tv,conventions=verl,ratio.anchor=old", _DPPO),
    "dppo_kl": NativeLoss("dppo_kl,conventions=verl,ratio.anchor=old", _DPPO),
    "gspo": NativeLoss("gspo_token,conventions=verl", _CLIP),
    "sapo": NativeLoss("sapo,conventions=verl", _TAUS, SequenceMean()),
    "gpg": NativeLoss("reinforce,conventions=verl", {}),
    "clip_cov": NativeLoss(f"clip_cov,{_UNBOUNDED}", _CLIP_COV),
    "kl_cov": NativeLoss(f"kl_cov,{_UNBOUNDED}", _KL_COV),
    "geo_mean": NativeLoss(
        f"gmpo,{_UNBOUNDED}",
        _CLIP,
        SequenceMean(),
        "verl's geo_mean is a mean over the responses of each micro-batch, whatever the step's counts.",
    ),
    "dro": NativeLoss(f"kimi_k15,ratio=token,{_UNBOUNDED}", _DRO),
    "cispo": NativeLoss("cispo,conventions=verl,surrogate.cap=none,surrogate.low=0.2,surrogate.high=0.2", _CLIP),
    "bypass_mode, ppo_clip": NativeLoss("grpo,kl=none,conventions=verl,ratio.anchor=rollout", _PPO),
}


def loss(name: str, value: words.Get) -> NativeLoss | None:
    """The description of a policy loss of verl's under a configuration; None for one that has none."""
    return LOSSES.get(name) or LOSSES.get(f"{name}, {value(words.BYPASS_LOSS) or 'ppo_clip'}")


def objective(native: NativeLoss, value: words.Get) -> Variant:
    """What a policy loss of verl's computes under a configuration, but for the terms that verl adds to every loss."""
    variant = get(native.spec)
    aggregation = native.aggregation or words.read_aggregation(value) or variant.aggregation
    return configure(replace(variant, aggregation=aggregation), _settings(native, value))


def _settings(native: NativeLoss, value: words.Get) -> dict[str, Any]:
    found = {
        field: next((v for v in (value(f"{words.ACTOR}.{key}") for key in keys) if v is not None), None)
        for field, keys in native.fields.items()
    }
    return {field: float(v) for field, v in found.items() if v is not None}
