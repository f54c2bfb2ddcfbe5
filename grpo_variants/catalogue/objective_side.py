"""Members that differ in the objective: ratio, surrogate, aggregation, token filter, KL, correction."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.aggregation import PromptMean, SequenceMean, SequenceSum, TokenMean
from grpo_variants.baseline import GroupMean, NoBaseline
from grpo_variants.catalogue import references as papers
from grpo_variants.correction import Kpop, OffPolicyMask, SequenceMask, TokenMask, TokenTruncate
from grpo_variants.divergence import K3
from grpo_variants.filters import TopEntropy, ZeroVariance
from grpo_variants.ratio import SequenceProduct, SequenceRatio, TokenRatio
from grpo_variants.scale import BatchStd, GroupStd, NoScale
from grpo_variants.shaping import Mask
from grpo_variants.surrogate import (
    Aspo,
    Bapo,
    CeGppo,
    Cispo,
    Clip,
    ClipCov,
    DppoKl,
    DppoTv,
    Dro,
    Fipo,
    Gmpo,
    KlCov,
    M2po,
    Quadratic,
    Sapo,
    Topr,
    Vespo,
)
from grpo_variants.variant import Variant

# Most members change one thing of these two; each entry below says which.
_GRPO = Variant(
    name="base",
    baseline=GroupMean(),
    scale=GroupStd(),
    ratio=TokenRatio(),
    surrogate=Clip(),
    aggregation=SequenceMean(),
)
_DAPO = replace(
    _GRPO,
    surrogate=Clip(low=0.2, high=0.28),
    aggregation=TokenMean(),
    filter=ZeroVariance(),
    overlong=Mask(),
)
_TOKEN_COUNTS = "where a window's token counts are equal"
_DPPO_NOTE = (
    "The paper compares with the policy that sampled; verl with `old_log_prob`, which is that policy in bypass mode "
    "only, "
    "and its cap is clip_ratio_c, 3 unless it is set, where the paper recommends a large one (20)."
)

_MISMATCH: tuple[Variant, ...] = (
    replace(
        _DAPO,
        name="tis",
        correction=(TokenTruncate(cap=2.0),),
        summary="DAPO with truncated importance sampling: each token weighted by the trainer's ratio to the engine.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} \min\Big(\frac{\pi_{\mathrm{old}}(y_{it})}{\mu(y_{it})}, 2\Big)\,"
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1-0.2, 1+0.28) A_i)"
        ),
        references=(papers.YAO, papers.YU),
        hosts=(
            (
                "trl",
                "equals loss_type='dapo' with epsilon_high=0.28 and vllm_importance_sampling_mode='token_truncate', "
                f"vllm_importance_sampling_clip_max=2, under conventions=trl, {_TOKEN_COUNTS}",
            ),
            (
                "verl",
                "equals loss vanilla with token-mean, clip_ratio_high=0.28 and rollout_correction.rollout_is=token, "
                "rollout_is_threshold=2, under conventions=verl",
            ),
        ),
    ),
    replace(
        _DAPO,
        name="seq_mis",
        correction=(SequenceMask(low=None, high=3.0),),
        summary="DAPO with masked importance sampling: a response is weighted by its whole ratio, or dropped above 3.",
        formula=(
            r"W_i = \prod_t \frac{\pi_{\mathrm{old}}(y_{it})}{\mu(y_{it})},\quad L = -\frac{1}{\sum_i l_i}\sum_{i,t} "
            r"W_i\,1[W_i \le 3]\,\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1-0.2, 1+0.28) A_i)"
        ),
        references=(papers.LIU_COLLAPSE, papers.YU),
        hosts=(
            (
                "trl",
                "equals loss_type='dapo' with epsilon_high=0.28 and vllm_importance_sampling_mode='sequence_mask', "
                f"whose maximum of 3 is the host's default, under conventions=trl, {_TOKEN_COUNTS}",
            ),
            (
                "verl",
                "equals loss vanilla with token-mean, clip_ratio_high=0.28 and rollout_correction.rollout_is=sequence "
                "with a threshold of two bounds, under conventions=verl",
            ),
        ),
    ),
    replace(
        _GRPO,
        name="icepop",
        correction=(TokenMask(low=0.5, high=5.0),),
        summary="GRPO in which a token counts only where trainer and engine agree on its probability within a band.",
        formula=(
            r"w_{it} = \frac{\pi_{\mathrm{old}}(y_{it})}{\mu(y_{it})},\quad "
            r"L = -\frac{1}{N}\sum_i\frac{1}{l_i}\sum_t w_{it}\,1[0.5\le w_{it}\le 5]\,"
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1\mp0.2) A_i)"
        ),
        references=(papers.RING,),
        hosts=(
            (
                "trl",
                "equals loss_type='grpo' with vllm_importance_sampling_mode='token_mask' from 0.5 to 5, under "
                "conventions=trl",
            ),
            (
                "verl",
                "equals loss vanilla with seq-mean-token-mean and rollout_correction.rollout_is=token, "
                "rollout_is_threshold='0.5_5.0', under conventions=verl",
            ),
        ),
    ),
    replace(
        _GRPO,
        name="kpop",
        correction=(Kpop(),),
        summary="GRPO in which a token counts only where trainer and engine agree in binary KL, both ways.",
        formula=(
            r"L = -\frac{1}{N}\sum_i\frac{1}{l_i}\sum_t w_{it}\,1[\max(D(p\|q), D(q\|p)) \le 0.1]\,"
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1\mp0.2) A_i),\quad "
            r"D(p\|q) = p\ln\tfrac{p}{q} + (1-p)\ln\tfrac{1-p}{1-q},\ p = \pi_{\mathrm{old}}(y_{it}),\ q = \mu(y_{it})"
        ),
        references=(papers.GUO_KPOP, papers.RING),
        hosts=(
            ("trl", "no counterpart: weights are bounded by their ratio only"),
            ("verl", "no counterpart: 0.9.1 has no rejection by a binary KL of both directions"),
        ),
        note=(
            "The weight itself stays, as in IcePop and AReaL; a pull request for verl rejects without it. The "
            "threshold of "
            "0.1 is the authors', as prime-rl quotes it."
        ),
    ),
    replace(
        _GRPO,
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
        references=(papers.DEEPSEEK_V32,),
        hosts=(
            (
                "trl",
                "equals loss_type='grpo' with scale_rewards='none', beta=0.001 and off_policy_mask_threshold=0.5, "
                "under conventions=trl",
            ),
            ("verl", "no counterpart: neither a KL weighted by the ratio nor the mask of drifted responses"),
        ),
    ),
)

_RECOMBINED: tuple[Variant, ...] = (
    replace(
        _GRPO,
        name="two_sided",
        surrogate=Clip(dual=4.0),
        kl=K3(beta=1e-3),
        aggregation=TokenMean(),
        summary="Two-sided clip of INTELLECT-2: the ratio of a token with a negative advantage is capped at 4 as well.",
        formula=(
            r"L = \frac{1}{\sum_i l_i}\sum_{i,t}\left[-\min(\min(\rho_{it}, \delta) A_i, "
            r"\operatorname{clip}(\rho_{it}, 1\mp 0.2) A_i) + \beta\, k_3\right],\quad \delta = 4"
        ),
        references=(papers.PRIME,),
        hosts=(
            ("trl", f"equals loss_type='dapo' with delta=4 and beta=0.001, under conventions=trl, {_TOKEN_COUNTS}"),
            ("verl", "equals loss vanilla with token-mean and clip_ratio_c=4, whose default is 3"),
        ),
    ),
    replace(
        _GRPO,
        name="luspo",
        ratio=SequenceRatio(),
        surrogate=Clip(low=2e-3, high=2.5e-3),
        aggregation=SequenceSum(),
        summary="GSPO without its length bias: each response's loss is multiplied by its length.",
        formula=(
            r"L = -\frac{1}{N}\sum_i l_i \min(s_i A_i, "
            r"\operatorname{clip}(s_i, 1-2\cdot10^{-3}, 1+2.5\cdot10^{-3}) A_i),\quad "
            r"s_i = \exp\Big(\frac{1}{l_i}\sum_t \log\rho_{it}\Big)"
        ),
        references=(papers.LIU_LUSPO,),
        hosts=(
            (
                "trl",
                "equals loss_type='luspo' with importance_sampling_level='sequence', epsilon=2e-3 and "
                "epsilon_high=2.5e-3, under conventions=trl",
            ),
            ("verl", "no counterpart: loss gspo is the token form; with seq-mean-token-sum its gradient is this one's"),
        ),
    ),
    replace(
        _DAPO,
        name="forking_tokens",
        tokens=TopEntropy(fraction=0.2),
        summary="DAPO on the fifth of the tokens with the highest entropy, where a response forks.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} 1[H_{it} \ge \tau]\, "
            r"\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, 1-0.2, 1+0.28) A_i),\quad "
            r"\tau = \text{the 80 \% quantile of the batch's } H"
        ),
        references=(papers.WANG_FORKING, papers.YU),
        hosts=(
            (
                "trl",
                "equals loss_type='dapo' with epsilon_high=0.28 and top_entropy_quantile=0.2, under conventions=trl, "
                f"{_TOKEN_COUNTS}",
            ),
            ("verl", "no counterpart: a policy loss is not handed the entropies"),
        ),
    ),
)

_WEIGHTED: tuple[Variant, ...] = (
    replace(
        _GRPO,
        name="cispo",
        surrogate=Cispo(cap=5.0),
        aggregation=TokenMean(),
        filter=ZeroVariance(),
        summary="Clipped importance weight: every token keeps a gradient, its detached weight is capped from above.",
        formula=(r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} \operatorname{sg}[\min(\rho_{it}, 5)]\, A_i \log\pi(y_{it})"),
        references=(papers.MINIMAX, papers.KHATRI),
        hosts=(
            ("trl", f"equals loss_type='cispo' with epsilon_high=5, under conventions=trl, {_TOKEN_COUNTS}"),
            (
                "verl",
                "equals loss cispo with token-mean, clip_ratio_low=1 and clip_ratio_high=4, under conventions=verl; "
                "its "
                "defaults are weights from 0.8 to 1.2",
            ),
        ),
        note=(
            "The paper leaves the lower bound away and does not give the upper one; 5 is ScaleRL's, as a weight. TRL's "
            "epsilon_high is the weight itself (`surrogate.cap`) and 0.2 by default, which caps every weight at 0.2; "
            "verl's clip_ratio_high is an offset, 1 + 0.2 (`surrogate.high`)."
        ),
    ),
    replace(
        _GRPO,
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
        references=(papers.KHATRI, papers.MINIMAX),
        hosts=(
            ("trl", "no counterpart: no mean over prompts, and a ratio to the old policy only"),
            ("verl", "no counterpart: no mean over prompts; translate scales the advantages instead"),
        ),
        note=(
            "Its authors drop prompts without signal and do not draw others in their place; `filter=zero_variance` "
            "draws. "
            "The output layer in float32 and the curriculum of the paper are the host's."
        ),
    ),
    replace(
        _GRPO,
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
        references=(papers.LEROUX,),
        hosts=(
            ("trl", "no counterpart: no weight that depends on the sign of the advantage"),
            ("verl", "no counterpart: no weight that depends on the sign of the advantage"),
        ),
        note=(
            "Rewards are taken as they are, +1 and -1 in the paper, which studies the baseline as a parameter of its "
            "own. "
            "ROLL's topr takes token ratios and the sign of the reward; the paper's ratio is the whole response's."
        ),
    ),
    replace(
        _GRPO,
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
        references=(papers.SHEN_VESPO,),
        hosts=(
            ("trl", f"equals loss_type='vespo', under conventions=trl, {_TOKEN_COUNTS}"),
            ("verl", "no counterpart: no such weight"),
        ),
        note=(
            "The authors' documentation says (2, 1.5) and (4, 2.5), their code and TRL (2, 3) and (3, 2), which are "
            "taken. "
            "TRL also clamps each token's log ratio to 20 before the sum, and multiplies rollout weights into the "
            "ratio; "
            "here a correction multiplies the loss."
        ),
    ),
    replace(
        _GRPO,
        name="dppo_tv",
        ratio=TokenRatio(anchor="rollout"),
        surrogate=DppoTv(),
        aggregation=TokenMean(),
        summary="Trust region in probability: a token is dropped once its probability has moved 0.2 the way A pushes.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} k_{it} \operatorname{sg}[\min(\rho_{it}, 20)] A_i "
            r"\log\pi(y_{it}),\quad "
            r"k_{it} = 0 \text{ if } A_i > 0, \pi - \mu > 0.2 \text{ or } A_i < 0, \pi - \mu < -0.2"
        ),
        references=(papers.QI_DPPO,),
        hosts=(
            ("trl", "no counterpart: no trust region in probabilities"),
            (
                "verl",
                "equals loss dppo_tv with token-mean and clip_ratio_c=20 in bypass mode, under conventions=verl",
            ),
        ),
        note=_DPPO_NOTE,
    ),
    replace(
        _GRPO,
        name="dppo_kl",
        ratio=TokenRatio(anchor="rollout"),
        surrogate=DppoKl(),
        aggregation=TokenMean(),
        summary="Trust region in the binary KL: a token is dropped once it has moved 0.05 nats the way A pushes.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} k_{it} \operatorname{sg}[\min(\rho_{it}, 20)] A_i "
            r"\log\pi(y_{it}),\quad "
            r"k_{it} = 0 \text{ if } A_i (\pi - \mu) > 0 \text{ and } "
            r"\mu\ln\tfrac{\mu}{\pi} + (1-\mu)\ln\tfrac{1-\mu}{1-\pi} > 0.05"
        ),
        references=(papers.QI_DPPO,),
        hosts=(
            ("trl", "no counterpart: no trust region in probabilities"),
            (
                "verl",
                "equals loss dppo_kl with token-mean, clip_ratio_low and clip_ratio_high of 0.05 and clip_ratio_c=20 "
                "in "
                "bypass mode, under conventions=verl",
            ),
        ),
        note=_DPPO_NOTE,
    ),
)

_SHAPED: tuple[Variant, ...] = (
    replace(
        _GRPO,
        name="sapo",
        surrogate=Sapo(),
        summary="A soft gate in place of the clip: a token fades out with its ratio, faster for negative advantages.",
        formula=(
            r"L = -\frac{1}{N}\sum_i\frac{1}{l_i}\sum_t \frac{4}{\tau}\,\sigma(\tau(\rho_{it} - 1))\, A_i,\quad "
            r"\tau = 1 \text{ if } A_i > 0, \text{ else } 1.05"
        ),
        references=(papers.GAO_SAPO,),
        hosts=(
            ("trl", "equals loss_type='sapo', under conventions=trl"),
            ("verl", "equals loss sapo, under conventions=verl"),
        ),
    ),
    replace(
        _GRPO,
        name="gmpo",
        surrogate=Gmpo(),
        summary="Geometric mean of a response's clipped ratios, less moved by one outlier than their mean.",
        formula=(
            r"L = -\frac{1}{N}\sum_i A_i \exp\Big(\frac{1}{l_i}\sum_t d^c_{it}\Big),\quad d^c_{it} = "
            r"\min(\log\rho_{it}, 0.4) \text{ if } A_i > 0, \text{ else } \max(\log\rho_{it}, -0.4)"
        ),
        references=(papers.ZHAO_GMPO,),
        hosts=(
            ("trl", "equals trl.experimental.gmpo with its defaults, under conventions=trl"),
            (
                "verl",
                "equals loss geo_mean with clip ratios of 0.4 where the micro-batch is the step; it averages the "
                "micro-batch's responses whatever the step's counts",
            ),
        ),
        note=(
            "The paper's text gives the bounds as ratios, e^-0.4 and e^0.4; authors, TRL and verl clip in log space, "
            "which is the same. A clip of the ratio to 1 -+ 0.4 is not."
        ),
    ),
    replace(
        _GRPO,
        name="simple_policy_optimization",
        surrogate=Quadratic(),
        summary="Simple Policy Optimization: a quadratic penalty on the ratio whose optimum is where PPO would clip.",
        formula=(
            r"L = \frac{1}{N}\sum_i\frac{1}{l_i}\sum_t\Big[-\rho_{it} A_i + "
            r"\frac{|A_i|}{2\epsilon}(\rho_{it} - 1)^2\Big],\quad \epsilon = 0.2"
        ),
        references=(papers.XIE_SPO,),
        hosts=(
            ("trl", "no counterpart: no quadratic penalty on the ratio"),
            ("verl", "no counterpart: no quadratic penalty on the ratio"),
        ),
        note=(
            "The paper's own experiments estimate advantages with a critic; GRPO's take their place. Single-stream "
            "policy "
            "optimisation (arXiv 2509.13232), also called SPO, is another algorithm."
        ),
    ),
    replace(
        _GRPO,
        name="kimi_k15",
        scale=NoScale(),
        ratio=SequenceProduct(bound_low=None, bound_high=None),
        surrogate=Dro(),
        aggregation=SequenceSum(),
        summary="Mirror descent of Kimi k1.5: policy gradient with a quadratic penalty on the response's log ratio.",
        formula=(
            r"A_i = r_i - \operatorname{mean}_g r,\quad L = \frac{1}{N}\sum_i\Big[-A_i \sum_t \log\pi(y_{it}) + "
            r"\frac{\tau}{2}\Big(\sum_t \log\rho_{it}\Big)^2\Big],\quad \tau = 0.1"
        ),
        references=(papers.KIMI,),
        hosts=(
            ("trl", "no counterpart: no penalty on the log ratio to the old policy"),
            ("verl", "no counterpart: loss dro penalises each token's log ratio; `ratio=token` equals it"),
        ),
        note=(
            "The paper penalises the log ratio of the whole response and does not publish tau; 0.1 is ROLL's. verl's "
            "and "
            "Tinker's dro and ROLL's kimi15 penalise each token's: `kimi_k15,ratio=token`."
        ),
    ),
)

_CLIPPED: tuple[Variant, ...] = (
    replace(
        _GRPO,
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
        _GRPO,
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
        references=(papers.SU_CEGPPO,),
        hosts=(
            ("trl", "no counterpart: a clipped token has no gradient"),
            ("verl", "no counterpart: a clipped token has no gradient"),
        ),
        note="The paper recommends factors of 0.5 to 0.75 below and 1 above; the published code has 0.25 below.",
    ),
    replace(
        _GRPO,
        name="fipo",
        surrogate=Fipo(),
        aggregation=TokenMean(),
        filter=ZeroVariance(),
        summary="DAPO's clip with each token's advantage weighted by how the policy moved on the tokens after it.",
        formula=(
            r"F_{it} = \sum_{k\ge t} 2^{-(k-t)/32} \log\rho_{ik}\, 1[\rho_{ik} \le 3],\quad "
            r"\tilde A_{it} = \operatorname{clip}(e^{F_{it}}, 1, 1.2) A_i,\quad L = -\frac{1}{\sum_i l_i}\sum_{i,t} "
            r"\min(\rho_{it} \tilde A_{it}, \operatorname{clip}(\rho_{it}, 0.8, 1.28) \tilde A_{it})"
        ),
        references=(papers.FIPO, papers.YU),
        hosts=(
            ("trl", "no counterpart: no weight by the tokens that follow"),
            ("verl", "no counterpart: no weight by the tokens that follow"),
        ),
        note=(
            "Numbers are those of its 32B run; other code takes 4 where `surrogate.safety` is 10. With A < 0 the "
            "loss is "
            "held at a ratio of 3 (verl's dual clip). The authors' code also drops a response two of whose tokens are."
        ),
    ),
    replace(
        _GRPO,
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
        references=(papers.XI_BAPO,),
        hosts=(
            ("trl", "no counterpart: clip bounds are fixed"),
            ("verl", "no counterpart: clip bounds are fixed"),
        ),
        note=(
            "The order (floor first, then ceiling), the dual clip at 3 and the step of 0.05 are those of the authors' "
            "code. The bounds span the batch: without the step's thresholds each micro-batch finds its own."
        ),
    ),
    replace(
        _GRPO,
        name="m2po",
        surrogate=M2po(),
        aggregation=TokenMean(),
        summary="Clip as wide as the second moment of the batch's harmful log ratios allows, for stale data.",
        formula=(
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t}\min(\rho_{it} A_i, \operatorname{clip}(\rho_{it}, "
            r"\min(e^{-\tau}, 0.7), \max(e^{\tau}, 1.5)) A_i),\quad \operatorname{mean}_{A d > 0} \min(d^2, \tau^2) "
            r"< 0.04"
        ),
        references=(papers.ZHENG_M2PO,),
        hosts=(
            ("trl", "no counterpart: clip bounds are fixed"),
            ("verl", "no counterpart: clip bounds are fixed"),
        ),
        note=(
            "The paper masks tokens until the mean of the squared log ratios is within the budget; its code clips at "
            "the range that the budget leaves, but not tighter than 0.7 and 1.5, which is taken. The range spans the "
            "batch: without the step's thresholds each micro-batch finds its own."
        ),
    ),
    replace(
        _GRPO,
        name="clip_cov",
        surrogate=ClipCov(),
        aggregation=TokenMean(),
        summary="PPO's clip, and a few random tokens of high covariance lose their gradient, to keep the entropy.",
        formula=(
            r"\mathrm{cov}_{it} = (A_i - \bar A)(\log\pi(y_{it}) - \overline{\log\pi}),\quad "
            r"L = -\frac{1}{\sum_i l_i}\sum_{i,t} 1[it \notin I]\, \min(\rho_{it} A_i, "
            r"\operatorname{clip}(\rho_{it}, 1\mp 0.2) A_i),\quad I \text{ random among } 1 < \mathrm{cov}_{it} < 5"
        ),
        references=(papers.CUI,),
        hosts=(
            ("trl", "no counterpart: no covariance"),
            ("verl", "equals loss clip_cov with token-mean, for the same draws, under conventions=verl"),
        ),
        note=(
            "Draws at random: pass `generator=`, or `Tokens.draws`. The means, and the largest number drawn, span the "
            "batch; verl takes each micro-batch's, and the random numbers of each rank."
        ),
    ),
    replace(
        _GRPO,
        name="kl_cov",
        surrogate=KlCov(),
        aggregation=TokenMean(),
        summary="No clip; the tokens of highest covariance pay a penalty on their log ratio, to keep the entropy.",
        formula=(
            r"L = \frac{1}{\sum_i l_i}\sum_{i,t} \left(-\rho_{it} A_i + 1[it \in I]\, |\log\rho_{it}|\right),\quad "
            r"I \text{ the share } 2\cdot10^{-4} \text{ of highest } (A_i - \bar A)(\log\pi(y_{it}) - "
            r"\overline{\log\pi})"
        ),
        references=(papers.CUI,),
        hosts=(
            ("trl", "no counterpart: no covariance"),
            (
                "verl",
                "equals loss kl_cov with token-mean and ppo_kl_coef=1, whose default is 0.1, under conventions=verl",
            ),
        ),
        note=(
            "The paper's share is 2e-4 for its 32B model and 2e-3 for 7B. verl's function falls back to a "
            "coefficient of 1, "
            "its configuration says 0.1. Means and order span the batch; verl takes each micro-batch's."
        ),
    ),
)

OBJECTIVE_SIDE: tuple[Variant, ...] = (*_RECOMBINED, *_MISMATCH, *_WEIGHTED, *_SHAPED, *_CLIPPED)
