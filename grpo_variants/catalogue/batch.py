"""Members whose surrogate reads a statistic of the whole batch."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.aggregation import TokenMean
from grpo_variants.catalogue import references as papers
from grpo_variants.catalogue.bases import GRPO
from grpo_variants.surrogate import Bapo, ClipCov, KlCov, M2po
from grpo_variants.variant import Variant

BATCH: tuple[Variant, ...] = (
    replace(
        GRPO,
        name="bapo",
        surrogate=Bapo(),
        aggregation=TokenMean(),
        summary="Clip bounds that move, batch by batch, until positive advantages make up half of the objective.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t}\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, c_-, c_+) "
            r"A_i),\quad "
            r"(c_-, c_+) \text{ the first of } 0.6 \ldots 0.9, \text{ then } 1.2 \ldots 3 \text{ with } "
            r"\frac{\sum_{A>0} \min(\rho, c_+) A}{\sum_{A>0} \min(\rho, c_+) A + \sum_{A<0} \max(\rho, c_-) |A|} \ge "
            r"0.5"
        ),
        confirmed="The authors' code: bounds, step, target and dual clip.",
        references=(papers.XI_BAPO,),
        hosts=(
            ("trl", "no counterpart: clip bounds are fixed"),
            ("verl", "no counterpart: clip bounds are fixed"),
        ),
        note=(
            "The order (floor first, then ceiling), the dual clip at 3 and the step of 0.05 are those of the authors' "
            "code."
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
            r"\min(e^{-\tau}, 0.7), \max(e^{\tau}, 1.5)) A_i),\quad \operatorname{mean}_{A d > 0} \min(d^2, \tau^2) "
            r"< 0.04"
        ),
        confirmed=(
            "The budget of 0.04 in the paper; the range and its narrowest width in its authors' code "
            "(Infini-AI-Lab/M2PO)."
        ),
        references=(papers.ZHENG_M2PO,),
        hosts=(
            ("trl", "no counterpart: clip bounds are fixed"),
            ("verl", "no counterpart: clip bounds are fixed"),
        ),
        note=(
            "The paper masks tokens until the mean of the squared log ratios is within the budget; its code clips at "
            "the range that the budget leaves, but not tighter than 0.7 and 1.5, which is taken."
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
        confirmed="The paper, and its authors' loss in verl (clip_cov): 2e-4, from 1 to 5.",
        references=(papers.CUI,),
        hosts=(
            ("trl", "no counterpart: no covariance"),
            ("verl", "equals loss clip_cov with token-mean, for the same draws, under conventions=verl"),
        ),
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
        confirmed="The paper, and its authors' loss in verl (kl_cov).",
        references=(papers.CUI,),
        hosts=(
            ("trl", "no counterpart: no covariance"),
            (
                "verl",
                "equals loss kl_cov with token-mean and ppo_kl_coef=1, whose default is 0.1, under conventions=verl",
            ),
        ),
        note=(
            "The paper's share is 2e-4 for its 32B model and 2e-3 for 7B. verl's function falls back to a coefficient "
            "of 1, its configuration says 0.1."
        ),
    ),
)
