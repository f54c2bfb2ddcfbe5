"""Combinations that mean nothing: what a part takes, what it got, and the options that lead out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_variants.advantage import baseline, credit, scale, selection, token_credit
from grpo_variants.advantage import reward_transform as transform
from grpo_variants.axes import AXES
from grpo_variants.objective import ratio
from grpo_variants.objective.surrogate import Aspo
from grpo_variants.spelling import resolved_values

# A `Variant`, which stands above this module: a record that has every axis, and a name.
Variant = Any
# Options that change a variant, by the keys of a spec string.
Way = Mapping[str, str]

# The most alternatives that an error proposes.
_SHOWN = 5


class Meaningless(ValueError):
    """Parts that do not go together: the variant that they would make, and what is wrong with it."""

    complaint: str = ""
    variant: Variant


@dataclass(frozen=True)
class Fence:
    """A combination that means nothing.

    part: axis of the part that does not go with the others. others: keys of what it got. forbids: whether a variant has
    the combination. takes: what the part takes, after its name. ways: what to choose instead, for a variant.
    """

    part: str
    others: tuple[str, ...]
    forbids: Callable[[Variant], Any]
    takes: str
    ways: Callable[[Variant], Iterable[Way]]

    def complaint(self, variant: Variant) -> str:
        """What the part takes and what it got."""
        got = ", ".join(_written(variant, key) for key in self.others)
        takes = self.takes.format(ratios=" or ".join(way["ratio"] for way in _ratios(variant)))
        return f"{variant.name}: {_written(variant, self.part)} {takes}; got {got}."


def check_fences(variant: Variant) -> None:
    """Raise Meaningless for parts that do not go together, with what to choose instead."""
    fence = _broken(variant)
    if fence is None:
        return
    error = Meaningless(" ".join([fence.complaint(variant), *propose(map(_spelt, ways_out(variant)))]))
    error.complaint, error.variant = fence.complaint(variant), variant
    raise error


def propose(ways: Iterable[str]) -> Iterator[str]:
    """The sentence that proposes options; nothing where there are none."""
    shown = list(dict.fromkeys(ways))[:_SHOWN]
    if shown:
        yield f"Choose {_either(shown)}."


def _either(words: Sequence[str]) -> str:
    return ", ".join([*words[:-1], f"or {words[-1]}"] if words[1:] else words)


def _broken(variant: Variant) -> Fence | None:
    return next((fence for fence in FENCES if fence.forbids(variant)), None)


def ways_out(variant: Variant, keep: Iterable[str] = (), more: int = 2) -> list[Way]:
    """What leads out of a combination that means nothing, each way by itself; without touching some keys.

    One of the fence's own ways, or, where each of them runs into another fence, with that one's.
    """
    fence = _broken(variant)
    single: list[Way] = []
    joined: list[Way] = []
    for way in () if fence is None else fence.ways(variant):
        if set(way) & set(keep):
            continue
        changed = _changed(variant, way)
        if _broken(changed) is None:
            single.append(way)
        elif more:
            joined += [{**way, **then} for then in ways_out(changed, {*keep, *way}, more - 1)]
    return single or sorted(joined, key=len)


def _changed(variant: Variant, way: Way) -> Variant:
    """A variant with other parts, unchecked."""
    changed = copy.copy(variant)
    for key, value in way.items():
        axis, _, field = key.partition(".")
        cls: Any = AXES[axis].choices.get(value)
        part = replace(getattr(changed, axis), **{field: None if value == "none" else value}) if field else cls()
        object.__setattr__(changed, axis, part)
    return changed


def _spelt(way: Way) -> str:
    return ",".join(f"{key}={value}" for key, value in way.items())


def _written(variant: Variant, key: str) -> str:
    """A choice or a field of a variant as a spec string has it."""
    return f"{key}={resolved_values(variant)[key]}"


def _fixed(*ways: Way) -> Callable[[Variant], Iterable[Way]]:
    return lambda variant: ways


def _ratios(variant: Variant) -> list[Way]:
    """The ratios that a surrogate is defined on."""
    kinds: Any = variant.surrogate.ratios or tuple(AXES["ratio"].choices.values())
    return [{"ratio": word} for word, cls in AXES["ratio"].choices.items() if word != "none" and cls in kinds]


_OF_BATCH = (scale.BatchStd, scale.SignalShare, scale.BetaDensity)
_STEP_BASELINES = (baseline.NoBaseline, baseline.GroupMean, baseline.BatchMean)
_SAMPLED = ("group_mean", "leave_one_out", "batch_mean", "none")

FENCES: tuple[Fence, ...] = (
    Fence(
        "baseline",
        ("credit",),
        lambda v: getattr(v.baseline, "remembers", False) and not isinstance(v.credit, credit.Outcome),
        "remembers the rewards of earlier steps and takes one reward per response",
        _fixed({"credit": "outcome"}, {"baseline": "group_mean"}, {"baseline": "none"}),
    ),
    Fence(
        "scale",
        ("credit",),
        lambda v: getattr(v.scale, "remembers", False) and not isinstance(v.credit, credit.Outcome),
        "remembers the rewards of earlier steps and takes one reward per response",
        _fixed({"credit": "outcome"}, {"scale": "group_std"}, {"scale": "none"}),
    ),
    Fence(
        "scale",
        ("baseline",),
        lambda v: isinstance(v.scale, scale.SmoothedStd) and not isinstance(v.baseline, baseline.GroupMean),
        "takes baseline=group_mean, since it subtracts the means of the step and of all steps itself",
        _fixed({"baseline": "group_mean"}, {"scale": "group_std"}),
    ),
    Fence(
        "scale",
        ("baseline",),
        lambda v: isinstance(v.scale, scale.KalmanStd) and not isinstance(v.baseline, baseline.Kalman),
        "takes baseline=kalman, the filter whose deviation it is",
        _fixed({"baseline": "kalman"}, {"scale": "group_std"}),
    ),
    Fence(
        "transform",
        ("credit",),
        lambda v: not isinstance(v.transform, transform.NoTransform) and not v.credit.of_outcome,
        "changes a response's reward as a whole and takes a credit that reads that",
        _fixed({"credit": "outcome"}, {"transform": "none"}),
    ),
    Fence(
        "surrogate",
        ("ratio",),
        lambda v: v.surrogate.needs_ratio and isinstance(v.ratio, ratio.NoRatio),
        "is made of an importance ratio",
        lambda v: [{"surrogate": "reinforce"}, *_ratios(v)],
    ),
    Fence(
        "surrogate",
        ("ratio",),
        lambda v: v.surrogate.needs_ratio and v.surrogate.ratios and not isinstance(v.ratio, v.surrogate.ratios),
        "is defined on ratio={ratios}",
        _ratios,
    ),
    Fence(
        "surrogate",
        ("credit",),
        lambda v: v.surrogate.per_response and v.credit.per_token,
        "takes one advantage per response, not one per token",
        _fixed({"credit": "outcome"}, {"surrogate": "clip"}),
    ),
    Fence(
        "surrogate",
        ("ratio",),
        lambda v: isinstance(v.surrogate, Aspo) and v.surrogate.fraction is not None and v.ratio.per_sequence,
        "has a range by the entropy of each token and takes one ratio per token",
        _fixed({"ratio": "token"}, {"ratio": "sequence_token"}, {"surrogate.fraction": "none"}),
    ),
    Fence(
        "ratio",
        ("credit",),
        lambda v: v.ratio.per_sequence and v.credit.per_token,
        "has one value per response and takes one advantage per response, not one per token",
        _fixed({"ratio": "sequence_token"}, {"ratio": "token"}, {"credit": "outcome"}),
    ),
    Fence(
        "credit",
        ("baseline", "scale"),
        lambda v: (
            getattr(v.credit, "own_rule", False)
            and not (isinstance(v.baseline, baseline.NoBaseline) and isinstance(v.scale, scale.NoScale))
        ),
        "has a baseline and a scale of its own",
        _fixed({"baseline": "none", "scale": "none"}, {"credit": "outcome"}),
    ),
    Fence(
        "selection",
        ("baseline",),
        # A scale over the batch is another one without these groups.
        lambda v: (
            isinstance(v.selection, selection.Mixed) and v.baseline.of_group and not isinstance(v.scale, _OF_BATCH)
        ),
        "leaves out groups of equal rewards, whose advantages a comparison within the group makes 0 anyway",
        _fixed({"baseline": "none"}, {"selection": "none"}),
    ),
    Fence(
        "selection",
        ("credit",),
        lambda v: v.selection.after and v.credit.per_token,
        "goes by one advantage per response, not one per token",
        _fixed({"credit": "outcome"}, {"selection": "none"}),
    ),
    Fence(
        "credit",
        ("kl.placement",),
        lambda v: isinstance(v.credit, token_credit._EntropyCredit) and v.kl_in_reward,
        "tells right from wrong by the reward and shapes it by entropies, where a KL penalty has no place",
        _fixed({"kl.placement": "loss"}, {"credit": "outcome"}),
    ),
    Fence(
        "credit",
        ("kl.placement",),
        lambda v: isinstance(v.credit, credit.Decoupled) and v.kl_in_reward,
        "normalises each reward function by itself, and a KL penalty belongs to none of them",
        _fixed({"kl.placement": "loss"}, {"credit": "outcome"}),
    ),
    Fence(
        "credit",
        ("scale.over",),
        lambda v: isinstance(v.credit, credit.Decoupled) and v.scale.per_token,
        "normalises each reward function over responses, and whitens over tokens in its second stage only",
        _fixed({"scale.over": "responses"}, {"scale.over": "responses", "credit.over": "tokens"}),
    ),
    Fence(
        "credit",
        ("baseline",),
        lambda v: isinstance(v.credit, credit.Decoupled) and isinstance(v.baseline, baseline.Greedy),
        "compares each reward function by itself, and greedy rewards are known as a total",
        _fixed(*({"baseline": word} for word in _SAMPLED), {"credit": "outcome"}),
    ),
    Fence(
        "credit",
        ("baseline",),
        lambda v: isinstance(v.credit, credit.Process) and not isinstance(v.baseline, _STEP_BASELINES),
        "normalises step rewards over the group's steps and takes baseline=group_mean, batch_mean or none",
        _fixed({"baseline": "group_mean"}, {"baseline": "batch_mean"}, {"baseline": "none"}, {"credit": "outcome"}),
    ),
    Fence(
        "credit",
        ("scale.over",),
        lambda v: isinstance(v.credit, credit.Process) and v.scale.per_token,
        "normalises over steps, where scale.over=tokens has no meaning",
        _fixed({"scale.over": "responses"}, {"credit": "outcome"}),
    ),
    Fence(
        "credit",
        ("kl.placement",),
        lambda v: isinstance(v.credit, credit.Process) and v.kl_in_reward,
        "has rewards at step ends only, where a KL penalty per token has no place",
        _fixed({"kl.placement": "loss"}, {"credit": "reward_to_go"}),
    ),
)
