"""The fast paths against the plain one: loss, gradient, metrics and extrema, and when they step aside."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cases.variants import SPECS, counts_for, random_case, token_advantages, with_advantages, with_row_weights
from torch.testing import assert_close

import grpo_variants as gv
from benchmarks.measure import counted, peak_bytes
from grpo_variants import fast_paths
from grpo_variants.objective.fast import loss as blocks
from grpo_variants.objective.fast.analytic import covers
from grpo_variants.objective.ratio import TokenRatio
from grpo_variants.tensors import bit_mask
from grpo_variants.tensors.masked import select

# The families whose derivatives are worked out by hand.
BY_HAND = ("grpo", "dapo", "two_sided", "dr_grpo", "gspo", "gspo_token", "gmpo", "cispo", "sapo", "rloo", "opo", "tis")


def both(variant, x, counts=None):
    """What the plain and the fast path return, each with its gradient with respect to logp."""
    found = []
    for value in ("0", "1"):
        leaf = x.logp.detach().clone().requires_grad_()
        with fast_paths.mode(value):
            out = gv.policy_loss(variant, replace(x, logp=leaf), counts)
        out.loss.backward()
        found.append((out, leaf.grad))
    return found


def assert_equal(variant, x, counts=None, **tolerance):
    """Fast equals plain in loss, gradient, metrics and extrema; NaN where it is NaN."""
    (plain, slope), (found, gradient) = both(variant, x, counts)
    tolerance = tolerance or (
        {"rtol": 1e-9, "atol": 1e-11} if slope.dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-6}
    )
    tolerance["equal_nan"] = True
    assert_close(found.loss, plain.loss, **tolerance)
    assert_close(gradient, slope, **tolerance)
    assert_close(dict(found.metrics), dict(plain.metrics), **tolerance)
    assert found.per_response == plain.per_response
    assert_close(dict(found.extrema), dict(plain.extrema), **tolerance)
    return plain, slope


@pytest.fixture(params=["bits", "flags"])
def branch(request, monkeypatch):
    """Both ways to select: by the bits of a number, as on a CPU, and by bool tensors, as on any other device."""
    if request.param == "flags":
        monkeypatch.setattr(bit_mask, "_as_bool", lambda value: True)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of two rows, so that a small case has several and a last one that is short."""
    monkeypatch.setattr(blocks, "CPU_TOKENS", 12)


@pytest.fixture
def no_plain(monkeypatch):
    """The plain path may not stand in."""
    monkeypatch.setattr(blocks, "REFUSALS", ())


@pytest.fixture
def log(caplog):
    fast_paths.say_once.cache_clear()
    caplog.set_level(logging.INFO, logger="grpo_variants.fast")
    return caplog


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("spec", [*gv.names(), *SPECS])
def test_fast_equals_plain(spec, small_blocks):
    """Ragged rows with holes, one of them empty; both shapes of advantages, both precisions."""
    variant, moved = gv.get(spec), 0.0
    for seed, dtype in enumerate((torch.float64, torch.float32, torch.float64)):
        case = with_advantages(random_case(seed, spread=0.5), variant, dtype)
        if seed == 2 and not variant.ratio.per_sequence and case.advantages.ndim == 1:
            case = token_advantages(case)
        _, slope = assert_equal(variant, case.tokens(dtype), counts_for(variant, case))
        moved += slope.abs().sum()
    assert moved > 1e-4, "the cases are degenerate: nothing was compared"


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("conventions", ["paper", "trl", "verl"])
@pytest.mark.parametrize("name", BY_HAND)
def test_the_clip_family_is_covered_and_equal_far_off_policy(name, conventions, no_plain):
    """Ratios beyond every bound; advantages of both signs and zero ones; row weights, kept tokens, a correction."""
    variant = gv.get(f"{name},conventions={conventions}")
    assert covers(variant)
    for seed in range(4):
        case = with_advantages(random_case(seed, rows=8, spread=[0.1, 1.0, 4.0, 8.0][seed]), variant)
        case = replace(case, advantages=np.where(np.arange(8) == 3, 0.0, case.advantages))
        counts = gv.Counts.of(torch.as_tensor(case.mask), case.groups, length=9, grad_average=3)
        case = with_row_weights(variant, case, counts)
        extra = {}
        if seed % 2:
            extra["keep"] = torch.rand(8, 6) < 0.7 if seed == 1 else torch.arange(8) % 3 > 0
            extra["correction"] = torch.rand(8, 6 if seed == 1 else 1).double() * (torch.rand(8, 1) < 0.8)
        # A KL that is weighted by a huge ratio loses digits in either path.
        assert_equal(variant, case.tokens(**extra), counts, rtol=1e-7, atol=1e-8)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("spec", ["dapo", "gspo", "grpo,conventions=verl", "cispo", "gmpo", "sapo", "rloo", "aspo"])
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -float("inf")])
def test_rubbish_under_the_mask_reaches_nothing(spec, rubbish):
    variant = gv.get(spec)
    case = with_advantages(random_case(0), variant)
    x = case.tokens()
    dirty = {n: select(x.mask, getattr(x, n).detach(), rubbish) for n in ("logp", "old_logp", "ref_logp", "entropy")}
    _, clean = assert_equal(variant, x)
    _, slope = assert_equal(variant, replace(x, **dirty))
    assert_close(slope, clean, rtol=0, atol=0)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("spec", ["dapo", "dapo,conventions=trl", "gspo", "cispo", "gmpo", "sapo", "rloo", "grpo"])
@pytest.mark.parametrize("field", ["logp", "old_logp", "ref_logp"])
def test_nan_at_a_valid_position_is_as_visible_as_in_the_plain_path(spec, field):
    variant = gv.get(spec)
    x = with_advantages(random_case(2), variant).tokens()
    value = getattr(x, field).detach().clone()
    value[0, 0] = float("nan")
    assert x.mask[0, 0]
    plain, _ = assert_equal(variant, replace(x, **{field: value}))
    used = field == "logp" or (field == "ref_logp" and variant.kl_in_loss)
    assert bool(plain.loss.isnan()) or not used


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("spec", ["dapo", "dapo,conventions=trl", "gspo", "cispo", "gmpo", "sapo", "rloo", "grpo"])
def test_a_nan_advantage_shows_in_its_row_and_nowhere_else(spec):
    """Where the plain path has NaN in the row, so has this one; it may have it at a clipped token as well."""
    variant = gv.get(spec)
    x = with_advantages(random_case(2), variant).tokens()
    a = x.advantages.clone()
    a[0] = float("nan")
    (plain, slope), (found, gradient) = both(variant, replace(x, advantages=a))
    assert plain.loss.isnan()
    assert found.loss.isnan()
    assert_close(gradient[1:], slope[1:], rtol=1e-9, atol=1e-12)
    assert gradient[0][slope[0].isnan()].isnan().all()
    assert gradient[0].isnan().any()
    assert (gradient[0][~x.mask[0]] == 0).all()
    assert_close(dict(found.metrics), dict(plain.metrics), equal_nan=True)


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("spec", ["dapo", "gspo", "grpo", "cispo"])
def test_layouts_and_dtypes(spec, small_blocks, no_plain):
    """Transposed, strided and expanded tensors; masks as integers; half precision; zero advantages everywhere."""
    variant = gv.get(spec)
    x = with_advantages(random_case(3), variant, torch.float32).tokens(torch.float32)
    strided = torch.stack([x.old_logp, x.old_logp], 2)[..., 0]
    assert not strided.is_contiguous()
    x = replace(x, logp=x.logp.detach().t().contiguous().t(), old_logp=strided, mask=x.mask.long())
    assert_equal(variant, x)
    assert_equal(variant, replace(x, advantages=x.advantages[:1].expand(9)))
    assert_equal(variant, replace(x, advantages=torch.zeros(9)))
    half = {n: getattr(x, n).detach().bfloat16() for n in ("logp", "old_logp", "ref_logp")}
    assert_equal(variant, replace(x, **half), rtol=0, atol=1e-6)
    assert_equal(variant, replace(x, mask=torch.zeros_like(x.mask)))


@pytest.mark.usefixtures("branch")
def test_bounds_are_inclusive_as_a_clamp_is():
    """Log ratio exactly at its bound, and a ratio of exactly 1 with clip range 0: both keep their gradient."""
    old = torch.full((2, 2), -1.0)
    logp = old + torch.tensor([[0.5, -0.5], [0.0, 0.25]])
    x = gv.Tokens(logp=logp, old_logp=old, mask=torch.ones(2, 2), advantages=torch.tensor([1.0, -1.0]))
    spec = "dapo,ratio.bound_low=0.5,ratio.bound_high=0.5,surrogate.low=0.9,surrogate.high=0.9"
    _, slope = assert_equal(gv.get(spec), x)
    assert (slope != 0).all()
    _, slope = assert_equal(gv.get("dapo,surrogate.low=0,surrogate.high=0"), replace(x, logp=old))
    assert (slope != 0).all()


def test_blocks_are_not_the_batch(monkeypatch):
    """As many rows a block as its tokens hold, one at least; that changes nothing but rounding."""
    variant, x = gv.get("grpo"), with_advantages(random_case(4), gv.get("grpo")).tokens()
    calls, kernel = [], blocks.analytic
    monkeypatch.setattr(blocks, "analytic", lambda *given: calls.append(len(given[1].logp)) or kernel(*given))
    for tokens, wanted in ((54, [9]), (12, [2, 2, 2, 2, 1]), (1, [1] * 9)):
        monkeypatch.setattr(blocks, "CPU_TOKENS", tokens)
        calls.clear()
        assert_equal(variant, x)
        assert calls == wanted


# Derivatives


TWICE = ("grpo", "gspo", "gmpo", "sapo", "dapo,kl=k3,kl.beta=0.5,kl.weighted=ratio", "simple_policy_optimization")


@pytest.mark.usefixtures("branch")
@pytest.mark.parametrize("spec", TWICE)
def test_gradients_of_gradients_are_the_plain_paths(spec):
    """The known gradient carries no graph: it is computed anew where one is asked for."""
    variant = gv.get(spec)
    x = with_advantages(random_case(1), variant).tokens()
    second = []
    for value in ("0", "1"):
        leaf = x.logp.detach().clone().requires_grad_()
        with fast_paths.mode(value):
            loss = gv.policy_loss(variant, replace(x, logp=leaf)).loss
        (slope,) = torch.autograd.grad(loss, leaf, create_graph=True)
        second.append(torch.autograd.grad(slope.square().sum(), leaf)[0])
    assert_close(second[1], second[0], rtol=1e-9, atol=1e-12)
    assert second[0].abs().max() > 1e-6


@pytest.mark.usefixtures("branch")
def test_a_second_backward_and_a_scaled_one():
    """A retained graph gives the gradient again; an upstream factor is in it; nothing wrong is accumulated."""
    variant, x = gv.get("dapo"), with_advantages(random_case(1), gv.get("dapo")).tokens()
    out = gv.policy_loss(variant, x)
    first = torch.autograd.grad(3 * out.loss, x.logp, retain_graph=True)[0].clone()
    again = torch.autograd.grad(3 * out.loss, x.logp, retain_graph=True)[0]
    assert_close(first, again, rtol=0, atol=0)
    again = torch.autograd.grad(out.loss, x.logp)[0]
    assert_close(first, 3 * again, rtol=1e-12, atol=1e-15)
    with fast_paths.mode("0"):
        (plain,) = torch.autograd.grad(gv.policy_loss(variant, x).loss, x.logp)
    assert_close(again, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("branch")
def test_without_a_gradient_only_the_numbers_come():
    variant, x = gv.get("dapo"), with_advantages(random_case(1), gv.get("dapo")).tokens()
    with torch.no_grad():
        found = gv.policy_loss(variant, x)
    assert not found.loss.requires_grad
    assert_close(found.loss, gv.policy_loss(variant, x).loss.detach(), rtol=0, atol=0)
    assert not found.loss.is_inference()
    assert not any(value.is_inference() for value in (found.metrics | found.extrema).values())


# When it steps aside


@pytest.mark.parametrize(
    ("spec", "change", "reason"),
    [
        ("m2po", {}, "a statistic of its surrogate spans the batch"),
        ("forking_tokens", {}, "its token filter spans the batch"),
        ("dapo", {"extras": {"a": 1}}, "extras are not cut into rows"),
        ("dapo", {"old_logp": torch.zeros(9, 6)}, "float32 and float64 inputs are mixed"),
    ],
)
def test_it_says_once_why_it_falls_back(spec, change, reason, log, monkeypatch):
    variant = gv.get(spec)
    x = replace(with_advantages(random_case(0), variant).tokens(), **change)
    monkeypatch.setattr(blocks, "_over_blocks", None)  # not called
    for _ in range(2):
        gv.policy_loss(variant, x)
    assert [(r.levelname, r.message) for r in log.records] == [
        ("INFO", f"{variant.name}: the plain path is used, since {reason}.")
    ]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # what PyTorch's own forward derivatives call
def test_a_function_transform_and_a_forward_derivative_take_the_plain_path(log):
    variant = gv.get("dapo")
    x = with_advantages(random_case(0), variant).tokens()
    logp = x.logp.detach()
    expected = both(variant, x)[0][1]
    log.clear()
    slope = torch.func.grad(lambda value: gv.policy_loss(variant, replace(x, logp=value)).loss)(logp)
    assert_close(slope, expected)
    direction = torch.ones_like(logp)
    _, along = torch.func.jvp(lambda value: gv.policy_loss(variant, replace(x, logp=value)).loss, (logp,), (direction,))
    assert_close(along, expected.sum())
    assert "function transform" in log.text


def test_a_users_own_part_is_not_taken_for_its_parent():
    class Bent(TokenRatio):
        def __call__(self, x):
            return 0.5 * super().__call__(x)

    variant = replace(gv.get("dapo"), ratio=Bent())
    assert not covers(variant)
    _, slope = assert_equal(variant, with_advantages(random_case(0), gv.get("dapo")).tokens())
    _, other = both(gv.get("dapo"), with_advantages(random_case(0), gv.get("dapo")).tokens())[0]
    assert not torch.equal(slope, other)


def test_the_switch(monkeypatch):
    """0 switches everything off, a value that means nothing raises."""
    variant, x = gv.get("dapo"), with_advantages(random_case(0), gv.get("dapo")).tokens()
    monkeypatch.setattr(blocks, "_over_blocks", None)
    monkeypatch.setenv("GRPO_VARIANTS_FAST", "0")
    gv.policy_loss(variant, x)
    monkeypatch.setenv("GRPO_VARIANTS_FAST", "yes")
    with pytest.raises(ValueError, match="GRPO_VARIANTS_FAST='yes' is unknown; allowed: 0, 1, compile"):
        gv.policy_loss(variant, x)
    monkeypatch.delenv("GRPO_VARIANTS_FAST")
    with pytest.raises(TypeError):
        gv.policy_loss(variant, x)


def test_a_wrong_shape_is_refused_with_the_plain_paths_words():
    x = with_advantages(random_case(0), gv.get("dapo")).tokens()
    with pytest.raises(ValueError, match=r"old_logp has shape \[3, 6\]; allowed with logp \[9, 6\]: \[B, T\]"):
        gv.policy_loss("dapo", replace(x, old_logp=x.old_logp[:3]))


def test_a_missing_input_is_named_as_in_the_plain_path():
    x = with_advantages(random_case(0), gv.get("grpo")).tokens()
    with pytest.raises(ValueError, match="grpo's kl=k3 needs ref_logp="):
        gv.policy_loss("grpo", replace(x, ref_logp=None))
    with pytest.raises(ValueError, match=r"ratio\.anchor=rollout needs rollout_logp="):
        gv.policy_loss("dapo,ratio.anchor=rollout", replace(x, rollout_logp=None))


# Compiled


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["dapo", "grpo,conventions=verl", "gspo", "cispo"])
def test_compiled_equals_plain(spec):
    variant = gv.get(spec)
    torch._dynamo.reset()
    for seed in (0, 1):
        x = with_advantages(random_case(seed, rows=9 - seed), variant, torch.float32).tokens(torch.float32)
        wanted, slope = both(variant, x)[0]
        leaf = x.logp.detach().clone().requires_grad_()
        with fast_paths.mode("compile"):
            found = gv.policy_loss(variant, replace(x, logp=leaf))
        found.loss.backward()
        assert_close(found.loss, wanted.loss, rtol=1e-5, atol=1e-6)
        assert_close(leaf.grad, slope, rtol=1e-4, atol=1e-7)
        assert_close(dict(found.metrics), dict(wanted.metrics), rtol=1e-5, atol=1e-6)
        assert_close(dict(found.extrema), dict(wanted.extrema), rtol=1e-5, atol=1e-6)


def test_without_a_compiler_it_runs_uncompiled_and_says_so(log, monkeypatch):
    from grpo_variants.objective.fast import compiled as module

    def missing(*_):
        raise RuntimeError("No working C++ compiler found\nlong story")

    monkeypatch.setattr(module, "_broken", [])
    monkeypatch.setattr(module, "_graph", lambda variant: missing)
    variant, x = gv.get("dapo"), with_advantages(random_case(0), gv.get("dapo")).tokens()
    with fast_paths.mode("compile"):
        found = [gv.policy_loss(variant, x).loss for _ in range(2)]
    assert_close(found[0], gv.policy_loss(variant, x).loss, rtol=0, atol=0)
    assert [(r.levelname, r.message) for r in log.records] == [
        ("WARNING", "torch.compile does not work here (No working C++ compiler found): not compiled.")
    ]


def test_a_variant_without_derivatives_by_hand_says_that_it_is_not_compiled(log):
    variant, x = gv.get("aspo"), with_advantages(random_case(0), gv.get("aspo")).tokens()
    with fast_paths.mode("compile"):
        gv.policy_loss(variant, x)
    assert "aspo: not compiled, no derivative by hand for surrogate Aspo on TokenRatio." in log.text


# Costs that do not depend on what else the machine does


def step_of(rows, width):
    g = torch.Generator().manual_seed(0)
    logp = -1 - torch.rand(rows, width, generator=g)
    x = gv.Tokens(
        logp=logp.requires_grad_(),
        old_logp=logp.detach() + 0.2 * torch.randn(rows, width, generator=g),
        mask=torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=g),
        advantages=torch.randn(rows, generator=g),
    )
    counts = gv.Counts.of(x.mask)

    def run():
        x.logp.grad = None
        gv.policy_loss("dapo", x, counts).loss.backward()

    return run


def test_peak_and_synchronisations():
    """At most 2 tensors of [B, T] beyond the inputs, gradient included, with 16 blocks; the plain path needs ten."""
    run = step_of(256, 8192)
    assert peak_bytes(run) <= 2 * 4 * 256 * 8192
    with fast_paths.mode("0"):
        assert peak_bytes(run) >= 8 * 4 * 256 * 8192
    assert counted(run)[1] == 0
