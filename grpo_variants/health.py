"""The health of a run: what a step that learns nothing looks like, and what to say about it.

A trainer hands in one `Observation` per optimizer step, made of numbers that it logs anyway. `HealthCheck` says in one
sentence what is wrong and what to set: at the first step, and again when it lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# Streaks at which a symptom is named: it lasts, and then it has lasted ten and a hundred times as long.
_STREAKS = (3, 30, 300)
# On policy every ratio is 1 up to rounding, so that more than this share of clipped tokens, or a mean ratio this far
# from 1, says that the two log-probabilities do not come from the same policy.
_CLIPPED_ON_POLICY = 0.01
_RATIO_ON_POLICY = 0.1
# Advantages below this are rounding: a batch mean that is subtracted from equal rewards leaves about 1e-8.
_NO_ADVANTAGE = 1e-6
# From this share on, "every token" is meant: single tokens at a rounding error of a bound do not make a run healthy.
_EVERY = 0.99
_MOST = 0.5


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a trainer knows of one optimizer step; None where it does not know.

    overlong: share of the sampled responses that were cut off at the length limit and masked for it.
    identical: share of the groups whose responses are all the same.
    without_reward: share of the responses for which no reward function gave a number.
    largest_advantage: largest absolute advantage of the batch, of whatever the step was made from.
    all_right, all_wrong: share of the groups in which every response is right or wrong.
    loss_tokens: tokens that count in the step's loss.
    gradient_norm: norm of the gradient before clipping.
    clipped: share of the loss tokens whose ratio lies beyond the bounds. ratio: their mean importance ratio.
    on_policy: whether the policy is still the one that sampled the responses.
    cut_weights: share of the correction's weights that it set to 0 or truncated.
    added_kl: coefficient of a KL term that the member does not have as it is defined, and that needs a reference.
    """

    overlong: float | None = None
    identical: float | None = None
    without_reward: float | None = None
    largest_advantage: float | None = None
    all_right: float | None = None
    all_wrong: float | None = None
    loss_tokens: float | None = None
    gradient_norm: float | None = None
    clipped: float | None = None
    ratio: float | None = None
    on_policy: bool = False
    cut_weights: float | None = None
    added_kl: float | None = None


@dataclass(frozen=True)
class Symptom:
    """One way in which a step learns nothing or something else than it should.

    present: whether an observation shows it. cause: what is wrong, as the first half of a sentence. explains: names of
    the symptoms that follow from it and are not named beside it. setting: it follows from the configuration alone, so
    that it is named at the first step and not counted.
    """

    name: str
    present: Callable[[Observation], bool]
    cause: Callable[[Observation], str]
    explains: tuple[str, ...] = ()
    setting: bool = False


def _at_least(value: float | None, share: float) -> bool:
    return value is not None and value >= share


def _no_signal(seen: Observation) -> bool:
    return seen.largest_advantage is not None and seen.largest_advantage < _NO_ADVANTAGE


def _why_no_signal(seen: Observation) -> str:
    """Which of the ways to have no signal it is."""
    if _at_least(seen.without_reward, 1.0):
        return "no reward function gave a number for any response, so every advantage is 0"
    kinds = {"right": seen.all_right or 0.0, "wrong": seen.all_wrong or 0.0}
    for kind, share in kinds.items():
        if share >= 1.0:
            return (
                f"every response of every group is {kind}, or the reward function is constant, so every advantage is 0"
            )
    if sum(kinds.values()) > 0:
        return (
            f"no group has a signal ({kinds['right']:.0%} all right, {kinds['wrong']:.0%} all wrong), so every "
            "advantage is 0"
        )
    return "the reward is the same for all responses of a group, so every advantage is 0"


def _off_on_policy(seen: Observation) -> bool:
    if not seen.on_policy:
        return False
    drifted = seen.ratio is not None and abs(seen.ratio - 1) > _RATIO_ON_POLICY
    return drifted or (seen.clipped is not None and seen.clipped > _CLIPPED_ON_POLICY)


def _why_off(seen: Observation) -> str:
    clipped = "" if seen.clipped is None else f" and {seen.clipped:.1%} of them are clipped"
    mean = "" if seen.ratio is None else f" (mean ratio {seen.ratio:.3g})"
    return f"the tokens' importance ratios are not 1 before the first update{mean}{clipped}"


_LEARNS_NOTHING = ("nothing_scored", "zero_gradient", "no_signal", "identical_responses")

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "all_overlong",
        lambda seen: _at_least(seen.overlong, 1.0),
        lambda seen: "every response was cut off at the length limit and masked as overlong, so nothing is trained",
        _LEARNS_NOTHING,
    ),
    Symptom(
        "identical_responses",
        lambda seen: _at_least(seen.identical, 1.0),
        lambda seen: "all responses of each group are identical, so there is nothing to compare",
        ("no_signal", "nothing_scored", "zero_gradient"),
    ),
    Symptom("no_signal", _no_signal, _why_no_signal, ("nothing_scored", "zero_gradient")),
    Symptom(
        "nothing_scored",
        lambda seen: seen.loss_tokens == 0,
        lambda seen: "no token counts in the loss, so nothing is trained",
        ("zero_gradient",),
    ),
    Symptom(
        "nonfinite_gradient",
        lambda seen: seen.gradient_norm is not None and not math.isfinite(seen.gradient_norm),
        lambda seen: f"the gradient is not finite (norm {seen.gradient_norm})",
    ),
    Symptom(
        "off_on_policy",
        _off_on_policy,
        _why_off,
        ("every_token_clipped",),
    ),
    Symptom(
        "every_token_clipped",
        lambda seen: _at_least(seen.clipped, _EVERY),
        lambda seen: f"{seen.clipped:.0%} of the tokens are clipped and have no gradient from the policy term",
        ("zero_gradient",),
    ),
    Symptom(
        "correction_cuts_most",
        lambda seen: seen.cut_weights is not None and seen.cut_weights > _MOST,
        lambda seen: f"the correction cuts {seen.cut_weights:.0%} of its weights: trainer and engine disagree",
        ("zero_gradient",),
    ),
    Symptom(
        "zero_gradient",
        lambda seen: seen.gradient_norm == 0,
        lambda seen: "the gradient is exactly 0 although tokens count in the loss",
    ),
    Symptom(
        "added_kl",
        lambda seen: bool(seen.added_kl),
        lambda seen: f"kl.beta={seen.added_kl:g} adds a KL term and a reference that this member is defined without",
        setting=True,
    ),
)
NAMES: tuple[str, ...] = tuple(symptom.name for symptom in SYMPTOMS)


def symptoms_of(seen: Observation) -> list[Symptom]:
    """The symptoms of a step, without those that another one of them explains."""
    present = [symptom for symptom in SYMPTOMS if symptom.present(seen)]
    explained = {name for symptom in present for name in symptom.explains}
    return [symptom for symptom in present if symptom.name not in explained]


class HealthCheck:
    """Counts the symptoms of a run, and words the warnings.

    A symptom is named at the first step of the run, and again when it has lasted three steps in a row (then thirty,
    then three hundred). remedies: what to set, by the names of `SYMPTOMS`, in the words of the trainer.
    """

    def __init__(self, remedies: Mapping[str, str]) -> None:
        """Keep the remedies; raises ValueError for a name that is no symptom, or a symptom without remedy."""
        if set(remedies) != set(NAMES):
            odd = sorted(set(remedies) ^ set(NAMES))
            raise ValueError(f"remedies={odd!r} do not match; give one remedy for each of {', '.join(NAMES)}.")
        self._remedies = remedies
        self.steps = 0
        self.counts: dict[str, int] = {}
        self._streaks: dict[str, int] = {}

    def observe(self, step: int, seen: Observation) -> list[str]:
        """Take in an optimizer step; returns the warnings that are due, one sentence each."""
        self.steps += 1
        found = symptoms_of(seen)
        lasting = [symptom.name for symptom in found if not symptom.setting]
        self._streaks = {name: self._streaks.get(name, 0) + 1 for name in lasting}
        for name in lasting:
            self.counts[name] = self.counts.get(name, 0) + 1
        due = (s for s in found if self.steps == 1 or self._streaks.get(s.name) in _STREAKS)
        return [f"{self._when(step, s.name)}: {s.cause(seen)}; {self._remedies[s.name]}." for s in due]

    def _when(self, step: int, name: str) -> str:
        lasted = self._streaks.get(name, 1)
        return f"step {step}" if lasted == 1 else f"step {step}, {lasted} steps in a row"

    def counters(self) -> dict[str, float]:
        """Which symptoms the latest step has, 1 or 0, of those that the run has had; and how many it has."""
        flags = {name: float(name in self._streaks) for name in self.counts}
        return {"findings": float(len(self._streaks)), **flags}

    def summary(self) -> list[str]:
        """The whole run in a line per symptom, most frequent first; one line where there was none."""
        if not self.counts:
            return [f"health: {self.steps} steps checked, nothing found."]
        order = sorted(self.counts, key=lambda name: -self.counts[name])
        return [
            f"health: {name} in {self.counts[name]} of {self.steps} steps; {self._remedies[name]}." for name in order
        ]
