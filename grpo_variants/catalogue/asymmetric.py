"""Members that clip the two sides, or the two signs of the advantage, differently."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.aggregation import TokenMean
from grpo_variants.catalogue import references as papers
from grpo_variants.catalogue.bases import GRPO
from grpo_variants.filters import ZeroVariance
from grpo_variants.surrogate import Aspo, CeGppo, Fipo
from grpo_variants.variant import Variant

ASYMMETRIC: tuple[Variant, ...] = (
    replace(
        GRPO,
        name="aspo",
        surrogate=Aspo(),
        aggregation=TokenMean(),
        summary="Asymmetric importance: with a positive advantage a token weighs the inverse of its ratio.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} w_{it} A_i,\quad w_{it} = \frac{\min(\rho_{it}, 1.2)}"
            r"{\operatorname{sg}[\min(\rho_{it}, 1.2)]^2} \text{ if } A_i > 0, \text{ else } \max(\rho_{it}, "
            r"0.8);\quad "
            r"w_{it} > 3:\ 3 \log\pi(y_{it})"
        ),
        confirmed="The authors' code (wizard-III/Archer2.0).",
        references=(papers.WANG_ASPO,),
        hosts=(
            ("trl", "no counterpart: no weight that depends on the sign of the advantage"),
            ("verl", "no counterpart: no weight that depends on the sign of the advantage"),
        ),
        note=(
            "Its authors' code can make the ranges depend on the token's entropy, 0.2 and 0.4, with the two cases "
            "swapped; the ranges here are the same for every token."
        ),
    ),
    replace(
        GRPO,
        name="ce_gppo",
        surrogate=CeGppo(),
        aggregation=TokenMean(),
        summary="Gradient-preserving clip: clipped tokens keep a bounded gradient, which steers the entropy.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} x_{it} A_i,\quad x_{it} = 0.75 \cdot 0.8\, "
            r"\frac{\rho_{it}}{\operatorname{sg}[\rho_{it}]} \text{ if } A_i < 0, \rho_{it} < 0.8,\quad 1.2\, "
            r"\frac{\rho_{it}}{\operatorname{sg}[\rho_{it}]} \text{ if } A_i > 0, \rho_{it} > 1.2,\quad \rho_{it} "
            r"\text{ else}"
        ),
        confirmed=(
            "The authors' repository (Kwai-Klear/CE-GPPO): the loss in its readme; 0.2 on both sides, 0.75, 1 and "
            "the token mean in recipe/dapo/7B_perf_run_gppo_v1_beta1_075_beta2_1_ours_math.sh."
        ),
        references=(papers.SU_CEGPPO,),
        hosts=(
            ("trl", "no counterpart: a clipped token has no gradient"),
            ("verl", "no counterpart: a clipped token has no gradient"),
        ),
        note=(
            "0.75 below is the 7B run's, 0.5 the 1.5B run's (surrogate.keep_low=0.5). Those runs also draw again "
            "where a prompt has no signal (filter=zero_variance) and hold the loss of a negative advantage at a "
            "ratio of 10, as verl's dual clip does; the paper's formula has neither."
        ),
    ),
    replace(
        GRPO,
        name="fipo",
        surrogate=Fipo(),
        aggregation=TokenMean(),
        filter=ZeroVariance(),
        summary="DAPO's clip with each token's advantage weighted by how the policy moved on the tokens after it.",
        formula=(
            r"F_{it} = \sum_{k\ge t} 2^{-(k-t)/32} \log\rho_{ik}\, 1[\rho_{ik} \le 10],\quad "
            r"\tilde A_{it} = \operatorname{clip}(e^{F_{it}}, 1, 1.2) A_i,\quad L = -\frac{1}{\sum_i l_i}\sum_{i,t} "
            r"\min(\rho_{it} \tilde A_{it}, \operatorname{clip}(\rho_{it}, 0.8, 1.28) \tilde A_{it})"
        ),
        confirmed=(
            "The paper, sections 4.2 and 5.1 (half-life 32, weight from 1 to 1.2, a dual clip of at least 10), "
            "and its authors' repository (Henrymachiyu/FIPO, readme: a safety of 10 in the 32B run, which is "
            "built on DAPO's recipe with clip_ratio_c=10)."
        ),
        references=(papers.FIPO, papers.YU),
        hosts=(
            ("trl", "no counterpart: no weight by the tokens that follow"),
            ("verl", "no counterpart: no weight by the tokens that follow"),
        ),
        note=(
            "Numbers are those of its 32B run; for 7B the weight goes from 0.8 to 1.2. Other code takes 3 or 4 "
            "where `surrogate.safety` is 10. With A < 0 the loss is held at a ratio of 10 (DAPO's dual clip; "
            "verl's default is 3). The authors' code also drops a response two of whose tokens are."
        ),
    ),
)
