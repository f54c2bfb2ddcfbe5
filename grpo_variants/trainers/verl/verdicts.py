"""What of verl equals each member: a built-in, or why it has no counterpart."""

from __future__ import annotations

from collections.abc import Mapping

VERDICTS: Mapping[str, str] = {
    "reinforce": "no counterpart: every estimator subtracts a baseline or whitens",
    "rloo": "advantages equal estimator rloo_vectorized; rloo differs on a group of one",
    "grpo": "equals estimator grpo and loss vanilla with seq-mean-token-mean, under conventions=verl",
    "grpo_process": "no counterpart: estimator grpo adds token rewards up before it normalises",
    "dr_grpo": (
        "equals estimator grpo with norm_adv_by_std_in_grpo=False and loss vanilla with "
        "seq-mean-token-sum-norm and loss_scale_factor, under conventions=verl"
    ),
    "dapo": ("equals estimator grpo and loss vanilla with token-mean and clip_ratio_high=0.28, under conventions=verl"),
    "gspo": "no counterpart: loss gspo is the token form, see gspo_token",
    "gspo_token": (
        "equals loss gspo with seq-mean-token-mean, under conventions=verl; 0.9.0 has that mean whatever "
        "loss_agg_mode says, 0.9.1 follows it, and its default is token-mean"
    ),
    "reinforce_pp": (
        "advantages equal estimator reinforce_plus_plus on rewards that already carry the KL penalty, and "
        "the loss vanilla with token-mean, under conventions=verl"
    ),
    "reinforce_pp_baseline": (
        "advantages equal estimator reinforce_plus_plus_baseline, and the loss vanilla with token-mean, "
        "under conventions=verl"
    ),
    "remax": "advantages equal estimator remax",
    "opo": "advantages equal estimator opo, outside groups of one; the loss equals gpg with token-mean",
    "lite_ppo": "no counterpart: no deviation of the batch but in the whitening over tokens",
    "maxrl": "no counterpart in 0.9.1: no scale but a standard deviation",
    "gpg": ("no counterpart of the advantage: estimator gpg has another alpha; the loss equals gpg's, token-mean"),
    "mc_grpo": "no counterpart: no median",
    "qae": "no counterpart in 0.9.1: no quantile",
    "bnpo": "no counterpart: no scale but a standard deviation",
    "gdpo": "advantages equal estimator gdpo, under conventions=verl; a plugin is given the total reward only",
    "krpo": "no counterpart: no filter over rewards",
    "passk": "advantages equal estimator grpo_passk with norm_adv_by_std_in_grpo=False",
    "passk_analytic": "no counterpart: estimator grpo_passk is best of k, see passk",
    "w_reinforce": "no counterpart: every estimator subtracts a baseline or whitens",
    "psr": "no counterpart: every estimator subtracts a baseline or whitens",
    "nsr": "no counterpart: every estimator subtracts a baseline or whitens",
    "raft_pp": "no counterpart: every estimator subtracts a baseline or whitens",
    "reinforce_rej": "no counterpart: every estimator subtracts a baseline or whitens",
    "cppo": "no counterpart: every response stays in the loss",
    "pods": "no counterpart: every response stays in the loss",
    "unlikeliness": "no counterpart: rewards do not depend on how likely a response was",
    "gfpo": "no counterpart: every response of a group is learnt from",
    "otb": "advantages equal estimator optimal_token_baseline, outside groups of one",
    "spo": "no counterpart: nothing is remembered, and uids are new in each step; verl-recipe has a trainer",
    "dcpo": "no counterpart: nothing is remembered, and uids are new in each step",
    "two_sided": "equals loss vanilla with token-mean and clip_ratio_c=4, whose default is 3",
    "luspo": (
        "no counterpart: loss gspo is the token form; with seq-mean-token-sum, from 0.9.1 on, its gradient "
        "is this one's"
    ),
    "delta_l": "no counterpart: no weight by a power of the length",
    "forking_tokens": "no counterpart: a policy loss is not handed the entropies",
    "seq_mis": (
        "equals loss vanilla with seq-mean-token-sum-norm, loss_scale_factor and "
        "rollout_correction.rollout_is=sequence with a threshold of two bounds, under conventions=verl"
    ),
    "icepop": (
        "equals loss vanilla with seq-mean-token-mean and rollout_correction.rollout_is=token, "
        "rollout_is_threshold='0.5_5.0', under conventions=verl"
    ),
    "glm5": (
        "equals loss vanilla with seq-mean-token-mean, clip_ratio_high=0.28 and "
        "rollout_correction.rollout_is=token, rollout_is_threshold='0.5_2.0', under conventions=verl"
    ),
    "cispo": (
        "equals loss cispo with token-mean, clip_ratio_low=1 and clip_ratio_high=4, under conventions=verl; "
        "its defaults are weights from 0.8 to 1.2"
    ),
    "scalerl": "no counterpart: no mean over prompts; translate scales the advantages instead",
    "topr": "no counterpart: no weight that depends on the sign of the advantage",
    "vespo": "no counterpart: no such weight",
    "dppo_tv": (
        "equals loss dppo_tv with seq-mean-token-sum-norm, loss_scale_factor and a clip_ratio_c that is "
        "never reached, in bypass mode, under conventions=verl"
    ),
    "dppo_kl": (
        "equals loss dppo_kl with seq-mean-token-sum-norm, loss_scale_factor, clip_ratio_low=0.05, "
        "clip_ratio_high=0.05 and a clip_ratio_c that is never reached, in bypass mode, under "
        "conventions=verl"
    ),
    "prime_rl": "no counterpart: loss dppo_tv has no penalty on the log ratio to the engine",
    "minirl": "no counterpart: a policy loss is handed one anchor",
    "sapo": "equals loss sapo, under conventions=verl",
    "gmpo": (
        "equals loss geo_mean with clip ratios of 0.4 where the micro-batch is the step; it averages the "
        "micro-batch's responses whatever the step's counts"
    ),
    "hmpo": "no counterpart: loss geo_mean is the geometric mean",
    "pmd_mean": (
        "advantages equal estimator rloo, under conventions=verl; of verl's losses dro penalises each "
        "token's log ratio, not the response's"
    ),
    "pmd_partition": "no counterpart: no log-partition function",
    "aspo": "no counterpart: no weight that depends on the sign of the advantage",
    "archer": "no counterpart: a policy loss is not handed the entropies",
    "ce_gppo": "no counterpart: a clipped token has no gradient",
    "fipo": "no counterpart: no weight by the tokens that follow",
    "bapo": "no counterpart: clip bounds are fixed",
    "m2po": "no counterpart: clip bounds are fixed",
    "clip_cov": "equals loss clip_cov with token-mean, for the same draws, under conventions=verl",
    "kl_cov": ("equals loss kl_cov with token-mean and ppo_kl_coef=1, whose default is 0.1, under conventions=verl"),
    "agapo": "no counterpart: no deviation of the batch but in the whitening over tokens",
    "gtpo_entropy": "no counterpart: entropies do not reach an estimator",
    "grpo_s": "no counterpart: entropies do not reach an estimator",
    "tis": (
        "equals loss vanilla with token-mean, clip_ratio_high=0.28 and rollout_correction.rollout_is=token, "
        "rollout_is_threshold=2, under conventions=verl"
    ),
    "glm5_agentic": ("no counterpart: its token mask compares the old policy with the engine, not the policy now"),
    "kpop": "no counterpart: 0.9.1 has no rejection by a binary KL of both directions",
    "deepseek_v32": "no counterpart: neither a KL weighted by the ratio nor the mask of drifted responses",
    "simple_policy_optimization": "no counterpart: no quadratic penalty on the ratio",
    "kimi_k15": "no counterpart: loss dro penalises each token's log ratio; `ratio=token` equals it",
}
