"""The two members that most others change in one thing or two."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.advantage.baseline import GroupMean
from grpo_variants.advantage.scale import GroupStd
from grpo_variants.objective.aggregation import SequenceMean, TokenMean
from grpo_variants.objective.ratio import TokenRatio
from grpo_variants.objective.surrogate import Clip
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.rollout.overlong import Mask
from grpo_variants.variant import Variant

# GRPO without its KL, as most of the family runs it; an entry that starts here says what it changes.
GRPO = Variant(
    name="base",
    baseline=GroupMean(),
    scale=GroupStd(),
    ratio=TokenRatio(),
    surrogate=Clip(),
    aggregation=SequenceMean(),
)
DAPO = replace(
    GRPO,
    surrogate=Clip(low=0.2, high=0.28),
    aggregation=TokenMean(),
    filter=ZeroVariance(),
    overlong=Mask(),
)
TOKEN_COUNTS = "where a window's token counts are equal"
DAPO_RECIPE = (
    "DAPO's recipe (verl-project/verl-recipe, dapo/run_dapo_qwen2.5_32b.sh) also holds the loss of a negative "
    "advantage at a ratio of 10 (surrogate.dual=10), punishes the last 4096 of 20480 tokens instead of masking "
    "(overlong=penalty, overlong.buffer=4096), and tells by accuracy which groups vary (filter.metric)."
)
