"""Any combination of axes that means something works; every other one is refused with the reason and a way out."""

from dataclasses import MISSING
from itertools import combinations

import numpy as np
import pytest
from support.against_oracle import check_advantages, check_loss
from support.cases.variants import REFUSALS, keys_of, loss_and_gradient, random_case, text, values_of, with_advantages

import grpo_variants as gv
from grpo_variants.axes import AXES

# Combinations that no paper has, or that one published under a name of its own.
JOINED = (
    "rloo,ratio=sequence,surrogate=clip,surrogate.low=3e-4,surrogate.high=4e-4",  # leave-one-out with GSPO's ratio
    "cispo,scale=batch_std,scale.of=centred",  # the batch's deviation with CISPO's weights
    "gdpo,surrogate=sapo",  # credit by reward function with a soft gate
    "gdpo,ratio=sequence",
    "maxrl,surrogate=sapo,aggregation=prompt_mean",
    "gfpo,scale=group_mad,surrogate=ce_gppo,tokens=top_entropy",
    "qae,correction=geometric_mask,correction.low=0.9,correction.high=1.2",
    "passk_analytic,ratio=sequence_product,surrogate=topr",
    "spo,surrogate=cispo,kl=k3,kl.beta=0.1",
    "gtpo_entropy,surrogate=ce_gppo,kl=k2,kl.beta=0.1",
    "dcpo,selection=shortest,selection.keep=4",
    "opo,transform=signed,kl=k1,kl.beta=0.1,kl.placement=reward",
    "psr,baseline=leave_one_out,overlong=mask,overlong.statistics=drop",
)


@pytest.mark.parametrize("spec", JOINED)
def test_parts_of_different_papers_join(spec):
    """Advantages, loss, gradient and metrics equal the oracle's; there is a gradient."""
    variant = gv.get(spec)
    assert gv.get(str(variant)) == variant
    for seed in (0, 5):
        case = check_advantages(variant, random_case(seed))
        check_loss(variant, case)
        _, gradient, _ = loss_and_gradient(variant, case)
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 1e-8


def spec_of(choices):
    """A spec string that makes these choices, with a value for the fields that have no default."""
    words = [f"{axis}={choice}" for axis, choice in choices.items()]
    for axis, choice in choices.items():
        required = [key for key, field in keys_of(axis, choice) if field.default is MISSING]
        words += [f"{key}={text(next(v for v in values_of(key) if v is not None))}" for key in required]
    return ",".join(["grpo", *words])


WAYS_OUT = ("Choose ", "set ", "Set ", "use ", "Remove ")


def made(spec):
    """The variant, or None and why there is none."""
    try:
        return gv.get(spec), ""
    except ValueError as error:
        return None, str(error)


@pytest.mark.parametrize(("one", "other"), [*combinations(AXES, 2)])
def test_every_pair_of_choices_works_or_is_refused_with_the_reason(one, other):
    case, works = random_case(5), 0
    for choice in AXES[one].choices:
        for second in AXES[other].choices:
            spec = spec_of({one: choice, other: second})
            variant, reason = made(spec)
            if variant is None:
                assert any(known in reason for known in REFUSALS), reason
                assert any(word in reason for word in WAYS_OUT), reason
                continue
            works += 1
            loss, gradient, _ = loss_and_gradient(variant, with_advantages(case, variant))
            assert loss.isfinite(), spec
            assert gradient.isfinite().all(), spec
    assert works


REFUSED = {
    "gspo,credit=reward_to_go": "ratio=sequence has one value per response and takes one advantage per response",
    "dapo,ratio=none": "surrogate=clip is made of an importance ratio; got ratio=none",
    "otb,baseline=group_mean": "credit=optimal_token has a baseline and a scale of its own",
    "spo,credit=reward_to_go": "baseline=tracked remembers the rewards of earlier steps",
    "grpo,scale=kalman_std": "scale=kalman_std takes baseline=kalman",
    "dcpo,baseline=leave_one_out": "scale=smoothed_std takes baseline=group_mean",
    "passk,credit=process": "transform=signed changes a response's reward as a whole|process",
    "gdpo,kl=k1,kl.beta=0.1,kl.placement=reward": "a KL penalty belongs to none of them",
    "gdpo,baseline=greedy": "greedy rewards are known as a total",
    "rloo,singleton=raw,baseline=none": "singleton=raw has no effect",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_what_means_nothing_is_refused_with_the_reason(spec):
    with pytest.raises(ValueError, match=REFUSED[spec]):
        gv.get(spec)


def test_a_combination_runs_from_rewards_to_gradient():
    """Leave-one-out with GSPO's ratio, by the public functions alone."""
    variant = gv.get(JOINED[0])
    case = with_advantages(random_case(0), variant)
    assert case.advantages.shape == (9,)
    expected = np.array(gv.advantages(variant, case.rollouts()).tolist())
    np.testing.assert_allclose(case.advantages, expected, rtol=1e-12, atol=0)
