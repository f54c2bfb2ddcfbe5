"""What TRL 1.16 cannot give a variant, whatever its configuration says."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_variants.advantage.token_credit import OptimalToken
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.variant import Variant


def trl_refusals(variant: Variant) -> Iterator[str]:
    """Why TRL cannot run a variant, with what to do instead; nothing where a configuration can."""
    if isinstance(variant.credit, OptimalToken):
        yield (
            "credit=optimal_token needs the sum of squared probabilities at each token, which TRL does not compute. In "
            "verl it is the estimator optimal_token_baseline."
        )
    if variant.tokens.denominator == "kept":
        yield (
            "tokens.denominator=kept needs the number of kept tokens of the whole step before its first backward pass. "
            "Use tokens.denominator=all."
        )
    if isinstance(variant.filter, ZeroVariance) and variant.filter.max_rounds is None:
        yield (
            "filter.max_rounds=none draws new prompts without a bound, so that a run whose prompts have no signal "
            "would never end. Set filter.max_rounds=10."
        )
