"""What the settings by which responses are sampled do to a variant, in whatever trainer."""

from __future__ import annotations

from grpo_variants.axes import choice_name
from grpo_variants.variant import Variant


def misled_by_truncation(variant: Variant) -> list[str]:
    """Parts that a truncated sampling distribution (top_p, top_k) misleads where the engine reports its probabilities.

    They read the engine's log-probabilities and do not weigh tokens one by one.
    """
    wrong = [part for part in variant.correction if not part.weighs_tokens]
    readers = [f"correction={choice_name('correction', part)}" for part in wrong]
    return readers + (["ratio.anchor=rollout"] if variant.ratio.anchor == "rollout" else [])
