"""Conventions: the numeric fields in which papers, TRL and verl differ; never a hyper-parameter."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Numerics:
    """Values of numeric fields on one axis, for some of its choices (all, if none is named) under some ratios."""

    axis: str
    values: Mapping[str, object] = field(hash=False)
    choices: Collection[str] = ()
    ratios: Collection[str] = ()

    def applies(self, axis: str, choice: str, ratio: str) -> bool:
        """Whether this entry speaks about an axis with this choice, in a variant with this ratio."""
        return (
            axis == self.axis
            and (not self.choices or choice in self.choices)
            and (not self.ratios or ratio in self.ratios)
        )


# What each host computes, read from TRL 1.16 and verl 0.9.1; the parity tests hold these numbers to it.
CONVENTIONS: Mapping[str, tuple[Numerics, ...]] = {
    "paper": (),
    "trl": (
        Numerics("singleton", {"singleton": "zero"}),
        Numerics("scale", {"eps": 1e-4, "ddof": 1, "eps_in": "std"}),
        Numerics("credit", {"eps": 1e-4, "ddof": 1, "eps_in": "std", "over": "responses"}, choices=("decoupled",)),
        Numerics("ratio", {"bound_low": None, "bound_high": None}),
        Numerics("surrogate", {"dual": None}, choices=("clip",)),
        Numerics("kl", {"bound": None, "value_bound": None, "weighted": "ratio"}),
    ),
    "verl": (
        Numerics("singleton", {"singleton": "raw"}),
        Numerics("scale", {"eps": 1e-6, "ddof": 1, "eps_in": "std"}, choices=("group_std",)),
        Numerics("scale", {"eps": 1e-8, "ddof": 1, "eps_in": "var"}, choices=("batch_std",)),
        Numerics("credit", {"eps": 1e-8, "ddof": 1, "eps_in": "var", "over": "tokens"}, choices=("decoupled",)),
        Numerics(
            "ratio",
            {"bound_low": 20.0, "bound_high": 20.0},
            choices=("token", "sequence_product", "sequence_arithmetic"),
        ),
        Numerics("ratio", {"bound_low": None, "bound_high": 10.0}, choices=("sequence", "sequence_token")),
        Numerics("surrogate", {"dual": 3.0}, choices=("clip",), ratios=("token",)),
        Numerics("surrogate", {"dual": None}, choices=("clip",), ratios=("sequence", "sequence_token")),
        Numerics("kl", {"bound": 20.0, "value_bound": 10.0, "weighted": "none"}, choices=("k3",)),
        Numerics("kl", {"bound": None, "value_bound": None, "weighted": "none"}, choices=("k1", "k2", "abs")),
    ),
}


def numerics(conventions: str, axis: str, choice: str, ratio: str) -> dict[str, object]:
    """The numeric fields that a convention sets on one axis."""
    values: dict[str, object] = {}
    for entry in CONVENTIONS[conventions]:
        if entry.applies(axis, choice, ratio):
            values.update(entry.values)
    return values
