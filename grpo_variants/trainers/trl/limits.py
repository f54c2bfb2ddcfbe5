"""What TRL 1.16 cannot give a variant, whatever its configuration says."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_variants.axes import choice_name
from grpo_variants.variant import Variant


def trl_refusals(variant: Variant) -> Iterator[str]:
    """Why TRL cannot run a variant, with what to do instead; nothing where a configuration can."""
    if "sum_pi_squared" in variant.rollout_inputs:
        yield (
            f"credit={choice_name('credit', variant.credit)} needs the sum of squared probabilities at each token, "
            "which TRL does not compute. In verl it is the estimator optimal_token_baseline."
        )
    if variant.tokens.denominator == "kept":
        yield (
            "tokens.denominator=kept needs the number of kept tokens of the whole step before its first backward pass. "
            "Use tokens.denominator=all."
        )
    if variant.filter.max_rounds is None:
        yield (
            "filter.max_rounds=none draws new prompts without a bound, so that a run whose prompts have no signal "
            "would never end. Set filter.max_rounds=10."
        )
