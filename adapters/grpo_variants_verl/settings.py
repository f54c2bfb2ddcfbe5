"""From verl's configuration to variants: what each end computes, with the options and fields that tune it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from grpo_variants import verl_words as words
from grpo_variants.aggregation import PromptMean
from grpo_variants.catalogue import all_names, find, names, registered
from grpo_variants.checks import check_choice, did_you_mean, unknown
from grpo_variants.names import PREFIX
from grpo_variants.options import configure, read_options
from grpo_variants.variant import AXES, End, Variant

NODE = "algorithm.grpo_variants"
SWITCHES = ("extend_host", "health", "print_card")
NODE_KEYS = ("options", "step_rewards", *SWITCHES)
STEP_REWARDS = ("nonzero",)
# verl's defaults: a field that still has its default was not moved by the user.
CLIP_FIELDS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
CLIP_DEFAULT, DUAL_DEFAULT, GAMMA_DEFAULT = 0.2, 3.0, 1.0

_ELSEWHERE: Mapping[End, str] = {
    "advantage": f"""'+{words.OPTIONS}="{{option}}"'""",
    "objective": f"""{words.LOSS_TARGET}={words.LOSS_CONFIG} '+{words.LOSS_OPTIONS}="{{option}}"'""",
}


@dataclass(frozen=True)
class Chosen:
    """A variant at one end of verl, and where its values come from, by the keys of a spec string."""

    variant: Variant
    origins: Mapping[str, str] = dataclasses.field(hash=False)


def base_name(word: str, where: str) -> str:
    """Variant name of a `gv_` word, however it is written.

    Raises ValueError for an unknown one, and for one with options, with the line that is right.
    """
    name, comma, rest = word.partition(",")
    found = find(name)
    if found is None:
        hint = did_you_mean(word, [PREFIX + n for n in names()])
        raise ValueError(f"{where}={word!r} is unknown.{hint} {all_names()}")
    if comma:
        end: End = "advantage" if where == words.ESTIMATOR else "objective"
        right = f"{where}={PREFIX}{found.name} {_ELSEWHERE[end].format(option=rest)}"
        raise ValueError(f"{where} takes a name without options; options go beside it: {right}")
    return found.name


def estimator_choice(name: str, config: Any) -> Chosen:
    """The advantage rule of an estimator under verl's `algorithm` section (None for the variant as registered)."""
    node = node_of(config)
    gamma = GAMMA_DEFAULT if config is None else float(config.get("gamma", GAMMA_DEFAULT))
    return _estimator(name, str(node.get("options") or ""), gamma)


def loss_choice(name: str, actor: Any) -> Chosen:
    """The objective of a policy loss under verl's actor config or `actor_rollout_ref.actor` section."""
    options = str(actor.policy_loss.get("options") or "")
    return _loss(name, options, *(actor.get(field) for field in CLIP_FIELDS))


def check_loss_options(name: str, options: str) -> None:
    """Raise ValueError for loss options that mean nothing for a variant."""
    _loss(name, options, None, None, None, None)


def node_of(config: Any) -> Mapping[str, Any]:
    """The `algorithm.grpo_variants` section; empty where there is none."""
    node = None if config is None else config.get("grpo_variants")
    return {} if node is None else node


def check_node(node: Any) -> None:
    """Raise ValueError for a setting of `algorithm.grpo_variants` that does not exist."""
    if not hasattr(node, "keys"):
        raise ValueError(f"{NODE} is a section; write '+{words.OPTIONS}=\"...\"'.")
    for key in node:
        if key not in NODE_KEYS:
            raise ValueError(unknown(f"{NODE}.{key} is unknown", str(key), NODE_KEYS))
    for key in SWITCHES:
        if node.get(key) not in (None, True, False):
            raise ValueError(f"{NODE}.{key}={node.get(key)!r} is no switch; allowed: True, False.")
    step_rewards = node.get("step_rewards")
    if step_rewards is not None:
        check_choice(words.STEP_REWARDS, step_rewards, STEP_REWARDS)


@lru_cache(maxsize=256)
def _estimator(name: str, options: str, gamma: float) -> Chosen:
    given = _owned(options, "advantage")
    origins = dict.fromkeys(given, words.OPTIONS)
    base = _at_end(name, "advantage")
    credit = _tuned(base, {k: v for k, v in given.items() if k == "credit"}, {}, words.OPTIONS).variant.credit
    if gamma != GAMMA_DEFAULT and hasattr(credit, "gamma"):
        _adopt(given, origins, "credit.gamma", gamma, "algorithm.gamma")
    return _tuned(base, given, origins, words.OPTIONS)


@lru_cache(maxsize=256)
def _loss(name: str, options: str, both: float | None, low: float | None, high: float | None, dual: Any) -> Chosen:
    given = _owned(options, "objective")
    origins = dict.fromkeys(given, words.LOSS_OPTIONS)
    base = _at_end(name, "objective")
    plain = _tuned(base, given, origins, words.LOSS_OPTIONS).variant.surrogate
    for field, value, source in moved_clips(both, low, high, dual):
        if hasattr(plain, field):
            _adopt(given, origins, f"surrogate.{field}", value, f"{words.ACTOR}.{source}")
    return _tuned(base, given, origins, words.LOSS_OPTIONS)


def moved_clips(both: Any, low: Any, high: Any, dual: Any) -> list[tuple[str, float, str]]:
    """Clip fields of verl that no longer have their default: (field of the surrogate, value, verl's name)."""
    moved: list[tuple[str, float, str]] = []
    for field, value in (("low", low), ("high", high)):
        if value is not None and value != CLIP_DEFAULT:
            moved.append((field, float(value), f"clip_ratio_{field}"))
        elif both is not None and both != CLIP_DEFAULT:
            moved.append((field, float(both), "clip_ratio"))
    if dual is not None and dual != DUAL_DEFAULT:
        moved.append(("dual", float(dual), "clip_ratio_c"))
    return moved


def _at_end(name: str, end: End) -> Variant:
    """A registered variant with only the axes of one end; the others neutral, so that they cannot refuse anything."""
    base, neutral = registered(name), Variant(name=name)
    kept = words.axes_of(end) + (("aggregation",) if end == "advantage" else ())
    foreign = {axis: getattr(neutral, axis) for axis in AXES if axis not in kept}
    return replace(base, **foreign)


def _owned(options: str, end: End) -> dict[str, Any]:
    """Options as a dict; raises ValueError for an axis that another end owns, with the line that mends it."""
    given: dict[str, Any] = dict(read_options(options))
    for key, value in given.items():
        axis = key.partition(".")[0]
        carried = end == "advantage" and key == "aggregation" and value == "prompt_mean"
        if axis in AXES and axis not in words.axes_of(end) and not carried:
            where = words.OPTIONS if end == "advantage" else words.LOSS_OPTIONS
            raise ValueError(f"{where}: {_not_here(key, f'{key}={value}', axis)}")
    return given


def _not_here(key: str, option: str, axis: str) -> str:
    ends = AXES[axis].ends
    for end, line in _ELSEWHERE.items():
        if end in ends:
            return f"{key} is an option of the other end; write {line.format(option=option)}"
    return f"{key} acts while responses are sampled, which verl does; see `grpo-variants translate` for its settings."


def _adopt(given: dict[str, Any], origins: dict[str, str], key: str, value: float, source: str) -> None:
    """Take a value from verl's own field; raises ValueError where an option says something else."""
    if key in given and not math.isclose(float(given[key]), value):
        raise ValueError(f"{source}={value} and {key}={given[key]} in {origins[key]} disagree; set one of them.")
    given[key], origins[key] = value, source


def _tuned(base: Variant, given: dict[str, Any], origins: dict[str, str], where: str) -> Chosen:
    try:
        return Chosen(configure(base, given), origins)
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if given else str(error)) from None


def carries_prompt_mean(variant: Variant) -> bool:
    """Whether an estimator has to scale its advantages, since the loss cannot weigh by group."""
    return isinstance(variant.aggregation, PromptMean)
