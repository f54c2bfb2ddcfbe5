"""The first members of the family: REINFORCE to DAPO, GSPO and ReMax."""

from __future__ import annotations

from grpo_variants.advantage.baseline import Greedy, GroupMean, LeaveOneOut, NoBaseline
from grpo_variants.advantage.credit import Outcome, Process, RewardToGo
from grpo_variants.advantage.scale import BatchStd, GroupStd, NoScale
from grpo_variants.catalogue.bases import DAPO_RECIPE
from grpo_variants.catalogue.references import AHMADIAN, HU, KOOL, LI, LIU, SHAO, WILLIAMS, YU, ZHENG
from grpo_variants.objective.aggregation import Constant, SequenceMean, SequenceSum, TokenMean
from grpo_variants.objective.kl import K1, K2, K3
from grpo_variants.objective.ratio import NoRatio, SequenceRatio, SequenceTokenRatio, TokenRatio
from grpo_variants.objective.surrogate import Clip, Reinforce
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.rollout.overlong import Mask
from grpo_variants.variant import Variant

FOUNDING: tuple[Variant, ...] = (
    Variant(
        name="reinforce",
        baseline=NoBaseline(),
        ratio=NoRatio(),
        surrogate=Reinforce(),
        aggregation=SequenceSum(),
        summary="Policy gradient with the raw reward: no baseline, no ratio, no clip.",
        formula=r"A_i = r_i,\quad L = -\frac{1}{N}\sum_i A_i \sum_t \log\pi(y_{it})",
        confirmed="The formula is the paper's.",
        references=(WILLIAMS,),
    ),
    Variant(
        name="rloo",
        baseline=LeaveOneOut(),
        ratio=NoRatio(),
        surrogate=Reinforce(),
        aggregation=SequenceSum(),
        summary="REINFORCE with the mean of the other responses to the prompt as its baseline.",
        formula=(
            r"A_i = r_i - \frac{1}{G-1}\sum_{j\ne i} r_j,\quad "
            r"L = -\frac{1}{N}\sum_i A_i \sum_t \log\pi(y_{it})"
        ),
        confirmed="The formula is the paper's (section 3); TRL, verl, OpenRLHF and NeMo-RL have the same baseline.",
        references=(AHMADIAN, KOOL),
    ),
    Variant(
        name="grpo",
        baseline=GroupMean(),
        scale=GroupStd(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        kl=K3(beta=0.04),
        aggregation=SequenceMean(),
        summary="Group-normalised advantage, token ratio, PPO clip, k3 penalty in the loss, mean over each response.",
        formula=(
            r"A_i = \frac{r_i - \operatorname{mean}_g r}{\operatorname{std}_g r + \epsilon},\quad "
            r"L = \frac{1}{N}\sum_i\frac{1}{l_i}\sum_t \left[-\min(\rho_{it} A_i, "
            r"\operatorname{clip}(\rho_{it}, 1\mp 0.2) A_i) + \beta\, k_3\right]"
        ),
        confirmed=(
            "Formula and k3: the paper, section 4.1; beta of 0.04: section 4.2. The paper gives no clip range: 0.2 is "
            "PPO's (arXiv 1707.06347, section 6.1) and the default of TRL, verl and OpenRLHF."
        ),
        references=(SHAO,),
    ),
    Variant(
        name="grpo_process",
        baseline=GroupMean(),
        scale=GroupStd(),
        credit=Process(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        kl=K3(beta=0.04),
        aggregation=SequenceMean(),
        summary="GRPO with process supervision: step rewards normalised over the group, summed from each token on.",
        formula=(
            r"\tilde r_j = \frac{r_j - \operatorname{mean}(R)}{\operatorname{std}(R) + \epsilon},\quad "
            r"A_{it} = \sum_{j:\ \mathrm{end}(j)\ge t} \tilde r_j,\quad L \text{ as in GRPO}"
        ),
        confirmed=(
            "The rule: the paper, section 4.1.3; the normalisation followed by the sum over later steps also in "
            "NousResearch/atropos, atroposlib/utils/advantages.py. Beta of 0.04: section 4.2. The paper gives no clip "
            "range: 0.2 is PPO's (arXiv 1707.06347, section 6.1)."
        ),
        references=(SHAO,),
    ),
    Variant(
        name="dr_grpo",
        baseline=GroupMean(),
        scale=NoScale(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=Constant(),
        summary="GRPO done right: no standard deviation, token sums divided by a constant length, no KL.",
        formula=(
            r"A_i = r_i - \operatorname{mean}_g r,\quad "
            r"L = -\frac{1}{N L_{\max}}\sum_i\sum_t \min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1\mp 0.2) A_i)"
        ),
        confirmed=(
            "The paper, section 3, and sail-sg/understand-r1-zero, train_zero_math.py 286 to 308 (a constant in place "
            "of the length, no deviation); TRL and verl follow it."
        ),
        references=(LIU,),
    ),
    Variant(
        name="dapo",
        baseline=GroupMean(),
        scale=GroupStd(),
        ratio=TokenRatio(),
        surrogate=Clip(low=0.2, high=0.28),
        aggregation=TokenMean(),
        filter=ZeroVariance(),
        overlong=Mask(),
        summary="GRPO with clip-higher, token mean, dynamic sampling and overlong filtering, no KL.",
        formula=(
            r"A_i = \frac{r_i - \operatorname{mean}_g r}{\operatorname{std}_g r + \epsilon},\quad "
            r"L = -\frac{1}{\sum_i l_i}\sum_i\sum_t "
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1-0.2, 1+0.28) A_i),\quad "
            r"0 < |\{i: y_i \text{ correct}\}| < G"
        ),
        note=(
            "The paper's system has overlong filtering and the soft punishment (table 1); no buffer is right for "
            f"every length limit, so that filtering is taken. {DAPO_RECIPE} "
            "Altogether: `dapo,surrogate.dual=10,overlong=penalty,overlong.buffer=4096,filter.metric=acc`, with the "
            "name of your own accuracy function. The recipe stops with an error after ten draws, where the batch here "
            "stays short."
        ),
        confirmed=(
            "The paper, equation 8, section 4.1 and table 1; verl-project/verl-recipe, dapo/run_dapo_qwen2.5_32b.sh: "
            "0.2 and 0.28, token mean, group filter (dapo/dapo_ray_trainer.py 257 to 290)."
        ),
        references=(YU,),
    ),
    Variant(
        name="gspo",
        baseline=GroupMean(),
        scale=GroupStd(),
        ratio=SequenceRatio(),
        surrogate=Clip(low=3e-4, high=4e-4),
        aggregation=SequenceMean(),
        summary="One length-normalised importance ratio per response, clipped at sequence level.",
        formula=(
            r"s_i = \exp\Big(\frac{1}{l_i}\sum_t \log\rho_{it}\Big),\quad "
            r"L = -\frac{1}{N}\sum_i \min(s_i A_i, \operatorname{clip}(s_i, 1-3\cdot10^{-4}, 1+4\cdot10^{-4}) A_i)"
        ),
        confirmed="The paper, equations 5 to 7 and section 5.1, where 3e-4 and 4e-4 stand.",
        references=(ZHENG,),
    ),
    Variant(
        name="gspo_token",
        baseline=GroupMean(),
        scale=GroupStd(),
        ratio=SequenceTokenRatio(),
        surrogate=Clip(low=3e-4, high=4e-4),
        aggregation=SequenceMean(),
        summary="GSPO's ratio in value, each token's own gradient, so that tokens may have their own advantages.",
        formula=(
            r"s_{it} = \operatorname{sg}[s_i]\,\frac{\pi(y_{it})}{\operatorname{sg}[\pi(y_{it})]},\quad "
            r"L = -\frac{1}{N}\sum_i\frac{1}{l_i}\sum_t "
            r"\min(s_{it} A_{it}, \operatorname{clip}(s_{it}, 1-3\cdot10^{-4}, 1+4\cdot10^{-4}) A_{it})"
        ),
        confirmed=(
            "The paper, section 4.3; verl's loss gspo has the same (verl-project/verl, verl/trainer/ppo/core_algos.py, "
            "compute_policy_loss_gspo)."
        ),
        references=(ZHENG,),
    ),
    Variant(
        name="reinforce_pp",
        baseline=NoBaseline(),
        scale=BatchStd(eps=1e-8, ddof=0, of="centred", over="tokens", eps_in="floor"),
        credit=RewardToGo(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        kl=K1(beta=0.01, placement="reward", bound=None, value_bound=10.0),
        aggregation=TokenMean(),
        summary="Token returns with a k1 penalty in the reward, whitened over every token of the batch; PPO clip.",
        formula=(
            r"R_{it} = \sum_{t'\ge t} (r_{it'} - \beta\, k_{1,it'}),\quad "
            r"A_{it} = \frac{R_{it} - \operatorname{mean}_b R}{\sqrt{\max(\operatorname{var}_b R, 10^{-8})}},\quad "
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t}\min(\rho_{it}A_{it}, \operatorname{clip}(\rho_{it}, 1\mp0.2)A_{it})"
        ),
        note=(
            "The authors' variance is the population's and is held above 1e-8; verl's is the sample's with 1e-8 added, "
            "which is `scale.ddof=1,scale.eps_in=var` and part of conventions=verl. Their scripts of this form had a "
            "KL coefficient of 0.01 in January 2025 and of 1e-4 later that year (`kl.beta=1e-4`); there is none any "
            "more, and 0.01 is the parser's default. Their trainer also holds a response's reward within 10."
        ),
        confirmed=(
            "The paper; OpenRLHF/OpenRLHF: openrlhf/trainer/ppo_utils/experience_maker.py 274 to 328 (returns, "
            "population variance above 1e-8), openrlhf/models/utils.py 64 to 126 (k1 within 10, in the reward), "
            "openrlhf/cli/train_ppo_ray.py 419 (0.01)."
        ),
        references=(HU,),
    ),
    Variant(
        name="reinforce_pp_baseline",
        baseline=GroupMean(),
        scale=BatchStd(eps=1e-8, ddof=0, of="centred", over="tokens", eps_in="floor"),
        credit=Outcome(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        kl=K2(beta=1e-5, bound=None, value_bound=10.0),
        aggregation=TokenMean(),
        summary="Group mean subtracted, then whitened over every token of the batch; k2 penalty in the loss.",
        formula=(
            r"a_i = r_i - \operatorname{mean}_g r,\quad "
            r"A_i = \frac{a_i - \operatorname{mean}_b a}{\sqrt{\max(\operatorname{var}_b a, 10^{-8})}},\quad "
            r"L = \frac{1}{\sum_i l_i}\sum_{i,t}\left[-\min(\rho_{it}A_i, "
            r"\operatorname{clip}(\rho_{it}, 1\mp0.2)A_i) + \beta\, k_2\right]"
        ),
        note=(
            "The authors' variance is the population's and is held above 1e-8; verl's is the sample's with 1e-8 added, "
            "which is `scale.ddof=1,scale.eps_in=var` and part of conventions=verl. Their estimate of the KL is held "
            "at 10, so that a token more than 4.47 nats from the reference has no gradient of it. The coefficient is "
            "that of their current scripts; it was 1e-3 in 2025 (`kl.beta=1e-3`) and is 1e-4 in ProRLv2 "
            "(`kl.beta=1e-4`). These scripts also have the mask of icepop."
        ),
        confirmed=(
            "The paper from its fourth version on; OpenRLHF/OpenRLHF: openrlhf/trainer/ppo_utils/experience_maker.py "
            "267 to 328 (group mean, population variance above 1e-8), openrlhf/models/utils.py 64 to 95 (k2 within "
            "10), examples/scripts/train_reinforce_baseline_hybrid_engine.sh 87 to 89 (1e-5 in the loss; 1e-4 in "
            "examples/scripts/train_prorlv2_math_hybrid_engine.sh 38 to 41)."
        ),
        references=(HU,),
    ),
    Variant(
        name="remax",
        baseline=Greedy(),
        ratio=NoRatio(),
        surrogate=Reinforce(),
        aggregation=SequenceSum(),
        summary="REINFORCE with the reward of the policy's greedy response as its baseline; needs no group.",
        formula=r"A_i = r_i - r(\hat y_i),\quad L = -\frac{1}{N}\sum_i A_i\sum_t\log\pi(y_{it})",
        note=(
            "The authors' code takes the mean over the micro-batch's tokens, and gives each token its own k1 penalty "
            "of 0.05, which is not summed over the tokens that follow and has k2's gradient: "
            "`remax,aggregation=token_mean,kl=k2,kl.beta=0.05,kl.bound=none`. It also holds the difference of the "
            "rewards within 5, and discounts it by 0.99 a token from the end, both of which are not done here."
        ),
        confirmed=(
            "The formula is the paper's (algorithm 1). liziniu/ReMax, step3_rlhf_finetuning/remax_trainer.py 236 to "
            "302 with step3_rlhf_finetuning/training_scripts/llama2/run_llama2_7b.sh 55 to 56, differs as said above. "
            "verl has the paper's estimator."
        ),
        references=(LI,),
    ),
)
