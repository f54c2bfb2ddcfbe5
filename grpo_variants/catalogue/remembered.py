"""Members that remember a prompt from one step to the next."""

from __future__ import annotations

from grpo_variants.aggregation import SequenceMean, TokenMean
from grpo_variants.baseline import GroupMean, Tracked
from grpo_variants.catalogue.formulas import CLIPPED
from grpo_variants.catalogue.references import XU, YANG
from grpo_variants.ratio import TokenRatio
from grpo_variants.scale import BatchStd, SmoothedStd
from grpo_variants.surrogate import Clip, Dcpo
from grpo_variants.variant import Variant

REMEMBERED: tuple[Variant, ...] = (
    Variant(
        name="spo",
        baseline=Tracked(),
        scale=BatchStd(eps=1e-8, of="centred", mean="subtract"),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Single-stream: one response a prompt is enough, compared with a success rate tracked over steps.",
        formula=(
            r"a_i = r_i - \frac{\alpha}{\alpha+\beta},\quad A_i = \frac{a_i - \operatorname{mean}_b a}"
            r"{\operatorname{std}_b a + \epsilon},\quad \alpha\leftarrow\rho\alpha + r,\quad "
            rf"\beta\leftarrow\rho\beta + 1 - r,\quad {CLIPPED}"
        ),
        note=(
            "Forgets at a constant rate, the lower end of the authors' range (0.875 to 0.96), where they follow "
            "how far the policy has moved. Drawing prompts by their uncertainty, and first estimates from samples "
            "drawn beforehand, are the host's; a memory can be loaded with the latter. Simple Policy "
            "Optimization, also called SPO, is another algorithm: simple_policy_optimization."
        ),
        confirmed=(
            "The authors' recipe in verl-recipe (spo): tracker, forgetting from 0.875 to 0.96, normalisation over "
            "the batch."
        ),
        references=(XU,),
        hosts=(
            ("trl", "no counterpart: nothing is remembered between steps"),
            ("verl", "no counterpart: nothing is remembered, and uids are new in each step; verl-recipe has a trainer"),
        ),
    ),
    Variant(
        name="dcpo",
        baseline=GroupMean(),
        scale=SmoothedStd(),
        ratio=TokenRatio(),
        surrogate=Dcpo(),
        aggregation=SequenceMean(),
        summary="Rewards standardised over every step that saw the prompt, and clip bounds that widen for rare tokens.",
        formula=(
            r"A^1_i = \tfrac1n A^{tot}_i + \tfrac{n-1}n A^{new}_i,\quad A^2_i = \tfrac1n A^{new}_i + \tfrac{n-1}n "
            r"A^{tot}_i,\quad A_i = \text{the one nearer to } 0,\quad L = -\frac{1}{N}\sum_i\frac{1}{l_i}\sum_t "
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, \mathrm{low}(q), \mathrm{high}(q)) A_i)"
        ),
        note=(
            "The paper adds the responses of a prompt up where this takes their mean: a factor of the group's "
            "size, left to the learning rate. The authors' readme writes the sum over tokens without the length "
            "(aggregation=sequence_sum), their code takes the mean over the micro-batch's tokens. Means and "
            "deviations of earlier steps have the same weight each, as in the authors' code, and no epsilon is "
            "added. A group of equal rewards is compared with its history and does not get 0."
        ),
        confirmed=(
            "The authors' repository (lime-RL/DCPO): 0.16 and 0.2 in the readme's table, the two smoothed "
            "advantages in verl/trainer/ppo/core_algos.py."
        ),
        references=(YANG,),
        hosts=(
            ("trl", "no counterpart: nothing is remembered between steps"),
            ("verl", "no counterpart: nothing is remembered, and uids are new in each step"),
        ),
    ),
)
