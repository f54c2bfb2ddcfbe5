"""What ms-swift's command line cannot express of a variant, by name, and what it does otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_variants.advantage.baseline import GroupMean
from grpo_variants.advantage.credit import Decoupled, Outcome
from grpo_variants.advantage.scale import BatchStd
from grpo_variants.axes import choice_name
from grpo_variants.objective.aggregation import Constant
from grpo_variants.objective.correction import GeometricTruncate, OffPolicyMask, TokenMask, TokenTruncate
from grpo_variants.objective.kl import K1, K3
from grpo_variants.objective.ratio import NoRatio
from grpo_variants.objective.surrogate import Cispo, Clip, Fipo, Reinforce
from grpo_variants.rollout.overlong import Penalty
from grpo_variants.spelling import written
from grpo_variants.trainers.command_line import choice_refused, chosen_rewards_refused, field_refused
from grpo_variants.trainers.ms_swift.words import (
    CORRECTIONS,
    LARGEST_EPS,
    SCALE_FIELDS,
    SCALES,
    estimator_of,
    level_of,
    loss_type_of,
)
from grpo_variants.variant import Variant


def refusals(variant: Variant) -> list[str]:
    """Everything that ms-swift cannot express of a variant, with a way out where there is one."""
    reasons = [*_advantage(variant), *_objective(variant), *_kl(variant), *_correction(variant), *_rollout(variant)]
    return [f"{variant.name}: {reason}" for reason in reasons]


def _advantage(variant: Variant) -> Iterator[str]:
    yield from chosen_rewards_refused(variant, "ms-swift")
    if estimator_of(variant) is None:
        yield choice_refused(
            "baseline", variant.baseline, "ms-swift has the group's mean and leave-one-out. Set baseline=group_mean."
        )
    yield from _scale(variant)
    if isinstance(variant.credit, Decoupled):
        yield from _decoupled(variant)
    elif not isinstance(variant.credit, Outcome):
        yield choice_refused("credit", variant.credit, "ms-swift has one reward per response. Set credit=outcome.")
    if variant.singleton != "zero":
        yield f"singleton={variant.singleton}: a group of one has advantage 0 there. Set singleton=zero."


def _scale(variant: Variant) -> Iterator[str]:
    scale: Any = variant.scale
    if type(scale) not in SCALES:
        yield choice_refused("scale", scale, "ms-swift divides by a deviation, or not at all. Set scale=group_std.")
        return
    for field, wanted in SCALE_FIELDS.get(type(scale), {}).items():
        if getattr(scale, field) != wanted:
            key = f"scale.{field}"
            yield field_refused(key, getattr(scale, field), f"it has no flag. Set {key}={written(wanted)}.")
    if isinstance(scale, BatchStd) and scale.of == "centred" and not isinstance(variant.baseline, GroupMean):
        yield field_refused("scale.of", "centred", "ms-swift centres by the group's mean only. Set scale.of=raw.")
    if getattr(scale, "eps", 0.0) > LARGEST_EPS:
        yield field_refused("scale.eps", scale.eps, f"it has no flag. Set scale.eps={LARGEST_EPS:g} or less.")


def _decoupled(variant: Variant) -> Iterator[str]:
    credit: Any = variant.credit
    if credit.over == "tokens":
        yield field_refused("credit.over", "tokens", "ms-swift normalises over responses. Set credit.over=responses.")
    if credit.ddof != 1 or credit.eps_in != "std" or credit.eps > LARGEST_EPS:
        yield choice_refused("credit", credit, "its ddof, eps and eps_in have no flags. Set ddof=1, eps_in=std.")
    if estimator_of(variant) != "grpo" or choice_name("scale", variant.scale) != "group_std":
        yield choice_refused("credit", credit, "ms-swift takes each function's group mean and deviation with it.")


def _objective(variant: Variant) -> Iterator[str]:
    ratio: Any = variant.ratio
    if isinstance(ratio, NoRatio):
        if not isinstance(variant.surrogate, Reinforce):
            yield choice_refused("ratio", ratio, "on policy only, with surrogate=reinforce. Set ratio=token.")
    elif level_of(variant) is None:
        yield choice_refused("ratio", ratio, "ms-swift has token, sequence and sequence_token. Set ratio=token.")
    else:
        yield from _ratio_fields(ratio)
    if isinstance(variant.surrogate, Reinforce) and not isinstance(ratio, NoRatio):
        yield choice_refused("surrogate", variant.surrogate, "ms-swift clips. Set surrogate=clip.")
    elif loss_type_of(variant) is None:
        pair = f"surrogate={choice_name('surrogate', variant.surrogate)}, "
        pair += f"aggregation={choice_name('aggregation', variant.aggregation)}"
        yield f"{pair}: no loss type of ms-swift has the two together. Set surrogate=clip,aggregation=token_mean."
    yield from _surrogate_fields(variant)
    yield from _aggregation_fields(variant)
    if variant.tokens.denominator == "kept":
        yield field_refused(
            "tokens.denominator", "kept", "dropped tokens stay in the count. Set tokens.denominator=all."
        )


def _ratio_fields(ratio: Any) -> Iterator[str]:
    if ratio.anchor == "rollout":
        yield field_refused("ratio.anchor", "rollout", "ms-swift compares with the old policy. Set ratio.anchor=old.")
    for side in ("bound_low", "bound_high"):
        if getattr(ratio, side) not in (20.0, None):
            key = f"ratio.{side}"
            yield field_refused(key, getattr(ratio, side), f"it has no flag. Set {key}=none.")


def _surrogate_fields(variant: Variant) -> Iterator[str]:
    rule = variant.surrogate
    if isinstance(rule, Cispo) and rule.low is not None:
        yield field_refused("surrogate.low", rule.low, "its cispo has no floor. Set surrogate.low=none.")
    if isinstance(rule, (Clip, Fipo)) and rule.dual is not None and rule.dual < 1 + rule.high:
        yield field_refused("surrogate.dual", rule.dual, "below 1 + high its delta caps positive advantages as well.")
    if isinstance(rule, Fipo) and abs(rule.weight_low - 1) > 0 and abs(rule.weight_low + rule.weight_high - 2) > 1e-12:
        yield field_refused("surrogate.weight_low", rule.weight_low, "the range is 1 to high, or the same below 1.")


def _aggregation_fields(variant: Variant) -> Iterator[str]:
    rule = variant.aggregation
    if rule.drops_rows:
        yield field_refused(
            "aggregation.rows", "signal", "ms-swift trains on every response. Set aggregation.rows=all."
        )
    if "nonempty" in rule.counts_read:
        yield field_refused(
            "aggregation.empty_rows", "exclude", "ms-swift counts every response. Set aggregation.empty_rows=count."
        )
    if isinstance(rule, Constant) and rule.length is not None:
        yield field_refused(
            "aggregation.length", rule.length, "it is --max_completion_length. Set aggregation.length=none."
        )


def _kl(variant: Variant) -> Iterator[str]:
    kl = variant.kl
    if kl is None or kl.beta == 0:
        return
    wanted = K1 if kl.placement == "reward" else K3
    if not isinstance(kl, wanted):
        where = "k1 in the reward" if kl.placement == "reward" else "k3 in the loss"
        yield choice_refused("kl", kl, f"ms-swift has {where}. Set kl={wanted.estimator}.")
    if kl.gradient != "own":
        yield field_refused("kl.gradient", kl.gradient, "ms-swift takes the estimator's own. Set kl.gradient=own.")
    if kl.weighted != "none":
        yield field_refused("kl.weighted", kl.weighted, "ms-swift does not weigh it. Set kl.weighted=none.")
    if kl.exempt is not None:
        yield field_refused("kl.exempt", kl.exempt, "ms-swift adds it to every token. Set kl.exempt=none.")
    if kl.bound not in (20.0, None):
        yield field_refused("kl.bound", kl.bound, "it has no flag. Set kl.bound=20.")
    if kl.value_bound not in (10.0, None):
        yield field_refused("kl.value_bound", kl.value_bound, "it has no flag. Set kl.value_bound=10.")
    if variant.kl_in_loss and variant.correction:
        yield field_refused("kl.placement", "loss", "a correction weighs the KL there too. Set kl=none.")


def _correction(variant: Variant) -> Iterator[str]:
    weights = [part for part in variant.correction if not isinstance(part, OffPolicyMask)]
    for part in weights:
        if type(part) not in CORRECTIONS:
            yield choice_refused(
                "correction", part, "ms-swift has one weight, capped from above. Set correction=token_truncate."
            )
        elif isinstance(part, (TokenTruncate, GeometricTruncate)) and part.floor > 0:
            yield field_refused("correction.floor", part.floor, "it is one-sided. Set correction.floor=0.")
        elif isinstance(part, TokenMask) and part.low is not None:
            yield field_refused("correction.low", part.low, "it is one-sided. Set correction.low=none.")
    if len(weights) > 1:
        word = "+".join(choice_name("correction", part) for part in weights)
        yield f"correction={word}: ms-swift applies one weight. Set correction={choice_name('correction', weights[0])}."


def _rollout(variant: Variant) -> Iterator[str]:
    rule = variant.filter
    if rule.drops and rule.metric is not None:
        yield field_refused("filter.metric", rule.metric, "ms-swift goes by the total. Leave filter.metric out.")
    if rule.drops and rule.max_rounds is None:
        yield field_refused("filter.max_rounds", None, "ms-swift has a bound. Set filter.max_rounds=10.")
    if variant.overlong.statistics == "drop":
        yield field_refused(
            "overlong.statistics", "drop", "their rewards stay in the group. Set overlong.statistics=keep."
        )


def notes(variant: Variant) -> Iterator[str]:
    """What ms-swift does otherwise than the variant says, although it runs it."""
    yield "--temperature is 0.9 unless you set it"
    if choice_name("scale", variant.scale) != "none":
        yield "1e-4 is added to the deviation"
    if variant.kl_in_loss and variant.kl is not None and variant.kl.value_bound != 10.0:
        yield "each token's KL estimate is clamped at 10"
    if variant.aggregation.of_tokens:
        yield "leave --steps_per_generation out: the count of tokens is the generation batch's"
        if variant.overlong.masks:
            yield "truncated tokens stay in that count, so the loss is smaller by their share"
    if isinstance(variant.ratio, NoRatio):
        yield "on policy only: leave --steps_per_generation out"
    if variant.tokens.whole_batch:
        yield "the entropy threshold is that of each micro-batch"
    if any(not isinstance(part, OffPolicyMask) for part in variant.correction):
        yield "the correction needs vLLM 0.10.2 or newer; without its log-probabilities it is off without a message"
    if variant.filter.drops:
        yield "a batch that stays short is replaced by the first batch, groups without signal included"
    if isinstance(variant.overlong, Penalty):
        weight = f"add soft_overlong to --reward_funcs, with weight {variant.overlong.factor} in --reward_weights"
        yield f"{weight}; its reward counts in the filter"
