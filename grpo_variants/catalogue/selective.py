"""Members that learn from some responses of a group: the right, the wrong, the best or the short ones."""

from __future__ import annotations

from grpo_variants.advantage.baseline import GroupMean, NoBaseline, SecondBest
from grpo_variants.advantage.reward_transform import PassAtK, Signed, Unlikeliness
from grpo_variants.advantage.scale import Bernoulli, GroupStd
from grpo_variants.advantage.selection import LargestAdvantage, MaxVariance, Mixed, Shortest
from grpo_variants.catalogue.formulas import CLIP, CLIPPED
from grpo_variants.catalogue.references import CHEN, HE_UNLIKELINESS, LIN_CPPO, SHRIVASTAVA, TANG, XIONG, XU_PODS, ZHU
from grpo_variants.objective.aggregation import SequenceMean, TokenMean
from grpo_variants.objective.kl import K3
from grpo_variants.objective.ratio import NoRatio, TokenRatio
from grpo_variants.objective.surrogate import Clip, Reinforce
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.variant import Variant

# The clip over the responses that a verdict leaves.
KEPT = (
    r"K = \{i : A_i \ne 0\},\quad "
    rf"L = -\frac{{1}}{{\sum_{{i\in K}} l_i}}\sum_{{i\in K,\,t}} {CLIP}"
)
_VERDICTS = (
    ("trl", "no counterpart: GRPOTrainer always subtracts the group mean"),
    ("verl", "no counterpart: every estimator subtracts a baseline or whitens"),
)

SELECTIVE: tuple[Variant, ...] = (
    Variant(
        name="passk",
        baseline=SecondBest(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Only the best response of the group learns: its lead over the second best is its share of best-of-k.",
        formula=(r"A_i = (r_{(1)} - r_{(2)})\,\mathbf{1}[r_i = r_{(1)}],\quad " + CLIPPED),
        note=(
            "verl divides by the group's standard deviation unless norm_adv_by_std_in_grpo is off; the paper does "
            "not. scale=group_std is verl's default."
        ),
        confirmed="The formula is the paper's; verl's grpo_passk has it as well.",
        references=(TANG,),
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
            rf"A_i = \frac{{v_i - R}}{{\sqrt{{R(1-R)}} + \epsilon}},\quad {CLIPPED}"
        ),
        note=(
            "For rewards of 0 and 1 this is the paper's closed form; other rewards are an extension by the same "
            "definition. The authors publish the advantage; the objective here is the clip with a token mean."
        ),
        confirmed="The closed form: the paper, and RUCAIBox/Passk_Training, code/passk_adv.py 10 to 19.",
        references=(CHEN,),
    ),
    Variant(
        name="w_reinforce",
        transform=Signed(right=0.1, wrong=-1.0),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(),
        summary="Wrong responses count -1, right ones only 0.1: mostly negative reinforcement, which keeps diversity.",
        formula=rf"A_i = 0.1 \text{{ if right, else }} -1,\quad {CLIPPED}",
        note=(
            "The authors' rewards are 0 and 1. Their runs have an entropy bonus of 0.001, which is the trainer's to "
            "give: entropy_coef=0.001 in TRL, actor.entropy_coeff=0.001 in verl."
        ),
        confirmed=(
            "TianHongZXY/RLVR-Decomposed, verl/trainer/ppo/core_algos.py 111 to 154, with a weight of 0.1 (README.md)."
        ),
        references=(ZHU,),
    ),
    Variant(
        name="psr",
        transform=Signed(right=1.0, wrong=0.0),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(rows="signal"),
        summary="Positive sample reinforcement: only right responses are learnt from.",
        formula=rf"A_i = 1 \text{{ if right, else }} 0,\quad {KEPT}",
        note=(
            "The authors drop the other responses before the loss, so that the mean is over the tokens of those that "
            "are left; aggregation.rows=all keeps them in the count, where the step of a batch with few of the kept "
            "kind is small. Their rewards are 0 and 1. Their runs have an entropy bonus of 0.001, which is the "
            "trainer's to give: entropy_coef=0.001 in TRL, actor.entropy_coeff=0.001 in verl."
        ),
        confirmed=(
            "TianHongZXY/RLVR-Decomposed, verl/trainer/ppo/core_algos.py 111 to 154 (advantages) and 319 to 364 (clip, "
            "mean), verl/trainer/ppo/ray_trainer.py 1192 to 1200 (the responses that are dropped)."
        ),
        references=(ZHU,),
    ),
    Variant(
        name="nsr",
        transform=Signed(right=0.0, wrong=-1.0),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=TokenMean(rows="signal"),
        summary="Negative sample reinforcement: only wrong responses are learnt from, by making them less likely.",
        formula=rf"A_i = 0 \text{{ if right, else }} -1,\quad {KEPT}",
        note=(
            "The authors drop the other responses before the loss, so that the mean is over the tokens of those that "
            "are left; aggregation.rows=all keeps them in the count, where the step of a batch with few of the kept "
            "kind is small. Their rewards are 0 and 1. Their runs have an entropy bonus of 0.001, which is the "
            "trainer's to give: entropy_coef=0.001 in TRL, actor.entropy_coeff=0.001 in verl."
        ),
        confirmed=(
            "TianHongZXY/RLVR-Decomposed, verl/trainer/ppo/core_algos.py 111 to 154 (advantages) and 319 to 364 (clip, "
            "mean), verl/trainer/ppo/ray_trainer.py 1192 to 1200 (the responses that are dropped)."
        ),
        references=(ZHU,),
    ),
    Variant(
        name="raft_pp",
        transform=Signed(right=1.0, wrong=0.0),
        ratio=TokenRatio(),
        surrogate=Clip(),
        kl=K3(beta=1e-3),
        aggregation=TokenMean(),
        summary="RAFT++: rejection sampling as policy gradient; only right responses learn, with ratio, clip and KL.",
        formula=(
            r"A_i = 1 \text{ if right, else } 0,\quad "
            rf"L = \frac{{1}}{{\sum_i l_i}}\sum_{{i,t}}\left[-{CLIP} + \beta\, k_3\right],\quad \beta = 0.001"
        ),
        confirmed=(
            "The authors' code (RLHFlow/Minimal-RL at e3b49f09): the advantage in verl/trainer/ppo/core_algos.py, "
            "lines 105 to 128, the clip and the token mean over every response there, lines 406 to 470; k3 with 0.001 "
            "in scripts/run_raftpp.sh. The range of 0.2 and the entropy bonus of 0.001 are that verl's defaults "
            "(verl/trainer/config/ppo_trainer.yaml). Of the paper the abstract was read."
        ),
        references=(XIONG,),
        note=(
            "The paper's equation 6, as two independent notes quote it, has no KL, averages over a response first, and "
            "counts the responses of the highest reward of their group: `raft_pp,kl=none,aggregation=sequence_mean` "
            "for groups in which one is right; where all are wrong that equation would learn from all of them, the "
            "code from none. The code's advantage is max(r, 0), which is this one for the authors' rewards of 0 and 1 "
            "and for -1 and 1. The entropy bonus is the trainer's: entropy_coef=0.001 in TRL, "
            "actor.entropy_coeff=0.001 in verl. Wrong responses stay in the token count."
        ),
    ),
    Variant(
        name="reinforce_rej",
        selection=Mixed(),
        baseline=NoBaseline(),
        ratio=NoRatio(),
        surrogate=Reinforce(),
        kl=K3(beta=1e-3),
        aggregation=TokenMean(),
        summary="Reinforce-Rej: policy gradient with raw rewards on groups that are neither all right nor all wrong.",
        formula=(
            r"A_i = r_i \text{ if } \operatorname{std}_g r > 0, \text{ else } 0,\quad "
            r"L = \frac{1}{\sum_i l_i}\sum_{i,t}\left[-A_i \log\pi(y_{it}) + \beta\, k_3\right],\quad \beta = 0.001"
        ),
        confirmed=(
            "The authors' code (RLHFlow/Minimal-RL at e3b49f09): the advantage in verl/trainer/ppo/core_algos.py, "
            "lines 130 to 172, the loss without a ratio there, lines 473 to 537; k3 with 0.001 in "
            "scripts/run_reinforce_rej.sh. Of the paper the abstract was read."
        ),
        references=(XIONG,),
        note=(
            "Groups that are dropped stay in the token count of the authors' code; "
            "`selection=none,filter=zero_variance,filter.max_rounds=0` takes them out of the batch, as the paper says. "
            "The paper's equation 5, as independent notes quote it, has PPO's clipped ratio: "
            "`reinforce_rej,ratio=token,surrogate=clip`. With rewards of 0 and 1 only right responses learn, with -1 "
            "and 1 wrong ones too. The entropy bonus is the trainer's: entropy_coef=0.001 in TRL, "
            "actor.entropy_coeff=0.001 in verl."
        ),
    ),
    Variant(
        name="cppo",
        selection=LargestAdvantage(),
        baseline=GroupMean(),
        scale=GroupStd(eps=1e-4),
        ratio=TokenRatio(),
        surrogate=Clip(),
        kl=K3(beta=0.04),
        aggregation=TokenMean(),
        summary="Completion pruning: GRPO's advantages, of which the half that is largest is learnt from.",
        formula=(
            r"A_i = \frac{r_i - \operatorname{mean}_g r}{\operatorname{std}_g r + 10^{-4}},\quad "
            r"S_g = \text{the } \lfloor G/2 \rfloor \text{ of largest } |A_i|,\quad "
            rf"L = \frac{{1}}{{\sum_{{i\in S}} l_i}}\sum_{{i\in S}}\sum_t\left[-{CLIP} + \beta\, k_3\right],\quad "
            r"\beta = 0.04"
        ),
        confirmed=(
            "lzhxmu/CPPO at 52faeb37: advantages, pruning and loss in src/open_r1/grpo_trainer_gsm.py, lines 875 to "
            "930 and 1033 to 1046; half of the responses in scripts/CPPO_gsm.sh and scripts/CPPO_math.sh. The number "
            "per prompt is the readme's, README.md. Of the paper the abstract was read."
        ),
        references=(LIN_CPPO,),
        note=(
            "The readme keeps so many responses of each prompt. The authors' trainer removes the smallest of a rank's "
            "batch, their recipe for verl of all ranks' batch: `selection.over=batch`. They make two updates from a "
            "batch. Their readme's best shares kept are 0.125 for GSM8K and 0.25 for MATH (selection.share). Drawing "
            "more prompts in place of what was pruned only fills the batch, and is not done. As a function, train on "
            "the rows that `gv.selected` names. CPPO with a cumulative prefix (arXiv 2606.10968) is another algorithm."
        ),
    ),
    Variant(
        name="pods",
        selection=MaxVariance(),
        baseline=GroupMean(),
        scale=GroupStd(eps=1e-4),
        ratio=TokenRatio(),
        surrogate=Clip(),
        aggregation=SequenceMean(),
        summary="GRPO on the 16 responses of a larger group whose rewards vary most: some of the best and the worst.",
        formula=(
            r"S_g = \arg\max_{|S| = 16} \operatorname{var}_S r,\quad "
            r"A_i = \frac{r_i - \operatorname{mean}_{S_g} r}{\operatorname{std}_{S_g} r + 10^{-4}},\quad "
            rf"L = -\frac{{1}}{{|S|}}\sum_{{i\in S}}\frac{{1}}{{l_i}}\sum_t {CLIP}"
        ),
        confirmed=(
            "YixuanEvenXu/pods at 187f43b6: selection, advantages and loss in trainer/maxvargrpo_trainer.py, lines 499 "
            "to 538 and 585 to 588; 64 responses of which 16 are kept in scripts/plot.py, whose names are those of its "
            "runs. Of the paper the abstract was read."
        ),
        references=(XU_PODS,),
        note=(
            "The authors make one update from a batch, where the clip has no part. They draw 64 responses and keep 16 "
            "on GSM8K, 32 and 8 on MATH: num_generations and selection.keep. Their KL is 0.04 by default and 0 in "
            "config/train.yaml (kl=k3,kl.beta=0.04). As a function, train on the rows that `gv.selected` names."
        ),
    ),
    Variant(
        name="unlikeliness",
        transform=Unlikeliness(),
        baseline=GroupMean(),
        scale=GroupStd(),
        ratio=TokenRatio(),
        surrogate=Clip(),
        kl=K3(beta=0.1),
        aggregation=TokenMean(),
        filter=ZeroVariance(),
        summary="A right response counts less the likelier it was within its group, so that rare solutions are kept.",
        formula=(
            r"r'_i = r_i\Big(1 - 0.25\,\frac{k_i}{G}\Big),\ k_i = \text{place by } \frac{1}{l_i}\sum_t "
            r"\log\pi_{\mathrm{old}}(y_{it}) \text{ from } 0,\quad A_i = \frac{r'_i - \operatorname{mean}_g r'}"
            r"{\operatorname{std}_g r' + \epsilon},\quad "
            rf"L = \frac{{1}}{{\sum_i l_i}}\sum_{{i,t}}\left[-{CLIP} + \beta\, k_3\right],\quad \beta = 0.1"
        ),
        confirmed=(
            "The authors' code (AndreHe02/rewarding-unlikely-release at ca1cff05): the rule in "
            "verl/trainer/ppo/ray_lean_trainer.py, lines 630 to 684, the filter there, lines 414 to 421, the loss in "
            "verl/trainer/ppo/core_algos.py, lines 162 to 217; penalty of 0.25, k3 with 0.1 and token mean in "
            "examples/lean/grpo.sh."
        ),
        references=(HE_UNLIKELINESS,),
        note=(
            "The paper's formula, as third parties quote it, gives the least likely response place 1 and does not "
            "divide by the length: `transform.first=one,transform.of=sum`. Every response then loses 0.25/G more. "
            "Rewards are 0 and 1 there, so that wrong ones keep 0. Groups are told apart by the raw rewards, and "
            "prompts drawn until 256 responses are there."
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
            rf"L = \frac{{1}}{{\sum_i l_i}}\sum_{{i,t}}\left[-{CLIP} + \beta\, k_3\right]"
        ),
        note=(
            "Responses that are not selected stay in the token count, as in the paper's formula. It writes the KL "
            "against the sampling policy and ran verl, which takes a reference; the reference is taken, and k3 as "
            "estimator, which it does not name. selection=efficient is its other metric, reward per token; the "
            "number kept by difficulty is not done. The objective has an entropy bonus with a coefficient of 0.001, "
            "which is the trainer's to give (entropy_coef in TRL, entropy_coeff in verl). It also has a surrogate that "
            "is changed for large ratios with negative advantages (footnote 1), without a formula: PPO's clip is kept."
        ),
        confirmed=(
            "The paper, section 3 (selection, statistics of the kept responses with the population's deviation, all "
            "tokens in the count) and section 4 (0.001 for the KL). It gives no clip range: 0.2 is PPO's (arXiv "
            "1707.06347). Code was not published."
        ),
        references=(SHRIVASTAVA,),
    ),
)
