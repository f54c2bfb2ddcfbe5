"""Members whose surrogate reads a statistic of the whole batch."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.catalogue import references as papers
from grpo_variants.catalogue.bases import GRPO
from grpo_variants.objective.aggregation import TokenMean
from grpo_variants.objective.surrogate import Bapo, ClipCov, KlCov, M2po
from grpo_variants.variant import Variant

BATCH: tuple[Variant, ...] = (
    replace(
        GRPO,
        name="bapo",
        surrogate=Bapo(),
        aggregation=TokenMean(),
        summary="Clip bounds that move, batch by batch, until positive advantages make up 40 % of the objective.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t}\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, c_-, c_+) "
            r"A_i),\quad (c_-, c_+) \text{ the first with } \frac{\sum_{A>0} \min(\rho, c_+) A}{\sum_{A>0} \min(\rho, "
            r"c_+) A + \sum_{A<0} \max(\rho, c_-) |A|} \ge 0.4 \text{ as } c_+ \text{ goes from } 1.2 \text{ to } 3 "
            r"\text{ by } 0.05, \text{ then } c_- \text{ from } 0.6 \text{ to } 0.9 \text{ by } 0.02"
        ),
        confirmed=(
            "Bounds, steps, share of 0.4 and order: the paper, section 5.1 and algorithm 1. The rule with the floor "
            "first and its values: WooooDyy/BAPO, recipe/bapo/policy_loss.py 21 to 185 and "
            "recipe/bapo/config/bapo_trainer.yaml 12 to 22."
        ),
        references=(papers.XI_BAPO,),
        note=(
            "The paper's values are taken. The authors' code raises the floor first, ends at 0.8 and 2, asks for as "
            "much positive as negative and has the dual clip at 3: `bapo,surrogate.first=floor,surrogate.floor_end=0.8,"
            "surrogate.ceiling_end=2,surrogate.target=0.5,surrogate.dual=3`. Its example script "
            "(recipe/bapo/run_bapo_example.sh) has `surrogate.floor=0.8`, `surrogate.floor_end=0.95`, "
            "`surrogate.step=0.1` and a ratio of 0.5, which is `surrogate.target=0.333333`, instead. Its readme has "
            "the paper's bounds with a target of 0.5. The code counts a micro-batch over all ranks. The floor's step "
            "(0.02 in the paper, 0.05 in the code) has no effect: a higher floor only adds to the negative side."
        ),
    ),
    replace(
        GRPO,
        name="m2po",
        surrogate=M2po(),
        aggregation=TokenMean(),
        summary="Clip as wide as the second moment of the batch's harmful log ratios allows, for stale data.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t}\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, "
            r"e^{-\tau}, e^{\tau}) A_i),\quad \tau \text{ the largest } |d| \text{ among } A d > 0 \text{ with } "
            r"\operatorname{mean}_{A d > 0} \min(d^2, \tau^2) < 0.04"
        ),
        confirmed=(
            "Budget of 0.04: the paper, section 5.2, and Infini-AI-Lab/M2PO, train-scripts/m2po-qwen-math-7b-s256.sh "
            "line 43. Rule: the same repository, verl/trainer/ppo/core_algos.py 683 to 867, called without a narrowest "
            "range in verl/workers/actor/dp_actor.py 394 to 408."
        ),
        references=(papers.ZHENG_M2PO,),
        note=(
            "The paper (algorithm 1) masks the largest harmful log ratios until the mean square of those that are left "
            "is within the budget: `surrogate.rule=mask`. The authors' code clips the harmful ones at the range that "
            "the budget leaves, which is tighter and is taken. Its loss function has a narrowest range of 0.7 to 1.5 "
            "as a default, which its actor switches off: `surrogate.low=0.3,surrogate.high=0.5`. Two equal log ratios "
            "at the threshold are masked both; the paper takes out one."
        ),
    ),
    replace(
        GRPO,
        name="clip_cov",
        surrogate=ClipCov(),
        aggregation=TokenMean(),
        summary="PPO's clip, and a few random tokens of high covariance lose their gradient, to keep the entropy.",
        formula=(
            r"\mathrm{cov}_{it} = (A_i - \bar A)(\log\pi(y_{it}) - \overline{\log\pi}),\quad "
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} 1[it \notin I]\, \min(\rho_{it} A_i, "
            r"\operatorname{clip}(\rho_{it}, 1\mp 0.2) A_i),\quad I \text{ random among } 1 < \mathrm{cov}_{it} < 5"
        ),
        confirmed=(
            "The paper, and verl-project/verl, verl/trainer/ppo/core_algos.py (compute_policy_loss_clip_cov): 2e-4, "
            "from 1 to 5."
        ),
        references=(papers.CUI,),
        note=(
            "verl permutes the candidates and takes the first of them; here each token has a random number and the "
            "smallest of the candidates' are taken, which is the same draw and does not wait for the device."
        ),
    ),
    replace(
        GRPO,
        name="kl_cov",
        surrogate=KlCov(),
        aggregation=TokenMean(),
        summary="No clip; the tokens of highest covariance pay a penalty on their log ratio, to keep the entropy.",
        formula=(
            r"L = \frac{1}{\sum_i l_i}\sum_{i,t} \left(-\rho_{it} A_i + 1[it \in I]\, |\log\rho_{it}|\right),\quad "
            r"I \text{ the share } 2\cdot10^{-4} \text{ of highest } (A_i - \bar A)(\log\pi(y_{it}) - "
            r"\overline{\log\pi})"
        ),
        confirmed=("The paper, and verl-project/verl, verl/trainer/ppo/core_algos.py (compute_policy_loss_kl_cov)."),
        references=(papers.CUI,),
        note=(
            "The paper's share is 2e-4 for its 32B model and 2e-3 for 7B. verl's function falls back to a coefficient "
            "of 1, its configuration says 0.1."
        ),
    ),
)
