"""The numeric fields as TRL computes them, for conventions=trl; read from TRL 1.16."""

from __future__ import annotations

from grpo_variants.numerics import Numerics

NUMERICS: tuple[Numerics, ...] = (
    Numerics("singleton", {"singleton": "zero"}),
    Numerics("scale", {"eps": 1e-4, "ddof": 1, "eps_in": "std"}),
    Numerics("credit", {"eps": 1e-4, "ddof": 1, "eps_in": "std", "over": "responses"}, choices=("decoupled",)),
    Numerics("ratio", {"bound_low": None, "bound_high": None}),
    Numerics("surrogate", {"dual": None}, choices=("clip",)),
    Numerics("kl", {"bound": None, "value_bound": None, "weighted": "ratio"}),
)
