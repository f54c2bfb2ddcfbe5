"""Surrogates: the per-token objective to minimise. Each maps (log ratio, tokens, counts) -> Term, unreduced."""

from grpo_variants.surrogate.base import Surrogate, Term
from grpo_variants.surrogate.clipping import Clip
from grpo_variants.surrogate.score import Reinforce

__all__ = ["Clip", "Reinforce", "Surrogate", "Term"]
