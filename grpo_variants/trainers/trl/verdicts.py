"""What of TRL equals each member: a built-in, or why it has no counterpart."""

from __future__ import annotations

from collections.abc import Mapping

VERDICTS: Mapping[str, str] = {
    "reinforce": "no counterpart: GRPOTrainer always subtracts the group mean",
    "rloo": "advantages equal RLOOTrainer's with normalize_advantages=False and beta=0",
    "grpo": "equals loss_type='grpo' with beta=0.04, under conventions=trl",
    "grpo_process": (
        "no counterpart: rewards are one number per response; the adapter reads steps from reward functions"
    ),
    "dr_grpo": "equals loss_type='dr_grpo' with scale_rewards='none'",
    "dapo": (
        "equals loss_type='dapo' with epsilon_high=0.28, under conventions=trl, where a window's token "
        "counts are equal; the trainer has no dynamic sampling"
    ),
    "gspo": "equals importance_sampling_level='sequence' with loss_type='grpo', under conventions=trl",
    "gspo_token": "no counterpart in 1.16; with one advantage per response its gradient is gspo's",
    "reinforce_pp": "no counterpart: no KL in the reward and no whitening over tokens",
    "reinforce_pp_baseline": "no counterpart: no whitening over tokens",
    "remax": "no counterpart: the trainer draws no greedy response",
    "opo": "no counterpart: no baseline that weighs by length",
    "lite_ppo": "advantages equal scale_rewards='batch', under conventions=trl; the loss is loss_type='dapo'",
    "maxrl": "no counterpart: no scale but a standard deviation",
    "gpg": "no counterpart: groups without signal are counted like any other",
    "mc_grpo": "no counterpart: no median",
    "qae": "no counterpart: no quantile",
    "bnpo": "no counterpart: loss_type='bnpo' has the name and is a token mean per micro-batch",
    "gdpo": "advantages equal multi_objective_aggregation='normalize_then_sum', under conventions=trl",
    "krpo": "no counterpart: no filter over rewards",
    "passk": "no counterpart: every response of a group gets an advantage",
    "passk_analytic": "no counterpart: rewards are compared one by one",
    "w_reinforce": "no counterpart: GRPOTrainer always subtracts the group mean",
    "psr": "no counterpart: GRPOTrainer always subtracts the group mean",
    "nsr": "no counterpart: GRPOTrainer always subtracts the group mean",
    "raft_pp": "no counterpart: GRPOTrainer always subtracts the group mean",
    "reinforce_rej": "no counterpart: GRPOTrainer always subtracts the group mean",
    "cppo": "no counterpart: every response stays in the loss",
    "pods": "no counterpart: every response stays in the loss",
    "unlikeliness": "no counterpart: rewards do not depend on how likely a response was",
    "gfpo": "no counterpart in 1.16: every response of a group is learnt from",
    "otb": "no counterpart: sums of squared probabilities are not computed",
    "spo": "no counterpart: nothing is remembered between steps",
    "dcpo": "no counterpart: nothing is remembered between steps",
    "two_sided": (
        "equals loss_type='dapo' with delta=4 and beta=0.001, under conventions=trl, where a window's token "
        "counts are equal"
    ),
    "luspo": (
        "equals loss_type='luspo' with importance_sampling_level='sequence', epsilon=2e-3 and "
        "epsilon_high=2.5e-3, under conventions=trl"
    ),
    "delta_l": "no counterpart: no weight by a power of the length",
    "forking_tokens": (
        "equals loss_type='dapo' with epsilon_high=0.28 and top_entropy_quantile=0.2, under "
        "conventions=trl, where a window's token counts are equal; TRL takes the quantile of each "
        "micro-step over all processes, here it is the step's, so with gradient_accumulation_steps=1"
    ),
    "seq_mis": (
        "equals loss_type='dr_grpo' with scale_rewards='none' and "
        "vllm_importance_sampling_mode='sequence_mask', vllm_importance_sampling_clip_max=10"
    ),
    "icepop": (
        "equals loss_type='grpo' with vllm_importance_sampling_mode='token_mask' from 0.5 to 5, under conventions=trl"
    ),
    "glm5": (
        "equals loss_type='grpo' with epsilon_high=0.28 and vllm_importance_sampling_mode='token_mask' from "
        "0.5 to 2, under conventions=trl"
    ),
    "cispo": (
        "equals loss_type='cispo' with epsilon_high=5, under conventions=trl, where a window's token counts are equal"
    ),
    "scalerl": "no counterpart: no mean over prompts, and a ratio to the old policy only",
    "topr": "no counterpart: no weight that depends on the sign of the advantage",
    "vespo": "equals loss_type='vespo', under conventions=trl, where a window's token counts are equal",
    "dppo_tv": "no counterpart: no trust region in probabilities",
    "dppo_kl": "no counterpart: no trust region in probabilities",
    "prime_rl": "no counterpart: no trust region in probabilities",
    "minirl": "no counterpart: no mask in place of the clip",
    "sapo": "equals loss_type='sapo', under conventions=trl",
    "gmpo": "equals trl.experimental.gmpo with its defaults, under conventions=trl",
    "hmpo": "no counterpart: the geometric mean only",
    "pmd_mean": "no counterpart: no penalty on the log ratio to the old policy",
    "pmd_partition": "no counterpart: no log-partition function",
    "aspo": "no counterpart: no weight that depends on the sign of the advantage",
    "archer": "no counterpart: one clip range for every token",
    "ce_gppo": "no counterpart: a clipped token has no gradient",
    "fipo": "no counterpart: no weight by the tokens that follow",
    "bapo": "no counterpart: clip bounds are fixed",
    "m2po": "no counterpart: clip bounds are fixed",
    "clip_cov": "no counterpart: no covariance",
    "kl_cov": "no counterpart: no covariance",
    "agapo": "no counterpart: RLOOTrainer's normalize_advantages subtracts and divides in another order",
    "gtpo_entropy": "no counterpart: one advantage per response",
    "grpo_s": "no counterpart: no credit by entropy",
    "tis": (
        "equals loss_type='dapo' with epsilon_high=0.28 and vllm_importance_sampling_mode='token_truncate', "
        "vllm_importance_sampling_clip_max=2, under conventions=trl, where a window's token counts are "
        "equal"
    ),
    "glm5_agentic": "no counterpart: weights are not dropped outside a band of the policy's own ratio",
    "kpop": "no counterpart: weights are bounded by their ratio only",
    "deepseek_v32": (
        "equals loss_type='grpo' with scale_rewards='none', beta=0.001 and off_policy_mask_threshold=0.5, "
        "under conventions=trl"
    ),
    "simple_policy_optimization": "no counterpart: no quadratic penalty on the ratio",
    "kimi_k15": "no counterpart: no penalty on the log ratio to the old policy",
}
