"""Members whose surrogate is a score function with a detached weight."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.advantage.baseline import NoBaseline
from grpo_variants.advantage.scale import BatchStd, NoScale
from grpo_variants.catalogue import references as papers
from grpo_variants.catalogue.bases import GRPO
from grpo_variants.objective.aggregation import Constant, PromptMean, SequenceSum, TokenMean
from grpo_variants.objective.ratio import SequenceProduct, TokenRatio
from grpo_variants.objective.surrogate import Cispo, DppoKl, DppoTv, PpoMask, Topr, Vespo
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.variant import Variant

_DPPO_NOTE = (
    "The paper sums over a response's tokens; its recipe divides that by a constant length, which is taken. Its "
    "scaling experiments cap the ratio at 5 (surrogate.cap=5); its formula, its stability experiments and its recipe "
    "do not. TV's bound is 0.2 in most of the scaling experiments, 0.15 elsewhere and in the recipe. verl compares "
    "with `old_log_prob`, which is the policy that sampled in bypass mode only, and caps at clip_ratio_c, 3 unless it "
    "is set."
)

SCORE: tuple[Variant, ...] = (
    replace(
        GRPO,
        name="cispo",
        surrogate=Cispo(cap=5.0),
        aggregation=TokenMean(),
        filter=ZeroVariance(),
        summary="Clipped importance weight: every token keeps a gradient, its detached weight is capped from above.",
        formula=(r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} \operatorname{sg}[\min(\rho_{it}, 5)]\, A_i \log\pi(y_{it})"),
        confirmed=(
            "The report, section 3.1: no lower bound, GRPO's advantage, token mean, no KL, and DAPO's dynamic "
            "sampling. The cap: ScaleRL's appendix A.17, where 4, 5 and 8 work alike."
        ),
        references=(papers.MINIMAX, papers.KHATRI),
        note=(
            "The paper leaves the lower bound away and does not give the upper one; 5 is ScaleRL's, as a weight. "
            "Its length penalty is the reward's (overlong=penalty is DAPO's). TRL's epsilon_high is the weight "
            "itself (`surrogate.cap`) and 0.2 by default, which caps every weight at 0.2; verl's clip_ratio_high "
            "is an offset, 1 + 0.2 (`surrogate.high`)."
        ),
    ),
    replace(
        GRPO,
        name="scalerl",
        scale=BatchStd(of="centred"),
        ratio=TokenRatio(anchor="rollout"),
        surrogate=Cispo(cap=5.0),
        aggregation=PromptMean(),
        filter=ZeroVariance(),
        summary="ScaleRL's recipe: CISPO against the engine's probabilities, batch deviation, mean over prompts.",
        formula=(
            r"A_i = \frac{r_i - \operatorname{mean}_g r}{\operatorname{std}_b(r - \operatorname{mean}_g r) + \epsilon},"
            r"\quad L = -\frac{1}{P}\sum_g \frac{1}{\sum_{i\in g} l_i}\sum_{i\in g,t} "
            r"\operatorname{sg}\Big[\min\Big(\frac{\pi(y_{it})}{\mu(y_{it})}, 5\Big)\Big] A_i \log\pi(y_{it})"
        ),
        confirmed=(
            "The paper, section 4: ratio to the generator's probabilities, mean over a prompt's tokens, the "
            "deviation of all advantages of a batch, prompts without signal left out."
        ),
        references=(papers.KHATRI, papers.MINIMAX),
        note=(
            "Its authors drop prompts without signal and do not draw others in their place; "
            "`filter=zero_variance` draws. They also drop a prompt for good once its pass rate is 0.9; that and "
            "the output layer in float32 are the trainer's. The cap of 5 is one of the range that they find to work "
            "alike."
        ),
    ),
    replace(
        GRPO,
        name="topr",
        baseline=NoBaseline(),
        scale=NoScale(),
        ratio=SequenceProduct(anchor="rollout"),
        surrogate=Topr(),
        aggregation=SequenceSum(),
        summary="Tapered off-policy REINFORCE: right responses count fully, wrong ones by their ratio, at most 1.",
        formula=(
            r"S_i = \prod_t \frac{\pi(y_{it})}{\mu(y_{it})},\quad L = -\frac{1}{N}\sum_i c_i A_i \sum_t "
            r"\log\pi(y_{it}),"
            r"\quad c_i = 1 \text{ if } A_i \ge 0, \text{ else } \operatorname{sg}[\operatorname{clip}(S_i, 0, 1)]"
        ),
        confirmed=(
            "The paper, equations 7 and 8 (clip to 0 and 1 for wrong responses, the whole response's ratio) and "
            "section 4.1: rewards of 1 and -1, no baseline."
        ),
        references=(papers.LEROUX,),
        note=(
            "Rewards are taken as they are, +1 and -1 in the paper, which studies the baseline as a parameter of "
            "its own. The formula sums over a response's tokens, which is taken; the paper's runs divide by its "
            "length, aggregation=sequence_mean. ROLL's topr takes token ratios and the sign of the reward; the "
            "paper's ratio is the whole response's."
        ),
    ),
    replace(
        GRPO,
        name="vespo",
        ratio=SequenceProduct(bound_low=18.420680743952367),
        surrogate=Vespo(),
        aggregation=TokenMean(),
        summary="A smooth, gamma-shaped weight of each response's ratio, asymmetric in the sign of the advantage.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} \operatorname{sg}[\varphi(S_i)]\, A_i \log\pi(y_{it}),\quad "
            r"\varphi(S) = e^{\lambda} S^k e^{-\lambda S},\quad (k, \lambda) = (2, 3) \text{ if } A_i \ge 0, (3, 2) "
            r"\text{ else}"
        ),
        confirmed=(
            "FloyedShen/VESPO, recipe/vespo/code/core_algos.py 84 to 154 (the weight) and "
            "recipe/vespo/run/sync/vespo_N_8.sh 74 to 77 (its numbers)."
        ),
        references=(papers.SHEN_VESPO,),
        note=(
            "The authors' documentation says (2, 1.5) and (4, 2.5), their code and TRL (2, 3) and (3, 2), which "
            "are taken. TRL also clamps each token's log ratio to 20 before the sum, and multiplies rollout "
            "weights into the ratio; here a correction multiplies the loss."
        ),
    ),
    replace(
        GRPO,
        name="dppo_tv",
        scale=NoScale(),
        ratio=TokenRatio(anchor="rollout"),
        surrogate=DppoTv(),
        aggregation=Constant(),
        summary="Trust region in probability: a token is dropped once its probability has moved 0.2 the way A pushes.",
        formula=(
            r"A_i = r_i - \operatorname{mean}_g r,\quad "
            r"L = -\frac{1}{N L_{\max}}\sum_{i,t} k_{it} \operatorname{sg}[\rho_{it}] A_i "
            r"\log\pi(y_{it}),\quad "
            r"k_{it} = 0 \text{ if } A_i > 0, \pi - \mu > 0.2 \text{ or } A_i < 0, \pi - \mu < -0.2"
        ),
        confirmed=(
            "The paper: equation of the objective and appendix (centred advantages, 0.2 in the scaling "
            "experiments, no cap); sail-sg/Stable-RL, verl/trainer/ppo/core_algos.py; verl-project/verl, "
            "examples/dppo_trainer/run_qwen30b_dppo.sh (sums over a constant, no deviation, no cap, bypass mode)."
        ),
        references=(papers.QI_DPPO,),
        note=_DPPO_NOTE,
    ),
    replace(
        GRPO,
        name="dppo_kl",
        scale=NoScale(),
        ratio=TokenRatio(anchor="rollout"),
        surrogate=DppoKl(),
        aggregation=Constant(),
        summary="Trust region in the binary KL: a token is dropped once it has moved 0.05 nats the way A pushes.",
        formula=(
            r"A_i = r_i - \operatorname{mean}_g r,\quad "
            r"L = -\frac{1}{N L_{\max}}\sum_{i,t} k_{it} \operatorname{sg}[\rho_{it}] A_i "
            r"\log\pi(y_{it}),\quad "
            r"k_{it} = 0 \text{ if } A_i (\pi - \mu) > 0 \text{ and } "
            r"\mu\ln\tfrac{\mu}{\pi} + (1-\mu)\ln\tfrac{1-\mu}{1-\pi} > 0.05"
        ),
        confirmed=(
            "As `dppo_tv`, with 0.05 in every experiment of the paper and in verl-project/verl, "
            "examples/dppo_trainer/run_qwen30b_dppo.sh."
        ),
        references=(papers.QI_DPPO,),
        note=_DPPO_NOTE,
    ),
    replace(
        GRPO,
        name="prime_rl",
        scale=NoScale(),
        ratio=TokenRatio(anchor="rollout"),
        surrogate=DppoTv(penalty=1e-3),
        aggregation=TokenMean(),
        summary="The default of prime-rl: DPPO's trust region, and a penalty on each token's log ratio to the engine.",
        formula=(
            r"A_i = r_i - \operatorname{mean}_g r,\quad L = \frac{1}{\sum_i l_i}\sum_{i,t} \big[-k_{it} "
            r"\operatorname{sg}[\rho_{it}] A_i \log\pi(y_{it}) + 10^{-3} (\log\rho_{it})^2\big],\quad \rho_{it} = "
            r"\frac{\pi(y_{it})}{\mu(y_{it})},\quad "
            r"k_{it} = 0 \text{ if } A_i > 0, \pi - \mu > 0.2 \text{ or } A_i < 0, \pi - \mu < -0.2"
        ),
        confirmed=(
            "PrimeIntellect-ai/prime-rl at 559b4477: `default_loss_fn` in src/prime_rl/trainer/rl/loss.py, lines 109 "
            "to 161, the sum over the step's tokens there, lines 285 to 394; 0.2, 0.2 and 1e-3 in "
            "packages/prime-rl-configs/src/prime_rl/configs/trainer.py, lines 494 to 506; the centred reward in "
            "src/prime_rl/orchestrator/algo/grpo.py."
        ),
        references=(papers.QI_DPPO, papers.KIMI_K25),
        note=(
            "The authors' loss is the ratio times A, with the gradient of sg[ratio] A log pi, which is written here: "
            "the same gradient, another value. Their loss type ipo drops a token that has moved by more than 0.1 "
            "either way: `prime_rl,surrogate.drops=both,surrogate.low=0.1,surrogate.high=0.1`. docs/algorithms.md of "
            "that repository shows the minimum of the ratio and a cap; the code has no cap. Nor does it bound the log "
            "ratio, which is clamped at 20 here. The penalty is Kimi K2.5's form, whose coefficients are not "
            "published."
        ),
    ),
    replace(
        GRPO,
        name="minirl",
        scale=NoScale(),
        ratio=TokenRatio(anchor="rollout"),
        surrogate=PpoMask(),
        aggregation=SequenceSum(),
        summary="Policy gradient weighted by each token's ratio to the engine, at most 5, with PPO's range as a mask.",
        formula=(
            r"A_i = r_i - \operatorname{mean}_g r,\quad L = -\frac{1}{N}\sum_{i,t} M_{it}\, "
            r"\operatorname{sg}\Big[\min\Big(\frac{\pi(y_{it})}{\mu(y_{it})}, 5\Big)\Big] A_i \log\pi(y_{it}),\quad "
            r"M_{it} = 0 \text{ if } A_i > 0, \rho_{it} > 1.27 \text{ or } A_i < 0, \rho_{it} < 0.8"
        ),
        confirmed=(
            "The paper, equation 7 and section 4.2: the mask on the ratio to the old policy, the weight to the engine "
            "held at 5, 0.2 and 0.27, centred rewards, the sum over tokens."
        ),
        references=(papers.ZHENG_MINIRL,),
        note=(
            "The authors publish no code. sail-sg/Stable-RL, verl/trainer/ppo/core_algos.py 1160 to 1235, a comparison "
            "in another paper, has the same mask and weight, and holds the weight at 10 or, by its configuration, at 3 "
            "(surrogate.cap). The nearest in verl is the ratio to the old policy with the engine's weight apart: "
            "`minirl,ratio.anchor=old,correction=token_truncate,correction.cap=5`; both agree while neither "
            "bound of 5 is reached."
        ),
    ),
)
