"""What an error proposes works: its advice is followed, for every variant and every choice."""

import re
from dataclasses import MISSING
from itertools import product

import pytest
from cases import keys_of, text, values_of

import grpo_variants as gv
from grpo_variants.options import read_options
from grpo_variants.variant import AXES

PROPOSAL = re.compile(r"Choose (.+)\.$")
CHOICES = [(axis, choice) for axis, table in AXES.items() for choice in table.choices]


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


@pytest.mark.parametrize("name", ["rloo", "grpo_process", "gspo", "dcpo", "krpo", "gdpo", "otb", "gtpo_entropy", "spo"])
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

    from grpo_variants.ratio import SequenceRatio

    with pytest.raises(ValueError, match=r"^dcpo: surrogate=dcpo is defined on ratio=token; got ratio=sequence") as bad:
        replace(gv.get("dcpo"), ratio=SequenceRatio())
    assert list(advice(str(bad.value))) == [({"ratio": "token"}, [])]
