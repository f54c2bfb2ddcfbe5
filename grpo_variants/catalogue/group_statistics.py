"""Members whose baseline or scale is another statistic of the group, or of the batch."""

from __future__ import annotations

from grpo_variants.advantage.baseline import (
    GroupMean,
    GroupMedian,
    GroupQuantile,
    Kalman,
    LeaveOneOut,
    LengthWeighted,
)
from grpo_variants.advantage.credit import Decoupled
from grpo_variants.advantage.scale import (
    BatchStd,
    BetaDensity,
    GroupMad,
    GroupStd,
    KalmanStd,
    MeanReward,
    SignalShare,
)
from grpo_variants.catalogue.bases import DAPO_RECIPE
from grpo_variants.catalogue.formulas import CLIP, CLIPPED, SCORED
from grpo_variants.catalogue.references import BAE, CHU, HAO, KIM, LIU_GDPO, LIU_TRICKS, TAJWAR, WANG_KRPO, WU, XIAO
from grpo_variants.objective.aggregation import SequenceMean, SequenceSum, TokenMean
from grpo_variants.objective.kl import K3
from grpo_variants.objective.ratio import TokenRatio
from grpo_variants.objective.surrogate import Clip
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.variant import Variant

GROUP_STATISTICS: tuple[Variant, ...] = (
    Variant(
        name="opo",
        baseline=LengthWeighted(),
        aggregation=TokenMean(),
        summary="Exactly on policy, with the length-weighted mean of the group as its baseline; no ratio, no KL.",
        formula=rf"A_i = r_i - \frac{{\sum_j l_j r_j}}{{\sum_j l_j}},\quad {SCORED}",
        note=(
            "The derivation weighs the score of a whole response, which is aggregation=sequence_sum; the authors "
            "ran verl's token mean, which is taken. One update per batch: with more, a ratio is needed."
        ),
        confirmed=(
            "The baseline: the paper, and verl-project/verl, verl/trainer/ppo/core_algos.py "
            "(compute_opo_outcome_advantage)."
        ),
        references=(HAO,),
    ),
    Variant(
        name="lite_ppo",
        baseline=GroupMean(),
        scale=BatchStd(of="raw"),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Group mean, standard deviation of the whole batch, PPO clip, token mean; nothing else.",
        formula=(
            r"A_i = \frac{r_i - \operatorname{mean}_g r}{\operatorname{std}_b r + \epsilon},\quad "
            rf"{CLIPPED}"
        ),
        note=(
            "Trainers take the deviation of the raw rewards (ROLL, TRL, ms-swift) or of the centred ones (AReaL), "
            "which is never larger. Raw is taken; scale.of=centred is the other."
        ),
        confirmed=(
            "Group mean, deviation of the batch's raw rewards, token mean: the paper, section 4.1 (equation 6) and "
            "section 5. Raw rewards with 1e-6: alibaba/ROLL, roll/utils/functionals.py 564 to 600."
        ),
        references=(LIU_TRICKS,),
    ),
    Variant(
        name="agapo",
        baseline=LeaveOneOut(),
        scale=BatchStd(of="centred"),
        aggregation=SequenceSum(),
        summary="Leave-one-out within the group, then the deviation of the batch; no ratio and no clip.",
        formula=(
            r"a_i = r_i - \frac{1}{G-1}\sum_{j\ne i} r_j,\quad A_i = \frac{a_i}{\operatorname{std}_b a + \epsilon},"
            r"\quad L = -\frac{1}{N}\sum_i A_i \sum_t\log\pi(y_{it})"
        ),
        note=(
            "The report's KL term is of a whole response: set kl and kl.beta for it. Its normalisation subtracts "
            "the mean of the batch, which is 0 after leave-one-out. Groups that are all wrong are kept, with "
            "small negative rewards, which is the reward function's to give."
        ),
        confirmed=(
            "Leave-one-out, the normalisation over the batch, and the sum over a whole response without ratio or "
            "clip: the report, section 2.4.2."
        ),
        unconfirmed=(
            "The objective has a KL term whose coefficient the report does not give; without one it is left out "
            "here. Code was not published."
        ),
        references=(BAE,),
    ),
    Variant(
        name="maxrl",
        baseline=GroupMean(),
        scale=MeanReward(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Centred rewards over the group's mean reward: likelihood of success, to the group's order.",
        formula=(
            r"A_i = \frac{r_i - \operatorname{mean}_g r}{\operatorname{mean}_g r + \epsilon},\quad "
            rf"A_i = 0 \text{{ where }} \operatorname{{mean}}_g r \le 0,\quad {CLIPPED}"
        ),
        note=(
            "For rewards of 0 and 1. The authors' code divides by any mean plus 1e-6, so that a negative mean "
            "turns the sign; here such a group has no success to learn from and gets 0."
        ),
        confirmed=(
            "The advantage: the paper, and tajwarfahim/maxrl, verl/trainer/ppo/core_algos.py 402 to 441, which adds "
            "1e-6 to the mean, as SkyRL does."
        ),
        references=(TAJWAR,),
    ),
    Variant(
        name="gpg",
        baseline=GroupMean(),
        scale=SignalShare(),
        aggregation=TokenMean(),
        summary="Plain policy gradient on centred rewards, raised by the share of groups that have no signal.",
        formula=(
            r"A_i = \frac{B}{B - M}(r_i - \operatorname{mean}_g r),\quad M = |\{i : \text{rewards of its group are "
            rf"equal}}\}}|,\quad {SCORED}"
        ),
        note=(
            "verl's estimator of that name raises by B over the number of rewards that are not 0, which is "
            "another number with rewards of -1 and 1, and wherever a group is all right. The authors' is taken, "
            "with F_norm = 1; they also draw again where fewer than half of the groups have a signal, which is "
            "not done here."
        ),
        confirmed=(
            "AMAP-ML/GPG, open-r1/src/open_r1/gpg_trainer.py 299 to 316 and 614 to 626, with open-r1/train.sh: alpha, "
            "F_norm = 1 (no deviation), and the mean over tokens of a loss without a ratio."
        ),
        references=(CHU,),
    ),
    Variant(
        name="mc_grpo",
        baseline=GroupMedian(),
        scale=GroupMad(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        kl=K3(beta=0.04),
        aggregation=SequenceMean(),
        summary="Median of the group as baseline, median absolute deviation as scale, for groups of few responses.",
        formula=(
            r"A_i = \frac{r_i - \operatorname{median}_g r}{\operatorname{MAD}_g r + 10^{-3}},\quad "
            rf"L = \frac{{1}}{{N}}\sum_i\frac{{1}}{{l_i}}\sum_t\left[-{CLIP} + \beta\, k_3\right],\quad \beta = 0.04"
        ),
        note=(
            "The authors draw G + 1 responses, so that the number is odd, and take the median one out of the batch; "
            "here it has advantage 0 and stays in the counts, and its KL in the loss. The median of an even group is "
            "the lower of the middle two, as torch.median has it (baseline.even, scale.even). "
            "Their trainer for GSM8K also multiplies the advantages of a group that are not 0 by its size over their "
            "number (scale.compensate=group). Their trainer for MATH does not, which is taken. All seven recipes have "
            "a KL term of 0.04 and two updates per batch. With rewards of 0 and 1 the deviation is 0 unless half of "
            "the group differs, and only the 0.001 divides: a single right answer then has an advantage of 1000, in "
            "their code as here."
        ),
        confirmed=(
            "lotusroot-kim/MC-GRPO, src/open_r1/grpo_trainer_math.py: median, median absolute deviation plus 1e-3. The "
            "same in src/open_r1/grpo_trainer_gsm.py 2010 to 2051, with the factor in 2088 to 2110. The KL term, and "
            "num_iterations of 2: recipes/gsm8k and recipes/math, seven files. The loss: scripts/MCGRPO_gsm.sh "
            "(loss_type grpo)."
        ),
        references=(KIM,),
    ),
    Variant(
        name="qae",
        baseline=GroupQuantile(),
        scale=GroupStd(),
        ratio=TokenRatio(),
        surrogate=Clip(low=0.2, high=0.28),
        aggregation=TokenMean(),
        filter=ZeroVariance(),
        summary="DAPO with a quantile of the group as baseline: hard prompts teach by success, easy ones by failure.",
        formula=(
            r"A_i = \frac{r_i - Q_{0.4}(r)}{\operatorname{std}_g r + \epsilon},\quad "
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t}\min(\rho_{it}A_i, \operatorname{clip}(\rho_{it}, 1-0.2, 1+0.28)A_i)"
        ),
        note=(
            "The paper's quantile is a reward that occurs; the readme of the authors' repository has one that lies "
            "between two, "
            f"which is baseline.interpolation=linear. The paper's is taken. {DAPO_RECIPE}"
        ),
        confirmed=(
            "Quantile as the distribution reaches K, deviation, and K of 0.4: the paper, section 4.1 (equations 3 and "
            "4) and section 5. The readme of junkangwu/QAE, README.md, names torch.quantile in "
            "verl/trainer/ppo/core_algos.py; the code itself was not read."
        ),
        references=(WU,),
    ),
    Variant(
        name="bnpo",
        baseline=GroupMean(),
        scale=BetaDensity(),
        ratio=TokenRatio(),
        surrogate=Clip(low=0.2, high=0.28),
        aggregation=SequenceSum(),
        summary="Centred rewards over a Beta density fitted to the success rates of the batch's prompts.",
        formula=(
            r"A_i = \frac{r_i - p_g}{f(p_g;\, 1 + a/3,\, 1 + b/3)},\quad p_g = \operatorname{mean}_g r,\quad "
            r"\operatorname{Beta}(a, b) \text{ fitted to } p \text{ by moments},\quad L = -\frac{1}{N}\sum_{i,t} "
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1-0.2, 1+0.28) A_i)"
        ),
        note=(
            "TRL's loss_type='bnpo' is not this: it is a token mean over each micro-batch. The authors' bounds "
            "are kept: no parameter below 1, no factor above 1e6. One prompt, or prompts that are all alike, "
            "leave nothing to fit: the density is then 1. The authors update once per batch, where the clip range "
            "has no part. The decomposition over several reward functions is not done."
        ),
        confirmed=(
            "The advantage: changyi7231/BNPO, recipe/bnpo/src/bnpo_ray_trainer.py; clip "
            "range and aggregation in its recipe/bnpo/run.sh."
        ),
        references=(XIAO,),
    ),
    Variant(
        name="gdpo",
        baseline=GroupMean(),
        scale=GroupStd(eps=1e-4),
        credit=Decoupled(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=SequenceMean(),
        summary="GRPO for several reward functions: each is normalised by itself before they are added.",
        formula=(
            r"a_i = \sum_k w_k\,\frac{r_{ik} - \operatorname{mean}_g r_k}{\operatorname{std}_g r_k + \epsilon},\quad "
            r"A_i = \frac{a_i - \operatorname{mean}_b a}{\operatorname{std}_b a + \epsilon},\quad "
            rf"L = -\frac{{1}}{{N}}\sum_i\frac{{1}}{{l_i}}\sum_t {CLIP}"
        ),
        note=(
            "The second normalisation is over responses in the authors' code for TRL, in TRL, ms-swift and here, "
            "and over tokens in verl, which is credit.over=tokens and part of conventions=verl. A response that a "
            "reward function gave nothing for is out of that function's statistics and sum; there it counts 0 in both. "
            "With a single reward function the authors' code is plain GRPO (gdpo,credit=outcome); here both stages "
            "stay, and a warning says so. Its recipe for TRL has a KL term of 0.04 and a mean over tokens, by that "
            "trainer's defaults: gdpo,kl=k3,kl.beta=0.04,aggregation=token_mean. Its runs in verl have no KL term and "
            "a mean over tokens. The paper's mean over responses is taken."
        ),
        confirmed=(
            "NVlabs/GDPO, trl-GDPO/trl-0.18.0-gdpo/trl/trainer/grpo_trainer.py 1221 to 1266: both stages and 1e-4. The "
            "mean over responses: the paper, section 2 (equations 3 and 5). The runs: "
            "trl/trainer/grpo_config.py of that folder, and verl-GDPO/train_gdpo.sh."
        ),
        references=(LIU_GDPO,),
    ),
    Variant(
        name="krpo",
        baseline=Kalman(),
        scale=KalmanStd(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        kl=K3(beta=0.01),
        aggregation=SequenceMean(),
        summary="GRPO with a Kalman filter over the group's rewards, in their order, in place of mean and deviation.",
        formula=(
            r"P^- = P + Q,\quad K = \frac{P^-}{P^- + R},\quad x \leftarrow x + K(r_i - x),\quad P \leftarrow (1-K)P^-,"
            r"\quad A_i = \frac{r_i - x}{\sqrt{P} + \epsilon},\quad "
            rf"L = \frac{{1}}{{N}}\sum_i\frac{{1}}{{l_i}}\sum_t\left[-{CLIP} + \beta\, k_3\right]"
        ),
        note=(
            "The filter starts anew with each group in the authors' code, so nothing is remembered between steps, "
            "and each reward is compared with the state that it has just moved. The advantage depends on the "
            "order of the responses, and a group of equal rewards does not get 0."
        ),
        confirmed=(
            "billhhh/KRPO_LLMs_RL, train.py 157 to 196 (the order of the update), 263 to 264 (Q and R), 279 to 280 "
            "(0.01 and 0.2)."
        ),
        references=(WANG_KRPO,),
    ),
)
