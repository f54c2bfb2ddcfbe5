"""What an error proposes works: its advice is followed, for every variant and every choice."""

import contextlib
import re
from dataclasses import MISSING
from itertools import product

import pytest
from support.cases.variants import keys_of, text, values_of

import grpo_variants as gv
from grpo_variants import foreign_words
from grpo_variants.axes import AXES
from grpo_variants.options import read_options
from grpo_variants.trainers.verl.translate import run_settings

PROPOSAL = re.compile(r"Choose (.+)\.$")
CHOICES = [(axis, choice) for axis, table in AXES.items() for choice in table.choices]

# One for each kind of surrogate, ratio and credit that TRL's and verl's words treat in a way of their own.
KINDS = ["rloo", "dapo", "gspo", "cispo", "sapo", "gmpo", "vespo", "dppo_tv", "kl_cov", "reinforce_pp", "gdpo", "otb"]
KINDS += ["tis", "spo", "forking_tokens"]


def option(axis, choice):
    """A choice with values for the fields that have no default."""
    needed = [key for key, field in keys_of(axis, choice) if field.default is MISSING]
    values = {key: text(next(v for v in values_of(key) if v is not None)) for key in needed}
    return {axis: choice, **values}


def spec_of(name, options):
    return ",".join([name, *(f"{key}={value}" for key, value in options.items())])


def error_of(spec):
    """The text of the error that a spec string ends in, or None for a variant."""
    try:
        gv.get(spec)
    except ValueError as error:
        return str(error)
    return None


def advice(error):
    """The alternatives that an error proposes: options to set, and those to leave out."""
    found = PROPOSAL.search(error)
    for alternative in re.split(r", or |, ", found[1]) if found else ():
        spelt, _, dropped = alternative.partition(" without ")
        yield read_options(spelt), dropped.split(" and ") if dropped else []


def followed(options, advised):
    """Options after an advice."""
    change, dropped = advised
    return {key: value for key, value in options.items() if key not in dropped} | change


def written(error):
    """The options that an error tells to write, each alternative on its own, with values for what it leaves open."""
    found = re.search(r"[Ww]rite (\S+?=.+?)\.(?: '|$)", error)
    for spelt in found[1].split(" or ") if found else ():
        options = read_options(spelt)
        yield {k: text(next(v for v in values_of(k) if v)) if v == "<value>" else v for k, v in options.items()}


def check(name, options):
    """Whether a spec string was refused; all of its error's advice leads to a variant."""
    error = error_of(spec_of(name, options))
    if error is None:
        return False
    alternatives = list(advice(error))
    meaningless = "; got " in error
    assert alternatives or not meaningless, error
    for alternative in alternatives:
        spec = spec_of(name, followed(options, alternative))
        assert error_of(spec) is None, f"{error}\n{spec}\n{error_of(spec)}"
    return meaningless


@pytest.mark.parametrize("name", gv.names())
def test_the_advice_works_for_every_choice(name):
    refused = sum(check(name, option(axis, choice)) for axis, choice in CHOICES)
    assert refused >= 3


@pytest.mark.parametrize("name", ["rloo", "grpo_process", "gdpo", "otb"])
def test_the_advice_works_for_every_pair_of_choices(name):
    pairs = [(one, other) for one, other in product(CHOICES, CHOICES) if one[0] < other[0]]
    refused = sum(check(name, option(*one) | option(*other)) for one, other in pairs)
    assert refused >= 500


FIELDS = ["kl=k1,kl.beta=0.1,kl.placement=reward", "scale=batch_std,scale.of=centred,scale.over=tokens"]


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("name", gv.names())
def test_the_advice_works_beside_fields(name, fields):
    for axis, choice in CHOICES:
        check(name, option(axis, choice) | read_options(fields))


def test_a_variant_that_is_made_of_parts_gets_advice_too():
    """Without options there is nothing to leave out; what is proposed works on the parts."""
    from dataclasses import replace

    from grpo_variants.objective.ratio import SequenceRatio

    with pytest.raises(ValueError, match=r"^dcpo: surrogate=dcpo is defined on ratio=token; got ratio=sequence") as bad:
        replace(gv.get("dcpo"), ratio=SequenceRatio())
    assert list(advice(str(bad.value))) == [({"ratio": "token"}, [])]


# Fields that a variant's parts do not have


@pytest.mark.parametrize("name", KINDS)
def test_a_field_of_another_choice_is_answered_with_options_that_work(name):
    """By its axis, and bare, as in `high=0.3`."""
    answered = 0
    for axis, choice in CHOICES:
        for key, field in keys_of(axis, choice):
            value = text(next(v for v in values_of(key) if v is not None))
            for given in (key, field.name):
                error = error_of(spec_of(name, {given: value}))
                if error is None or ("has no field" not in error and "unknown axis" not in error):
                    continue
                alternatives = list(written(error))
                # A value may be out of range where another field has its default.
                assert alternatives or given != key or f"'{field.name}' is a field of {axis}=" in error, error
                answered += bool(alternatives)
                for options in alternatives:
                    assert error_of(spec_of(name, options)) is None, error
                    assert any(k.endswith(f".{field.name}") for k in options)
    assert answered > 50


FIELDS_ELSEWHERE = {
    "rloo,surrogate.high=0.3": (
        "rloo: surrogate=reinforce has no field 'high'. Write surrogate=clip,ratio=token,surrogate.high=0.3. 'high' is "
        "a field of surrogate=clip, entropy_clip, cispo, gmpo, "
    ),
    "rloo,kl.beta=0.1": "rloo: kl=none has no field 'beta'. Write kl=k3,kl.beta=0.1. 'beta' is a field of kl=k1, k2",
    "rloo,kl.gradient=k2": "rloo: kl=none has no field 'gradient'. Write kl=k3,kl.beta=<value>,kl.gradient=k2. ",
    "krpo,scale.process=0.5": "krpo: scale=kalman_std has no field 'process'. Write baseline.process=0.5.",
    "dapo,high=0.3": "dapo: unknown axis 'high'. Write surrogate.high=0.3.",
    "rloo,gamma=0.9": "rloo: unknown axis 'gamma'. Write credit=reward_to_go,credit.gamma=0.9.",
    "sapo,surrogate.tau=1": (
        "sapo: surrogate=sapo has no field 'tau'. Did you mean 'tau_pos' or 'tau_neg'? Or write surrogate=dro,"
        "surrogate.tau=1. 'tau' is a field of surrogate=dro."
    ),
}


@pytest.mark.parametrize("spec", FIELDS_ELSEWHERE)
def test_where_a_field_is_one(spec):
    assert error_of(spec).startswith(FIELDS_ELSEWHERE[spec])


# A trainer's words


MEANT = {
    # TRL's
    "grpo,epsilon_high=0.28": "grpo: 'epsilon_high' is TRL's word; write surrogate.high=0.28.",
    "grpo,epsilon=0.1": "grpo: 'epsilon' is TRL's word; write surrogate.low=0.1,surrogate.high=0.1.",
    "dapo,epsilon=0.1": "dapo: 'epsilon' is TRL's word; write surrogate.low=0.1.",
    "aspo,epsilon=0.1": "aspo: 'epsilon' is TRL's word; write surrogate.low=0.1.",
    "cispo,epsilon_high=4": "cispo: 'epsilon_high' is TRL's word; write surrogate.cap=4.0.",
    "rloo,epsilon_high=0.3": "rloo: 'epsilon_high' is TRL's word; write surrogate=clip,ratio=token,surrogate.high=0.3.",
    "dapo,epsilon_high=0.28": "dapo: 'epsilon_high' is TRL's word; dapo has surrogate.high=0.28 already, so leave it",
    "dapo,surrogate.epsilon_low=0.1": "dapo: 'epsilon_low' is TRL's word; write surrogate.low=0.1.",
    "dapo,beta=0.01": "dapo: 'beta' is TRL's word; write kl=k3,kl.beta=0.01.",
    "grpo,beta=0.01": "grpo: 'beta' is TRL's word; write kl.beta=0.01.",
    "grpo,beta=0.0": "grpo: 'beta' is TRL's word; write kl=none.",
    "gspo,delta=4": "gspo: 'delta' is TRL's word; write surrogate.dual=4.0.",
    "grpo,scale_rewards=none": "grpo: 'scale_rewards' is TRL's word; write scale=none.",
    "grpo,scale_rewards=batch": "grpo: 'scale_rewards' is TRL's word; write scale=batch_std.",
    "grpo,importance_sampling_level=sequence": "grpo: 'importance_sampling_level' is TRL's word; write ratio=sequence.",
    "grpo,mask_truncated_completions=true": "grpo: 'mask_truncated_completions' is TRL's word; write overlong=mask.",
    "grpo,top_entropy_quantile=0.3": (
        "grpo: 'top_entropy_quantile' is TRL's word; write tokens=top_entropy,tokens.fraction=0.3."
    ),
    "grpo,sapo_temperature_pos=1.1": (
        "grpo: 'sapo_temperature_pos' is TRL's word; write surrogate=sapo,surrogate.tau_pos=1.1."
    ),
    "grpo,vllm_importance_sampling_mode=token_truncate": (
        "grpo: 'vllm_importance_sampling_mode' is TRL's word; write correction=token_truncate,correction.cap=3.0."
    ),
    "grpo,loss_type=Dr-GRPO": (
        "grpo: 'loss_type' is TRL's word; the variant's name is the first word of a spec string: write dr_grpo."
    ),
    "dapo,epsilon=0.1,epsilon_high=0.3,beta=0.01": (
        "dapo: 'epsilon', 'epsilon_high' and 'beta' are TRL's words; write surrogate.low=0.1,surrogate.high=0.3,kl=k3,"
        "kl.beta=0.01."
    ),
    "dapo,epsilon_high=wide": "dapo: 'epsilon_high' is TRL's word; surrogate.high='wide' is not a number.",
    # verl's
    "dapo,clip_ratio=0.1": "dapo: 'clip_ratio' is verl's word; write surrogate.low=0.1,surrogate.high=0.1.",
    "dapo,clip_ratio_low=0.1": "dapo: 'clip_ratio_low' is verl's word; write surrogate.low=0.1.",
    "dapo,actor_rollout_ref.actor.clip_ratio_high=0.3": (
        "dapo: 'clip_ratio_high' is verl's word; write surrogate.high=0.3."
    ),
    "dapo,clip_ratio=0.1,clip_ratio_high=0.3": (
        "dapo: 'clip_ratio' and 'clip_ratio_high' are verl's words; write surrogate.low=0.1,surrogate.high=0.3."
    ),
    "dapo,clip_ratio_c=3": "dapo: 'clip_ratio_c' is verl's word; write surrogate.dual=3.0.",
    "dppo_tv,clip_ratio_c=5": "dppo_tv: 'clip_ratio_c' is verl's word; write surrogate.cap=5.0.",
    "rloo,clip_ratio_c=5": "rloo: 'clip_ratio_c' is verl's word; write surrogate=clip,ratio=token,surrogate.dual=5.0.",
    "dapo,kl_loss_coef=0.01": "dapo: 'kl_loss_coef' is verl's word; write kl=k3,kl.beta=0.01.",
    "grpo,kl_loss_coef=0.01": "grpo: 'kl_loss_coef' is verl's word; write kl.beta=0.01.",
    "reinforce_pp,kl_coef=0.02": "reinforce_pp: 'kl_coef' is verl's word; write kl.beta=0.02.",
    "dapo,kl_coef=0.02": "dapo: 'kl_coef' is verl's word; write kl=k1,kl.beta=0.02,kl.placement=reward.",
    "grpo,kl_loss_type=mse": "grpo: 'kl_loss_type' is verl's word; write kl=k2,kl.beta=0.04.",
    "grpo,kl_loss_type=k4": "grpo: 'kl_loss_type' is verl's word; verl has no such estimator of the KL.",
    "grpo,use_kl_loss=false": "grpo: 'use_kl_loss' is verl's word; write kl=none.",
    "grpo,norm_adv_by_std_in_grpo=False": "grpo: 'norm_adv_by_std_in_grpo' is verl's word; write scale=none.",
    "rloo,norm_adv_by_std_in_grpo=False": (
        "rloo: 'norm_adv_by_std_in_grpo' is verl's word; rloo has what it says already, so leave it out."
    ),
    "grpo,loss_agg_mode=token-mean": "grpo: 'loss_agg_mode' is verl's word; write aggregation=token_mean.",
    "grpo,loss_agg_mode=token": (
        "grpo: 'loss_agg_mode' is verl's word; loss_agg_mode='token' is unknown. Did you mean 'token-mean'? Allowed: "
        "token-mean, seq-mean-token-mean, seq-mean-token-sum, seq-mean-token-sum-norm."
    ),
    "grpo,loss_scale_factor=100": (
        "grpo: 'loss_scale_factor' is verl's word; write aggregation=constant,aggregation.length=100.0."
    ),
    "dapo,rollout_is=token,rollout_is_threshold=3": (
        "dapo: 'rollout_is' and 'rollout_is_threshold' are verl's words; write correction=token_truncate,"
        "correction.cap=3.0."
    ),
    "dapo,rollout_rs=seq_mean_k1,rollout_rs_threshold=0.5_2": (
        "dapo: 'rollout_rs' and 'rollout_rs_threshold' are verl's words; write correction=geometric_mask,"
        "correction.low=0.5,correction.high=2.0."
    ),
    "dapo,rollout_rs=seq_mean_k1": "dapo: 'rollout_rs' is verl's word; rollout_rs needs rollout_rs_threshold, two",
    "dapo,bypass_mode=True": "dapo: 'bypass_mode' is verl's word; write ratio.anchor=rollout.",
    "dapo,filter_groups.enable=False": "dapo: 'filter_groups.enable' is verl's word; write filter=none.",
    "grpo,filter_groups.metric=acc": (
        "grpo: 'filter_groups.metric' is verl's word; write filter=zero_variance,filter.metric=acc."
    ),
    "grpo,overlong_buffer_cfg.len=64": (
        "grpo: 'overlong_buffer_cfg.len' is verl's word; write overlong=penalty,overlong.buffer=64."
    ),
    "grpo,calculate_log_probs=True": (
        "grpo: 'calculate_log_probs' is verl's word; it is a setting of the trainer and says nothing of a variant; "
        "give it to the trainer."
    ),
    "grpo,epsilon=0.1,clip_ratio_c=3": (
        "grpo: 'epsilon' is TRL's word and 'clip_ratio_c' is verl's word; write surrogate.low=0.1,surrogate.high=0.1,"
        "surrogate.dual=3.0."
    ),
}


@pytest.mark.parametrize("spec", MEANT)
def test_a_trainers_word_is_answered_with_the_field_that_is_meant(spec):
    assert error_of(spec).startswith(MEANT[spec])


TRIED = ["0.1", "0.5", "4", "true", "false", "none", "token", "sequence", "group", "token-mean", "low_var_kl"]


@pytest.mark.parametrize("name", KINDS)
def test_what_a_trainers_word_is_answered_with_works(name):
    answered = 0
    for word, value in product(foreign_words.WORDS, TRIED):
        error = error_of(spec_of(name, {word: value}))
        assert error.startswith(f"{name}: '{word}' is {foreign_words.WORDS[word].trainer}'s word; "), error
        for options in written(error):
            assert error_of(spec_of(name, options)) is None, error
            answered += 1
    assert answered > 100


def test_every_word_that_translate_prints_is_known():
    """But for the keys that carry a name or options, which a spec string has in itself."""
    carriers = {"options", "_target_", "step_rewards"}
    for name in [*gv.names(), "grpo,correction=token_truncate", "grpo,overlong=penalty,overlong.buffer=9"]:
        with contextlib.suppress(ValueError):
            for key in run_settings(gv.get(name)):
                assert foreign_words.word_in(key) or key.rpartition(".")[2] in carriers, key
