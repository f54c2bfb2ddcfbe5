"""Members that correct for what the rollout engine did otherwise than the trainer."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.advantage.scale import NoScale
from grpo_variants.catalogue import references as papers
from grpo_variants.catalogue.bases import DAPO, DAPO_RECIPE, GRPO
from grpo_variants.objective.aggregation import Constant, TokenMean
from grpo_variants.objective.correction import Kpop, OffPolicyMask, SequenceMask, TokenMask, TokenTruncate
from grpo_variants.objective.kl import K3
from grpo_variants.objective.ratio import TokenRatio
from grpo_variants.objective.surrogate import Band, Clip
from grpo_variants.variant import Variant

MISMATCH: tuple[Variant, ...] = (
    replace(
        DAPO,
        name="tis",
        correction=(TokenTruncate(cap=2.0),),
        summary="DAPO with truncated importance sampling: each token weighted by the trainer's ratio to the engine.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} \min\Big(\frac{\pi_{\mathrm{old}}(y_{it})}{\mu(y_{it})}, 2\Big)\,"
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1-0.2, 1+0.28) A_i)"
        ),
        note=DAPO_RECIPE,
        confirmed=("DAPO's objective with the truncated weight: yaof20/verl, recipe/flash_rl/dapo_qwen32b_int8.sh."),
        unconfirmed=(
            "The cap is an argument of those scripts, without a number; 2 is the value of the trainers that took "
            "it over (SkyRL, TRL, ROLL)."
        ),
        references=(papers.YAO, papers.YU),
    ),
    replace(
        GRPO,
        name="seq_mis",
        scale=NoScale(),
        aggregation=Constant(),
        correction=(SequenceMask(low=None, high=10.0),),
        summary=(
            "Dr. GRPO with masked importance sampling: a response is weighted by its whole ratio to the engine, or "
            "dropped above 10."
        ),
        formula=(
            r"A_i = r_i - \operatorname{mean}_g r,\quad W_i = \prod_t \frac{\pi_{\mathrm{old}}(y_{it})}{\mu(y_{it})},"
            r"\quad L = -\frac{1}{N L_{\max}}\sum_{i,t} W_i\,1[W_i \le 10]\,"
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1\mp 0.2) A_i)"
        ),
        note=(
            "The article gives no bound. Its authors' later code runs 10 beside Dr. GRPO's clip and constant, which is "
            "taken; its bound of 3 belongs to runs without a clip that hold the weight at 3 (bf16_seq_mis.sh). TRL's "
            "default is 3 (correction.high=3)."
        ),
        confirmed=(
            "The masked weight of the whole response: the article. A bound of 10 on Dr. GRPO: sail-sg/Precision-RL, "
            "oat/scripts/sanity/bf16_grpo_seq_mis.sh; the loss: oat/main.py 665 to 687 of the same repository."
        ),
        references=(papers.LIU_COLLAPSE, papers.QI, papers.LIU),
    ),
    replace(
        GRPO,
        name="icepop",
        correction=(TokenMask(low=0.5, high=5.0),),
        summary="GRPO in which a token counts only where trainer and engine agree on its probability within a band.",
        formula=(
            r"w_{it} = \frac{\pi_{\mathrm{old}}(y_{it})}{\mu(y_{it})},\quad "
            r"L = -\frac{1}{N}\sum_i\frac{1}{l_i}\sum_t w_{it}\,1[0.5\le w_{it}\le 5]\,"
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1\mp0.2) A_i)"
        ),
        confirmed=(
            "Mask, weight and GRPO's mean over responses: the Ling and Ring 2.6 report, equation 5; 0.5 and 5: the "
            "Ring-1T report, section 2.3.4, and OpenRLHF/OpenRLHF, "
            "examples/scripts/train_prorlv2_math_hybrid_engine.sh 76 to 78."
        ),
        note=(
            "PrimeIntellect-ai/prime-rl had 0.125 and 8 from October 2025 to March 2026: "
            "`icepop,correction.low=0.125,correction.high=8`."
        ),
        references=(papers.RING, papers.LING),
    ),
    replace(
        GRPO,
        name="glm5",
        surrogate=Clip(low=0.2, high=0.28),
        correction=(TokenMask(low=0.5, high=2.0),),
        summary=(
            "GRPO of GLM-5's reasoning stage: a token counts only where the trainer's ratio to the engine lies between "
            "1/2 and 2; clip-higher, no KL."
        ),
        formula=(
            r"w_{it} = \frac{\pi_{\mathrm{old}}(y_{it})}{\mu(y_{it})},\quad "
            r"L = -\frac{1}{N}\sum_i\frac{1}{l_i}\sum_t w_{it}\,1[0.5\le w_{it}\le 2]\,"
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1-0.2, 1+0.28) A_i)"
        ),
        confirmed=(
            "The report, section 3.2, equation 1: the mask with a beta of 2, so from 1/2 to 2, bounds included; the "
            "clip of 0.2 and 0.28, the mean over a response and then over the group, no KL term. No code of that "
            "run is published."
        ),
        references=(papers.GLM5, papers.RING),
        note=(
            "The report divides by the group's deviation and gives neither its epsilon nor whether it is the sample's; "
            "both are GRPO's here. It is `icepop` with a narrower band and clip-higher."
        ),
    ),
    replace(
        GRPO,
        name="glm5_agentic",
        scale=NoScale(),
        ratio=TokenRatio(anchor="rollout"),
        surrogate=Band(),
        aggregation=TokenMean(),
        summary=(
            "Policy gradient of GLM-5's agentic stage: each token weighted by its ratio to the engine, and dropped "
            "outside a band."
        ),
        formula=(
            r"A_i = r_i - \operatorname{mean}_g r,\quad L = -\frac{1}{\sum_i l_i}\sum_{i,t}"
            r"\operatorname{sg}[f(\rho_{it})]\, A_i \log\pi(y_{it}),\quad \rho_{it} = \frac{\pi(y_{it})}{\mu(y_{it})},"
            r"\quad f(\rho) = \rho \text{ if } 1-0.2 < \rho < 1+0.2, \text{ else } 0"
        ),
        confirmed=(
            "Band and weight on the ratio to the engine, without the old policy: the report, section 4.1.2, equations "
            "3 to 5; the centred reward: section 4.1."
        ),
        unconfirmed=(
            "The report gives no range for this loss: 0.2 and 0.2 are the default of NovaSky-AI/SkyRL, "
            "skyrl/backends/skyrl_train/utils/ppo_utils.py 825 to 865, which names the report. Nor does it say what "
            "the mean is over; tokens are taken."
        ),
        references=(papers.GLM5,),
        note=(
            "SkyRL's example of an asynchronous run has 0.5 and 4 (surrogate.low=0.5,surrogate.high=4). With "
            "`surrogate.penalty` it is the form of Kimi K2.5 (arXiv 2602.02276), whose coefficients are not published."
        ),
    ),
    replace(
        GRPO,
        name="kpop",
        correction=(Kpop(),),
        summary="GRPO in which a token counts only where trainer and engine agree in binary KL, both ways.",
        formula=(
            r"L = -\frac{1}{N}\sum_i\frac{1}{l_i}\sum_t w_{it}\,1[\max(D(p\|q), D(q\|p)) \le 0.1]\,"
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1\mp0.2) A_i),\quad "
            r"D(p\|q) = p\ln\tfrac{p}{q} + (1-p)\ln\tfrac{1-p}{1-q},\ p = \pi_{\mathrm{old}}(y_{it}),\ q = \mu(y_{it})"
        ),
        confirmed="The mask, both directions with one threshold: the Ling and Ring 2.6 report, section 3.2.3.",
        unconfirmed=(
            "The report gives no threshold, and the article tries several from 0.1 to 2, of which 0.1 is taken; "
            "whether the weight stays beside the mask is not written, it does in AReaL."
        ),
        references=(papers.GUO_KPOP, papers.LING),
        note="The weight itself stays, as in IcePop and AReaL; a pull request for verl rejects without it.",
    ),
    replace(
        GRPO,
        name="deepseek_v32",
        scale=NoScale(),
        kl=K3(beta=1e-3, weighted="ratio"),
        correction=(OffPolicyMask(threshold=0.5),),
        summary=(
            "GRPO of DeepSeek-V3.2: unbiased k3, and wrong responses that have drifted are dropped; beta and threshold "
            "are not published, these are R1's and TRL's."
        ),
        formula=(
            r"A_i = r_i - \operatorname{mean}_g r,\quad L = \frac{1}{N}\sum_i\frac{1}{l_i}\sum_t\left[-M_i "
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1\mp0.2) A_i) + \beta\,\rho_{it}\, k_3\right],\quad "
            r"M_i = 0 \text{ if } A_i < 0 \text{ and } \tfrac{1}{l_i}\sum_t \log\tfrac{\mu}{\pi} > 0.5"
        ),
        confirmed=(
            "Unbiased k3, the mask of drifted responses and the advantage without a deviation: the report, section 3.1."
        ),
        unconfirmed=(
            "The report gives neither beta nor the mask's threshold: 0.001 is R1's, 0.5 an example in TRL's "
            "documentation. slime's default on the same quantity is 1e-4 (THUDM/slime, slime/utils/arguments.py 1109 "
            "to 1114), which is correction.threshold=1e-4 and drops nearly every wrong response that has moved at all."
        ),
        references=(papers.DEEPSEEK_V32,),
    ),
)
