"""What is refused before a model loads and what is reported: the sentence, and the overrides that make it go away.

Every line that a finding prints is appended to the same configuration, by Hydra's rules, and the finding is gone.
"""

import logging
import re
import shlex

import pytest
from grpo_variants_verl.cards import make_card
from grpo_variants_verl.run_config import read_run_config, refusals, reports
from verl_configs import composed, validated

import grpo_variants as gv

ESTIMATOR = "algorithm.adv_estimator"
ACTOR = "actor_rollout_ref.actor"
POLICY_LOSS = f"{ACTOR}.policy_loss"
LOSS = f"{POLICY_LOSS}.loss_mode"
CLASS = f"{POLICY_LOSS}._target_=grpo_variants_verl.VariantPolicyLossConfig"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
ROLLOUT = "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"
LEADS = ("Fix", "To have it", "Nearest, the soft punishment", "So that only the last one counts")
NO_CORRECTION = f"{CORRECTION}.rollout_is=null {CORRECTION}.rollout_rs=null"


def options(text):
    return f'+algorithm.grpo_variants.options="{text}"'


def loss_options(text):
    return (CLASS, f'+{POLICY_LOSS}.options="{text}"')


def later(text):
    """An estimator's options as a fix prints them."""
    return f"""'++algorithm.grpo_variants.options="{text}"'"""


def loss_later(text, *, class_too=False):
    return f"{CLASS} " * class_too + f"""'++{POLICY_LOSS}.options="{text}"'"""


TOKEN_WEIGHTS = (f"{CORRECTION}.rollout_is=token", f"{ROLLOUT}.calculate_log_probs=True")
NO_LOGP = f"{ROLLOUT}.calculate_log_probs=False"  # verl's default is True

# case: the command line, what is said (a pattern), the ways out in full.
REFUSED = {
    "unknown estimator": ([f"{ESTIMATOR}=gv_rlo"], r"adv_estimator='gv_rlo' is unknown. Did you mean 'gv_rloo'\?", []),
    "unknown loss": ([f"{LOSS}=gv_gsp"], r"loss_mode='gv_gsp' is unknown. Did you mean 'gv_gspo'\?", []),
    "an estimator without gv_": (
        [f"{ESTIMATOR}=dr_grpo"],
        "adv_estimator='dr_grpo' is none of verl's own.",
        [f"{ESTIMATOR}=gv_dr_grpo"],
    ),
    "an estimator without gv_ as its paper writes it": (
        [f"{ESTIMATOR}='Dr. GRPO'"],
        "adv_estimator='Dr. GRPO' is none of verl's own.",
        [f"{ESTIMATOR}=gv_dr_grpo"],
    ),
    "a loss without gv_": (
        [f"{LOSS}=dapo"],
        "loss_mode='dapo' is none of verl's own.",
        [f"{LOSS}=gv_dapo"],
    ),
    "loss options without their class": (
        [f"{LOSS}=gv_dapo", loss_options("surrogate.high=0.3")[1]],
        "options is not known to verl.workers.config.PolicyLossConfig.",
        [CLASS],
    ),
    "options in an estimator's name": (
        [f"{ESTIMATOR}='gv_grpo,scale=none,surrogate.high=0.3'", options("baseline=leave_one_out")],
        "adv_estimator takes a name without options; options go beside it.",
        [
            f"{ESTIMATOR}=gv_grpo {later('baseline=leave_one_out,scale=none')} {LOSS}=gv_grpo "
            + loss_later("surrogate.high=0.3", class_too=True)
        ],
    ),
    "options in a name without gv_": (
        [f"{ESTIMATOR}='Dr. GRPO,scale=group_std'"],
        "adv_estimator takes a name without options; options go beside it.",
        [f"{ESTIMATOR}=gv_dr_grpo {later('scale=group_std')}"],
    ),
    "options in a loss's name": (
        [f"{LOSS}='gv_dapo,surrogate.high=0.3'"],
        "loss_mode takes a name without options; options go beside it.",
        [f"{LOSS}=gv_dapo {loss_later('surrogate.high=0.3', class_too=True)}"],
    ),
    "unknown axis": ([f"{ESTIMATOR}=gv_grpo", options("scal=none")], r"unknown axis 'scal'.*Did you mean 'scale'", []),
    "unknown field": (
        [f"{LOSS}=gv_grpo", *loss_options("surrogate.hihg=0.3")],
        r"surrogate=clip has no field 'hihg'.*Did you mean 'high'",
        [],
    ),
    "a loss's axis at the estimator": (
        [
            f"{ESTIMATOR}=gv_grpo",
            options("scale=none,surrogate=cispo,surrogate.cap=4"),
            f"{LOSS}=gv_dapo",
            *loss_options("tokens=all"),
        ],
        "grpo_variants.options: surrogate, surrogate.cap belongs to the other stage.",
        [f"{later('scale=none')} {loss_later('tokens=all,surrogate=cispo,surrogate.cap=4')}"],
    ),
    "a loss's axis at the estimator, with a loss of verl's": (
        [f"{ESTIMATOR}=gv_grpo", options("surrogate.high=0.3")],
        "surrogate.high belongs to the other stage.",
        [f"{later('')} {LOSS}=gv_grpo {loss_later('surrogate.high=0.3', class_too=True)}"],
    ),
    "an estimator's axis at the loss": (
        [f"{LOSS}=gv_grpo", *loss_options("scale=none")],
        "policy_loss.options: scale belongs to the other stage.",
        [f"{ESTIMATOR}=gv_grpo {later('scale=none')} {loss_later('')}"],
    ),
    "a rollout axis at a stage": (
        [f"{ESTIMATOR}=gv_grpo", options("scale=none,filter=zero_variance,filter.metric=acc")],
        "filter, filter.metric acts while responses are sampled, which verl does.",
        [f"algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc {later('scale=none')}"],
    ),
    "unknown setting": (
        [f"{ESTIMATOR}=gv_grpo", '+algorithm.grpo_variants.option="scale=none"'],
        r"algorithm.grpo_variants.option is unknown. Did you mean 'options'\? Allowed: options, step_rewards",
        [],
    ),
    "options without an estimator": (
        [options("scale=none")],
        "options has no effect on algorithm.adv_estimator=gae: use a gv_ estimator, or leave it out.",
        [later("")],
    ),
    "options without a loss": (
        [f"{ESTIMATOR}=gv_grpo", *loss_options("surrogate.high=0.3")],
        "options has no effect on .*loss_mode=vanilla: use a gv_ loss, or leave it out.",
        [loss_later("")],
    ),
    "greedy rewards": (
        [f"{ESTIMATOR}=gv_remax"],
        "remax: verl draws greedy responses for its own estimator only, in the legacy trainer.",
        [f"{ESTIMATOR}=remax trainer.use_v1=False"],
    ),
    "greedy rewards with options": (
        [f"{ESTIMATOR}=gv_remax", options("scale=batch_std")],
        "remax: verl draws greedy responses for its own estimator only, in the legacy trainer.",
        [f"{ESTIMATOR}=remax trainer.use_v1=False {later('')}"],
    ),
    "values of single reward functions": (
        [f"{ESTIMATOR}=gv_gdpo"],
        r"gdpo: verl hands the values of single reward functions.*in \+algorithm.gdpo_reward_keys=\[\.\.\.\]\.",
        [f"{ESTIMATOR}=gdpo trainer.use_v1=False"],
    ),
    "a memory of prompts": (
        [f"{ESTIMATOR}=gv_spo"],
        "spo: it remembers the prompts of earlier steps.*It runs in TRL",
        [],
    ),
    "sums of squared probabilities": (
        [f"{ESTIMATOR}=gv_otb"],
        "otb: verl does not hand this over to a plugin. credit=optimal_token needs sum_pi_squared=",
        [f"++algorithm.grpo_variants.extend_host=True trainer.use_v1=False {ACTOR}.calculate_sum_pi_squared=True"],
    ),
    "sums of squared probabilities that verl does not compute": (
        [f"{ESTIMATOR}=gv_otb", "+algorithm.grpo_variants.extend_host=True", "trainer.use_v1=False"],
        "otb: verl does not hand this over to a plugin. credit=optimal_token needs sum_pi_squared=",
        [f"++algorithm.grpo_variants.extend_host=True trainer.use_v1=False {ACTOR}.calculate_sum_pi_squared=True"],
    ),
    "token credit without token rewards": (
        [f"{ESTIMATOR}=gv_grpo_process"],
        "one reward per response.*say that a step ends at every token whose reward is not 0.",
        ["++algorithm.grpo_variants.step_rewards=nonzero"],
    ),
    "an unknown rule for steps": (
        [f"{ESTIMATOR}=gv_grpo_process", "+algorithm.grpo_variants.step_rewards=all"],
        "step_rewards='all' is unknown.",
        ["++algorithm.grpo_variants.step_rewards=nonzero"],
    ),
    "entropies": (
        [f"{LOSS}=gv_grpo", *loss_options("tokens=top_entropy")],
        r"verl does not hand this over to a plugin. tokens=top_entropy needs entropy=",
        [],
    ),
    "empty rows left out": (
        [f"{LOSS}=gv_grpo", *loss_options("surrogate.high=0.3,aggregation.empty_rows=exclude")],
        "aggregation.empty_rows=exclude needs the number of responses with a token, which verl does not count.",
        [loss_later("surrogate.high=0.3,aggregation.empty_rows=count")],
    ),
    "a KL weighted by the ratio": (
        [f"{LOSS}=gv_deepseek_v32"],
        "verl adds the KL term itself and cannot weigh it by the ratio.",
        [loss_later("kl.weighted=none", class_too=True)],
    ),
    "prompt_mean at the loss alone": (
        [
            f"{ESTIMATOR}=gv_rloo",
            options("singleton=zero"),
            f"{LOSS}=gv_dapo",
            *loss_options("aggregation=prompt_mean"),
        ],
        "the advantages can carry it over aggregation=token_mean. Use the pair.",
        [f"{later('singleton=zero,aggregation=prompt_mean')} {loss_later('aggregation=token_mean')}"],
    ),
    "prompt_mean at the loss alone, with an estimator of verl's": (
        [f"{LOSS}=gv_dapo", *loss_options("aggregation=prompt_mean")],
        "the advantages can carry it over aggregation=token_mean. Use the pair.",
        [f"{ESTIMATOR}=gv_dapo {later('aggregation=prompt_mean')} {loss_later('aggregation=token_mean')}"],
    ),
    "prompt_mean under a surrogate that does not scale": (
        [f"{LOSS}=gv_kimi_k15", *loss_options("aggregation=prompt_mean")],
        "and its surrogate does not scale with A, so advantages cannot carry it.",
        [loss_later("aggregation=token_mean")],
    ),
    "prompt_mean at the estimator alone": (
        [f"{ESTIMATOR}=gv_grpo", options("aggregation=prompt_mean"), f"{LOSS}=gv_grpo"],
        "on top of aggregation=token_mean, which the loss does not have.",
        [loss_later("aggregation=token_mean", class_too=True)],
    ),
    "prompt_mean at the estimator over a loss of verl's": (
        [f"{ESTIMATOR}=gv_grpo", options("aggregation=prompt_mean"), f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
        "on top of aggregation=token_mean, which the loss does not have.",
        [f"{ACTOR}.loss_agg_mode=token-mean"],
    ),
    "prompt_mean at the estimator over a surrogate that does not scale": (
        [
            f"{ESTIMATOR}=gv_grpo",
            options("scale=none,aggregation=prompt_mean"),
            f"{LOSS}=gv_kimi_k15",
            *loss_options("aggregation=token_mean"),
        ],
        "kimi_k15: its surrogate does not scale with A, so advantages cannot carry weights.",
        [later("scale=none")],
    ),
    "length_power at the loss alone": (
        [f"{ESTIMATOR}=gv_grpo", f"{LOSS}=gv_delta_l", *loss_options("aggregation.alpha=1")],
        "aggregation=length_power weighs a response by the lengths of all responses, which a policy loss of verl does",
        [
            f"{later('aggregation=length_power,aggregation.alpha=1.0')} {loss_later('aggregation=constant')}",
        ],
    ),
    "length_power at the estimator over a loss of verl's": (
        [f"{ESTIMATOR}=gv_delta_l"],
        "carry the weights of length_power on top of aggregation=constant, which the loss does not have.",
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm '{ACTOR}.loss_scale_factor=${{data.max_response_length}}'"],
    ),
    "responses that leave at the loss alone": (
        [f"{ESTIMATOR}=gv_dapo", f"{LOSS}=gv_psr"],
        "psr: aggregation.rows=signal counts the tokens of all responses that have an advantage, which a policy loss "
        "of verl does not see; the advantages can carry it over aggregation=token_mean. Use the pair.",
        [
            f"{later('aggregation=token_mean,aggregation.rows=signal')} "
            f"{loss_later('aggregation=token_mean', class_too=True)}"
        ],
    ),
    "responses that leave under another mean": (
        [f"{ESTIMATOR}=gv_psr", f"{LOSS}=gv_gspo"],
        "psr: its advantages carry the weights of aggregation.rows=signal on top of aggregation=token_mean, which the "
        "loss does not have.",
        [loss_later("aggregation=token_mean", class_too=True)],
    ),
    "responses that leave with a KL term": (
        [f"{ESTIMATOR}=gv_psr", f"{LOSS}=gv_psr", *loss_options("aggregation=token_mean,kl=k3,kl.beta=0.1")],
        "psr: aggregation.rows=signal takes responses out of the KL term too, which verl adds to every response.",
        [later("aggregation=token_mean")],
    ),
    "responses that leave with a KL term, at the loss": (
        [f"{ESTIMATOR}=gv_dapo", f"{LOSS}=gv_psr", *loss_options("kl=k3,kl.beta=0.1")],
        "psr: aggregation.rows=signal takes responses out of the KL term too, which verl adds to every response.",
        [loss_later("kl=k3,kl.beta=0.1,aggregation=token_mean")],
    ),
    "responses that leave under a surrogate that does not scale": (
        [f"{ESTIMATOR}=gv_psr", f"{LOSS}=gv_kimi_k15", *loss_options("aggregation=token_mean")],
        "kimi_k15: its surrogate does not scale with A, so advantages cannot carry weights.",
        [later("aggregation=token_mean")],
    ),
    "another aggregation at the estimator": (
        [f"{ESTIMATOR}=gv_grpo", options("aggregation=token_mean")],
        "aggregation belongs to the other stage",
        [f"{later('')} {LOSS}=gv_grpo {loss_later('aggregation=token_mean', class_too=True)}"],
    ),
    "a correction that verl does not apply": (
        [f"{LOSS}=gv_grpo", *loss_options("correction=token_truncate")],
        "verl computes the rollout correction, and it is not set to the variant's.",
        [
            f"{CORRECTION}.bypass_mode=False {CORRECTION}.rollout_is=token {CORRECTION}.rollout_rs=null "
            f"{CORRECTION}.rollout_is_threshold=2.0 {ROLLOUT}.calculate_log_probs=True"
        ],
    ),
    "a correction and log-probabilities that are not kept": (
        [f"{LOSS}=gv_tis", f"{CORRECTION}.rollout_is=token", NO_LOGP],
        "tis: verl computes the rollout correction, and it is not set to the variant's.",
        [
            f"{CORRECTION}.bypass_mode=False {CORRECTION}.rollout_is=token {CORRECTION}.rollout_rs=null "
            f"{CORRECTION}.rollout_is_threshold=2.0 {ROLLOUT}.calculate_log_probs=True"
        ],
    ),
    "a correction in bypass mode": (
        [f"{LOSS}=gv_dppo_tv", *loss_options("correction=token_truncate"), f"{CORRECTION}.bypass_mode=True"],
        "dppo_tv: verl applies no rollout weight in bypass mode, which ratio.anchor=rollout needs.",
        [loss_later("correction=none")],
    ),
    "a correction that verl does not have": (
        [f"{LOSS}=gv_grpo", *loss_options("correction=geometric_truncate")],
        "correction=geometric_truncate: verl has no such rollout correction",
        [],
    ),
    "an anchor that needs bypass mode": (
        [f"{LOSS}=gv_grpo", *loss_options("ratio.anchor=rollout")],
        "needs verl's bypass mode, where the rollout engine's log-probabilities are the old ones.",
        [f"{ROLLOUT}.calculate_log_probs=True {CORRECTION}.bypass_mode=True trainer.use_v1=True"],
    ),
    "bypass mode without log-probabilities": (
        [f"{LOSS}=gv_grpo", f"{CORRECTION}.bypass_mode=True", NO_LOGP],
        "grpo: bypass mode needs the rollout engine's log-probabilities, and they are not kept.",
        [f"{ROLLOUT}.calculate_log_probs=True"],
    ),
    "bypass mode in the legacy trainer": (
        [f"{LOSS}=gv_grpo", f"{CORRECTION}.bypass_mode=True", "trainer.use_v1=False"],
        "in bypass mode the legacy trainer replaces loss_mode by its own bypass_mode.",
        ["trainer.use_v1=True", f"{CORRECTION}.bypass_mode=False"],
    ),
    "two lengths": (
        [f"{LOSS}=gv_dr_grpo", *loss_options("aggregation.length=100"), f"{ACTOR}.loss_scale_factor=200"],
        "loss_scale_factor=200 and aggregation.length=100.0 disagree.",
        [f"{ACTOR}.loss_scale_factor=null"],
    ),
    "a clip field and an option": (
        [f"{LOSS}=gv_grpo", *loss_options("surrogate.high=0.3"), f"{ACTOR}.clip_ratio_high=0.25"],
        "clip_ratio_high=0.25 and surrogate.high=0.3 in .* disagree.",
        [f"{ACTOR}.clip_ratio_high=0.2"],
    ),
    "both clip fields and an option": (
        [
            f"{LOSS}=gv_grpo",
            *loss_options("surrogate.high=0.3"),
            f"{ACTOR}.clip_ratio_high=0.25",
            f"{ACTOR}.clip_ratio=0.1",
        ],
        "clip_ratio_high=0.25 and surrogate.high=0.3 in .* disagree.",
        [f"{ACTOR}.clip_ratio_high=0.2 {ACTOR}.clip_ratio=0.2"],
    ),
    "no dual clip and a dual clip": (
        [f"{LOSS}=gv_grpo", *loss_options("surrogate.dual=none"), f"{ACTOR}.clip_ratio_c=4.0"],
        "clip_ratio_c=4.0 and surrogate.dual=none in .* disagree.",
        [f"{ACTOR}.clip_ratio_c=3.0"],
    ),
    "a cap and verl's field for it": (
        [f"{LOSS}=gv_cispo", *loss_options("surrogate.cap=6"), f"{ACTOR}.clip_ratio_high=4.0"],
        "clip_ratio_high=4.0 and surrogate.cap=6 in .* disagree.",
        [f"{ACTOR}.clip_ratio_high=0.2"],
    ),
    "a temperature and verl's field for it": (
        [f"{LOSS}=gv_kimi_k15", *loss_options("surrogate.tau=0.2"), f"{POLICY_LOSS}.dro_beta=0.3"],
        "policy_loss.dro_beta=0.3 and surrogate.tau=0.2 in .* disagree.",
        [f"{POLICY_LOSS}.dro_beta=null"],
    ),
    "two discounts": (
        [f"{ESTIMATOR}=gv_reinforce_pp", options("credit.gamma=0.9"), "algorithm.gamma=0.95"],
        "algorithm.gamma=0.95 and credit.gamma=0.9 in .* disagree.",
        ["algorithm.gamma=1.0"],
    ),
    "weights normalised over the batch": (
        [
            f"{LOSS}=gv_grpo",
            *loss_options("correction=token_truncate"),
            *TOKEN_WEIGHTS,
            f"{CORRECTION}.rollout_is_batch_normalize=True",
        ],
        "its weights are not normalised over the batch, as verl's would be.",
        [f"{CORRECTION}.rollout_is_batch_normalize=False"],
    ),
    "a truncated distribution under a product of weights": (
        [
            f"{LOSS}=gv_grpo",
            *loss_options("surrogate.high=0.3,correction=sequence_truncate,correction.cap=3"),
            f"{CORRECTION}.rollout_is=sequence",
            f"{CORRECTION}.rollout_is_threshold=3.0",
            f"{ROLLOUT}.calculate_log_probs=True",
            f"{ROLLOUT}.top_p=0.9",
            f"{ROLLOUT}.top_k=20",
        ],
        r"rollout.top_p=0.9, .*rollout.top_k=20 the engine reports .*correction=sequence_truncate takes the difference",
        [
            f"{ROLLOUT}.top_p=1 {ROLLOUT}.top_k=-1",
            f"{CORRECTION}.rollout_is=token {CORRECTION}.rollout_rs=null {CORRECTION}.rollout_is_threshold=2.0 "
            f"{ROLLOUT}.calculate_log_probs=True {loss_later('surrogate.high=0.3,correction=token_truncate')}",
        ],
    ),
    "stages that do not go together": (
        [f"{ESTIMATOR}=gv_reinforce_pp", options("singleton=zero"), f"{LOSS}=gv_gspo"],
        "ratio=sequence has one value per response and takes one advantage per response, not one per token",
        [
            loss_later("ratio=sequence_token", class_too=True),
            loss_later("ratio=token", class_too=True),
            later("singleton=zero,credit=outcome"),
        ],
    ),
    "a loss that does not go together with an estimator of verl's": (
        [f"{ESTIMATOR}=reinforce_plus_plus", f"{LOSS}=gv_gspo"],
        "ratio=sequence has one value per response and takes one advantage per response, not one per token",
        [loss_later("ratio=sequence_token", class_too=True), loss_later("ratio=token", class_too=True)],
    ),
}

DAPO = (f"{ESTIMATOR}=gv_dapo", f"{LOSS}=gv_dapo")
FILTERING = (*DAPO, "algorithm.filter_groups.enable=True")
PUNISHING = (
    "reward.reward_manager.name=dapo",
    f"+{OVERLONG}.enable=True",
    f"+{OVERLONG}.len=64",
    f"+{OVERLONG}.penalty_factor=1.0",
)
PUNISHED = (
    "reward.reward_manager.name=dapo "
    f"++{OVERLONG}.enable=True ++{OVERLONG}.len=102 ++{OVERLONG}.penalty_factor=1.0 ++{OVERLONG}.log=False "
    "'++reward.reward_kwargs.max_resp_len=${data.max_response_length}'"
)
REPORTED = {
    "aggregation": (
        [f"{LOSS}=gv_gspo"],
        "loss_agg_mode=token-mean is not gspo's aggregation",
        [f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"],
    ),
    "a KL term that is missing": (
        [f"{LOSS}=gv_grpo"],
        "grpo has k3 with beta 0.04 in its loss, this configuration has no KL term.",
        [f"{ACTOR}.use_kl_loss=True {ACTOR}.kl_loss_type=k3 {ACTOR}.kl_loss_coef=0.04"],
    ),
    "another KL coefficient": (
        [f"{LOSS}=gv_grpo", f"{ACTOR}.use_kl_loss=True"],
        "grpo has k3 with beta 0.04 in its loss, this configuration has k3 with beta 0.001.",
        [f"{ACTOR}.use_kl_loss=True {ACTOR}.kl_loss_type=k3 {ACTOR}.kl_loss_coef=0.04"],
    ),
    "a KL term that the variant has not": (
        [f"{LOSS}=gv_dapo", f"{ACTOR}.use_kl_loss=True"],
        "dapo has no KL term in its loss, this configuration has k3 with beta 0.001.",
        [f"{ACTOR}.use_kl_loss=False"],
    ),
    "a selection that keeps every response": (
        [f"{ESTIMATOR}=gv_gfpo", "actor_rollout_ref.rollout.n=8"],
        "gfpo: selection.keep=8 keeps every response of a group of 8, so that nothing is selected.",
        ["actor_rollout_ref.rollout.n=16"],
    ),
    "a transform that draws every response": (
        [f"{ESTIMATOR}=gv_passk_analytic", "actor_rollout_ref.rollout.n=3"],
        "passk_analytic: transform.k=4 draws every response of a group of 3, so that all of them count the same.",
        ["actor_rollout_ref.rollout.n=8"],
    ),
    "a median of an even group": (
        [f"{ESTIMATOR}=gv_mc_grpo", "actor_rollout_ref.rollout.n=8"],
        "mc_grpo: a group of 8 has no response in the middle, and its median is the lower of the middle two.",
        ["actor_rollout_ref.rollout.n=9"],
    ),
    "a KL penalty that is missing": (
        [f"{ESTIMATOR}=gv_reinforce_pp"],
        "reinforce_pp has k1 with beta 0.01 in its rewards, this configuration has no KL term.",
        [
            "algorithm.use_kl_in_reward=True algorithm.kl_penalty=k1 algorithm.kl_ctrl.type=fixed "
            "algorithm.kl_ctrl.kl_coef=0.01"
        ],
    ),
    "an adaptive coefficient": (
        [
            f"{ESTIMATOR}=gv_reinforce_pp",
            "algorithm.use_kl_in_reward=True",
            "algorithm.kl_ctrl.kl_coef=0.01",
            "algorithm.kl_ctrl.type=adaptive",
        ],
        "the coefficient of the KL penalty is adaptive, towards a KL of 0.1 over a horizon of 10000: it changes",
        ["algorithm.kl_ctrl.type=fixed"],
    ),
    "a reference without the adapter": (
        [f"{LOSS}=gv_dapo", f"{ACTOR}.use_kl_loss=True", "actor_rollout_ref.model.lora_adapter_path=/adapter"],
        "lora_adapter_path: verl's reference is the base model without that adapter, so the KL is not 0 at the start",
        [],
    ),
    "dual clip": (
        [f"{LOSS}=gv_dapo"],
        "clip_ratio_c=3.0, the dual clip that verl's own loss always applies, is not part of dapo",
        [loss_later("surrogate.dual=3.0", class_too=True)],
    ),
    "dual clip beside options": (
        [f"{LOSS}=gv_dapo", *loss_options("surrogate.high=0.3,tokens=all")],
        "clip_ratio_c=3.0, the dual clip that verl's own loss always applies, is not part of dapo",
        [loss_later("surrogate.high=0.3,tokens=all,surrogate.dual=3.0")],
    ),
    "a clip field without effect": (
        [f"{LOSS}=gv_rloo", f"{ACTOR}.clip_ratio_high=0.3"],
        "clip_ratio_high=0.3 has no effect on rloo, whose surrogate has no such field.",
        [f"{ACTOR}.clip_ratio_high=0.2"],
    ),
    "another loss's field without effect": (
        [f"{LOSS}=gv_dapo", f"{ACTOR}.tau_pos=2.0"],
        "tau_pos=2.0 has no effect on dapo, whose surrogate has no such field.",
        [f"{ACTOR}.tau_pos=1.0"],
    ),
    "a coefficient without effect": (
        [f"{LOSS}=gv_dapo", f"{POLICY_LOSS}.dro_beta=0.3"],
        "dro_beta=0.3 has no effect on dapo, whose surrogate has no such field.",
        [f"{POLICY_LOSS}.dro_beta=null"],
    ),
    "a discount without effect": (
        [f"{ESTIMATOR}=gv_grpo", "algorithm.gamma=0.9"],
        "algorithm.gamma=0.9 has no effect on grpo, which does not discount.",
        ["algorithm.gamma=1.0"],
    ),
    "verl's own switch for the scale": (
        [f"{ESTIMATOR}=gv_grpo", options("baseline=leave_one_out"), "algorithm.norm_adv_by_std_in_grpo=False"],
        "norm_adv_by_std_in_grpo=False is read by verl's own grpo only, and grpo divides.",
        [
            f"algorithm.norm_adv_by_std_in_grpo=True {later('baseline=leave_one_out,scale=none')}",
            "algorithm.norm_adv_by_std_in_grpo=True",
        ],
    ),
    "one response per prompt": (
        [f"{ESTIMATOR}=gv_rloo", f"{ROLLOUT}.n=1"],
        "rollout.n=1: rloo compares the responses of a prompt with each other, and of a prompt with one response every "
        "advantage is 0.",
        [f"{ROLLOUT}.n=8"],
    ),
    "dynamic sampling": (
        DAPO,
        "dapo draws new groups for those without signal, but verl's filter is off.",
        ["algorithm.filter_groups.enable=True algorithm.filter_groups.metric=reward trainer.use_v1=True"],
    ),
    "dynamic sampling that a variant has not": (
        [f"{ESTIMATOR}=gv_grpo", "algorithm.filter_groups.enable=True"],
        "grpo trains on every group, but verl's filter draws new ones for those without signal.",
        ["algorithm.filter_groups.enable=False"],
    ),
    "a bound on rounds": (
        [*FILTERING, "algorithm.filter_groups.max_num_gen_batches=4"],
        "algorithm.filter_groups.max_num_gen_batches=4 has no effect in verl 0.9.1: new prompts are drawn until",
        ["algorithm.filter_groups.max_num_gen_batches=0"],
    ),
    "a filter in the legacy trainer": (
        [*FILTERING, "trainer.use_v1=False"],
        "verl's legacy trainer filters no groups.",
        ["trainer.use_v1=True"],
    ),
    "a filter by punished rewards": (
        [*FILTERING, *PUNISHING],
        "the filter's metric reward holds the overlong punishment",
        ["algorithm.filter_groups.metric=acc"],
    ),
    "a truncated distribution": (
        [f"{ESTIMATOR}=gv_grpo", f"{ROLLOUT}.top_p=0.9"],
        "rollout.top_p=0.9: verl trains the log-probabilities of the whole distribution.",
        [f"{ROLLOUT}.top_p=1"],
    ),
    "overlong responses": (DAPO, "dapo masks truncated responses, verl trains on them.", [PUNISHED]),
    "a punishment that a variant has not": (
        [f"{ESTIMATOR}=gv_grpo", *PUNISHING],
        "grpo does not punish overlong responses, but verl's reward manager does.",
        [f"++{OVERLONG}.enable=False"],
    ),
    "a correction that a variant has not": (
        [f"{LOSS}=gv_dapo", *loss_options("surrogate.high=0.3"), *TOKEN_WEIGHTS],
        "rollout_is=token: dapo has no rollout correction, verl applies one.",
        [NO_CORRECTION, loss_later("surrogate.high=0.3,correction=token_truncate")],
    ),
    "a normalised correction that a variant has not": (
        [f"{LOSS}=gv_dapo", *TOKEN_WEIGHTS, f"{CORRECTION}.rollout_is_batch_normalize=True"],
        "rollout_is=token, rollout_is_batch_normalize=True: dapo has no rollout correction, verl applies one.",
        [NO_CORRECTION],
    ),
    "a correction and a rejection that a variant has not": (
        [
            f"{LOSS}=gv_grpo",
            *loss_options("correction=off_policy_mask,correction.threshold=0.5"),
            *TOKEN_WEIGHTS,
            f"{CORRECTION}.rollout_rs=seq_mean_k1",
            f'{CORRECTION}.rollout_rs_threshold="0.5_4.0"',
        ],
        "rollout_is=token, rollout_rs=seq_mean_k1: grpo has no rollout correction, verl applies one.",
        [
            NO_CORRECTION,
            loss_later(
                "correction=token_truncate+geometric_mask+off_policy_mask,correction.geometric_mask.low=0.25,"
                "correction.geometric_mask.high=2.0,correction.off_policy_mask.threshold=0.5"
            ),
        ],
    ),
    "a correction without effect": (
        [f"{LOSS}=gv_dapo", f"{CORRECTION}.rollout_is=token", NO_LOGP],
        "rollout_is=token has no effect: verl computes no weight without the rollout engine's log-probabilities.",
        [f"{ROLLOUT}.calculate_log_probs=True", NO_CORRECTION],
    ),
    "a correction without effect under an estimator": (
        [f"{ESTIMATOR}=gv_dapo", f"{CORRECTION}.rollout_is=token", NO_LOGP],
        "rollout_is=token has no effect: verl computes no weight without the rollout engine's log-probabilities.",
        [f"{ROLLOUT}.calculate_log_probs=True", NO_CORRECTION],
    ),
    "bypass mode": (
        [f"{LOSS}=gv_dapo", f"{CORRECTION}.bypass_mode=True", f"{ROLLOUT}.calculate_log_probs=True"],
        "the old log-probabilities are the rollout engine's.*no rollout weight is applied.",
        [f"{CORRECTION}.bypass_mode=False"],
    ),
    "rejection": (
        [
            f"{LOSS}=gv_dapo",
            f"{CORRECTION}.rollout_rs=token_k2",
            f"{CORRECTION}.rollout_rs_threshold=0.1",
            f"{ROLLOUT}.calculate_log_probs=True",
        ],
        "rollout_rs takes tokens out of the loss, while the step's token count still has them.",
        [],
    ),
    "several updates per batch": (
        [
            f"{ESTIMATOR}=gv_dapo",
            options("aggregation=prompt_mean"),
            f"{LOSS}=gv_dapo",
            "data.train_batch_size=8",
        ],
        "prompt_mean is exact for one update per batch only.",
        [f"{MINI_BATCH}=8"],
    ),
    "several updates per batch under a mean over some responses": (
        [f"{ESTIMATOR}=gv_psr", "data.train_batch_size=8"],
        "aggregation.rows=signal is exact for one update per batch only.",
        [f"{MINI_BATCH}=8"],
    ),
    "a mini-batch that does not divide the batch": (
        [f"{LOSS}=gv_grpo", "data.train_batch_size=6"],
        f"{MINI_BATCH}=4 does not divide a step's 6 prompts: verl fills up the last update with empty rows, which "
        "grpo's aggregation counts as responses.",
        [f"{MINI_BATCH}=3"],
    ),
    "an agent loop of one's own": (
        [f"{ESTIMATOR}=gv_grpo", f"{ROLLOUT}.agent.default_agent_loop=mine"],
        "an agent loop of your own may give several outputs per session, each of which counts as a response of its",
        ["++algorithm.grpo_variants.extend_host=True"],
    ),
    "several outputs under a mean over prompts": (
        [
            f"{ESTIMATOR}=gv_dapo",
            options("aggregation=prompt_mean"),
            "+algorithm.grpo_variants.extend_host=True",
            f"{ROLLOUT}.agent.default_agent_loop=mine",
        ],
        "verl splits a batch into more updates and fills up the last one with empty rows: prompt_mean is exact for one",
        [],
    ),
    "several outputs under a mean over responses": (
        [f"{LOSS}=gv_grpo", f"{ROLLOUT}.agent.default_agent_loop=mine"],
        "verl splits a batch into more updates and .*which grpo's aggregation counts as responses.",
        [],
    ),
}


@pytest.fixture
def reported(caplog, tmp_path, monkeypatch):
    """What is reported for a command line, one line each."""
    monkeypatch.chdir(tmp_path)  # the legacy trainer's card is written where its checkpoints would be
    caplog.set_level(logging.WARNING, logger="grpo_variants_verl")

    def lines(*words):
        caplog.clear()
        validated(*words)
        return [r.getMessage() for r in caplog.records if r.name == "grpo_variants_verl"]

    return lines


def parted(line):
    """What a finding says, and its ways out."""
    found = re.fullmatch(f"(.*?)(?: (?:{'|'.join(LEADS)}): (.*))?", line)
    return found[1], [] if found[2] is None else found[2].split(", or ")


def refused(*words):
    with pytest.raises(Exception, match=r"\S") as caught:
        validated(*words)
    return [line.removeprefix("- ") for line in str(caught.value).splitlines()]


def one(lines, pattern):
    (line,) = [line for line in lines if re.search(pattern, line)]
    return line


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_a_model_loads_with_a_way_out_that_works(case, reported):
    words, pattern, ways = REFUSED[case]
    line = one(refused(*words), pattern)
    assert parted(line)[1] == ways
    for way in ways:
        reported(*words, *shlex.split(way))


@pytest.mark.parametrize("case", REPORTED)
def test_reported_once_with_a_way_out_that_works(case, reported):
    words, pattern, ways = REPORTED[case]
    text, found = parted(one(reported(*words), pattern))
    assert found == ways
    for way in ways:
        assert text not in [parted(line)[0] for line in reported(*words, *shlex.split(way))]


# Everything that a configuration can have and a variant may lack, and the other way round.
CROWDED = (
    f"{ROLLOUT}.n=1",
    f"{ROLLOUT}.top_p=0.9",
    "algorithm.norm_adv_by_std_in_grpo=False",
    "algorithm.gamma=0.9",
    "algorithm.filter_groups.enable=True",
    "algorithm.filter_groups.max_num_gen_batches=4",
    *PUNISHING,
    f"{ACTOR}.use_kl_loss=True",
    "algorithm.use_kl_in_reward=True",
    "algorithm.kl_ctrl.type=adaptive",
    f"{ACTOR}.clip_ratio=0.4",
    f"{ACTOR}.clip_ratio_high=4.0",
    f"{ACTOR}.clip_ratio_c=5.0",
    f"{ACTOR}.tau_pos=2.0",
    f"{ACTOR}.tau_neg=2.5",
    f"{POLICY_LOSS}.clip_cov_ratio=0.1",
    f"{POLICY_LOSS}.clip_cov_lb=0.5",
    f"{POLICY_LOSS}.clip_cov_ub=6.0",
    f"{POLICY_LOSS}.kl_cov_ratio=0.1",
    f"{POLICY_LOSS}.ppo_kl_coef=0.5",
    f"{POLICY_LOSS}.dro_beta=0.3",
    f"{CORRECTION}.rollout_is=sequence",
    f"{CORRECTION}.rollout_rs=seq_mean_k1",
    f'{CORRECTION}.rollout_rs_threshold="0.5_4.0"',
    "data.train_batch_size=6",
    f"{ROLLOUT}.agent.default_agent_loop=mine",
)


def shown(*words):
    """What is refused, or else what is reported; a card is made where nothing is refused."""
    try:
        run = read_run_config(composed(*words))
        lines = list(refusals(run))
        lines = lines or (make_card(run) and list(reports(run)))
    except ValueError as error:
        lines = [str(error)]
    return [parted(line) for line in lines]


@pytest.mark.parametrize("crowd", [(), CROWDED], ids=["verl's own", "crowded"])
@pytest.mark.parametrize("name", gv.names())
def test_every_way_out_of_every_variant_works(name, crowd):
    """Its estimator and loss as a user writes them, in verl's own configuration and in one that differs everywhere."""
    words = (f"{ESTIMATOR}=gv_{name}", f"{LOSS}=gv_{name}", *crowd)
    found = shown(*words)
    assert found or not crowd
    for text, ways in found:
        for way in ways:
            assert text not in [left for left, _ in shown(*words, *shlex.split(way))], way


def test_a_member_without_a_deviation_has_nothing_to_say_to_verls_switch_for_it(reported):
    for words in ([f"{ESTIMATOR}=gv_rloo"], [f"{ESTIMATOR}=gv_grpo", options("scale=none")]):
        assert reported(*words, "algorithm.norm_adv_by_std_in_grpo=False") == []


def test_an_update_of_a_share_of_the_batch_sees_a_whole_step(reported):
    """Four prompts a batch in two steps of two: with mini-batches of two each step is one update."""
    words = (
        f"{ESTIMATOR}=gv_dapo",
        options("aggregation=prompt_mean"),
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        f"{MINI_BATCH}=2",
    )
    exact = "prompt_mean is exact for one update per batch only."
    assert exact not in [parted(line)[0] for line in reported(*words)]
    line = one(reported(*words, "data.train_batch_size=8"), exact)
    assert parted(line)[1] == [f"{MINI_BATCH}=4"]


def test_a_mini_batch_that_ranks_and_micro_batches_divide(reported):
    """Of 12 prompts with 2 responses on two ranks with micro-batches of 2: updates of 4 (8 rows), not of 3 (6 rows)."""
    words = (f"{LOSS}=gv_grpo", "data.train_batch_size=12", f"{MINI_BATCH}=5", f"{ROLLOUT}.n=2")
    ranks = ("trainer.n_gpus_per_node=2", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2")
    assert parted(one(reported(*words, *ranks), "does not divide"))[1] == [f"{MINI_BATCH}=4"]
    token_mean = (f"{LOSS}=gv_dapo", "data.train_batch_size=12", f"{MINI_BATCH}=5", f"{ROLLOUT}.n=2")
    assert not any("does not divide" in line for line in reported(*token_mean))


def test_options_in_place_of_their_section_are_refused_with_the_section():
    """The printed line stands in the place of the one that was given."""
    given = (f"{ESTIMATOR}=gv_grpo", '+algorithm.grpo_variants="scale=none"')
    (line,) = refused(*given)
    assert line == (
        "algorithm.grpo_variants=scale=none is a section; write "
        "'+algorithm.grpo_variants.options=\"scale=none\"' in its place."
    )
    validated(given[0], *shlex.split(line.split("; write ")[1].removesuffix(" in its place.")))
