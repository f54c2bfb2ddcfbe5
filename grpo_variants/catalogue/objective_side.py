"""Members that differ in the objective: ratio, surrogate, aggregation, token filter, KL, correction."""

from __future__ import annotations

from grpo_variants.variant import Variant

OBJECTIVE_SIDE: tuple[Variant, ...] = ()
