"""How TRL is told to run a variant: YAML for its script."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_variants.names import PREFIX
from grpo_variants.trainers.trl.limits import trl_refusals
from grpo_variants.variant import Variant


def trl_lines(variant: Variant) -> Iterator[str]:
    """YAML for `grpo-variants trl --config`: the loss type carries the whole variant.

    Raises ValueError where TRL cannot run it, with the reason.
    """
    if refusals := list(trl_refusals(variant)):
        raise ValueError(f"{variant.name}: {' '.join(refusals)}")
    if "greedy_rewards" in variant.baseline.reads:
        yield "# draws one more response per prompt, greedily"
    yield f'loss_type: "{PREFIX}{variant}"'
    if variant.aggregation.lacks_length:
        yield "# the constant of the aggregation is max_completion_length"
