"""Precision, gradients, devices and graphs: gradcheck, bf16, meta tensors, torch.compile, inputs left alone."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from support.cases.variants import (
    SPECS,
    compute_advantages,
    counts_for,
    loss_and_gradient,
    random_case,
    with_advantages,
    with_row_weights,
)
from support.oracle import step as oracle
from torch.testing import assert_close

import grpo_variants as gv
from grpo_variants import fast_paths
from grpo_variants.spelling import resolved_values
from grpo_variants.tensors.groups import Groups

# Their values do not move as their gradients say: a weight or a ratio is detached.
STOPPED = ("gspo_token", "aspo", "ce_gppo", "fipo", "cispo", "scalerl", "topr", "vespo", "dppo_tv", "dppo_kl")
STOPPED += ("prime_rl", "minirl")
WITHOUT_STOP = [n for n in gv.names() if n not in STOPPED]


# Gradients against finite differences


@pytest.mark.parametrize(
    "spec",
    [
        *WITHOUT_STOP,
        "grpo,ratio=sequence_product,surrogate.dual=1.5",
        "grpo,ratio=sequence_arithmetic",
        "grpo,kl=abs,kl.beta=0.5",
        "grpo,kl=k1,kl.beta=0.5,kl.weighted=ratio",
        "gspo,kl=k3,kl.beta=0.5,kl.weighted=ratio",
        "grpo,kl.beta=0.5,kl.bound=0.3,ratio.bound_high=0.1,ratio.bound_low=0.1",
        "grpo,correction=token_truncate+geometric_mask,correction.low=0.9,correction.high=none",
        "dapo,aggregation=prompt_mean,tokens=top_entropy",
    ],
)
def test_gradcheck(spec):
    """Objectives without a stop-gradient, at a point that is on no clip's edge."""
    variant = gv.get(spec)
    case = with_advantages(random_case(1, rows=5, width=4), variant)
    counts, others = counts_for(variant, case), case.tokens()
    assert torch.autograd.gradcheck(
        lambda logp: gv.policy_loss(variant, replace(others, logp=logp), counts).loss,
        case.tokens().logp,
    )


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_gradcheck_of_the_kl_estimators(estimator):
    logp, ref = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(lambda x: gv.kl(estimator, x, ref, bound=1.5), logp.requires_grad_())


# Precision


def bf16_case(seed):
    """A larger step whose log-probabilities are what a bf16 forward pass gives."""
    case = random_case(seed, rows=12, width=48)
    half = {
        name: torch.tensor(getattr(case, name)).bfloat16().double().numpy() for name in ("logp", "old_logp", "ref_logp")
    }
    return replace(case, **half, entropy=case.entropy)


def plain_loss(x, low=0.2, high=0.2, beta=0.04):
    """GRPO's loss the plain way, in whatever dtype the inputs have."""
    a, mask = x.advantages.unsqueeze(1), x.mask
    ratio, u = torch.exp(x.logp - x.old_logp), x.ref_logp - x.logp
    policy = -torch.min(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
    per_token = (policy + beta * (torch.exp(u) - u - 1)) * mask
    return (per_token.sum(1) / mask.sum(1).clamp(min=1)).mean()


@pytest.mark.parametrize("plain_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("seed", range(3))
def test_bf16_log_probabilities_lose_nothing_against_the_plain_formula(plain_dtype, seed):
    """Error against the float64 oracle, token for token: at most the plain formula's, upcast or not, plus rounding."""
    case = with_advantages(bf16_case(seed), gv.get("grpo"))
    x = case.tokens(torch.bfloat16, advantages=torch.as_tensor(case.advantages).float())
    gv.policy_loss("grpo", x).loss.backward()
    plain = case.tokens(plain_dtype)
    plain_loss(plain).backward()
    stated = case.plain() | {"advantages": x.advantages.tolist()}
    truth = torch.tensor(
        oracle.loss_and_gradient(resolved_values(gv.get("grpo")), stated).gradient, dtype=torch.float64
    )
    if plain_dtype == torch.bfloat16:
        # The gradient of a bf16 leaf is itself rounded to bf16.
        truth = truth.bfloat16().double()
    else:
        x = case.tokens(torch.float32, advantages=x.advantages)
        gv.policy_loss("grpo", x).loss.backward()
    ours, theirs = ((g.double() - truth).abs() for g in (x.logp.grad, plain.logp.grad))
    assert (ours <= theirs + 1e-7 * truth.abs().max()).all()
    assert truth.abs().max() > 1e-3


@pytest.mark.parametrize("name", gv.names())
def test_bf16_inputs_are_computed_in_float32(name):
    """The same numbers as for float32 tensors that hold the rounded values: nothing is computed in bf16."""
    variant = gv.get(name)
    case = with_advantages(bf16_case(0), variant, torch.float32)
    loss, gradient, out = loss_and_gradient(variant, case, torch.float32, advantages=torch.as_tensor(case.advantages))
    half = {n: torch.as_tensor(getattr(case, n)).bfloat16() for n in ("logp", "old_logp", "ref_logp")}
    again, slope, half_out = loss_and_gradient(
        variant, case, torch.float32, **half, advantages=torch.as_tensor(case.advantages)
    )
    assert again.dtype == torch.float32
    assert_close(again, loss, rtol=0, atol=0)
    assert_close(slope, gradient.bfloat16(), rtol=0, atol=0)
    assert_close(half_out.metrics, out.metrics, rtol=0, atol=0)
    assert all(value.dtype == torch.float32 for value in half_out.metrics.values())


@pytest.mark.parametrize("name", gv.names())
def test_bf16_rewards_are_computed_in_float32(name):
    case = random_case(0)
    case = replace(case, reward_weights=None, rewards=torch.tensor(case.rewards).bfloat16().double().numpy())
    found = compute_advantages(name, case.rollouts(torch.float32, rewards=torch.tensor(case.rewards).bfloat16()))
    assert found.dtype == torch.float32
    assert_close(found, compute_advantages(name, case.rollouts(torch.float32)), rtol=0, atol=0)


def test_k3_keeps_its_digits_where_policy_and_reference_are_close():
    """u = 1e-4: k3 = u^2/2 + u^3/6 = 5.00016667e-9; exp(u) - u - 1 in float32 is off by half of that and more."""
    u = torch.full((1, 1), 1e-4)
    assert gv.kl("k3", torch.zeros(1, 1), u).item() == pytest.approx(5.00016667e-9, rel=2e-3)
    naive = (u.exp() - u - 1).item()
    assert abs(naive - 5.00016667e-9) > 1e-9
    exact = gv.kl("k3", torch.zeros(1, 1, dtype=torch.float64), u.double()).item()
    assert exact == pytest.approx(5.00016667e-9, rel=1e-6)


def standardised(rewards, ddof=1):
    """Deviations from the mean over the standard deviation, in float64 by NumPy."""
    exact = np.asarray(rewards, dtype=np.float64)
    return (exact - exact.mean()) / exact.std(ddof=ddof)


# One unit in the last place of float32: what the result itself is rounded by.
ULP = 2**-23


@pytest.mark.parametrize("mode", ["0", "1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "offset"), [(16384, -2000.0), (65536, 1e4), (65536, 0.0), (100, 1e6)])
@pytest.mark.parametrize(
    "spec",
    [
        "grpo,scale.eps=0",
        "grpo,scale.eps=0,scale.eps_in=var",
        "reinforce,baseline=batch_mean,scale=batch_std,scale.eps=0",
        "reinforce,baseline=batch_mean,scale=batch_std,scale.eps=0,scale.of=centred,scale.over=tokens",
        "gdpo,credit.eps=0,scale.eps=0",
    ],
)
def test_statistics_of_many_rewards_are_exact_to_rounding(spec, count, offset, dtype, mode):
    """Against float64: sums in float32 one by one are 23 % off in a batch of 16384 at -2000, torch.std 5e-6 at 1e4."""
    rewards = (torch.rand(count, generator=torch.Generator().manual_seed(0)) + offset).to(dtype)
    with fast_paths.mode(mode):
        found = gv.advantages(spec, rewards, [0] * count, lengths=[3] * count)
    expected = torch.from_numpy(standardised(rewards, 1))
    if "over=tokens" in spec:
        expected *= ((3 * count - 1) / (3 * (count - 1))) ** 0.5  # each response is three tokens
    assert found.dtype == dtype
    assert (found.double() - expected).abs().max() <= expected.abs().max() * ULP
    assert (found - found.mean()).abs().max() > 1.5


@pytest.mark.parametrize("mode", ["0", "1"])
@pytest.mark.parametrize("size", [4, 8, 32, 33, 4096])
def test_a_deviation_is_no_worse_than_torch_has_it(size, mode):
    """Largest error over the groups against float64, and that of the formula in float32 by torch.mean and torch.std."""
    rewards = torch.rand(65536 // size, size, generator=torch.Generator().manual_seed(size))
    expected = torch.from_numpy(np.stack([standardised(row) for row in rewards.numpy()]))
    theirs = (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)
    with fast_paths.mode(mode):
        found = gv.advantages("grpo,scale.eps=0", rewards.flatten(), torch.arange(len(rewards)).repeat_interleave(size))
    assert (found.view_as(theirs) - expected).abs().max() <= (theirs - expected).abs().max()


@pytest.mark.parametrize("mode", ["0", "1"])
@pytest.mark.parametrize(
    ("dtype", "unit"),
    [
        (torch.float32, 1e20),
        (torch.float32, 1e-30),
        (torch.float64, 1e20),
        (torch.float64, 1e200),
        (torch.float64, 1e-200),
    ],
)
@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        # Four rewards 1, 0, 0, 1 of one prompt: mean 1/2, deviation sqrt(1/3), or 1/2 with ddof=0.
        ("grpo,scale.eps=0", [0.75**0.5, -(0.75**0.5)]),
        ("grpo,scale.eps=0,scale.eps_in=var,scale.ddof=0", [1.0, -1.0]),
        ("lite_ppo,scale.eps=0", [0.75**0.5, -(0.75**0.5)]),
        ("reinforce_pp_baseline,scale.eps=0,kl=none,scale.ddof=0", [1.0, -1.0]),
        ("gdpo,credit.eps=0,scale.eps=0", [0.75**0.5, -(0.75**0.5)]),
        ("dcpo", [0.75**0.5, -(0.75**0.5)]),
        ("maxrl,scale.eps=0", [1.0, -1.0]),
        ("mc_grpo,scale.eps=0,baseline.even=mean,scale.even=mean", [1.0, -1.0]),
    ],
)  # fmt: skip
def test_huge_and_tiny_rewards_have_the_advantages_of_zero_and_one(spec, sizes, dtype, unit, mode):
    rewards = torch.tensor([unit, 0, 0, unit], dtype=dtype)
    state = {"state": gv.Memory()} if gv.get(spec).remembers else {}
    with fast_paths.mode(mode):
        found = gv.advantages(spec, rewards, [0] * 4, mask=torch.ones(4, 2), **state)
    right, wrong = sizes
    assert_close(found, torch.tensor([right, wrong, wrong, right], dtype=dtype))


def test_memory_of_huge_rewards():
    """The second step equals the first, and so do the deviations over one step and over two."""
    state, rewards = gv.Memory(), torch.tensor([1e200, 0, 0, 1e200], dtype=torch.float64)
    first, second = (gv.advantages("dcpo", rewards, [0] * 4, state=state) for _ in range(2))
    assert_close(second, first)
    assert_close(first, torch.tensor([1.0, -1, -1, 1], dtype=torch.float64) * 0.75**0.5)


@pytest.mark.parametrize("mode", ["0", "1"])
def test_an_advantage_beyond_the_numbers_is_the_largest(mode):
    """3e38 less -3e38 is beyond float32; the advantage is finite all the same, as is that of the others."""
    with fast_paths.mode(mode):
        found = gv.advantages("rloo", torch.tensor([3e38, -3e38, 1.0, 0.0]), [0, 0, 1, 1])
    largest = torch.finfo(torch.float32).max
    assert found.tolist() == [largest, -largest, 1, -1]


@pytest.mark.parametrize(("count", "offset", "unit"), [(16384, -2000.0, 1.0), (65536, 1e4, 1.0), (64, 0.0, 1e20)])
def test_group_statistics_without_float64(count, offset, unit):
    """What a device without float64 has: sums relative to the lowest value, squares of shares of the largest."""
    value = (torch.rand(count, generator=torch.Generator().manual_seed(0)) + offset) * unit
    groups, valid, exact = Groups.of([0] * count), torch.ones(count, dtype=torch.bool), value.double()
    assert groups.mean(value, valid).dtype == torch.float32
    assert_close(groups.mean(value, valid)[0].double(), exact.mean(), rtol=1e-6, atol=1e-5 * unit)
    assert_close(groups.std(value, valid, 1)[0].double(), exact.std(), rtol=1e-4, atol=0)


def test_autocast_changes_nothing():
    case = with_advantages(random_case(0), gv.get("grpo"))
    loss, gradient, _ = loss_and_gradient(gv.get("grpo"), case, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        again, slope, _ = loss_and_gradient(gv.get("grpo"), case, torch.float32)
    assert_close((again, slope), (loss, gradient), rtol=0, atol=0)


# Nothing waits for the device


def on_meta(x):
    return replace(
        x, **{f.name: value.to("meta") for f in fields(x) if isinstance(value := getattr(x, f.name), torch.Tensor)}
    )


@pytest.mark.parametrize("spec", [*gv.names(), *SPECS])
def test_losses_run_on_meta_tensors(spec):
    """A meta tensor has no values, so `.item()`, `bool(tensor)`, boolean indexing and printing all raise."""
    variant = gv.get(spec)
    case = with_advantages(random_case(0), variant)
    x = on_meta(case.tokens())
    x = replace(x, logp=x.logp.detach().requires_grad_())
    out = gv.policy_loss(variant, x, counts_for(variant, case))
    out.loss.backward()
    assert (x.logp.grad.device.type, x.logp.grad.shape) == ("meta", case.logp.shape)
    assert {value.shape for value in (out.metrics | out.extrema).values()} == {()}
    assert gv.correction_weights(variant, x).shape == case.logp.shape
    with pytest.raises((RuntimeError, NotImplementedError)):
        out.loss.item()


# torch.compile


def compiled_equals_eager(variant, backend):
    case = with_advantages(random_case(0), variant)
    counts = counts_for(variant, case) or gv.Counts.of(torch.as_tensor(case.mask), case.groups)
    case = with_row_weights(variant, case, counts) if variant.aggregation.of_group else case
    loss, gradient, out = loss_and_gradient(variant, case, counts=counts)
    x = case.tokens()

    def step(logp):
        found = gv.policy_loss(variant, replace(x, logp=logp), counts)
        return found.loss, dict(found.metrics)

    torch._dynamo.reset()
    again, metrics = torch.compile(step, fullgraph=True, backend=backend)(x.logp)
    again.backward()
    assert_close(again.detach(), loss)
    assert_close(x.logp.grad, gradient)
    assert_close(metrics, dict(out.metrics))


@pytest.mark.parametrize("name", gv.names())
def test_losses_compile_into_one_graph(name):
    compiled_equals_eager(gv.get(name), "eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    ["grpo,correction=token_truncate+geometric_mask,correction.low=0.9,correction.high=2", "dapo,tokens=top_entropy"],
)
def test_losses_with_all_their_parts_compile_into_one_graph(spec):
    compiled_equals_eager(gv.get(spec), "eager")


@pytest.mark.slow
def test_a_compiled_backward_equals_the_eager_one():
    compiled_equals_eager(gv.get("grpo"), "aot_eager")


# Inputs


def tensors_of(inputs):
    return {f.name: value for f in fields(inputs) if isinstance(value := getattr(inputs, f.name), torch.Tensor)}


@pytest.mark.parametrize(
    "spec", [*gv.names(), "grpo,correction=token_truncate+off_policy_mask,correction.threshold=0.1"]
)
def test_inputs_stay_as_they_are(spec):
    variant = gv.get(spec)
    case = with_advantages(random_case(0), variant)
    rollouts, x = case.rollouts(), case.tokens(keep=torch.as_tensor(case.mask), row_weights=torch.ones(9))
    given = [
        (inputs, {name: value.detach().clone() for name, value in tensors_of(inputs).items()})
        for inputs in (rollouts, x)
    ]
    compute_advantages(variant, rollouts)
    gv.policy_loss(variant, x, counts_for(variant, case)).loss.backward()
    gv.correction_weights(variant, x)
    for inputs, before in given:
        assert len(before) > 6
        for name, value in tensors_of(inputs).items():
            assert_close(value.detach(), before[name], rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("spec", [*gv.names(), "grpo,correction=token_truncate,ratio.anchor=rollout,kl.weighted=ratio"])
def test_only_logp_gets_a_gradient(spec):
    variant = gv.get(spec)
    case = with_advantages(random_case(0), variant)
    x = case.tokens(row_weights=torch.rand(9).double() + 0.1, correction=torch.rand(9, 6).double())
    leaves = {name: value.requires_grad_() for name, value in tensors_of(x).items() if value.is_floating_point()}
    gv.policy_loss(variant, x, counts_for(variant, case)).loss.backward()
    assert {name for name, value in leaves.items() if value.grad is not None} == {"logp"}
    assert x.logp.grad.abs().max() > 1e-4


@pytest.mark.parametrize("name", gv.names())
def test_old_log_probabilities_that_are_logp_itself_are_detached(name):
    """A trainer that forgets the detach gets the on-policy gradient, and not the zero of logp - logp."""
    variant = gv.get(name)
    case = replace(with_advantages(random_case(0), variant), old_logp=None)
    _, expected, _ = loss_and_gradient(variant, case)
    x = case.tokens()
    gv.policy_loss(variant, replace(x, old_logp=x.logp), counts_for(variant, case)).loss.backward()
    assert_close(x.logp.grad, expected, rtol=0, atol=0)
    assert expected.abs().max() > 1e-4


@pytest.mark.parametrize("spec", [*gv.names(), "gspo,correction=token_truncate,tokens=top_entropy,kl=k1,kl.beta=1"])
def test_what_comes_back_is_zero_dimensional_and_detached(spec):
    variant = gv.get(spec)
    case = with_advantages(random_case(0), variant, torch.float32)
    out = gv.policy_loss(variant, case.tokens(torch.float32), counts_for(variant, case))
    assert out.loss.shape == ()
    assert out.loss.requires_grad
    for name, value in (out.metrics | out.extrema).items():
        assert (value.shape, value.requires_grad, value.dtype) == ((), False, torch.float32), name


@pytest.mark.parametrize("name", gv.names())
def test_advantages_are_detached(name):
    case = random_case(0)
    rollouts = case.rollouts(rewards=torch.tensor(case.rewards, requires_grad=True))
    assert not compute_advantages(name, rollouts).requires_grad


def test_float64_stays_float64():
    case = random_case(0)
    assert compute_advantages("grpo", case.rollouts(torch.float64)).dtype == torch.float64
    assert compute_advantages("grpo", case.rollouts(torch.float32)).dtype == torch.float32
    assert compute_advantages("grpo", [0, 1], [0, 0]).dtype == torch.float32
    assert compute_advantages("grpo", np.array([0.0, 1.0]), [0, 0]).dtype == torch.float64
    case = with_advantages(case, gv.get("grpo"))
    assert gv.policy_loss("grpo", case.tokens(torch.float64)).loss.dtype == torch.float64
    assert gv.policy_loss("grpo", case.tokens(torch.float32)).loss.dtype == torch.float32
