"""How verl is told to run a variant: overrides of its configuration."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from grpo_variants.advantage.baseline import Greedy
from grpo_variants.advantage.credit import Outcome
from grpo_variants.advantage.scale import NoScale
from grpo_variants.names import PREFIX
from grpo_variants.objective.aggregation import Aggregation
from grpo_variants.spec import get
from grpo_variants.spelling import spelt
from grpo_variants.trainers.verl import words
from grpo_variants.trainers.verl.limits import (
    advantage_refusals,
    homogeneous,
    loss_refusals,
    notes,
    rollout_refusals,
    takes_kl,
)
from grpo_variants.variant import Variant


def verl_lines(variant: Variant) -> Iterator[str]:
    """Notes as shell comments, then the overrides as the words of one shell command, one per line."""
    settings = run_settings(variant)
    for note in notes(variant):
        yield f"# {note}"
    quoted = [shlex.quote(override) for override in words.overrides(settings)]
    yield from (f"{word} \\" for word in quoted[:-1])
    yield quoted[-1]


def run_settings(variant: Variant) -> words.Settings:
    """Everything that makes verl run a variant.

    Raises ValueError where verl cannot, with the reason and the next best thing.
    """
    if found := refusals(variant):
        raise ValueError(" ".join(found))
    over = words.carried_over(variant.aggregation)
    return {
        **_end_settings(variant, over),
        **words.aggregation_settings(variant),
        **words.kl_in_loss_settings(variant.kl),
        **words.kl_in_reward_settings(variant.kl),
        **words.clip_settings(variant),
        **words.correction_settings(variant),
        **words.filter_settings(variant),
        **words.overlong_settings(variant),
    }


def refusals(variant: Variant) -> list[str]:
    """Why verl cannot run a variant, with the next best thing; nothing where it can."""
    over = words.carried_over(variant.aggregation)
    pair = over is not None
    objective = variant if over is None else replace(variant, aggregation=over)
    found = [] if _is_remax(variant) else list(advantage_refusals(variant))
    found += loss_refusals(variant if takes_kl(variant) or (pair and not homogeneous(variant)) else objective)
    return [*(finding.in_a_spec() for finding in found), *rollout_refusals(variant)]


def _end_settings(variant: Variant, over: Aggregation | None) -> words.Settings:
    """Names and options of the estimator and of the policy loss, which aggregates `over` what the advantages carry."""
    word = PREFIX + variant.name
    advantage = words.options_of(variant, words.axes_of("advantage"))
    objective = words.options_of(variant, words.axes_of("objective"))
    if over is not None:
        advantage = ",".join(filter(None, (advantage, spelt(words.aggregation_options(variant.aggregation)))))
        kept = [piece for piece in objective.split(",") if piece and not piece.startswith("aggregation")]
        objective = ",".join([*kept, spelt(words.aggregation_options(over))])
    elif words.carried_over(get(variant.name).aggregation) is not None:  # which the estimator has by its name
        advantage = ",".join(filter(None, (advantage, spelt(words.aggregation_options(variant.aggregation)))))
    settings: words.Settings = {words.ESTIMATOR: word}
    if _is_remax(variant):
        settings = {words.ESTIMATOR: "remax", words.V1: False}
    elif advantage:
        settings[words.OPTIONS] = advantage
    if "step_ends" in variant.rollout_inputs:
        settings[words.STEP_REWARDS] = "nonzero"
    settings[words.LOSS_MODE] = word
    if objective:
        settings |= {words.LOSS_TARGET: words.LOSS_CONFIG, words.LOSS_OPTIONS: objective}
    return settings


def _is_remax(variant: Variant) -> bool:
    """Whether the advantage rule is that of verl's own remax, the only one that it draws greedy responses for."""
    plain = isinstance(variant.scale, NoScale) and isinstance(variant.credit, Outcome)
    return plain and isinstance(variant.baseline, Greedy)
