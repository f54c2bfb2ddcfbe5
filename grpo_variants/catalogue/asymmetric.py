"""Members that clip the two sides, the two signs of the advantage, or tokens of different entropy differently."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.catalogue import references as papers
from grpo_variants.catalogue.bases import GRPO
from grpo_variants.objective.aggregation import TokenMean
from grpo_variants.objective.kl import K3
from grpo_variants.objective.surrogate import Aspo, CeGppo, EntropyClip, Fipo
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.variant import Variant

ASYMMETRIC: tuple[Variant, ...] = (
    replace(
        GRPO,
        name="aspo",
        surrogate=Aspo(),
        kl=K3(beta=1e-3),
        summary="Asymmetric importance: with a positive advantage a token weighs the inverse of its ratio.",
        formula=(
            r"L = \frac{1}{N}\sum_i\frac{1}{l_i}\sum_t [-w_{it} A_i + \beta\, k_3],\quad "
            r"w_{it} = \frac{\min(\rho_{it}, 1+\epsilon_{it})}{\operatorname{sg}[\min(\rho_{it}, 1+\epsilon_{it})]^2} "
            r"\text{ if } A_i > 0, \text{ else } \max(\rho_{it}, 1-\epsilon_{it});\quad "
            r"w_{it} > 3:\ 3 \log\pi(y_{it});\quad "
            r"\epsilon_{it} = 0.4 \text{ if } H_{it} > Q_{0.8}(H_i), \text{ else } 0.2"
        ),
        confirmed=(
            "The two ranges, the weight and its cap of 3: wizard-III/Archer2.0, verl/workers/actor/dp_actor.py 402 to "
            "424 and verl/trainer/ppo/core_algos.py 537 to 583. KL of 0.001 as k3, and one response a micro-batch: "
            "scripts/train/run_archer2.0_qwen2.5_1.5b_math.sh 14 to 16 and 55. The weight, one range of 0.2, the KL "
            "and the mean over responses also in the paper, section 6 and appendix B."
        ),
        references=(papers.WANG_ASPO,),
        note=(
            "The paper has one range of 0.2 (surrogate.fraction=none). The authors' code has 0.2 for the tokens at or "
            "below the 80 % quantile of the response's entropies and 0.4 for those above, in every run, which is "
            "taken. Its token mean is over a micro-batch, which in its scripts is one response, so that it is the "
            "paper's mean over responses. Its runs also drop groups that are all right or all wrong "
            "(filter=zero_variance,filter.max_rounds=0), and punish the last 16 tokens before the limit. verl hands a "
            "policy loss no entropies: there it runs with surrogate.fraction=none."
        ),
    ),
    replace(
        GRPO,
        name="archer",
        surrogate=EntropyClip(),
        kl=K3(beta=1e-3, exempt=0.2),
        filter=ZeroVariance(max_rounds=0),
        summary="Dual-token constraints: the tokens of highest entropy in a response have a wider clip and no KL.",
        formula=(
            r"L = \frac{1}{N}\sum_i\frac{1}{l_i}\sum_t \left[-\min(\rho_{it} A_i, "
            r"\operatorname{clip}(\rho_{it}, 1\mp\epsilon_{it}) A_i) + \frac{l_i}{n_i} 1[H_{it} \le Q_{0.8}(H_i)]\, "
            r"\beta\, k_3\right],\quad n_i = \textstyle\sum_t 1[H_{it} \le Q_{0.8}(H_i)],\quad "
            r" \epsilon_{it} = 0.5 \text{ if } H_{it} > Q_{0.8}(H_i), \text{ else } 0.2;\quad "
            r"A_i < 0:\ \rho_{it} \le 10"
        ),
        confirmed=(
            "Quantile and KL: wizard-III/ArcherCodeR, verl/workers/actor/dp_actor.py 402 to 448; clip: "
            "verl/trainer/ppo/core_algos.py 537 to 615; 0.2 and 0.5, 0.001 and 0, the dual clip at 10, one response a "
            "micro-batch and rejection_sample=True in scripts/train/run_archer_qwen2.5_1.5b_code.sh; groups that are "
            "all right or all wrong leave in dapo/dapo_ray_trainer.py 217."
        ),
        references=(papers.WANG_ARCHER,),
        note=(
            "Of the paper the abstract was read: a weaker KL and a wider clip on tokens of high entropy. In the "
            "authors' script these tokens have no KL at all. Its token mean is over a micro-batch, which in the script "
            "is one response, so that it is a mean over responses; the KL's is over the tokens that have one. Groups "
            "without signal leave and no others are drawn."
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
            "Kwai-Klear/CE-GPPO, README.md: the loss; recipe/dapo/7B_perf_run_gppo_v1_beta1_075_beta2_1_ours_math.sh: "
            "0.2 on both sides, 0.75, 1 and the token mean."
        ),
        references=(papers.SU_CEGPPO,),
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
            "The paper, sections 4.2 and 5.1 (half-life 32, weight from 1 to 1.2, a dual clip of at least 10), and "
            "Henrymachiyu/FIPO, README.md (a safety of 10 in the 32B run, which is built on DAPO's recipe with "
            "clip_ratio_c=10)."
        ),
        references=(papers.FIPO, papers.YU),
        note=(
            "Numbers are those of its 32B run; for 7B the weight goes from 0.8 to 1.2. Other code takes 3 or 4 "
            "where `surrogate.safety` is 10. With A < 0 the loss is held at a ratio of 10 (DAPO's dual clip; "
            "verl's default is 3). The authors' code also drops a response two of whose tokens are."
        ),
    ),
)
