"""`grpo-variants translate SPEC --to verl|trl`: the settings that make a trainer run a variant."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import typer

from grpo_variants.advantage.baseline import Greedy
from grpo_variants.advantage.credit import Outcome, Process
from grpo_variants.advantage.scale import NoScale
from grpo_variants.names import PREFIX
from grpo_variants.objective.aggregation import Aggregation, lacks_length
from grpo_variants.spec import get, spelt
from grpo_variants.tensors.checks import check_choice
from grpo_variants.trainers.trl.limits import trl_refusals
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

HOSTS = ("trl", "verl")


def translate(
    spec: Annotated[str, typer.Argument(help="A variant, or a spec string such as 'dapo,kl=k3,kl.beta=0.01'.")],
    to: Annotated[str, typer.Option("--to", help="The trainer: trl or verl.")],
) -> None:
    """Print the settings of a trainer that run a variant: overrides for verl, YAML for TRL."""
    check_choice("--to", to, HOSTS)
    variant = get(spec)
    printed = verl_lines(variant) if to == "verl" else trl_lines(variant)
    typer.echo("\n".join(printed))


def verl_lines(variant: Variant) -> Iterator[str]:
    """Notes as shell comments, then the overrides as the words of one shell command, one a line."""
    settings = run_settings(variant)
    for note in notes(variant):
        yield f"# {note}"
    quoted = [shlex.quote(override) for override in words.overrides(settings)]
    yield from (f"{word} \\" for word in quoted[:-1])
    yield quoted[-1]


def trl_lines(variant: Variant) -> Iterator[str]:
    """YAML for `grpo-variants trl --config`: the loss type carries the whole variant.

    Raises ValueError where TRL cannot run it, with the reason.
    """
    if refusals := list(trl_refusals(variant)):
        raise ValueError(f"{variant.name}: {' '.join(refusals)}")
    if isinstance(variant.baseline, Greedy):
        yield "# draws one more response per prompt, greedily"
    yield f'loss_type: "{PREFIX}{variant}"'
    if lacks_length(variant.aggregation):
        yield "# the constant of the aggregation is max_completion_length"


def run_settings(variant: Variant) -> words.Settings:
    """Everything that makes verl run a variant.

    Raises ValueError where verl cannot, with the reason and the next best thing.
    """
    over = words.carried_over(variant.aggregation)
    pair = over is not None
    objective = variant if over is None else replace(variant, aggregation=over)
    found = [] if _is_remax(variant) else list(advantage_refusals(variant))
    found += loss_refusals(variant if takes_kl(variant) or (pair and not homogeneous(variant)) else objective)
    refusals = [*(finding.in_a_spec() for finding in found), *rollout_refusals(variant)]
    if refusals:
        raise ValueError(" ".join(refusals))
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
    if isinstance(variant.credit, Process):
        settings[words.STEP_REWARDS] = "nonzero"
    settings[words.LOSS_MODE] = word
    if objective:
        settings |= {words.LOSS_TARGET: words.LOSS_CONFIG, words.LOSS_OPTIONS: objective}
    return settings


def _is_remax(variant: Variant) -> bool:
    """Whether the advantage rule is that of verl's own remax, the only one that it draws greedy responses for."""
    plain = isinstance(variant.scale, NoScale) and isinstance(variant.credit, Outcome)
    return plain and isinstance(variant.baseline, Greedy)
