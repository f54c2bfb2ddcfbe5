"""Every option has an effect: each field of each choice changes advantages, loss, gradient or a weight.

An option that can be set and does nothing is worse than one that is refused. The fields are read from the table of
axes, so a new one fails here until it has two values that tell it apart.
"""

from dataclasses import MISSING

import pytest
import torch
from support.cases import objectives as cases_objectives
from support.cases.variants import LENGTH, keys_of, random_case, text

import grpo_variants as gv
from grpo_variants.axes import AXES

# What an axis is tried on: a variant in which it has something to act on.
BASE = {
    "selection": "reinforce",
    "transform": "reinforce",
    "baseline": "grpo",
    # A baseline after which the rewards of a batch do not add up to 0.
    "scale": "grpo,baseline=length_weighted",
    "credit": "dapo,baseline=none,scale=none",
    "singleton": "grpo",
    # Some tokens are dropped: else GSPO and GSPO-token have the same gradient, for one advantage per response.
    "ratio": "grpo,surrogate.low=0.3,surrogate.high=0.3,tokens=top_entropy,tokens.fraction=0.7",
    "surrogate": "grpo",
    "kl": "grpo",
    "correction": "dapo",
    "aggregation": "grpo",
    "tokens": "dapo",
    "conventions": "grpo",
}
# What a choice is tried on that means nothing on its axis's base.
BASE_OF_CHOICE, PAIRS_OF_CHOICE = dict(cases_objectives.BASE_OF_CHOICE), dict(cases_objectives.PAIRS_OF_CHOICE)
PAIRS_OF_CHOICE |= {"entropy_responses credit.over": ("group", "side")}
BASE_OF_CHOICE |= {"kalman_std": "grpo,baseline=kalman", "smoothed_std": "grpo,baseline=group_mean"}
BASE_OF_CHOICE |= {"group_mad": "grpo,baseline=group_median"}  # some advantages are 0
# Values for fields that have no default, and for those without which another field cannot act.
NEEDED = {
    "selection": {"selection.keep": 2},
    "kl": {"kl.beta": 0.5},
    "k2": {"kl.value_bound": 0.02},  # the gradient of k2 is its own, but where the value is clamped
    "token_mask": {"correction.low": 0.8, "correction.high": 1.2},
    "sequence_mask": {"correction.low": 0.8, "correction.high": 1.2},
    "geometric_mask": {"correction.low": 0.8, "correction.high": 1.2},
    "off_policy_mask": {"correction.threshold": 0.05},
    "batch_std": {"scale.of": "centred"},
    "top_entropy": {"tokens.fraction": 0.5},
    **cases_objectives.NEEDED,
}
# Two values of each field that must differ in something.
PAIRS = {
    **cases_objectives.PAIRS,
    "baseline.forgetting": (0.5, 0.875),
    "baseline.prior": (0.5, 2.0),
    "baseline.process": (1e-5, 0.5),
    "baseline.measurement": (1e-2, 1.0),
    "baseline.mean": (0.0, 0.5),
    "baseline.variance": (0.1, 1.0),
    "credit.eps": (1e-8, 0.3),
    "credit.ddof": (0, 1),
    "credit.over": ("responses", "tokens"),
    "credit.eps_in": ("std", "var"),
    "credit.base": (0.5, 1.0),
    "credit.bonus": (0.1, 1.0),
    "credit.above": (0.0, 0.3),
    "credit.tail": ("zero", "own"),
    "selection.keep": (1, 3),
    "selection.share": (0.3, 0.7),
    "selection.over": ("group", "batch"),
    "transform.right": (0.1, 1.0),
    "transform.wrong": (-1.0, -0.5),
    "transform.above": (0.0, 2.0),
    "transform.k": (2, 3),
    "transform.penalty": (0.25, 1.0),
    "transform.of": ("mean", "sum"),
    "transform.first": ("zero", "one"),
    "baseline.level": (0.2, 0.6),
    "baseline.even": ("lower", "mean"),
    "baseline.interpolation": ("inverse", "linear"),
    "baseline.tau": (0.05, 0.5),
    "baseline.floor": (None, 0.5),
    "scale.cap": (0.5, 1e6),
    "scale.even": ("lower", "mean"),
    "scale.compensate": ("none", "group"),
    "scale.mean": ("keep", "subtract"),
    "scale.eps": (1e-6, 0.3),
    "scale.ddof": (0, 1),
    "scale.of": ("raw", "centred"),
    "scale.over": ("responses", "tokens"),
    "scale.eps_in": ("std", "var"),
    "credit.gamma": (0.9, 1.0),
    "ratio.bound_low": (0.1, 20.0),
    "ratio.bound_high": (0.1, 20.0),
    "ratio.anchor": ("old", "rollout"),
    "surrogate.low": (0.1, 0.2),
    "surrogate.high": (0.1, 0.2),
    "surrogate.dual": (None, 1.1),
    "kl.beta": (0.5, 0.6),
    "kl.placement": ("loss", "reward"),
    "kl.gradient": ("own", "k2"),
    "kl.weighted": ("none", "ratio"),
    "kl.bound": (0.1, 20.0),
    "kl.value_bound": (0.05, None),
    "kl.exempt": (None, 0.4),
    "correction.cap": (1.1, 2.0),
    "correction.floor": (0.0, 0.9),
    "correction.low": (0.8, 0.95),
    "correction.high": (1.05, 2.0),
    "correction.threshold": (0.05, 0.5),
    "aggregation.rows": ("all", "signal"),
    "aggregation.empty_rows": ("count", "exclude"),
    "aggregation.length": (None, 12.0),
    "aggregation.alpha": (0.5, 1.0),
    "tokens.fraction": (0.2, 0.5),
    "tokens.denominator": ("all", "kept"),
}
# Settings without which two values of a field would be the same: eps is seen where it is not small.
WITH = {"credit.eps_in": {"credit.eps": 0.3}, "scale.eps_in": {"scale.eps": 0.3}, **cases_objectives.WITH}
# An axis that only the trainer reads, which samples: its adapters' tests show what their fields do.
SAMPLING = {axis for axis, table in AXES.items() if table.stages == ("rollout",)}


def fields_that_compute():
    for axis in AXES:
        if axis not in SAMPLING:
            for choice in AXES[axis].choices:
                for key, field in keys_of(axis, choice):
                    yield axis, choice, key, field


def spec_of(axis, choice, **changed):
    settings = NEEDED.get(axis, {}) | NEEDED.get(choice, {})
    known = {key for key, _ in keys_of(axis, choice)}
    settings = {key: value for key, value in settings.items() if key in known} | changed
    fields = (f"{key}={text(value)}" for key, value in settings.items())
    return ",".join([BASE_OF_CHOICE.get(choice, BASE[axis]), f"{axis}={choice}", *fields])


def observed(spec, flat=False):
    """What a variant computes on one step, by name. flat: one of its groups has equal rewards."""
    variant, case = gv.get(spec), random_case(3, rows=24)
    if flat:
        case.rewards[[group == case.groups[0] for group in case.groups]] = 0.25
    # The second step of a rule that remembers the first.
    memory = {"state": gv.Memory()} if variant.remembers else {}
    advantages = [gv.advantages(variant, step.rollouts(), **memory) for step in (random_case(4, rows=24), case)][-1]
    x = case.tokens(advantages=advantages)
    mask = torch.as_tensor(case.mask)
    counts = (
        gv.Counts.of(mask, case.groups, length=LENGTH) if variant.aggregation.of_step or "constant" in spec else None
    )
    out = gv.policy_loss(variant, x, counts)
    out.loss.backward()
    wide = advantages if advantages.dim() == 2 else advantages.unsqueeze(1) * mask
    weights = gv.correction_weights(variant, x)
    return {"advantages": wide, "loss": out.loss.detach(), "gradient": x.logp.grad, "correction": weights}


def differences(first, second, flat=False):
    """Names of what differs, by more than rounding."""
    a, b = observed(first, flat), observed(second, flat)
    return {name for name in a if not torch.allclose(a[name], b[name], rtol=1e-6, atol=1e-9)}


@pytest.mark.parametrize(
    ("axis", "choice", "key"), [(axis, choice, key) for axis, choice, key, _ in fields_that_compute()]
)
def test_a_field_has_an_effect(axis, choice, key):
    others = WITH.get(key, {}) | WITH.get(f"{choice} {key}", {})
    first, second = ({key: value} | others for value in PAIRS_OF_CHOICE.get(f"{choice} {key}", PAIRS[key]))
    changed = differences(spec_of(axis, choice, **first), spec_of(axis, choice, **second))
    acts_on_advantages = "advantage" in AXES[axis].stages and axis != "kl"
    assert ("advantages" in changed) == (acts_on_advantages or key == "kl.placement")
    assert "gradient" in changed


def test_every_field_has_two_values_and_no_value_is_left_over():
    fields = {key for _, _, key, _ in fields_that_compute()}
    assert set(PAIRS) == fields
    for axis, choice, key, field in fields_that_compute():
        needed = NEEDED.get(axis, {}) | NEEDED.get(choice, {})
        assert field.default is not MISSING or key in needed, f"{axis}={choice} needs {key}"


@pytest.mark.parametrize("axis", [axis for axis in AXES if axis not in SAMPLING])
def test_the_choices_of_an_axis_are_all_different(axis):
    choices = list(AXES[axis].choices)
    if axis == "ratio":
        choices.remove("none")  # which a clip refuses; against the others below
    for i, first in enumerate(choices):
        for second in choices[:i]:
            both = (spec_of(axis, first), spec_of(axis, second))
            assert "gradient" in differences(*both, flat=axis == "selection"), (first, second)


@pytest.mark.parametrize("ratio", [choice for choice in AXES["ratio"].choices if choice != "none"])
def test_a_ratio_is_different_from_none(ratio):
    assert differences(f"rloo,ratio={ratio}", "rloo,ratio=none") == {"loss", "gradient"}


def test_an_axis_acts_at_the_ends_that_the_table_says():
    """Changing the choice changes advantages where the axis acts on them, and the loss for given advantages else."""
    for axis in [a for a in AXES if a not in (*SAMPLING, "conventions", "kl", "ratio")]:
        first, second = list(AXES[axis].choices)[:2]
        changed = differences(spec_of(axis, first), spec_of(axis, second))
        assert ("advantages" in changed) == (AXES[axis].stages == ("advantage",)), axis


def test_joined_corrections_take_a_field_each():
    """A field of one part changes that part alone."""
    both = "dapo,correction=token_truncate+sequence_truncate"
    first = observed(f"{both},correction.token_truncate.cap=1.1,correction.sequence_truncate.cap=1.3")["correction"]
    second = observed(f"{both},correction.token_truncate.cap=1.1,correction.sequence_truncate.cap=1.4")["correction"]
    alone = observed("dapo,correction=token_truncate,correction.cap=1.1")["correction"]
    ratio = (first / alone).nan_to_num(1.0)
    assert float(ratio.max()) == pytest.approx(1.3)
    assert float((second / alone).nan_to_num(1.0).max()) == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("name", "axis"), [("keep", "tokens"), ("correction", "correction"), ("row_weights", "aggregation")]
)
def test_what_a_trainer_hands_in_is_used_instead_of_the_variants_own(name, axis):
    """With the input given, the axis that would compute it has no say any more."""
    case = random_case(3)
    given = {
        "keep": torch.as_tensor(case.mask).roll(1, 1),
        "correction": torch.rand(9, 6).double(),
        "row_weights": torch.rand(9).double(),
    }
    a = torch.ones(9).double()
    specs = [spec_of(axis, choice) for choice in AXES[axis].choices if choice != "constant"]
    losses = {gv.policy_loss(s, case.tokens(advantages=a, **{name: given[name]})).loss.item() for s in specs}
    assert len(losses) == 1
    assert gv.policy_loss(specs[0], case.tokens(advantages=a)).loss.item() not in losses


def test_one_kalman_filter_gives_mean_and_deviation():
    """Two responses with process 0.5, measurement 0.01: after them P is 0.00993 and 0.00981, x is 0.99338 and 0.01911.

    A_1 = (1 - 0.99338) / sqrt(0.00993), A_2 = -0.01911 / sqrt(0.00981).
    """
    found = gv.advantages("krpo,baseline.process=0.5", [1.0, 0.0], ["q", "q"])
    assert found.tolist() == pytest.approx([0.0664455, -0.1929227], rel=1e-4)
    with pytest.raises(ValueError, match=r"krpo: scale=kalman_std has no field 'process'"):
        gv.get("krpo,scale.process=0.5")
