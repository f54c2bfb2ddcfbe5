"""Members that differ in how rewards become advantages."""

from __future__ import annotations

from grpo_variants.variant import Variant

ADVANTAGE_SIDE: tuple[Variant, ...] = ()
