"""Surrogates of the wider family: what they become at their limits, who draws, and what spans a batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cases.variants import loss_and_gradient, random_case, with_advantages, with_row_weights
from torch.testing import assert_close

import grpo_variants as gv
from grpo_variants.objective.inputs import read_tokens
from grpo_variants.trainers.verl.limits import homogeneous

EXACT = {"rtol": 1e-12, "atol": 1e-12}
# A surrogate at the end of its range is another one: in value and gradient, or in gradient only.
LIMITS = {
    "cispo,surrogate.cap=1e30": ("grpo,kl=none,aggregation=token_mean,surrogate=reinforce", "both"),
    "dppo_tv,surrogate.low=1,surrogate.high=1,surrogate.cap=5,aggregation=token_mean": (
        "cispo,ratio.anchor=rollout",
        "both",
    ),
    "ce_gppo,surrogate.keep_low=0,surrogate.keep_high=0": ("grpo,kl=none,aggregation=token_mean", "gradient"),
    "fipo,surrogate.weight_high=1.0000000000001,surrogate.safety=1e9": (
        "grpo,kl=none,aggregation=token_mean,surrogate.high=0.28,surrogate.dual=10",
        "both",
    ),
    "bapo,surrogate.target=0": (
        "grpo,kl=none,aggregation=token_mean,surrogate.low=0.4,surrogate.high=0.2",
        "both",
    ),
    "m2po,surrogate.budget=1e9": (
        "grpo,kl=none,aggregation=token_mean,surrogate.low=1e9,surrogate.high=1e9",
        "both",
    ),
    "m2po,surrogate.budget=1e-9": (
        "grpo,kl=none,aggregation=token_mean,surrogate.low=0,surrogate.high=0",
        "both",
    ),
    "clip_cov,surrogate.cov_low=1e8,surrogate.cov_high=1e9": ("grpo,kl=none,aggregation=token_mean", "both"),
    "kl_cov,surrogate.coef=0": (
        "grpo,kl=none,aggregation=token_mean,surrogate.low=1e9,surrogate.high=1e9",
        "both",
    ),
    "simple_policy_optimization,surrogate.range=1e15": (
        "grpo,kl=none,surrogate.low=1e9,surrogate.high=1e9",
        "both",
    ),
    "topr,surrogate.floor=1,surrogate.ceiling=1.0000000000001": ("reinforce", "both"),
    "kpop,correction.threshold=1e9": ("icepop,correction.low=none,correction.high=1e9", "both"),
}


@pytest.mark.parametrize("spec", LIMITS)
def test_at_its_limit_a_surrogate_is_another_one(spec):
    other, what = LIMITS[spec]
    case = with_advantages(random_case(4), gv.get("grpo"))
    loss, gradient, _ = loss_and_gradient(gv.get(spec), case)
    wanted, slope, _ = loss_and_gradient(gv.get(other), case)
    assert slope.abs().max() > 1e-3
    equal = {"loss": torch.allclose(loss, wanted, rtol=1e-9), "gradient": torch.allclose(gradient, slope, rtol=1e-9)}
    assert equal == {"loss": what == "both", "gradient": what in ("both", "gradient")}


@pytest.mark.parametrize(
    "name",
    [n for n in gv.names() if gv.get(n).surrogate.needs_ratio and not gv.get(n).ratio.per_sequence],
)
def test_on_policy_every_surrogate_has_the_gradient_of_reinforce(name):
    """Ratio 1, engine and reference equal to the policy: nothing is clipped, gated, penalised, dropped or weighted."""
    variant = gv.get(f"{name},tokens=all")
    case = with_advantages(random_case(6), gv.get("grpo"))
    case = replace(case, old_logp=case.logp, rollout_logp=case.logp, ref_logp=case.logp)
    plain = replace(gv.get("reinforce"), aggregation=variant.aggregation)
    if variant.surrogate.draws:
        variant = gv.get(f"{name},surrogate.cov_low=1e8,surrogate.cov_high=1e9")  # no candidate
    counts = gv.Counts.of(torch.as_tensor(case.mask), case.groups, length=7.0)
    case = with_row_weights(variant, case, counts) if variant.aggregation.of_group else case
    _, gradient, _ = loss_and_gradient(variant, case, counts=counts)
    _, expected, _ = loss_and_gradient(plain, case, counts=counts)
    assert expected.abs().max() > 1e-3
    assert_close(gradient, expected, **EXACT)


# Drawing

DRAWING = "clip_cov,surrogate.fraction=0.2,surrogate.cov_low=-5"


def step():
    """24 responses, none with an advantage of 0, whose gradient would be 0 anyway."""
    return replace(random_case(2, rows=24), advantages=np.random.default_rng(0).normal(size=24))


def drawn(generator=None, **changes):
    case = step()
    x = case.tokens(**{"draws": None, **changes})
    out = gv.policy_loss(DRAWING, x, generator=generator)
    out.loss.backward()
    return x.logp.grad


def test_a_generator_decides_what_is_drawn():
    def seeded(seed):
        return drawn(torch.Generator().manual_seed(seed))

    assert_close(seeded(1), seeded(1), rtol=0, atol=0)
    assert (seeded(1) == 0).sum() == (seeded(2) == 0).sum()
    assert not torch.equal(seeded(1), seeded(2))


def test_numbers_that_are_handed_in_decide_instead_of_the_generator():
    numbers = torch.rand(24, 6)
    first = drawn(torch.Generator().manual_seed(1), draws=numbers)
    assert_close(first, drawn(torch.Generator().manual_seed(2), draws=numbers), rtol=0, atol=0)
    assert not torch.equal(first, drawn(draws=1 - numbers))


def test_the_share_of_tokens_is_drawn_and_at_least_one():
    """A fifth of the step's tokens; by default 2e-4 of them, of which there is one at least."""
    case = step()
    tokens = int(case.mask.sum())
    for spec, count in ((DRAWING, int(0.2 * tokens)), ("clip_cov,surrogate.cov_low=-5", 1)):
        plain = gv.get("clip_cov,surrogate.cov_low=1e8,surrogate.cov_high=1e9")
        _, gradient, _ = loss_and_gradient(gv.get(spec), case)
        _, without, _ = loss_and_gradient(plain, case)
        assert ((gradient == 0) & (without != 0)).sum() == count


# Statistics of a batch


def test_kl_cov_penalises_none_where_all_advantages_are_equal():
    """Nothing covaries with a constant; a rounding error in its mean must not pick tokens."""
    case = with_advantages(random_case(2), gv.get("grpo"))
    case = replace(case, advantages=np.full(9, 0.7))
    loss, gradient, _ = loss_and_gradient(gv.get("kl_cov,surrogate.fraction=0.5"), case, torch.float32)
    wanted, slope, _ = loss_and_gradient(gv.get("kl_cov,surrogate.coef=0"), case, torch.float32)
    assert_close((loss, gradient), (wanted, slope))


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov", "bapo", "m2po"])
def test_statistics_that_are_handed_in_are_used(name):
    """Those of another batch change the loss; those of the batch itself do not."""
    variant = gv.get(name)
    case = with_advantages(random_case(2, rows=24), gv.get("grpo"))
    options = {"clip_cov": ",surrogate.fraction=0.3,surrogate.cov_low=-5", "kl_cov": ",surrogate.fraction=0.3"}
    variant = gv.get(name + options.get(name, ""))

    def with_thresholds(values):
        counts = gv.Counts.of(torch.as_tensor(case.mask), thresholds=values)
        return loss_and_gradient(variant, case, counts=counts)[0]

    x = read_tokens(case.tokens())
    own = variant.surrogate.thresholds(variant.ratio(x).detach(), x)
    alone = loss_and_gradient(variant, case)[0]
    assert_close(with_thresholds(own), alone, **EXACT)
    assert_close(with_thresholds({"entropy": 1.0}), alone, **EXACT)
    other = {
        "clip_cov": {"draw": 2.0},
        "kl_cov": {"covariance": -9.0},
        "bapo": {"ceiling": 1.05},
        "m2po": {"log_range": 9.0},
    }
    assert abs(with_thresholds({**own, **other[name]}) - alone) > 1e-4


def test_a_weight_may_move_into_the_advantages_only_where_the_loss_scales_with_them():
    scales = {n for n in gv.names() if homogeneous(gv.get(n))}
    assert {"clip_cov", "kl_cov", "bapo", "m2po", "kimi_k15", "pmd_mean", "prime_rl"}.isdisjoint(scales)
    assert {"cispo", "sapo", "gmpo", "vespo", "topr", "dppo_tv", "aspo", "ce_gppo", "fipo", "dcpo"} <= scales


# Numbers of the parts that the members above do not show


@pytest.mark.parametrize(
    ("fields", "advantage", "log_ratio", "weight"),
    [
        ("surrogate.cap=2", 1.0, np.log(3), 2),
        ("surrogate.cap=2", -1.0, np.log(3), 2),
        ("surrogate.cap=2", -1.0, np.log(0.1), 0.1),
        ("surrogate.cap=none,surrogate.high=0.2", 1.0, np.log(3), 1.2),
        ("surrogate.low=0.2", 1.0, np.log(0.1), 0.8),
    ],
)
def test_cispos_weight(fields, advantage, log_ratio, weight):
    """The gradient is minus the weight times A, capped or not."""
    logp = torch.tensor([[-3.0]], dtype=torch.float64, requires_grad=True)
    x = gv.Tokens(
        logp=logp,
        mask=torch.ones(1, 1, dtype=torch.bool),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        old_logp=logp.detach() - log_ratio,
    )
    gv.policy_loss(f"cispo,{fields}", x).loss.backward()
    assert logp.grad.item() == pytest.approx(-weight * advantage)


def test_cispos_largest_weight_is_said_in_one_way():
    for fields in ("surrogate.high=0.2", "surrogate.cap=none"):
        with pytest.raises(ValueError, match=r"the largest weight is cap, or 1 \+ high; set one of the two"):
            gv.get(f"cispo,{fields}")


def test_dcpos_range_is_wide_for_what_was_improbable():
    """q = 0.01: floor 0.5 + 0.5 sqrt(max(1 - 64, 0)), ceiling 0.5 + 0.5 sqrt(81) = 5; q = 0.7: 0.6464 and 1.2319."""
    for q, low, high in ((0.01, 0.5, 5.0), (0.7, 0.64638501, 1.23192506)):
        for ratio, advantage, bound in ((low * 0.9, -1.0, low), (high * 1.1, 1.0, high)):
            logp = torch.tensor([[np.log(q * ratio)]], requires_grad=True)
            x = gv.Tokens(
                logp=logp,
                mask=torch.ones(1, 1, dtype=torch.bool),
                advantages=torch.tensor([advantage], dtype=torch.float64),
                old_logp=torch.tensor([[np.log(q)]]),
            )
            out = gv.policy_loss("dapo,surrogate=dcpo", x)
            out.loss.backward()
            assert out.loss.item() == pytest.approx(-advantage * bound, rel=1e-6)
            assert logp.grad.item() == 0
