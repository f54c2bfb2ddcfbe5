"""The numeric fields as verl computes them, for conventions=verl; read from verl 0.9.1."""

from __future__ import annotations

from grpo_variants.numerics import Numerics

NUMERICS: tuple[Numerics, ...] = (
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
)
