"""From verl's configuration to variants: what estimator and loss compute, and what tunes them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from grpo_variants.axes import AXES, Stage
from grpo_variants.names import PREFIX
from grpo_variants.objective.surrogate import Cispo
from grpo_variants.options import coerce, read_options
from grpo_variants.registry import all_names, find, names, registered
from grpo_variants.spec import configure
from grpo_variants.tensors.checks import did_you_mean, unknown
from grpo_variants.trainers.verl import words
from grpo_variants.trainers.verl.findings import Finding, Fix, Refused
from grpo_variants.variant import Variant

NODE = "algorithm.grpo_variants"
SWITCHES = ("extend_host", "health", "print_card")
NODE_KEYS = ("options", "step_rewards", *SWITCHES)
STEP_REWARDS = ("nonzero",)
GAMMA_DEFAULT = 1.0  # verl's
_OPTIONS: Mapping[Stage, str] = {"advantage": words.OPTIONS, "objective": words.LOSS_OPTIONS}
_OTHER: Mapping[Stage, Stage] = {"advantage": "objective", "objective": "advantage"}


@dataclass(frozen=True)
class Chosen:
    """A variant at one stage of verl, and where its values come from, by the keys of a spec string."""

    variant: Variant
    origins: Mapping[str, str] = dataclasses.field(hash=False)


def base_name(word: str, where: str) -> str:
    """Variant name of a `gv_` word, however it is written.

    Raises Refused for an unknown one, and for one with options, with the line that fixes it.
    """
    name, comma, rest = word.partition(",")
    found = find(name)
    if found is None:
        hint = did_you_mean(word, [PREFIX + n for n in names()])
        raise Refused(Finding(f"{where}={word!r} is unknown.{hint} {all_names()}"))
    if comma:
        stage: Stage = "advantage" if where == words.ESTIMATOR else "objective"
        own, theirs = _parted(found.name, read_options(rest), stage)
        changes: dict[str, Any] = {stage: own, _OTHER[stage]: theirs}
        fix = Fix({where: PREFIX + found.name}, **changes, name=found.name)
        raise Refused(Finding(f"{where} takes a name without options; options go beside it.", (fix,)))
    return found.name


def _parted(name: str, options: Mapping[str, str], stage: Stage) -> tuple[dict[str, str], dict[str, str]]:
    """Options that stay at a stage, and those that belong to the other one."""
    strange = _strange(name, options, stage)
    theirs = {key: options[key] for key in strange if _OTHER[stage] in AXES[key.partition(".")[0]].stages}
    return {key: value for key, value in options.items() if key not in theirs}, theirs


def estimator_choice(name: str, config: Any) -> Chosen:
    """The advantage rule of an estimator under verl's `algorithm` section (None for the variant as registered)."""
    node = node_of(config)
    gamma = GAMMA_DEFAULT if config is None else float(config.get("gamma", GAMMA_DEFAULT))
    return _estimator(name, str(node.get("options") or ""), gamma)


def loss_choice(name: str, actor: Any) -> Chosen:
    """The objective of a policy loss under verl's actor config or `actor_rollout_ref.actor` section."""
    get = getter(actor)
    moved = words.moved_fields(get)
    return _loss(name, str(get(words.LOSS_OPTIONS) or ""), tuple(moved.items()))


def getter(actor: Any) -> words.Get:
    """Values of an actor config or section by their whole keys; None where it lacks one."""

    def get(key: str) -> Any:
        node = actor
        for part in key.removeprefix(f"{words.ACTOR}.").split("."):
            node = None if node is None else node.get(part)
        return node

    return get


def check_loss_options(name: str, options: str) -> None:
    """Raise ValueError for loss options that a variant does not have."""
    _loss(name, options, ())


def node_of(config: Any) -> Mapping[str, Any]:
    """The `algorithm.grpo_variants` section; empty where there is none."""
    node = None if config is None else config.get("grpo_variants")
    return {} if node is None else node


def check_node(node: Any) -> None:
    """Raise ValueError for a setting of `algorithm.grpo_variants` that does not exist."""
    if not hasattr(node, "keys"):
        given = words.shell({words.OPTIONS: str(node)})
        raise ValueError(f"{NODE}={node} is a section; write {given} in its place.")
    for key in node:
        if key not in NODE_KEYS:
            raise ValueError(unknown(f"{NODE}.{key} is unknown", str(key), NODE_KEYS))
    for key in SWITCHES:
        if node.get(key) not in (None, True, False):
            raise ValueError(f"{NODE}.{key}={node.get(key)!r} is no switch; allowed: True, False.")
    step_rewards = node.get("step_rewards")
    if step_rewards is not None and step_rewards not in STEP_REWARDS:
        fixes = tuple(Fix({words.STEP_REWARDS: word}) for word in STEP_REWARDS)
        raise Refused(Finding(f"{words.STEP_REWARDS}={step_rewards!r} is unknown.", fixes))


@dataclass(frozen=True)
class _Adopted:
    """A field of a variant that verl's own configuration sets.

    key: of a spec string, with its value. source: verl's key, moved: the value it was set to. undo: verl's defaults.
    """

    key: str
    value: float | None
    source: str
    moved: float
    undo: words.Settings


@lru_cache(maxsize=256)
def _estimator(name: str, options: str, gamma: float) -> Chosen:
    base, given = _at_stage(name, "advantage"), _owned(name, options, "advantage")
    return _tuned(base, given, _discount(base, given, gamma), words.OPTIONS)


@lru_cache(maxsize=256)
def _loss(name: str, options: str, moved: tuple[tuple[str, float], ...]) -> Chosen:
    base, given = _at_stage(name, "objective"), _owned(name, options, "objective")
    return _tuned(base, given, list(_moved(base, given, dict(moved))), words.LOSS_OPTIONS)


def _discount(base: Variant, given: Mapping[str, str], gamma: float) -> list[_Adopted]:
    """verl's discount, where the rule has one."""
    credit = AXES["credit"].choices.get(str(given.get("credit")), type(base.credit))
    if gamma == GAMMA_DEFAULT or all(field.name != "gamma" for field in dataclasses.fields(credit)):
        return []
    return [_Adopted("credit.gamma", gamma, words.GAMMA, gamma, {words.GAMMA: GAMMA_DEFAULT})]


def _moved(base: Variant, given: Mapping[str, str], moved: Mapping[str, float]) -> Iterator[_Adopted]:
    """verl's fields of the policy loss that were changed, where the surrogate has a counterpart."""
    cls = AXES["surrogate"].choices.get(str(given.get("surrogate")), type(base.surrogate))
    for field, keys in words.loss_fields(cls).items():
        found = [key for key in keys if key in moved]
        if not found:
            continue
        source, value = f"{words.ACTOR}.{found[0]}", moved[found[0]]
        undo = {f"{words.ACTOR}.{key}": words.LOSS_DEFAULTS[key] for key in found}
        yield _Adopted(f"surrogate.{field}", value, source, value, undo)
        if cls is Cispo and field == "high":  # the bound 1 + high, in place of the cap that the paper states
            yield _Adopted("surrogate.cap", None, source, value, undo)


def _at_stage(name: str, stage: Stage) -> Variant:
    """A registered variant with the axes of one stage; the others are neutral, so that they refuse nothing."""
    base, neutral = registered(name), Variant(name=name)
    kept = words.axes_of(stage) + (("aggregation",) if stage == "advantage" else ())
    foreign = {axis: getattr(neutral, axis) for axis in AXES if axis not in kept}
    return replace(base, **foreign)


def _owned(name: str, options: str, stage: Stage) -> dict[str, str]:
    """Options as a dict; raises Refused for an axis of another stage, with the lines that fix it."""
    given = read_options(options)
    strange = {key: given[key] for key in _strange(name, given, stage)}
    if strange:
        raise Refused(_misplaced(name, strange, stage))
    return given


def _strange(name: str, options: Mapping[str, str], stage: Stage) -> list[str]:
    """Options that do not belong to a stage; an axis that does not exist is refused elsewhere.

    Where the advantages carry the weights of an aggregation, its options are theirs.
    """
    chosen: Any = AXES["aggregation"].choices.get(options.get("aggregation", ""))
    rules = [registered(name).aggregation, *([] if chosen is None else [chosen()])]
    carries = "aggregation.rows" in options or any(map(words.carried_over, rules))
    carried = {"aggregation"} if stage == "advantage" and carries else set()
    axes = {key: key.partition(".")[0] for key in options}
    return [
        key for key, axis in axes.items() if axis in AXES and axis not in carried and stage not in AXES[axis].stages
    ]


def _misplaced(name: str, options: Mapping[str, str], stage: Stage) -> Finding:
    """Options at the wrong stage, and where they belong."""
    sampling, theirs = _parted(name, options, stage)
    text = f"{_OPTIONS[stage]}: {', '.join(theirs)} belongs to the other stage." if theirs else f"{_OPTIONS[stage]}:"
    if sampling:
        text += f" {', '.join(sampling)} acts while responses are sampled, which verl does."
    sampled = configure(registered(name), sampling)
    settings = {
        **(words.filter_settings(sampled) if any(key.startswith("filter") for key in sampling) else {}),
        **(words.overlong_settings(sampled) if any(key.startswith("overlong") for key in sampling) else {}),
    }
    changes: dict[str, Any] = {stage: dict.fromkeys(options), _OTHER[stage]: theirs}
    return Finding(text, (Fix(settings, **changes, name=name),))


def _tuned(base: Variant, given: Mapping[str, str], adopted: Sequence[_Adopted], where: str) -> Chosen:
    """A variant with options, and with verl's own fields; raises Refused where the two disagree."""
    values: dict[str, Any] = dict(given)
    origins = dict.fromkeys(given, where)
    for field in adopted:
        if field.key in given and not _agree(given[field.key], field):
            text = f"{field.source}={field.moved} and {field.key}={given[field.key]} in {where} disagree."
            raise Refused(Finding(text, (Fix(field.undo),)))
        values[field.key], origins[field.key] = field.value, field.source
    try:
        return Chosen(configure(base, values), origins)
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if given else str(error)) from None


def _agree(text: str, field: _Adopted) -> bool:
    option = coerce(field.key, text, float | None)
    if option is None or field.value is None:
        return option is field.value
    return math.isclose(option, field.value)
