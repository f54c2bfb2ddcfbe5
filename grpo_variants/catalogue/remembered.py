"""Members that remember a prompt from one step to the next."""

from __future__ import annotations

from grpo_variants.advantage.baseline import GroupMean, Tracked
from grpo_variants.advantage.scale import BatchStd, SmoothedStd
from grpo_variants.catalogue.references import XU, YANG
from grpo_variants.objective.aggregation import SequenceMean, TokenMean
from grpo_variants.objective.ratio import TokenRatio
from grpo_variants.objective.surrogate import Clip, Dcpo
from grpo_variants.variant import Variant

REMEMBERED: tuple[Variant, ...] = (
    Variant(
        name="spo",
        baseline=Tracked(),
        scale=BatchStd(eps=1e-8, of="centred", mean="subtract"),
        ratio=TokenRatio(),
        surrogate=Clip(low=0.2, high=0.28, dual=10.0),
        aggregation=TokenMean(),
        summary="Single-stream: one response per prompt is enough, compared with a success rate tracked over steps.",
        formula=(
            r"a_i = r_i - \frac{\alpha}{\alpha+\beta},\quad A_i = \frac{a_i - \operatorname{mean}_b a}"
            r"{\operatorname{std}_b a + \epsilon},\quad \alpha\leftarrow\rho\alpha + r,\quad "
            r"\beta\leftarrow\rho\beta + 1 - r,\quad L = -\frac{1}{\sum_i l_i}\sum_{i,t}"
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1-0.2, 1+0.28) A_i),\quad \text{at most } 10\,|A_i| "
            r"\text{ where } A_i < 0"
        ),
        note=(
            "Forgets at a constant rate, the lower end of the authors' range (0.875 to 0.96), where they follow how "
            "far the policy has moved: their rate is 0.96 when a prompt is new, and 0.875 once the policy has moved by "
            "0.0116 nats a token on it. Drawing prompts by their uncertainty, and first estimates from samples drawn "
            "beforehand, are the trainer's. The prior of 0.5 is theirs without such samples; with them the first "
            "estimates weigh 8 responses together, which a loaded memory can hold. Simple Policy Optimization, also "
            "called SPO, is another algorithm: simple_policy_optimization."
        ),
        confirmed=(
            "verl-project/verl-recipe: spo/spo_ray_trainer.py 240 to 303, 356 to 372, 533 to 561 and 658 to 670 (rate "
            "of forgetting, first estimates, normalisation, tracker), spo/train.sh 45 to 46 and 107 (0.2 and 0.28, "
            "dual clip at 10). The paper's text could not be read."
        ),
        references=(XU,),
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
            "The paper's clip values and mean over a response's tokens are taken; it adds the responses of a prompt up "
            "where this takes their mean, a factor of the group's size that is left to the learning rate. The authors' "
            "run script has 0.2 and 0.28 and the mean over the micro-batch's tokens: "
            "`dcpo,surrogate.low=0.2,surrogate.high=0.28,aggregation=token_mean`. Their readme writes the sum over "
            "tokens without the length (aggregation=sequence_sum). The deviation is the sample's, as in their code; "
            "the paper's formula has the population's (scale.ddof=0). Means and deviations of earlier steps have the "
            "same weight each, and no epsilon is added, as in their code. A group of equal rewards is compared with "
            "its history and does not get 0."
        ),
        confirmed=(
            "0.16, 0.2 and the cap of 10: the paper, appendix A.9. Smoothed advantages and bounds: lime-RL/DCPO, "
            "verl/trainer/ppo/core_algos.py 365 to 479 and 978 to 1093; 0.2, 0.28 and the token mean: "
            "recipe/dcpo/run_base.sh 86 to 95 and recipe/dcpo/run_dcpo.sh 82 to 87."
        ),
        references=(YANG,),
    ),
)
