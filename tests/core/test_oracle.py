"""Every member and every option against the oracle: advantages, loss, gradient, metrics, on random ragged steps.

The oracle is tests/oracle.py: the same formulas as loops over responses and tokens in plain numbers.
"""

from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from cases import (
    LENGTH,
    counts_for,
    keys_of,
    loss_and_gradient,
    random_case,
    random_cases,
    random_variants,
    token_advantages,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import grpo_variants as gv
from grpo_variants.options import resolved_values
from grpo_variants.variant import AXES

WHITEN = "scale=batch_std,scale.of=centred,scale.over=tokens"
RETURNS = "credit=reward_to_go"
IN_REWARD = "kl.placement=reward,kl.beta=0.3"
SPECS = (
    # baselines, bare and scaled
    *(f"rloo,baseline={b}" for b in AXES["baseline"].choices),
    *(f"grpo,baseline={b},scale.eps=0.2" for b in AXES["baseline"].choices),
    # scales
    *(f"grpo,scale.ddof={ddof},scale.eps_in={where},scale.eps=0.1" for ddof in (0, 1) for where in ("std", "var")),
    *(f"grpo,scale=batch_std,scale.of={of},scale.ddof=0" for of in ("raw", "centred")),
    *(f"rloo,scale=batch_std,scale.of={of},scale.eps_in=var,scale.eps=0.1" for of in ("raw", "centred")),
    *(f"{name},{WHITEN},scale.ddof={ddof}" for name in ("grpo", "rloo", "remax") for ddof in (0, 1)),
    # credit
    *(
        f"grpo_process,baseline={b},scale={s}"
        for b in ("none", "group_mean", "batch_mean")
        for s in AXES["scale"].choices
    ),
    "grpo_process,scale.ddof=0,scale.eps_in=var,scale.eps=0.1,singleton=raw",
    "grpo_process,scale=batch_std,scale.of=centred,aggregation=prompt_mean",
    *(
        f"dapo,{RETURNS},baseline={b},scale={s},credit.gamma=0.8"
        for b in AXES["baseline"].choices
        for s in ("none", "group_std")
    ),
    *(f"dr_grpo,{RETURNS},credit.gamma=0.9,{WHITEN},baseline={b}" for b in ("none", "group_mean")),
    f"dapo,{RETURNS},scale=batch_std,scale.of=raw,ratio=sequence_token",
    f"dapo,{RETURNS},singleton=raw",
    # KL in the reward
    *(f"grpo,{RETURNS},kl={k},{IN_REWARD},credit.gamma=0.9" for k in ("k1", "k2", "k3", "abs")),
    *(f"rloo,kl={k},{IN_REWARD},kl.bound=0.2,kl.value_bound=0.1" for k in ("k1", "k2", "k3", "abs")),
    f"grpo,kl=k1,{IN_REWARD},kl.bound=none",
    # singletons
    *(f"{name},singleton={s}" for name in ("rloo", "grpo", "dr_grpo") for s in ("zero", "raw")),
    "grpo,baseline=none,singleton=raw",
    "grpo,baseline=length_weighted,singleton=raw",
    # ratios
    *(f"rloo,ratio={r}" for r in AXES["ratio"].choices),
    *(
        f"grpo,ratio={r},ratio.bound_low=0.1,ratio.bound_high=0.2"
        for r in ("token", "sequence", "sequence_token", "sequence_product")
    ),
    *(f"grpo,ratio={r},ratio.anchor=rollout" for r in ("token", "sequence", "sequence_token", "sequence_product")),
    "grpo,ratio.bound_low=none,ratio.bound_high=0.2",
    "grpo,ratio.bound_low=0.2,ratio.bound_high=none",
    "gspo,ratio.bound_low=none,ratio.bound_high=none",
    # surrogates
    "grpo,surrogate.low=0.05,surrogate.high=0.5",
    "grpo,surrogate.low=0,surrogate.high=0",
    "grpo,surrogate.dual=1.3",
    "gspo,surrogate.dual=1.1",
    "gspo,surrogate=reinforce",
    "grpo,surrogate=reinforce,ratio.bound_high=0.1",
    # KL in the loss
    *(f"grpo,kl={k},kl.beta=0.5,kl.gradient={g}" for k in ("k1", "k2", "k3", "abs") for g in ("own", "k2")),
    *(f"dapo,kl={k},kl.beta=0.5,kl.weighted=ratio,kl.gradient=k2" for k in ("k1", "k2", "k3", "abs")),
    *(f"rloo,kl={k},kl.beta=0.5,kl.weighted=ratio" for k in ("k1", "k3")),
    *(f"gspo,kl={k},kl.beta=0.5,kl.weighted=ratio" for k in ("k2", "abs")),
    *(f"grpo,kl={k},kl.beta=0.5,kl.bound=0.2,kl.value_bound=0.1" for k in ("k1", "k2", "k3", "abs")),
    "grpo,kl.beta=0.5,kl.bound=0.2,kl.value_bound=0.01,kl.gradient=k2",
    "grpo,kl.bound=none",
    "grpo,kl.beta=0",
    # corrections
    *(f"grpo,correction={unit}_truncate,correction.cap=1.2" for unit in ("token", "sequence", "geometric")),
    *(f"grpo,correction={unit}_truncate,correction.floor=0.8" for unit in ("token", "sequence", "geometric")),
    *(
        f"gspo,correction={unit}_mask,correction.low=0.8,correction.high=1.3"
        for unit in ("token", "sequence", "geometric")
    ),
    "grpo,correction=token_mask,correction.low=none,correction.high=1.2",
    "grpo,correction=geometric_mask,correction.low=0.9,correction.high=none",
    "grpo,correction=off_policy_mask,correction.threshold=0.05",
    f"grpo,{RETURNS},correction=off_policy_mask,correction.threshold=0.05",
    "dapo,correction=geometric_mask+token_truncate,correction.low=0.8,correction.high=1.2,correction.cap=1.1",
    "dapo,correction=token_truncate+sequence_truncate,correction.token_truncate.cap=1.1,correction.sequence_truncate.cap=1.5",
    "gspo,correction=off_policy_mask+sequence_mask,correction.threshold=0.1,correction.low=0.5,correction.high=3",
    # aggregations
    *(f"grpo,aggregation={a}" for a in AXES["aggregation"].choices),
    *(f"rloo,aggregation={a},aggregation.empty_rows=exclude" for a in ("sequence_mean", "constant", "sequence_sum")),
    "dr_grpo,aggregation.length=12.5",
    # token filter
    "grpo,tokens=top_entropy",
    *(
        f"{name},tokens=top_entropy,tokens.fraction=0.5,tokens.denominator=kept"
        for name in ("grpo", "dapo", "gspo", "rloo")
    ),
    "dapo,aggregation=prompt_mean,tokens=top_entropy,tokens.denominator=kept",
    "grpo,tokens=top_entropy,tokens.denominator=kept,aggregation.empty_rows=exclude,correction=token_truncate",
    # conventions
    *(f"{name},conventions={c}" for name in gv.names() for c in ("trl", "verl")),
)
TOLERANCE = {torch.float64: {"rtol": 1e-9, "atol": 1e-9}, torch.float32: {"rtol": 2e-5, "atol": 2e-5}}


def plain_counts(variant, case):
    """The oracle's counts where the package is given any."""
    if counts_for(variant, case) is None:
        return None
    x = case.plain()
    return oracle.count(x, oracle.valid_cells(x)) | {"length": LENGTH}


def check_advantages(variant, case, dtype=torch.float64):
    """Compare advantages; returns the case with the oracle's in it."""
    expected = np.array(oracle.advantages(resolved_values(variant), case.plain(dtype)))
    found = gv.advantages(variant, case.rollouts(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=dtype), **TOLERANCE[dtype])
    return replace(case, advantages=expected)


def check_loss(variant, case, dtype=torch.float64):
    """Compare loss, gradient, metrics and extrema."""
    expected = oracle.loss_and_gradient(resolved_values(variant), case.plain(dtype), plain_counts(variant, case))
    loss, gradient, out = loss_and_gradient(variant, case, dtype)
    torch.testing.assert_close(loss, torch.tensor(expected.loss, dtype=dtype), **TOLERANCE[dtype])
    torch.testing.assert_close(gradient, torch.tensor(expected.gradient, dtype=dtype), **TOLERANCE[dtype])
    close = pytest.approx(expected.metrics | expected.extrema, rel=1e-5, abs=1e-5)
    assert {name: value.item() for name, value in (out.metrics | out.extrema).items()} == close


@pytest.mark.parametrize("spec", [*gv.names(), *SPECS])
def test_advantages_loss_and_gradient_equal_the_oracle(spec):
    variant = gv.get(spec)
    for seed in range(3):
        check_loss(variant, check_advantages(variant, random_case(seed)))


@pytest.mark.parametrize("spec", [*gv.names(), *SPECS])
def test_float32_equals_the_oracle_on_the_same_rounded_inputs(spec):
    variant, case = gv.get(spec), random_case(7)
    check_loss(variant, check_advantages(variant, case, torch.float32), torch.float32)


@settings(max_examples=300)
@given(random_variants, random_cases())
def test_any_combination_equals_the_oracle(variant, case):
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
def test_a_keep_mask_from_the_host_replaces_the_variants_own(spec, shape):
    case = check_advantages(gv.get(spec), random_case(3))
    keep = np.random.default_rng(0).random(case.mask.shape if shape == "tokens" else len(case.mask)) < 0.6
    check_loss(gv.get(spec), replace(case, keep=keep))


@pytest.mark.parametrize("width", ["tokens", "responses"])
@pytest.mark.parametrize("spec", ["grpo", "gspo", "dapo,correction=token_truncate"])
def test_correction_weights_from_the_host_replace_the_variants_own(spec, width):
    case = check_advantages(gv.get(spec), random_case(3))
    weights = np.random.default_rng(0).uniform(0, 2, (len(case.mask), case.mask.shape[1] if width == "tokens" else 1))
    weights[2] = 0
    check_loss(gv.get(spec), replace(case, correction=weights))


def test_row_weights_from_the_host_replace_the_aggregation():
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
        if table.ends == ("rollout",):
            continue
        words = {word for value in seen[axis] for word in value.split("+")}
        assert words == set(table.choices)
        for choice in table.choices:
            for key, field in keys_of(axis, choice):
                assert seen[key] - {field.default}, f"no spec sets {key}"
                assert len(seen[key]) >= 2, f"no spec changes {key}"


def test_the_oracle_knows_every_choice():
    tables = {
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
    computed = {axis for axis, table in AXES.items() if table.ends != ("rollout",)}
    assert computed - set(tables) == {"singleton", "conventions"}
