"""Every member and every option against the oracle: advantages, loss, gradient, metrics, on random ragged steps.

The oracle is tests/support/oracle/step.py: the same formulas as loops over responses and tokens in plain numbers.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.against_oracle import check_advantages, check_loss
from support.cases.variants import SPECS, keys_of, random_case, random_cases, random_variants, token_advantages
from support.oracle import step as oracle

import grpo_variants as gv
from grpo_variants.advantage.credit import Process
from grpo_variants.axes import AXES
from grpo_variants.spelling import resolved_values


@pytest.mark.parametrize("spec", [*gv.names(), *SPECS])
def test_advantages_loss_and_gradient_equal_the_oracle(spec):
    variant = gv.get(spec)
    for seed in range(3):
        check_loss(variant, check_advantages(variant, random_case(seed)))


@pytest.mark.parametrize("spec", [*gv.names(), *SPECS])
def test_float32_equals_the_oracle_on_the_same_rounded_inputs(spec):
    variant, case = gv.get(spec), random_case(7)
    check_loss(variant, check_advantages(variant, case, torch.float32), torch.float32)


@settings(max_examples=200)
@given(random_variants, random_cases(), st.booleans())
def test_any_combination_equals_the_oracle(variant, case, one_reward):
    """With rewards per token, or where a rule does without them, with one at the end."""
    if one_reward and not isinstance(variant.credit, Process):
        case = replace(case, token_rewards=None)
    check_loss(variant, check_advantages(variant, case))


@settings(max_examples=60)
@given(random_variants, random_cases(), st.integers(0, 99))
def test_any_objective_with_one_advantage_a_token_equals_the_oracle(variant, case, seed):
    """Objectives take token advantages from any rule, as `gspo_token` is meant for."""
    if not variant.ratio.per_sequence:
        check_loss(variant, token_advantages(case, seed))


@pytest.mark.parametrize("shape", ["tokens", "responses"])
@pytest.mark.parametrize(
    "spec", ["grpo", "gspo", "dapo,tokens=top_entropy,tokens.denominator=kept", "dapo,tokens=top_entropy"]
)
def test_a_keep_mask_from_the_trainer_replaces_the_variants_own(spec, shape):
    case = check_advantages(gv.get(spec), random_case(3))
    keep = np.random.default_rng(0).random(case.mask.shape if shape == "tokens" else len(case.mask)) < 0.6
    check_loss(gv.get(spec), replace(case, keep=keep))


@pytest.mark.parametrize("width", ["tokens", "responses"])
@pytest.mark.parametrize("spec", ["grpo", "gspo", "dapo,correction=token_truncate"])
def test_correction_weights_from_the_trainer_replace_the_variants_own(spec, width):
    case = check_advantages(gv.get(spec), random_case(3))
    weights = np.random.default_rng(0).uniform(0, 2, (len(case.mask), case.mask.shape[1] if width == "tokens" else 1))
    weights[2] = 0
    check_loss(gv.get(spec), replace(case, correction=weights))


def test_row_weights_from_the_trainer_replace_the_aggregation():
    case = check_advantages(gv.get("grpo"), random_case(3))
    check_loss(gv.get("grpo"), replace(case, row_weights=np.random.default_rng(0).uniform(0, 2, len(case.mask))))


@pytest.mark.parametrize(
    "spec", ["rloo", "grpo,ratio.anchor=old", "gspo", "grpo,correction=off_policy_mask,correction.threshold=0.05"]
)
def test_without_old_log_probabilities_the_policy_itself_sampled(spec):
    case = check_advantages(gv.get(spec), random_case(3))
    check_loss(gv.get(spec), replace(case, old_logp=None))


@pytest.mark.parametrize("name", gv.names())
@pytest.mark.parametrize("given", ["no weights", "token rewards absent", "rewards absent", "one reward function"])
def test_other_inputs_equal_the_oracle(name, given):
    variant, case = gv.get(name), random_case(11)
    if given == "no weights":
        case = replace(case, reward_weights=None)
    elif given == "one reward function":
        case = replace(
            case, rewards=case.rewards[:, :1], greedy_rewards=case.greedy_rewards[:, :1], reward_weights=None
        )
    elif name != "grpo_process":
        case = replace(case, token_rewards=None)
    check_advantages(variant, case)


def test_the_specs_cover_every_choice_and_every_field_of_the_two_ends_that_compute():
    """A new choice or field fails here until a spec above sets it to two values, so until the oracle has it."""
    seen = {}
    for spec in [*gv.names(), *SPECS]:
        for key, value in resolved_values(gv.get(spec)).items():
            axis, last = key.split(".")[0], key.split(".")[-1]
            seen.setdefault(axis if axis == key else f"{axis}.{last}", set()).add(value)
    for axis, table in AXES.items():
        if table.stages == ("rollout",):
            continue
        words = {word for value in seen[axis] for word in value.split("+")}
        assert words == set(table.choices)
        for choice in table.choices:
            for key, field in keys_of(axis, choice):
                assert seen[key] - {field.default}, f"no spec sets {key}"
                assert len(seen[key]) >= 2, f"no spec changes {key}"


def test_the_oracle_knows_every_choice():
    tables = {
        "selection": oracle.wider.SELECTIONS,
        "transform": oracle.wider.TRANSFORMS,
        "baseline": oracle.BASELINES,
        "scale": oracle.SCALES,
        "credit": oracle.CREDITS,
        "ratio": oracle.RATIOS,
        "surrogate": oracle.SURROGATES,
        "kl": oracle.ESTIMATORS | {"none": None},
        "correction": oracle.CORRECTIONS,
        "aggregation": oracle.AGGREGATIONS,
        "tokens": oracle.TOKENS,
    }
    assert {axis: set(table) for axis, table in tables.items()} == {axis: set(AXES[axis].choices) for axis in tables}
    computed = {axis for axis, table in AXES.items() if table.stages != ("rollout",)}
    assert computed - set(tables) == {"singleton", "conventions"}
