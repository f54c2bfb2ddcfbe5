"""Members that combine known parts anew: a clip bound, an aggregation, a choice of tokens."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.catalogue import references as papers
from grpo_variants.catalogue.bases import DAPO, DAPO_RECIPE, GRPO
from grpo_variants.objective.aggregation import LengthPower, SequenceSum, TokenMean
from grpo_variants.objective.kl import K3
from grpo_variants.objective.ratio import SequenceRatio
from grpo_variants.objective.surrogate import Clip
from grpo_variants.objective.token_filter import TopEntropy
from grpo_variants.variant import Variant

RECOMBINED: tuple[Variant, ...] = (
    replace(
        GRPO,
        name="two_sided",
        surrogate=Clip(dual=4.0),
        kl=K3(beta=1e-3),
        aggregation=TokenMean(),
        summary="Two-sided clip of INTELLECT-2: the ratio of a token with a negative advantage is capped at 4 as well.",
        formula=(
            r"L = \frac{1}{\sum_i l_i}\sum_{i,t}\left[-\min(\min(\rho_{it}, \delta) A_i, "
            r"\operatorname{clip}(\rho_{it}, 1\mp 0.2) A_i) + \beta\, k_3\right],\quad \delta = 4"
        ),
        confirmed=(
            "The report, section 4.1: 4, 0.2 and 0.001; the cap and the token mean: PrimeIntellect-ai/prime-rl, "
            "src/zeroband/training/loss.py, with config.py and train.py beside it."
        ),
        references=(papers.PRIME,),
    ),
    replace(
        GRPO,
        name="luspo",
        ratio=SequenceRatio(),
        surrogate=Clip(low=2e-3, high=2.5e-3),
        aggregation=SequenceSum(),
        summary="GSPO without its length bias: each response's loss is multiplied by its length.",
        formula=(
            r"L = -\frac{1}{N}\sum_i l_i \min(s_i A_i, "
            r"\operatorname{clip}(s_i, 1-2\cdot10^{-3}, 1+2.5\cdot10^{-3}) A_i),\quad "
            r"s_i = \exp\Big(\frac{1}{l_i}\sum_t \log\rho_{it}\Big)"
        ),
        confirmed="The formula in the paper, and 2e-3 and 2.5e-3 in its section 5.1.",
        references=(papers.LIU_LUSPO,),
    ),
    replace(
        GRPO,
        name="delta_l",
        surrogate=Clip(low=0.2, high=0.3),
        aggregation=LengthPower(),
        summary="Delta L normalisation: a response weighs less the longer it is, by a power, so that variance is low.",
        formula=(
            r"L = -\frac{1}{L_{\max}}\sum_i\frac{l_i^{-\alpha}}{\sum_j l_j^{-\alpha}}\sum_t\min(\rho_{it} A_i, "
            r"\operatorname{clip}(\rho_{it}, 1-0.2, 1+0.3) A_i),\quad \alpha = 0.75"
        ),
        confirmed=(
            "The weights: zerolllin/Delta-L-Normalization, verl/trainer/ppo/core_algos.py 232 to 243 (over every "
            "response of the rollout batch) and 617 to 618 with verl/utils/torch_functional.py 181 to 183 (token sums "
            "over the longest length); 0.75 and the clip range in train_scripts/math-3b-delta-l-norm-alpha-0.75.sh 61 "
            "to 66, without a KL."
        ),
        references=(papers.HE_DELTA_L,),
        note=(
            "Of the paper the abstract was read, and the formula in its authors' readme; a later version calls it VL "
            "norm. The power is 1 in their countdown scripts (aggregation.alpha=1), which has the least variance; 0 is "
            "the constant length of Dr. GRPO. Their runs split a rollout batch into four updates and compare lengths "
            "within the whole batch, as verl does here; the formula and TRL compare within the update. verl's dual "
            "clip acts in their runs (surrogate.dual=3), and in those on DAPO's recipe groups are drawn again "
            "(filter=zero_variance)."
        ),
    ),
    replace(
        DAPO,
        name="forking_tokens",
        tokens=TopEntropy(fraction=0.2),
        summary="DAPO on the fifth of the tokens with the highest entropy, where a response forks.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} 1[H_{it} \ge \tau]\, "
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1-0.2, 1+0.28) A_i),\quad "
            r"\tau = \text{the 80 \% quantile of the batch's } H"
        ),
        note=DAPO_RECIPE,
        confirmed="The paper, section 5: a fifth of the tokens, on DAPO.",
        references=(papers.WANG_FORKING, papers.YU),
    ),
)
