"""Members that differ in how rewards become advantages."""

from __future__ import annotations

from grpo_variants.aggregation import SequenceMean, SequenceSum, TokenMean
from grpo_variants.baseline import (
    GroupMean,
    GroupMedian,
    GroupQuantile,
    Kalman,
    LeaveOneOut,
    LengthWeighted,
    SecondBest,
    Tracked,
)
from grpo_variants.catalogue.references import (
    BAE,
    CHEN,
    CHU,
    HAO,
    KIM,
    LI_OTB,
    LIU_GDPO,
    LIU_TRICKS,
    SHRIVASTAVA,
    TAJWAR,
    TAN,
    TANG,
    WANG_KRPO,
    WU,
    XIAO,
    XU,
    YANG,
    ZHU,
)
from grpo_variants.credit import Decoupled
from grpo_variants.divergence import K3
from grpo_variants.filters import ZeroVariance
from grpo_variants.ratio import SequenceArithmetic, TokenRatio
from grpo_variants.scale import (
    BatchStd,
    Bernoulli,
    BetaDensity,
    GroupMad,
    GroupStd,
    KalmanStd,
    MeanReward,
    SignalShare,
    SmoothedStd,
)
from grpo_variants.selection import Shortest
from grpo_variants.surrogate import Clip, Dcpo
from grpo_variants.token_credit import EntropyResponses, EntropyTokens, OptimalToken
from grpo_variants.transform import PassAtK, Verdict
from grpo_variants.variant import Variant

_CLIP = r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1\mp 0.2) A_i)"
_CLIPPED = rf"L = -\frac{{1}}{{\sum_i l_i}}\sum_{{i,t}} {_CLIP}"
_CLIPPED_TOKENS = _CLIPPED.replace("A_i", "A_{it}")
_SCORED = r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} A_i \log\pi(y_{it})"
_VERDICTS = (
    ("trl", "no counterpart: GRPOTrainer always subtracts the group mean"),
    ("verl", "no counterpart: every estimator subtracts a baseline or whitens"),
)

ADVANTAGE_SIDE: tuple[Variant, ...] = (
    Variant(
        name="opo",
        baseline=LengthWeighted(),
        aggregation=TokenMean(),
        summary="Exactly on policy, with the length-weighted mean of the group as its baseline; no ratio, no KL.",
        formula=rf"A_i = r_i - \frac{{\sum_j l_j r_j}}{{\sum_j l_j}},\quad {_SCORED}",
        note=(
            "The derivation weighs the score of a whole response, which is aggregation=sequence_sum; the authors "
            "ran verl's token mean, which is taken. One update a batch: with more, a ratio is needed."
        ),
        confirmed="The baseline in the paper and in verl's estimator opo.",
        references=(HAO,),
        hosts=(
            ("trl", "no counterpart: no baseline that weighs by length"),
            ("verl", "advantages equal estimator opo, outside groups of one; the loss equals gpg with token-mean"),
        ),
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
            rf"{_CLIPPED}"
        ),
        note=(
            "Trainers take the deviation of the raw rewards (TRL, ms-swift) or of the centred ones (AReaL, ROLL), "
            "which is never larger. Raw is taken; scale.of=centred is the other."
        ),
        confirmed=(
            "Group mean with the deviation of the batch, and the token mean, in the paper; raw rewards in its "
            "authors' ROLL (roll/utils/functionals.py, reward_norm)."
        ),
        references=(LIU_TRICKS,),
        hosts=(
            ("trl", "advantages equal scale_rewards='batch', under conventions=trl; the loss is loss_type='dapo'"),
            ("verl", "no counterpart: no deviation of the batch but in the whitening over tokens"),
        ),
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
        hosts=(
            ("trl", "no counterpart: RLOOTrainer's normalize_advantages subtracts and divides in another order"),
            ("verl", "no counterpart: no deviation of the batch but in the whitening over tokens"),
        ),
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
            rf"A_i = 0 \text{{ where }} \operatorname{{mean}}_g r \le 0,\quad {_CLIPPED}"
        ),
        note=(
            "For rewards of 0 and 1. The authors' code divides by any mean plus 1e-6, so that a negative mean "
            "turns the sign; here such a group has no success to learn from and gets 0."
        ),
        confirmed="The advantage in the paper; its code adds 1e-6 to the mean, as SkyRL does.",
        references=(TAJWAR,),
        hosts=(
            ("trl", "no counterpart: no scale but a standard deviation"),
            ("verl", "no counterpart in 0.9.1: no scale but a standard deviation"),
        ),
    ),
    Variant(
        name="gpg",
        baseline=GroupMean(),
        scale=SignalShare(),
        aggregation=TokenMean(),
        summary="Plain policy gradient on centred rewards, raised by the share of groups that have no signal.",
        formula=(
            r"A_i = \frac{B}{B - M}(r_i - \operatorname{mean}_g r),\quad M = |\{i : \text{rewards of its group are "
            rf"equal}}\}}|,\quad {_SCORED}"
        ),
        note=(
            "verl's estimator of that name raises by B over the number of rewards that are not 0, which is "
            "another number with rewards of -1 and 1, and wherever a group is all right. The authors' is taken, "
            "with F_norm = 1; they also draw again where fewer than half of the groups have a signal, which is "
            "not done here."
        ),
        confirmed="The authors' code (AMAP-ML/GPG): alpha, F_norm and the loss without a ratio.",
        references=(CHU,),
        hosts=(
            ("trl", "no counterpart: groups without signal are counted like any other"),
            (
                "verl",
                "no counterpart of the advantage: estimator gpg has another alpha; the loss equals gpg's, token-mean",
            ),
        ),
    ),
    Variant(
        name="passk",
        baseline=SecondBest(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Only the best response of the group learns: its lead over the second best is its share of best-of-k.",
        formula=(
            r"A_i = (r_{(1)} - r_{(2)})\,\mathbf{1}[r_i = r_{(1)}],\quad "
            rf"{_CLIPPED}"
        ),
        note=(
            "verl divides by the group's standard deviation unless norm_adv_by_std_in_grpo is off; the paper does "
            "not. scale=group_std is verl's default."
        ),
        confirmed="The formula is the paper's; verl's grpo_passk has it as well.",
        references=(TANG,),
        hosts=(
            ("trl", "no counterpart: every response of a group gets an advantage"),
            ("verl", "advantages equal estimator grpo_passk with norm_adv_by_std_in_grpo=False"),
        ),
    ),
    Variant(
        name="passk_analytic",
        transform=PassAtK(k=4),
        baseline=GroupMean(),
        scale=Bernoulli(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Pass@k as the objective, in closed form over every subset of k responses of the group.",
        formula=(
            r"v_i = E\big[\max_{j\in S} r_j \mid i\in S, |S|=k\big],\quad R = \operatorname{mean}_g v,\quad "
            rf"A_i = \frac{{v_i - R}}{{\sqrt{{R(1-R)}} + \epsilon}},\quad {_CLIPPED}"
        ),
        note=(
            "For rewards of 0 and 1 this is the paper's closed form; other rewards are an extension by the same "
            "definition. The authors publish the advantage; the objective here is the clip with a token mean."
        ),
        confirmed="The closed form in the paper and in its authors' code (RUCAIBox/Passk_Training).",
        references=(CHEN,),
        hosts=(
            ("trl", "no counterpart: rewards are compared one by one"),
            ("verl", "no counterpart: estimator grpo_passk is best of k, see passk"),
        ),
    ),
    Variant(
        name="mc_grpo",
        baseline=GroupMedian(),
        scale=GroupMad(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=SequenceMean(),
        summary="Median of the group as baseline, median absolute deviation as scale, for groups of few responses.",
        formula=(
            r"A_i = \frac{r_i - \operatorname{median}_g r}{\operatorname{MAD}_g r + 10^{-3}},\quad "
            rf"L = -\frac{{1}}{{N}}\sum_i\frac{{1}}{{l_i}}\sum_t {_CLIP}"
        ),
        note=(
            "The authors draw G + 1 responses and take the median one out of the batch; here it has advantage 0 "
            "and stays in the counts. With rewards of 0 and 1 the deviation is 0 unless half of the group "
            "differs, and only the 0.001 divides: a single right answer then has an advantage of 1000, in their "
            "code as here."
        ),
        confirmed="The authors' code: median, median absolute deviation plus 1e-3.",
        references=(KIM,),
        hosts=(
            ("trl", "no counterpart: no median"),
            ("verl", "no counterpart: no median"),
        ),
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
            "The paper's quantile is a reward that occurs; the authors' code interpolates between two, which is "
            "baseline.interpolation=linear. The paper's is taken."
        ),
        confirmed="The paper, with 0.4, and its authors' code.",
        references=(WU,),
        hosts=(
            ("trl", "no counterpart: no quantile"),
            ("verl", "no counterpart in 0.9.1: no quantile"),
        ),
    ),
    Variant(
        name="w_reinforce",
        transform=Verdict(right=0.1, wrong=-1.0),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Wrong responses count -1, right ones only 0.1: mostly negative reinforcement, which keeps diversity.",
        formula=rf"A_i = 0.1 \text{{ if right, else }} -1,\quad {_CLIPPED}",
        confirmed="The authors' code (RLVR-Decomposed), with a weight of 0.1.",
        references=(ZHU,),
        hosts=_VERDICTS,
    ),
    Variant(
        name="psr",
        transform=Verdict(right=1.0, wrong=0.0),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Positive sample reinforcement: only right responses are learnt from.",
        formula=rf"A_i = 1 \text{{ if right, else }} 0,\quad {_CLIPPED}",
        confirmed="The authors' code (RLVR-Decomposed).",
        references=(ZHU,),
        hosts=_VERDICTS,
    ),
    Variant(
        name="nsr",
        transform=Verdict(right=0.0, wrong=-1.0),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Negative sample reinforcement: only wrong responses are learnt from, by making them less likely.",
        formula=rf"A_i = 0 \text{{ if right, else }} -1,\quad {_CLIPPED}",
        confirmed="The authors' code (RLVR-Decomposed).",
        references=(ZHU,),
        hosts=_VERDICTS,
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
            "leave nothing to fit: the density is then 1. The authors update once a batch, where the clip range "
            "has no part. The decomposition over several reward functions is not done."
        ),
        confirmed=(
            "The advantage in the authors' code (changyi7231/BNPO, recipe/bnpo/src/bnpo_ray_trainer.py); clip "
            "range and aggregation in its recipe/bnpo/run.sh."
        ),
        references=(XIAO,),
        hosts=(
            ("trl", "no counterpart: loss_type='bnpo' has the name and is a token mean per micro-batch"),
            ("verl", "no counterpart: no scale but a standard deviation"),
        ),
    ),
    Variant(
        name="gfpo",
        selection=Shortest(keep=8),
        baseline=GroupMean(),
        scale=GroupStd(ddof=0),
        ratio=TokenRatio(),
        surrogate=Clip(),
        kl=K3(beta=1e-3),
        aggregation=TokenMean(),
        summary="GRPO within the shortest responses of a larger group; the rest is sampled but not learnt from.",
        formula=(
            r"S_g = \text{the } k \text{ shortest},\quad A_i = \mathbf{1}[i\in S_g]\,"
            r"\frac{r_i - \operatorname{mean}_{S_g} r}{\operatorname{std}_{S_g} r + \epsilon},\quad "
            rf"L = \frac{{1}}{{\sum_i l_i}}\sum_{{i,t}}\left[-{_CLIP} + \beta\, k_3\right]"
        ),
        note=(
            "Responses that are not selected stay in the token count, as in the paper's formula. It writes the KL "
            "against the sampling policy and ran verl, which takes a reference; the reference is taken, and k3 as "
            "estimator, which it does not name. selection=efficient is its other metric, reward per token; the "
            "number kept by difficulty is not done."
        ),
        confirmed="The paper: selection, statistics of the kept responses, coefficients.",
        references=(SHRIVASTAVA,),
        hosts=(
            ("trl", "no counterpart in 1.16: every response of a group is learnt from"),
            ("verl", "no counterpart: every response of a group is learnt from"),
        ),
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
            rf"L = -\frac{{1}}{{N}}\sum_i\frac{{1}}{{l_i}}\sum_t {_CLIP}"
        ),
        note=(
            "The second normalisation is over responses in the authors' code for TRL, in TRL, ms-swift and here, "
            "and over tokens in verl, which is credit.over=tokens and part of conventions=verl. A response that a "
            "reward function gave nothing for is out of that function's statistics and sum."
        ),
        confirmed="The authors' code (NVlabs/GDPO), both stages and 1e-4.",
        references=(LIU_GDPO,),
        hosts=(
            ("trl", "advantages equal multi_objective_aggregation='normalize_then_sum', under conventions=trl"),
            (
                "verl",
                "advantages equal estimator gdpo, under conventions=verl; a plugin is given the total reward only",
            ),
        ),
    ),
    Variant(
        name="gtpo_entropy",
        credit=EntropyTokens(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Right tokens are rewarded by entropy, wrong ones punished by certainty, each side normalised.",
        formula=(
            r"\tilde r^+_{it} = \alpha_1 r_i + \alpha_2 \frac{H_{it}}{\sum_k H_{kt}} d_t,\quad "
            r"\tilde r^-_{jt} = -\alpha_1 - \alpha_2 \frac{1/H_{jt}}{\sum_k 1/H_{kt}} h_t,\quad "
            r"A^\pm = \frac{\tilde r^\pm - \operatorname{mean}\tilde r^\pm}{\operatorname{std}\tilde r^\pm},\quad "
            rf"{_CLIPPED_TOKENS}"
        ),
        note=(
            "The sums run over the right, or the wrong, responses of the prompt that still have a token at t; d_t "
            "and h_t are their numbers. One implementation takes the statistics over the whole batch, which is "
            "not done here. GTPO of arXiv 2508.03772 is another algorithm."
        ),
        confirmed=(
            "The shaped rewards, and alpha of 1 and 0.1, in two independent implementations that cite the paper's "
            "equations."
        ),
        unconfirmed=(
            "Neither the paper's text nor code of its authors could be read. One of the two implementations clips "
            "entropies to 0.2 and 0.28, the other takes these numbers for the clip range; here they are neither."
        ),
        references=(TAN,),
        hosts=(
            ("trl", "no counterpart: one advantage a response"),
            ("verl", "no counterpart: entropies do not reach an estimator"),
        ),
    ),
    Variant(
        name="grpo_s",
        credit=EntropyResponses(),
        ratio=SequenceArithmetic(),
        surrogate=Clip(),
        aggregation=SequenceMean(),
        summary="The response's form of gtpo_entropy: mean entropies, and the mean of the token ratios.",
        formula=(
            r"\hat r^+_i = \beta_1 r_i + \beta_2 \frac{\hat H_i}{\sum_k \hat H_k} n,\quad "
            r"\hat r^-_j = -\beta_1 - \beta_2 \frac{1/\hat H_j}{\sum_k 1/\hat H_k} m,\quad "
            r"A^\pm = \frac{\hat r^\pm - \operatorname{mean}\hat r^\pm}{\operatorname{std}\hat r^\pm},\quad "
            r"\hat w_i = \frac{1}{l_i}\sum_t \rho_{it},\quad "
            r"L = -\frac{1}{N}\sum_i \min(\hat w_i A_i, \operatorname{clip}(\hat w_i, 1\mp 0.2) A_i)"
        ),
        note=(
            "Hats are means over a response's tokens; n and m are the numbers of right and wrong responses of the "
            "prompt. With the same remark as gtpo_entropy."
        ),
        confirmed=(
            "The shaped rewards, beta of 1 and 0.1, and the mean of the token ratios in two independent "
            "implementations that cite the paper's equations."
        ),
        unconfirmed=(
            "Neither the paper's text nor code of its authors could be read; the clip range of 0.2 is GRPO's."
        ),
        references=(TAN,),
        hosts=(
            ("trl", "no counterpart: no credit by entropy"),
            ("verl", "no counterpart: entropies do not reach an estimator"),
        ),
    ),
    Variant(
        name="otb",
        credit=OptimalToken(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="A baseline for each token, weighted by how far the tokens before it moved the policy: least variance.",
        formula=(
            r"W_{it} = \sum_{j\le t}\Big(1 - 2\pi_{ij} + \sum_v \pi_{ij}(v)^2\Big),\quad "
            r"A_{it} = G_{it} - \frac{\sum_k G_{kt} W_{kt}}{\sum_k W_{kt} + \epsilon},\quad "
            rf"{_CLIPPED_TOKENS}"
        ),
        note=(
            "Where only the longest response is left, verl's baseline is 0, which is taken; credit.tail=own goes "
            "on with the formula, which gives 0 there. verl weighs W by squared rollout weights where it has "
            "them; not done here."
        ),
        confirmed="The paper, and its authors' estimator in verl (optimal_token_baseline).",
        references=(LI_OTB,),
        hosts=(
            ("trl", "no counterpart: sums of squared probabilities are not computed"),
            ("verl", "advantages equal estimator optimal_token_baseline, outside groups of one"),
        ),
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
            rf"L = \frac{{1}}{{N}}\sum_i\frac{{1}}{{l_i}}\sum_t\left[-{_CLIP} + \beta\, k_3\right]"
        ),
        note=(
            "The filter starts anew with each group in the authors' code, so nothing is remembered between steps, "
            "and each reward is compared with the state that it has just moved. The advantage depends on the "
            "order of the responses, and a group of equal rewards does not get 0."
        ),
        confirmed="The authors' code (billhhh/KRPO_LLMs_RL): Q, R and the order of the update.",
        references=(WANG_KRPO,),
        hosts=(
            ("trl", "no counterpart: no filter over rewards"),
            ("verl", "no counterpart: no filter over rewards"),
        ),
    ),
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
            rf"\beta\leftarrow\rho\beta + 1 - r,\quad {_CLIPPED}"
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
