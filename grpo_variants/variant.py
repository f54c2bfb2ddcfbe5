"""Variant: one exact member of the family, as frozen data: an advantage rule, an objective and a rollout rule."""

from __future__ import annotations

from dataclasses import dataclass, fields

from grpo_variants.advantage.rule import AdvantageRule
from grpo_variants.axes import AXES, WORD_AXES
from grpo_variants.fences import check_fences
from grpo_variants.objective.rule import Objective, objective_of
from grpo_variants.registry import found_exactly
from grpo_variants.rollout.rule import RolloutRule
from grpo_variants.spelling import spec_string
from grpo_variants.tensors.checks import check_choice

# Why a catalogue entry is in `contrib`.
UNCONFIRMED = "uses at least one value we could not find in the paper or its authors' code"


@dataclass(frozen=True)
class Reference:
    """Where a variant is defined."""

    title: str
    year: int
    arxiv: str | None = None

    def __str__(self) -> str:
        """Title, year and arXiv id."""
        return f"{self.title} ({self.year})" + (f", arXiv:{self.arxiv}" if self.arxiv else "")

    def bibtex(self, key: str) -> str:
        """BibTeX entry under a key, without authors."""
        found = {"title": f"{{{self.title}}}", "year": str(self.year)}
        if self.arxiv:
            found |= {"eprint": self.arxiv, "archivePrefix": "arXiv", "url": f"https://arxiv.org/abs/{self.arxiv}"}
        lines = [f"  {field:<13} = {{{value}}}," for field, value in found.items()]
        return "\n".join([f"@misc{{{key},", *lines, "}"])


@dataclass(frozen=True, kw_only=True)
class Variant(AdvantageRule, Objective, RolloutRule):
    """One member of the family: advantage rule, objective and rollout rule, with its references.

    The advantage rule runs where rewards are grouped, the objective where the loss is computed, the rollout rule where
    responses are sampled; `AXES` says at which stage an axis acts. A KL with placement=reward acts in the advantage
    rule.
    note: where papers and code disagree, and which of them was taken. confirmed: where its values were read, in the
    paper and in its authors' code. unconfirmed: the values that were found in neither, and where they are from; a
    catalogue entry that has such values is in `contrib`.

    Frozen, hashable and picklable; a combination that means nothing raises ValueError with the reason.
    """

    name: str
    conventions: str = "paper"
    summary: str = ""
    formula: str = ""
    note: str = ""
    confirmed: str = ""
    unconfirmed: str = ""
    references: tuple[Reference, ...] = ()

    def __post_init__(self) -> None:
        """Check the words and refuse combinations that mean nothing."""
        if not self.name.isidentifier():
            raise ValueError(f"name={self.name!r} is not a plain word; allowed: letters, digits and underscores.")
        for axis in WORD_AXES:
            check_choice(axis, getattr(self, axis), AXES[axis].choices)
        for axis in AXES:
            part = getattr(self, axis)
            if isinstance(part, str) and axis not in WORD_AXES:
                raise ValueError(
                    f"{self.name}: {axis}={part!r} is a word where a part belongs; choose it by a spec string, "
                    f"gv.get('{self.name},{axis}={part}'), and register the result under another name if you like."
                )
        check_fences(self)

    def __str__(self) -> str:
        """Canonical spec string; `get` turns it back into an equal variant."""
        return spec_string(found_exactly(self.name) or Variant(name=self.name), self)

    @property
    def contrib(self) -> bool:
        """Whether one of its values was found in neither the paper nor its authors' code."""
        return bool(self.unconfirmed)

    @property
    def objective(self) -> Objective:
        """The objective alone."""
        return objective_of(self)

    @property
    def advantage_rule(self) -> AdvantageRule:
        """The advantage rule alone."""
        return AdvantageRule(**{f.name: getattr(self, f.name) for f in fields(AdvantageRule)})
