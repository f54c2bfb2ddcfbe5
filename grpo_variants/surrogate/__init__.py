"""Surrogates: the per-token objective to minimise. Each maps (log ratio, tokens, counts) -> Term, unreduced."""

from grpo_variants.surrogate.base import Surrogate, Term
from grpo_variants.surrogate.clipping import Clip, Gmpo
from grpo_variants.surrogate.score import Cispo, DppoKl, DppoTv, Reinforce, Topr, Vespo
from grpo_variants.surrogate.soft import Dro, Quadratic, Sapo

__all__ = [
    "Cispo",
    "Clip",
    "DppoKl",
    "DppoTv",
    "Dro",
    "Gmpo",
    "Quadratic",
    "Reinforce",
    "Sapo",
    "Surrogate",
    "Term",
    "Topr",
    "Vespo",
]
