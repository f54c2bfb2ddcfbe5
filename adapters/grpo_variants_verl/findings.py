"""Where a configuration and its variants differ: one sentence each, with the override that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grpo_variants import verl_words as words
from grpo_variants.aggregation import Constant
from grpo_variants.conventions import numerics
from grpo_variants.divergence import KL
from grpo_variants.filters import ZeroVariance
from grpo_variants.options import choice_name
from grpo_variants.shaping import Mask, Penalty
from grpo_variants.variant import Variant
from grpo_variants_verl.settings import CLIP_FIELDS, GAMMA_DEFAULT, moved_clips

# DAPO's buffer is a fifth of its maximum length (4096 of 20480).
_BUFFER_SHARE = 5


def actor_reports(variant: Variant, get: words.Get) -> Iterator[str]:
    """verl's actor section against the objective of its gv_ loss."""
    yield from _aggregation(variant, get)
    wanted = variant.kl if variant.kl_in_loss else None
    yield from _kl(variant, wanted, words.read_kl_in_loss(get), words.kl_in_loss_settings(wanted), "in its loss")
    yield from _clip(variant, get)


def estimator_reports(variant: Variant, get: words.Get) -> Iterator[str]:
    """verl's algorithm section against the advantage rule of its gv_ estimator."""
    wanted = variant.kl if variant.kl_in_reward else None
    yield from _kl(variant, wanted, words.read_kl_in_reward(get), words.kl_in_reward_settings(wanted), "in its rewards")
    gamma = float(get("algorithm.gamma") or GAMMA_DEFAULT)
    if gamma != GAMMA_DEFAULT and not hasattr(variant.credit, "gamma"):
        yield (
            f"algorithm.gamma={gamma} has no effect on {variant.name}, which does not discount. "
            f"Mend: algorithm.gamma={GAMMA_DEFAULT}"
        )
    if get("algorithm.norm_adv_by_std_in_grpo") is False:
        mend = words.shell({"algorithm.norm_adv_by_std_in_grpo": True, words.OPTIONS: "scale=none"})
        yield f"norm_adv_by_std_in_grpo=False is read by verl's own grpo only. Mend: {mend}"


def rollout_reports(variant: Variant, get: words.Get) -> Iterator[str]:
    """What verl samples against the rollout rule of a variant."""
    if isinstance(variant.filter, ZeroVariance) and not get(f"{words.FILTER}.enable"):
        mend = words.shell(words.filter_settings(variant))
        yield f"{variant.name} draws new groups for those without signal, but verl's filter is off. Mend: {mend}"
    if get(f"{words.FILTER}.enable"):
        yield from _filter(get)
    has = words.read_overlong(get)
    if isinstance(variant.overlong, Penalty) and has != variant.overlong:
        mend = words.shell(words.overlong_settings(variant))
        yield f"{variant.name} punishes overlong responses, but verl's reward manager does not. Mend: {mend}"
    if isinstance(variant.overlong, Mask) and not isinstance(has, Penalty):
        buffer = max(1, int(get(words.MAX_LENGTH) or 0) // _BUFFER_SHARE)
        punished = replace(variant, overlong=Penalty(buffer=buffer))
        yield (
            f"{variant.name} masks truncated responses, verl trains on them. Nearest, the soft punishment: "
            f"{words.shell(words.overlong_settings(punished))}"
        )


def _filter(get: words.Get) -> Iterator[str]:
    if not get(words.V1):
        yield f"verl's legacy trainer filters no groups. Mend: {words.shell({words.V1: True})}"
    rounds = get(words.ROUNDS)
    if rounds and int(rounds) > 0:
        yield f"{words.ROUNDS}={rounds} has no effect in verl 0.9.1: new prompts are drawn until the batch is full."
    punished = isinstance(words.read_overlong(get), Penalty)
    if punished and get(f"{words.FILTER}.metric") == "reward":
        mend = words.shell({f"{words.FILTER}.metric": "acc"})
        yield f"the filter's metric reward holds the overlong punishment, so lengths alone make a signal. Mend: {mend}"


def sampling_reports(get: words.Get) -> Iterator[str]:
    """Where responses come from another distribution than the one whose log-probabilities train."""
    settings = reshaped(get)
    if settings:
        drawn = ", ".join(f"{key}={get(key)}" for key in settings)
        yield f"{drawn}: verl trains the log-probabilities of the whole distribution. Mend: {words.shell(settings)}"


def reshaped(get: words.Get) -> words.Settings:
    """Sampling settings that leave tokens out, and what they are where they do not."""
    neutral = {f"{words.ROLLOUT}.top_p": 1, f"{words.ROLLOUT}.top_k": -1}
    return {key: value for key, value in neutral.items() if get(key) not in (None, value)}


def _aggregation(variant: Variant, get: words.Get) -> Iterator[str]:
    settings = words.aggregation_settings(variant)
    word, host = settings.get(words.AGGREGATION), get(words.AGGREGATION)
    if word is not None and word != host:
        yield (
            f"loss_agg_mode={host} is not {variant.name}'s aggregation: its policy term is aggregated as the variant "
            f"says, the host's own KL and entropy terms as loss_agg_mode says. Mend: {words.shell(settings)}"
        )


def _kl(variant: Variant, wanted: KL | None, has: KL | None, settings: words.Settings, place: str) -> Iterator[str]:
    if not words.same_kl(wanted, has):
        yield (
            f"{variant.name} has {_kl_text(wanted)} {place}, this configuration has {_kl_text(has)}. "
            f"Mend: {words.shell(settings)}"
        )


def _kl_text(kl: KL | None) -> str:
    if kl is None:
        return "no KL term"
    gradient = " (gradient of k2)" if kl.gradient == "k2" else ""
    return f"{kl.estimator}{gradient} with beta {kl.beta:g}"


def _clip(variant: Variant, get: words.Get) -> Iterator[str]:
    values = [get(f"{words.ACTOR}.{field}") for field in CLIP_FIELDS]
    moved = moved_clips(*values)
    for field, value, source in moved:
        if not hasattr(variant.surrogate, field):
            yield f"{source}={value} has no effect on {variant.name}, whose surrogate has no such bound. Leave it out."
    if _lacks_dual(variant) and values[-1] is not None and all(field != "dual" for field, _, _ in moved):
        mend = words.shell({words.LOSS_TARGET: words.LOSS_CONFIG, words.LOSS_OPTIONS: f"surrogate.dual={values[-1]}"})
        yield (
            f"clip_ratio_c={values[-1]}, the dual clip that verl's own loss always applies, is not part of "
            f"{variant.name} and is left out. To have it: {mend}"
        )


def _lacks_dual(variant: Variant) -> bool:
    """Whether verl's own loss would clip twice where the variant does not."""
    names = (choice_name("surrogate", variant.surrogate), choice_name("ratio", variant.ratio))
    in_host = numerics("verl", "surrogate", *names).get("dual")
    return in_host is not None and getattr(variant.surrogate, "dual", in_host) is None


def length_setting(variant: Variant, get: words.Get) -> words.Settings:
    """The constant that aggregation=constant divides by, where neither variant nor host has set it."""
    rule = variant.aggregation
    if isinstance(rule, Constant) and rule.length is None and get(words.SCALE_FACTOR) is None:
        return {words.SCALE_FACTOR: get(words.MAX_LENGTH)}
    return {}
