"""What is found in a verl run, and the overrides that make it go away: data, and how it is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_variants.axes import AXES, Stage
from grpo_variants.fences import Meaningless, ways_out
from grpo_variants.names import PREFIX, is_prefixed
from grpo_variants.options import read_options
from grpo_variants.trainers.verl import words


@dataclass(frozen=True)
class Fix:
    """Changes to a configuration, after which a finding is gone.

    settings: values of verl's keys. advantage, objective: options of a variant at that end, by the keys of a spec
    string; None takes an option away. name: that variant, which an end becomes where it is verl's own.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    advantage: Mapping[str, str | None] = field(default_factory=dict)
    objective: Mapping[str, str | None] = field(default_factory=dict)
    name: str = ""

    @property
    def options(self) -> dict[str, str | None]:
        """The options of both ends, as one spec string has them."""
        return {**self.advantage, **self.objective}

    def overrides(self, get: words.Get) -> words.Settings:
        """The keys to set in a configuration, with the options that it has already."""
        settings: words.Settings = dict(self.settings)
        if not is_prefixed(str(settings.get(words.ESTIMATOR, PREFIX))) and get(words.OPTIONS):
            settings[words.OPTIONS] = ""  # an estimator of verl's own takes none
        if self.advantage:
            settings |= self._end(words.ESTIMATOR, get)
            settings[words.OPTIONS] = options_after(get(words.OPTIONS), self.advantage)
        if self.objective:
            settings |= {**self._end(words.LOSS_MODE, get), **_options_class(get)}
            settings[words.LOSS_OPTIONS] = options_after(get(words.LOSS_OPTIONS), self.objective)
        return settings

    def _end(self, where: str, get: words.Get) -> words.Settings:
        own = not is_prefixed(str(get(where) or PREFIX))
        return {where: PREFIX + self.name} if own and self.name else {}


@dataclass(frozen=True)
class Finding:
    """Something about a run that its user should know.

    text: sentences, without what to do. fixes: what to do about it, one of them. lead: the words before the fixes.
    """

    text: str
    fixes: tuple[Fix, ...] = ()
    lead: str = "Fix"

    def sentence(self, get: words.Get) -> str:
        """The finding for a configuration: to append to its command line, whatever stands there."""
        lines = [words.shell(fix.overrides(get), adding="++") for fix in self.fixes]
        return f"{self.text} {self.lead}: {', or '.join(lines)}" if lines else self.text

    def in_a_spec(self) -> str:
        """The finding for a spec string, whose options it names; the overrides where there are none."""
        options = [fix.options for fix in self.fixes]
        if not all(options):
            return self.sentence(unset)
        ways = [",".join(f"{key}={value}" for key, value in one.items() if value is not None) for one in options]
        return f"{self.text} Set {' or '.join(ways)}." if ways else self.text


def between_ends(error: Meaningless, ends: Collection[Stage]) -> Finding:
    """Parts of the two ends that do not go together, and options that lead out; ends: those that take options."""
    fixes: list[Fix] = []
    for way in ways_out(error.variant):
        rule = {key: value for key, value in way.items() if "advantage" in AXES[key.partition(".")[0]].stages}
        objective = {key: value for key, value in way.items() if key not in rule}
        if ("advantage" in ends or not rule) and ("objective" in ends or not objective):
            fixes.append(Fix(advantage=rule, objective=objective))
    return Finding(error.complaint, tuple(fixes))


class Refused(ValueError):
    """A finding that ends a run; its text is for a configuration of which nothing is known."""

    def __init__(self, finding: Finding) -> None:
        """Keep the finding, so that whoever has the configuration can write it out."""
        super().__init__(finding.sentence(unset))
        self.finding = finding


def unset(key: str) -> None:
    """A configuration of which nothing is known."""


def options_after(given: Any, changes: Mapping[str, str | None]) -> str:
    """Options with changes applied: a choice of an axis resets its fields, None takes an option away."""
    options = dict(read_options(str(given or "")))
    for key, value in changes.items():
        if "." not in key:
            options = {k: v for k, v in options.items() if not k.startswith(f"{key}.")}
        options.pop(key, None)
        if value is not None:
            options[key] = value
    return ",".join(f"{key}={value}" for key, value in options.items())


def _options_class(get: words.Get) -> words.Settings:
    """The class that verl's section needs for options; a class of the user's own stays."""
    target = str(get(words.LOSS_TARGET) or "verl.")
    return {words.LOSS_TARGET: words.LOSS_CONFIG} if target.startswith("verl.") else {}
