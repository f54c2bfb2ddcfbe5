"""Members that differ in the objective: ratio, surrogate, aggregation, token filter, KL, correction."""

from __future__ import annotations

from dataclasses import replace

from grpo_variants.aggregation import SequenceMean, SequenceSum, TokenMean
from grpo_variants.baseline import GroupMean
from grpo_variants.catalogue import references as papers
from grpo_variants.correction import OffPolicyMask, SequenceMask, TokenMask, TokenTruncate
from grpo_variants.divergence import K3
from grpo_variants.filters import TopEntropy, ZeroVariance
from grpo_variants.ratio import SequenceRatio, TokenRatio
from grpo_variants.scale import GroupStd, NoScale
from grpo_variants.shaping import Mask
from grpo_variants.surrogate import Clip
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

OBJECTIVE_SIDE: tuple[Variant, ...] = (*_RECOMBINED, *_MISMATCH)
