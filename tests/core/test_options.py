"""Spec strings: both ways, the order in which options apply, and the text of every refusal."""

import pickle
import re
from dataclasses import MISSING, FrozenInstanceError, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases.variants import (
    FIELD_VALUES,
    keys_of,
    random_specs,
    random_variants,
    text,
    values_of,
    variant_or_none,
)

import grpo_variants as gv
from grpo_variants.advantage.baseline import LeaveOneOut
from grpo_variants.advantage.credit import RewardToGo
from grpo_variants.advantage.scale import BatchStd, GroupStd
from grpo_variants.axes import AXES
from grpo_variants.fences import FENCES
from grpo_variants.objective.aggregation import Constant
from grpo_variants.objective.correction import TokenMask, TokenTruncate
from grpo_variants.objective.kl import K3
from grpo_variants.objective.surrogate import Clip, Reinforce
from grpo_variants.options import read_options
from grpo_variants.spec import configure
from grpo_variants.spelling import resolved_values

# Fields that have no default, so that a choice alone is a variant.
NEEDED = {"beta": "0.1", "low": "0.5", "high": "2.0", "threshold": "0.1", "buffer": "16"}


def with_needs(axis, choice):
    """Options that choose a part, with values for what has no default."""
    needed = [f"{key}={NEEDED[field.name]}" for key, field in keys_of(axis, choice) if field.default is MISSING]
    return ",".join([f"{axis}={choice}", *needed])


# Both ways


@settings(max_examples=150)
@given(random_variants)
def test_a_spec_string_and_its_variant_are_the_same(variant):
    spec = str(variant)
    again = gv.get(spec)
    assert again == variant
    assert hash(again) == hash(variant)
    assert str(again) == spec
    assert pickle.loads(pickle.dumps(variant)) == variant
    assert resolved_values(again) == resolved_values(variant)


@settings(max_examples=150)
@given(random_specs(), st.randoms(use_true_random=False))
def test_the_order_of_options_does_not_matter(spec, random):
    variant = variant_or_none(spec)
    name, *options = spec.split(",")
    random.shuffle(options)
    assert variant_or_none(",".join([name, *options])) == variant


@settings(max_examples=150)
@given(random_specs())
def test_what_a_spec_string_says_is_what_the_variant_has(spec):
    variant = variant_or_none(spec)
    if variant is not None:
        values = resolved_values(variant)
        for key, value in read_options(spec.partition(",")[2]).items():
            assert text(values[key]) == value


@pytest.mark.parametrize("name", gv.names())
def test_a_registered_variant_is_its_name(name):
    assert str(gv.get(name)) == name
    assert gv.get(name).name == name


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("grpo,surrogate.high=0.2,kl.beta=0.04", "grpo"),
        (" dapo , surrogate.high = 0.3,,kl=k3, kl.beta=1e-2 ", "dapo,kl=k3,surrogate.high=0.3,kl.beta=0.01"),
        ("grpo,kl=none", "grpo,kl=none"),
        ("grpo,scale.eps=1e-8", "grpo,scale.eps=1e-08"),
        ("gspo,surrogate=clip,surrogate.low=0.0003,surrogate.high=0.0004", "gspo"),
        ("grpo,ratio.bound_low=none", "grpo,ratio.bound_low=none"),
        ("grpo,ratio.bound_low=None", "grpo,ratio.bound_low=none"),
        ("grpo,aggregation=constant,aggregation.length=512", "grpo,aggregation=constant,aggregation.length=512.0"),
        ("grpo,conventions=trl", "grpo,conventions=trl"),
        ("grpo,conventions=trl,scale.eps=0.0001", "grpo,conventions=trl"),
        ("grpo,conventions=verl,singleton=raw", "grpo,conventions=verl"),
        ("grpo,conventions=verl,singleton=zero", "grpo,conventions=verl,singleton=zero"),
        (
            "dapo,correction=geometric_mask+token_truncate,correction.low=none,correction.high=2,correction.cap=3",
            "dapo,correction=geometric_mask+token_truncate,correction.geometric_mask.low=none,"
            "correction.geometric_mask.high=2.0,correction.token_truncate.cap=3.0",
        ),
    ],
)
def test_canonical_spec_strings(given, canonical):
    assert str(gv.get(given)) == canonical
    assert gv.get(canonical) == gv.get(given)


def test_every_choice_with_every_value_goes_both_ways():
    """Field for field, also where the two values of a pair mean something together only."""
    for axis, table in AXES.items():
        for choice in table.choices:
            for key, _ in keys_of(axis, choice):
                for value in values_of(key, choice):
                    spec = f"grpo,{with_needs(axis, choice)}"
                    options = read_options(spec.partition(",")[2]) | {key: text(value)}
                    variant = variant_or_none(",".join(["grpo", *(f"{k}={v}" for k, v in options.items())]))
                    if variant is not None:
                        assert resolved_values(variant)[key] == value
                        assert gv.get(str(variant)) == variant


def test_the_tests_have_values_for_every_field():
    """A new field fails here, and in the tests that draw from these values, until it has some."""
    known = {key for axis, table in AXES.items() for choice in table.choices for key, _ in keys_of(axis, choice)}
    assert set(FIELD_VALUES) == known


def test_options_may_be_typed_values():
    variant = configure(gv.get("grpo"), {"kl": "none", "surrogate.high": 1, "ratio.bound_low": None, "scale.ddof": 0})
    assert variant == gv.get("grpo,kl=none,surrogate.high=1.0,ratio.bound_low=none,scale.ddof=0")
    assert isinstance(variant.surrogate.high, float)


def test_variants_are_frozen_and_hashable():
    variant = gv.get("grpo")
    with pytest.raises(FrozenInstanceError):
        variant.kl = None
    assert len({variant, gv.get("grpo"), gv.get("grpo,kl=none")}) == 2


# Order of application: axis choices, conventions, fields


def values(spec):
    return resolved_values(gv.get(spec))


def test_a_choice_resets_the_fields_of_its_axis():
    assert (values("gspo")["surrogate.low"], values("gspo,surrogate=clip")["surrogate.low"]) == (3e-4, 0.2)
    assert values("grpo,kl=k3,kl.beta=0.1")["kl.bound"] == 20.0
    assert values("grpo,kl.bound=none,kl=k1,kl.beta=0.1")["kl.bound"] is None
    assert values("reinforce_pp,scale=batch_std")["scale.over"] == "responses"


def test_fields_win_over_conventions_wherever_they_stand():
    assert values("grpo,conventions=trl")["scale.eps"] == 1e-4
    assert values("grpo,scale.eps=0.001,conventions=trl")["scale.eps"] == 0.001
    assert values("grpo,conventions=verl,singleton=zero")["singleton"] == "zero"


def test_a_choice_takes_the_numerics_of_the_conventions():
    assert values("rloo,scale=group_std,conventions=trl")["scale.eps"] == 1e-4
    assert values("rloo,scale=group_std")["scale.eps"] == 1e-6
    later = configure(gv.get("dapo,conventions=trl"), {"kl": "k3", "kl.beta": 0.1})
    assert resolved_values(later)["kl.weighted"] == "ratio"
    assert later == gv.get("dapo,conventions=trl,kl=k3,kl.beta=0.1")


def test_fields_set_before_stay_when_another_axis_is_chosen():
    first = gv.get("grpo,conventions=trl,scale.eps=0.5")
    assert resolved_values(configure(first, {"kl": "none"}))["scale.eps"] == 0.5


# What TRL 1.16 and verl 0.9.1 compute, as their parity tests hold it.
NUMERICS = {
    ("grpo", "trl"): {
        "scale.eps": 1e-4,
        "ratio.bound_low": None,
        "ratio.bound_high": None,
        "kl.bound": None,
        "kl.weighted": "ratio",
    },
    ("grpo", "verl"): {"singleton": "raw", "surrogate.dual": 3.0, "kl.value_bound": 10.0},
    ("gspo", "verl"): {"singleton": "raw", "ratio.bound_low": None, "ratio.bound_high": 10.0},
    ("gspo_token", "verl"): {"singleton": "raw", "ratio.bound_low": None, "ratio.bound_high": 10.0},
    ("reinforce_pp", "verl"): {
        "scale.ddof": 1,
        "scale.eps_in": "var",
        "singleton": "raw",
        "surrogate.dual": 3.0,
        "kl.value_bound": None,
    },
    ("reinforce_pp_baseline", "trl"): {
        "scale.eps": 1e-4,
        "scale.ddof": 1,
        "scale.eps_in": "std",
        "ratio.bound_low": None,
        "ratio.bound_high": None,
        "kl.value_bound": None,
        "kl.weighted": "ratio",
    },
    ("rloo", "trl"): {},
    ("rloo", "verl"): {"singleton": "raw"},
}


@pytest.mark.parametrize(("name", "conventions"), NUMERICS)
def test_conventions_set_exactly_these_fields(name, conventions):
    before, after = values(name), values(f"{name},conventions={conventions}")
    changed = {key: value for key, value in after.items() if before[key] != value}
    assert changed.pop("conventions") == conventions
    assert changed == NUMERICS[name, conventions]


@pytest.mark.parametrize("conventions", ["trl", "verl"])
@pytest.mark.parametrize("name", gv.names())
def test_conventions_never_set_a_hyper_parameter(name, conventions):
    numeric = {"scale.eps", "scale.ddof", "scale.eps_in", "singleton", "ratio.bound_low", "ratio.bound_high"}
    # verl's second stage of GDPO is over tokens: which of the two a trainer takes is no setting of it
    numeric |= {"credit.eps", "credit.ddof", "credit.eps_in", "credit.over"}
    numeric |= {"surrogate.dual", "kl.bound", "kl.value_bound", "kl.weighted", "conventions"}
    before, after = values(name), values(f"{name},conventions={conventions}")
    assert {key for key in after if before[key] != after[key]} <= numeric


def test_a_penalty_in_the_reward_is_not_weighted_by_the_ratio():
    for spec in (
        "grpo,conventions=trl,kl.placement=reward",
        "grpo,conventions=trl,kl=k1,kl.beta=0.1,kl.placement=reward",
    ):
        assert values(spec)["kl.weighted"] == "none"
    assert values("reinforce_pp,conventions=trl")["kl.weighted"] == "none"


# Refusals


REFUSALS = {
    "grpoo": ["unknown variant 'grpoo'. Did you mean 'grpo'? `grpo-variants list`"],
    "": ["unknown variant ''. `grpo-variants list` and gv.names() have all "],
    "dapo surrogate.high=0.3": [
        "'dapo surrogate.high=0.3' is no variant's name; write name,key=value,key=value, as in"
    ],
    "dapo;surrogate.high=0.3": ["'dapo;surrogate.high=0.3' is no variant's name"],
    "dpao": ["unknown variant 'dpao'. Did you mean 'dapo' or 'gdpo' or 'dcpo'?"],
    # Axes and choices
    "grpo,surogate=clip": ["grpo: unknown axis 'surogate'. Did you mean 'surrogate'? Axes: selection, transform,"],
    "grpo,surogate.high=1": ["grpo: unknown axis 'surogate'"],
    "dapo,beta=0.1": ["dapo: 'beta' is TRL's word; write kl=k3,kl.beta=0.1."],
    "dapo,low=0.1": ["dapo: unknown axis 'low'. Write surrogate.low=0.1."],
    "grpo,kl=K3,kl.beta=0.1": ["grpo: kl='K3' is unknown. Did you mean 'k3'? Choices of kl: none, k1,"],
    "grpo,surrogate=clop": ["grpo: surrogate='clop' is unknown. Did you mean 'clip'? Choices of surrogate: reinforce,"],
    "grpo,kl=k1+k2": ["grpo: kl='k1+k2' is unknown; choices of kl: none, k1, k2, k3, abs."],
    "grpo,singleton=drop": ["grpo: singleton='drop' is unknown; choices of singleton: zero, raw."],
    "remax,singleton=raw": ["remax: singleton=raw has no effect with baseline=greedy, scale=none"],
    "grpo,correction=token_truncate+token_truncate": ["grpo: ", "joins a part with itself or with none"],
    "grpo,correction=none+token_truncate": ["grpo: ", "joins a part with itself or with none"],
    "grpo,correction=token_truncate+typo": ["grpo: correction='token_truncate+typo' is unknown"],
    # Fields that are not there
    "grpo,surrogate.hihg=0.3": [
        "grpo: surrogate=clip has no field 'hihg'. Did you mean 'high'? Its fields: low, high, dual."
    ],
    "rloo,surrogate.high=0.3": ["rloo: surrogate=reinforce has no field 'high'. Write surrogate=clip,ratio=token,"],
    "rloo,kl.beta=0.1": [
        "rloo: kl=none has no field 'beta'. Write kl=k3,kl.beta=0.1. 'beta' is a field of kl=k1, k2, k3, abs."
    ],
    "grpo,surrogate.reinforce.high=1": ["grpo: surrogate=clip has no field 'reinforce.high'"],
    "grpo,singleton.zero=1": ["grpo: singleton has no fields; set singleton=zero|raw."],
    "grpo,conventions.trl=1": ["grpo: conventions has no fields; set conventions=paper|trl|verl."],
    # Values
    "grpo,surrogate.low=abc": ["grpo: surrogate.low='abc' is not a number."],
    "grpo,surrogate.dual=abc": ["grpo: surrogate.dual='abc' is not a number or none."],
    "grpo,surrogate.low=none": ["grpo: surrogate.low='none' is not a number."],
    "grpo,scale.ddof=1.5": ["grpo: scale.ddof='1.5' is not a whole number."],
    "grpo,scale.ddof=2": ["grpo: scale.ddof=2 is unknown; allowed: 0, 1."],
    "grpo,scale.eps_in=sd": ["grpo: scale.eps_in='sd' is unknown. Did you mean 'std'? Allowed: std, var, floor."],
    "grpo,surrogate.low=-0.1": ["grpo: surrogate.low=-0.1 is out of range; allowed: a finite number of at least 0."],
    "grpo,surrogate.dual=1": ["grpo: surrogate.dual=1.0 is out of range; allowed: a finite number above 1, or none."],
    "grpo,surrogate.low=nan": ["grpo: surrogate.low=nan is out of range"],
    "grpo,surrogate.low=inf": ["grpo: surrogate.low=inf is out of range"],
    "grpo,kl.beta=-1": ["grpo: kl.beta=-1.0 is out of range"],
    "grpo,kl.bound=0": ["grpo: kl.bound=0.0 is out of range; allowed: a finite number above 0, or none."],
    "reinforce_pp,credit.gamma=1.1": [
        "reinforce_pp: credit.gamma=1.1 is out of range; allowed: above 0 and at most 1."
    ],
    "grpo,tokens=top_entropy,tokens.fraction=1": ["grpo: tokens.fraction=1.0 drops nothing; allowed: below 1."],
    "grpo,correction=token_truncate,correction.cap=0.5,correction.floor=0.9": [
        "grpo: correction.cap=0.5 is out of range",
        "above 0.9",
    ],
    "grpo,correction=token_mask,correction.low=2,correction.high=1": [
        "grpo: correction.high=1.0 is out of range",
        "above 2",
    ],
    "grpo,correction=token_mask,correction.low=none,correction.high=none": ["grpo: ", "are both none", "set one"],
    "dapo,filter.max_rounds=-1": ["dapo: filter.max_rounds=-1 is out of range"],
    "dapo,overlong=penalty,overlong.buffer=0": ["dapo: overlong.buffer=0 is out of range"],
    # Fields that go together
    "grpo,kl.placement=reward,kl.gradient=k2": ["grpo: kl.placement='reward' has no gradient", "kl.gradient='k2'"],
    "grpo,kl.placement=reward,kl.weighted=ratio": ["grpo: ", "use gradient=own and weighted=none"],
    "grpo,kl.weighted=ratio,kl.placement=reward": ["grpo: ", "use gradient=own and weighted=none"],
    "grpo,scale=batch_std,scale.over=tokens": ["grpo: scale.over='tokens' whitens", "set scale.of=centred with it"],
    # Defaults that are missing, names that are ambiguous
    "dapo,kl=k3": ["kl=k3 on 'dapo' needs kl.beta, which has no default: for example kl.beta=<value>."],
    "grpo,correction=token_mask": ["correction=token_mask on 'grpo' needs correction.low and correction.high"],
    "grpo,correction=token_truncate+sequence_truncate,correction.cap=3": [
        "grpo: correction.cap could mean several parts of correction=token_truncate+sequence_truncate",
        "write correction.token_truncate.cap or correction.sequence_truncate.cap",
    ],
    # What is no option at all
    "grpo,surrogate.high=0.3,surrogate.high=0.4": ["surrogate.high is given twice: '0.3' and '0.4'. Give it once."],
    "grpo,kl=k1,kl=k1": ["kl is given twice: 'k1' and 'k1'."],
    "grpo,surrogate.high": [
        "'surrogate.high' is not axis=choice or axis.field=value, as in 'dapo,surrogate.high=0.3'."
    ],
    "grpo,=0.3": ["'=0.3' is not axis=choice or axis.field=value"],
    "grpo,kl=": ["'kl=' is not axis=choice or axis.field=value"],
}


@pytest.mark.parametrize("spec", REFUSALS)
def test_refusals_say_what_was_given_and_what_is_allowed(spec):
    first, *others = REFUSALS[spec]
    with pytest.raises(ValueError, match=f"^{re.escape(first)}") as error:
        gv.get(spec)
    for part in others:
        assert part in str(error.value)


FENCED = {
    "dapo,selection=largest_advantage,credit=reward_to_go": (
        "dapo: selection=largest_advantage goes by one advantage per response, not one per token; got credit="
        "reward_to_go. Choose credit=outcome, or selection=none."
    ),
    "rloo,selection=mixed": (
        "rloo: selection=mixed leaves out groups of equal rewards, whose advantages a comparison within the group "
        "makes 0 anyway; got baseline=leave_one_out. Choose baseline=none, or selection=none."
    ),
    "dapo,baseline=tracked,credit=reward_to_go": (
        "dapo: baseline=tracked remembers the rewards of earlier steps and takes one reward per response; got "
        "credit=reward_to_go. Choose credit=outcome, baseline=group_mean, or baseline=none."
    ),
    "spo,credit=reward_to_go,credit.gamma=0.9": "Choose credit=outcome without credit.gamma, baseline=group_mean, or ",
    "dcpo,credit=process": (
        "dcpo: scale=smoothed_std remembers the rewards of earlier steps and takes one reward per response; got "
        "credit=process. Choose credit=outcome, scale=group_std, or scale=none."
    ),
    "rloo,scale=smoothed_std": (
        "rloo: scale=smoothed_std takes baseline=group_mean, since it subtracts the means of the step and of all steps "
        "itself; got baseline=leave_one_out. Choose baseline=group_mean, or scale=group_std."
    ),
    "grpo,scale=kalman_std": (
        "grpo: scale=kalman_std takes baseline=kalman, the filter whose deviation it is; got baseline=group_mean. "
        "Choose baseline=kalman, or scale=group_std."
    ),
    "otb,baseline=group_mean": (
        "otb: credit=optimal_token has a baseline and a scale of its own; got baseline=group_mean, scale=none. Choose "
        "baseline=none,scale=none, or credit=outcome."
    ),
    "gtpo_entropy,kl=k1,kl.beta=0.1,kl.placement=reward": (
        "gtpo_entropy: credit=entropy_tokens tells right from wrong by the reward and shapes it by entropies, where a "
        "KL penalty has no place; got kl.placement=reward. Choose kl.placement=loss, or credit=outcome."
    ),
    "gdpo,kl=k1,kl.beta=0.1,kl.placement=reward": (
        "gdpo: credit=decoupled normalises each reward function by itself, and a KL penalty belongs to none of them; "
        "got kl.placement=reward. Choose kl.placement=loss, or credit=outcome."
    ),
    "gdpo,scale=batch_std,scale.of=centred,scale.over=tokens": (
        "gdpo: credit=decoupled normalises each reward function over responses, and whitens over tokens in its second "
        "stage only; got scale.over=tokens. Choose scale.over=responses, or scale.over=responses,credit.over=tokens."
    ),
    "gdpo,baseline=greedy": (
        "gdpo: credit=decoupled compares each reward function by itself, and greedy rewards are known as a total; got "
        "baseline=greedy. Choose baseline=group_mean, baseline=leave_one_out, baseline=batch_mean, baseline=none, or "
        "credit=outcome."
    ),
    "grpo_process,transform=signed": (
        "grpo_process: transform=signed changes a response's reward as a whole and takes a credit that reads that; "
        "got credit=process. Choose credit=outcome, or transform=none."
    ),
    "grpo,ratio=none": (
        "grpo: surrogate=clip is made of an importance ratio; got ratio=none. Choose surrogate=reinforce, ratio=token, "
        "ratio=sequence, ratio=sequence_token, or ratio=sequence_product."
    ),
    "dcpo,ratio=sequence": ("dcpo: surrogate=dcpo is defined on ratio=token; got ratio=sequence. Choose ratio=token."),
    "dcpo,ratio=none": (
        "dcpo: surrogate=dcpo is made of an importance ratio; got ratio=none. Choose surrogate=reinforce, or "
        "ratio=token."
    ),
    "grpo,surrogate=vespo": (
        "grpo: surrogate=vespo is defined on ratio=sequence_product; got ratio=token. Choose ratio=sequence_product."
    ),
    "kimi_k15,ratio=sequence": (
        "kimi_k15: surrogate=dro is defined on ratio=token or sequence_product; got ratio=sequence. Choose "
        "ratio=token, or ratio=sequence_product."
    ),
    "gmpo,ratio=sequence,credit=process": (
        "gmpo: surrogate=gmpo is defined on ratio=token; got ratio=sequence. Choose ratio=token,credit=outcome, or "
        "ratio=token,surrogate=clip."
    ),
    "grpo,surrogate=gmpo,credit=reward_to_go": (
        "grpo: surrogate=gmpo takes one advantage per response, not one per token; got credit=reward_to_go. Choose "
        "credit=outcome, or surrogate=clip."
    ),
    "gspo,surrogate=aspo": (
        "gspo: surrogate=aspo has a range by the entropy of each token and takes one ratio per token; got "
        "ratio=sequence. Choose ratio=token, ratio=sequence_token, or surrogate.fraction=none."
    ),
    "gspo,credit=reward_to_go": (
        "gspo: ratio=sequence has one value per response and takes one advantage per response, not one per token; got "
        "credit=reward_to_go. Choose ratio=sequence_token, ratio=token, or credit=outcome."
    ),
    "topr,credit=process": "got credit=process. Choose credit=outcome.",
    "grpo_process,baseline=leave_one_out": (
        "grpo_process: credit=process normalises step rewards over the group's steps and takes baseline=group_mean, "
        "batch_mean or none; got baseline=leave_one_out. Choose baseline=group_mean, baseline=batch_mean, "
        "baseline=none, or credit=outcome."
    ),
    "grpo_process,scale=batch_std,scale.of=centred,scale.over=tokens": (
        "grpo_process: credit=process normalises over steps, where scale.over=tokens has no meaning; got "
        "scale.over=tokens. Choose scale.over=responses, or credit=outcome."
    ),
    "grpo_process,kl.placement=reward": (
        "grpo_process: credit=process has rewards at step ends only, where a KL penalty per token has no place; got "
        "kl.placement=reward. Choose kl.placement=loss, or credit=reward_to_go."
    ),
    "reinforce,credit=entropy_tokens,baseline=group_mean,singleton=raw": (
        "Choose baseline=none,scale=none without singleton, or credit=outcome."
    ),
}


@pytest.mark.parametrize("spec", FENCED)
def test_combinations_that_mean_nothing_say_what_a_part_takes_what_it_got_and_what_to_choose(spec):
    with pytest.raises(ValueError, match=re.escape(FENCED[spec])):
        gv.get(spec)


def test_every_fence_has_a_refusal_above():
    for fence in FENCES:
        assert any(fence.takes.partition("{")[0] in text for text in FENCED.values()), fence.takes


@pytest.mark.parametrize(("axis", "choice"), [(axis, choice) for axis in AXES for choice in AXES[axis].choices])
def test_every_field_refuses_what_is_no_value_of_it(axis, choice):
    """A word that no field takes: the error names the variant, the field and the word."""
    for key, field in keys_of(axis, choice):
        if key == "filter.metric":  # any word may be the name of a reward function
            continue
        options = [o for o in with_needs(axis, choice).split(",") if not o.startswith(f"{key}=")]
        with pytest.raises(ValueError, match=r"not a (whole )?number|is unknown") as error:
            gv.get(",".join(["grpo", *options, f"{key}=banana"]))
        assert str(error.value).startswith("grpo: ")
        assert f"{key}='banana'" in str(error.value), field


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Clip(low="0.2"), "surrogate.low='0.2' is not a number"),
        (lambda: Clip(high=True), "surrogate.high=True is not a number"),
        (lambda: GroupStd(eps=-1.0), "scale.eps=-1.0 is out of range"),
        (lambda: BatchStd(over="words"), "scale.over='words' is unknown; allowed: responses, tokens"),
        (lambda: RewardToGo(gamma=0.0), "credit.gamma=0.0 is out of range"),
        (lambda: K3(beta=None), "kl.beta=None is not a number"),
        (lambda: K3(beta=0.1, placement="both"), "kl.placement='both' is unknown; allowed: loss, reward"),
        (lambda: Constant(length=0), "aggregation.length=0 is out of range"),
        (lambda: TokenTruncate(cap=0.0), "correction.cap=0.0 is out of range"),
        (lambda: TokenMask(low=None, high=None), "both none"),
        (lambda: gv.Variant(name="two words"), "name='two words' is not a plain word"),
        (lambda: gv.Variant(name="x", singleton="drop"), "singleton='drop' is unknown; allowed: zero, raw"),
        (lambda: gv.Variant(name="x", conventions="mine"), "conventions='mine' is unknown; allowed: paper, trl, verl"),
        (
            lambda: replace(gv.get("dapo"), surrogate="sapo"),
            "choose it by a spec string, gv.get('dapo,surrogate=sapo')",
        ),
        (
            lambda: gv.Variant(name="x", surrogate=Clip()),
            "x: surrogate=clip is made of an importance ratio; got ratio=none. Choose surrogate",
        ),
    ],
)
def test_parts_check_themselves(build, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_parts_take_keywords_only():
    with pytest.raises(TypeError):
        Clip(0.2)
    with pytest.raises(TypeError):
        K3()


# Variants that are not in the registry


def test_a_users_own_variant_takes_options_once_registered(monkeypatch):
    from grpo_variants import registry

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    mine = gv.register(gv.Variant(name="mine", baseline=LeaveOneOut(), conventions="trl"))
    assert str(mine) == "mine"
    assert gv.get("mine,baseline=none").baseline == gv.get("reinforce").baseline
    with pytest.raises(
        ValueError, match="it was registered with conventions=trl, and what its paper's numerics are is not"
    ):
        gv.get("mine,conventions=paper")


def test_a_variant_that_is_not_registered_says_what_differs_from_the_defaults():
    assert (
        str(gv.Variant(name="other", baseline=LeaveOneOut(), surrogate=Reinforce())) == "other,baseline=leave_one_out"
    )
    assert str(replace(gv.get("dapo"), surrogate=Clip(high=0.5))) == "dapo,surrogate.high=0.5"


def test_properties_of_a_variant():
    assert [gv.get(n).kl_in_loss for n in ("grpo", "dapo", "reinforce_pp", "grpo,kl.beta=0")] == [
        True,
        False,
        False,
        False,
    ]
    assert [gv.get(n).kl_in_reward for n in ("grpo", "reinforce_pp", "reinforce_pp,kl.beta=0")] == [False, True, False]
    assert [n for n in gv.names() if gv.get(n).per_token] == ["grpo_process", "reinforce_pp", "otb", "gtpo_entropy"]
    off_policy = "grpo,correction=off_policy_mask,correction.threshold=1"
    needs = ["grpo,correction=token_truncate", "grpo,ratio.anchor=rollout", off_policy, "grpo", "rloo"]
    assert [gv.get(n).needs_rollout_logp for n in needs] == [True, True, False, False, False]


def test_every_axis_is_a_field_of_a_variant():
    described = {"name", "summary", "formula", "note", "confirmed", "unconfirmed", "references"}
    assert {f.name for f in fields(gv.Variant)} - described == set(AXES)
