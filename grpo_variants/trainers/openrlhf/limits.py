"""What OpenRLHF's command line cannot express of a variant, by name, and what it does otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpo_variants.advantage.credit import Outcome, RewardToGo
from grpo_variants.axes import choice_name
from grpo_variants.objective.aggregation import SequenceMean, TokenMean
from grpo_variants.objective.correction import TokenMask, TokenTruncate
from grpo_variants.objective.kl import Abs
from grpo_variants.objective.ratio import NoRatio, SequenceRatio, SequenceTokenRatio, TokenRatio
from grpo_variants.objective.surrogate import Clip, Reinforce
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.spelling import written
from grpo_variants.trainers.command_line import choice_refused, chosen_rewards_refused, field_refused
from grpo_variants.trainers.openrlhf.words import (
    KL_FIELDS,
    LARGEST_EPS,
    RATIO_BOUNDS,
    SCALE_FIELDS,
    estimator_of,
    is_gspo,
)
from grpo_variants.variant import Variant


def refusals(variant: Variant) -> list[str]:
    """Everything that OpenRLHF cannot express of a variant, with a way out where there is one."""
    reasons = [*_advantage(variant), *_objective(variant), *_kl(variant), *_correction(variant), *_rollout(variant)]
    return [f"{variant.name}: {reason}" for reason in reasons]


def _advantage(variant: Variant) -> Iterator[str]:
    yield from chosen_rewards_refused(variant, "OpenRLHF")
    if estimator_of(variant) is None:
        pair = f"baseline={choice_name('baseline', variant.baseline)}, scale={choice_name('scale', variant.scale)}"
        yield f"{pair}: no estimator of OpenRLHF computes the two together. Set baseline=group_mean,scale=group_std."
    for field, wanted in SCALE_FIELDS.get(type(variant.scale), {}).items():
        if getattr(variant.scale, field) != wanted:
            key, value = f"scale.{field}", getattr(variant.scale, field)
            yield field_refused(key, value, f"the estimator has no flag for it. Set {key}={written(wanted)}.")
    eps = getattr(variant.scale, "eps", 0.0)
    if estimator_of(variant) is not None and eps > LARGEST_EPS:
        yield field_refused(
            "scale.eps", eps, f"the estimator has no flag for it. Set scale.eps={LARGEST_EPS:g} or less."
        )
    yield from _credit(variant)
    if variant.singleton != "zero":
        yield f"singleton={variant.singleton}: every prompt has several responses there. Set singleton=zero."


def _credit(variant: Variant) -> Iterator[str]:
    returns = isinstance(variant.credit, RewardToGo)
    if returns and estimator_of(variant) not in (None, "reinforce"):
        yield choice_refused(
            "credit", variant.credit, "only its estimator reinforce has returns per token. Set credit=outcome."
        )
    elif not returns and not isinstance(variant.credit, Outcome):
        yield choice_refused("credit", variant.credit, "OpenRLHF has one reward per response. Set credit=outcome.")


def _objective(variant: Variant) -> Iterator[str]:
    yield from _ratio(variant)
    if not isinstance(variant.surrogate, Clip) and not (
        isinstance(variant.surrogate, Reinforce) and isinstance(variant.ratio, NoRatio)
    ):
        yield choice_refused(
            "surrogate", variant.surrogate, "OpenRLHF has PPO's clip and GSPO only. Set surrogate=clip."
        )
    rule = variant.aggregation
    if not isinstance(rule, (TokenMean, SequenceMean)):
        ways = (
            "aggregation=sequence_mean" if is_gspo(variant) else "aggregation=token_mean or aggregation=sequence_mean"
        )
        yield choice_refused("aggregation", rule, f"OpenRLHF averages over tokens or over responses. Set {ways}.")
    elif rule.drops_rows:
        yield field_refused(
            "aggregation.rows", "signal", "OpenRLHF trains on every response. Set aggregation.rows=all."
        )
    elif is_gspo(variant) and isinstance(rule, TokenMean):
        yield choice_refused("aggregation", rule, "its gspo averages over responses. Set aggregation=sequence_mean.")
    if variant.tokens.whole_batch:
        yield choice_refused("tokens", variant.tokens, "OpenRLHF has no choice of tokens. Set tokens=all.")


def _ratio(variant: Variant) -> Iterator[str]:
    ratio: Any = variant.ratio
    if not isinstance(ratio, (NoRatio, TokenRatio, SequenceRatio, SequenceTokenRatio)):
        yield choice_refused("ratio", ratio, "OpenRLHF has the token's ratio and GSPO's. Set ratio=token.")
        return
    if isinstance(ratio, NoRatio):
        return
    if ratio.anchor == "rollout" and not is_gspo(variant):
        yield field_refused("ratio.anchor", "rollout", "OpenRLHF compares with the old policy. Set ratio.anchor=old.")
    for side in ("bound_low", "bound_high"):
        value, allowed = getattr(ratio, side), RATIO_BOUNDS[is_gspo(variant)]
        if value not in allowed:
            yield field_refused(f"ratio.{side}", value, f"it has no flag. Set ratio.{side}={written(allowed[0])}.")


def _kl(variant: Variant) -> Iterator[str]:
    kl = variant.kl
    if kl is None or kl.beta == 0:
        return
    if isinstance(kl, Abs):
        yield choice_refused("kl", kl, "OpenRLHF has k1, k2 and k3. Set kl=k3.")
    if kl.gradient == "k2" and kl.estimator != "k2":
        yield field_refused("kl.gradient", "k2", "OpenRLHF's own correction weighs it by the ratio. Set kl=k2.")
    if kl.weighted != "none":
        yield field_refused(
            "kl.weighted", kl.weighted, "OpenRLHF does not differentiate that weight. Set kl.weighted=none."
        )
    if kl.exempt is not None:
        yield field_refused("kl.exempt", kl.exempt, "OpenRLHF adds the KL term to every token. Set kl.exempt=none.")
    if kl.placement == "reward" and estimator_of(variant) not in (None, "reinforce"):
        yield field_refused(
            "kl.placement", "reward", "OpenRLHF adds it after baseline and scale. Set kl.placement=loss."
        )
    if kl.placement == "loss" and not isinstance(variant.aggregation, TokenMean):
        yield field_refused(
            "kl.placement", "loss", "its KL is a mean over tokens. Set kl=none, or aggregation=token_mean."
        )
    for field, allowed in KL_FIELDS.items():
        if getattr(kl, field) not in allowed:
            value = getattr(kl, field)
            yield field_refused(f"kl.{field}", value, f"it has no flag. Set kl.{field}={written(allowed[0])}.")


def _correction(variant: Variant) -> Iterator[str]:
    if not variant.correction:
        return
    word = "+".join(choice_name("correction", part) for part in variant.correction)
    if len(variant.correction) > 1 or not isinstance(variant.correction[0], (TokenTruncate, TokenMask)):
        yield (
            f"correction={word}: OpenRLHF truncates or masks one weight per token. Set correction=token_truncate, or "
            "correction=none."
        )
    elif is_gspo(variant):
        yield f"correction={word}: its gspo drops the correction without a message. Set correction=none."


def _rollout(variant: Variant) -> Iterator[str]:
    rule = variant.filter
    if rule.drops and rule.metric is not None:
        yield field_refused(
            "filter.metric", rule.metric, "OpenRLHF goes by the function's scores. Leave filter.metric out."
        )
    if rule.drops and rule.max_rounds not in (None, ZeroVariance().max_rounds):
        yield field_refused(
            "filter.max_rounds", rule.max_rounds, "OpenRLHF draws until the batch is full. Leave filter.max_rounds out."
        )
    if variant.overlong.masks:
        yield (
            "overlong=mask: OpenRLHF trains on truncated responses. Set overlong=penalty,overlong.buffer=<tokens>, or "
            "overlong=keep."
        )
    if variant.overlong.statistics == "drop":
        yield field_refused(
            "overlong.statistics", "drop", "their rewards stay in the group. Set overlong.statistics=keep."
        )


def notes(variant: Variant) -> Iterator[str]:
    """What OpenRLHF does otherwise than the variant says, although it runs it."""
    estimator = estimator_of(variant)
    if estimator in ("rloo", "dr_grpo", "group_norm", "reinforce_baseline"):
        yield "set --rollout.n_samples_per_prompt above 1: this estimator compares the responses to a prompt"
    if estimator == "group_norm":
        yield "1e-9 is added to the deviation: in float32 equal rewards such as eight of 0.1 get advantages far from 0"
    yield "advantages are clipped at 10 on both sides (--reward.clip_range)"
    if variant.kl is not None and variant.kl.beta and variant.kl.value_bound != 10.0:
        yield "each token's KL estimate is clamped at 10 on both sides"
    if isinstance(variant.ratio, NoRatio):
        yield "on policy only: set --train.batch_size to --rollout.batch_size times --rollout.n_samples_per_prompt"
    if isinstance(variant.aggregation, SequenceMean) and variant.aggregation.empty_rows == "count":
        yield "a response without a token is left out of the number of responses"
    if variant.filter.drops:
        yield "groups are kept by 0 < mean score < 1, for scores of 0 and 1, and new prompts are drawn without a bound"
        yield "the filter needs --reward.remote_url or --train.agent_func_path"
    if variant.overlong.punishes:
        yield "set --rollout.max_new_tokens: the penalty is counted back from it"
