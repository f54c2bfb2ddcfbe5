"""The chunked LM head against the head written out: values, gradients, what is computed, what is held in memory."""

import math
import re
from pathlib import Path

import pytest
import torch
from support.cases import variants as cases
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import grpo_variants as gv
from grpo_variants.lm_head import head as lm_head
from grpo_variants.lm_head.head import LMHead, PrecomputedGradient
from grpo_variants.lm_head.token_gradient import per_token, precompute

ROOT = Path(__file__).parents[2]
N, H, V = 7, 5, 11

OPTIONS = [
    {},
    {"temperature": 0.7},
    {"scale": 1.3},
    {"softcap": 2.0},
    {"softcap": 1.5, "temperature": 1.4, "scale": 0.8},
]


def operands(dtype=torch.float64, count=N, bias=True, spread=1.5):
    hidden = (spread * torch.randn(count, H, dtype=torch.float64)).to(dtype).requires_grad_()
    weight = torch.randn(V, H, dtype=torch.float64).to(dtype).requires_grad_()
    offset = torch.randn(V, dtype=torch.float64).to(dtype).requires_grad_() if bias else None
    return hidden, weight, offset, torch.randint(V, (count,))


def written_out(hidden, weight, bias, targets, *, temperature=1.0, softcap=None, scale=1.0):
    """The definition: every logit, then log-softmax, in the operands' dtype."""
    z = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    z = z * scale
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    logp = torch.log_softmax(z / temperature, -1)
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), -(logp.exp() * logp).sum(-1)


def scores(hidden, weight, bias, targets, precomputed=None, **options):
    out = LMHead(weight=weight, bias=bias, **options)(hidden, targets, precomputed=precomputed)
    return out.logp, out.entropy


def gradients(values, inputs, upstream):
    """Gradients of sum(upstream * values), None for an input that does not ask for one."""
    loss = sum((g * value).sum() for g, value in zip(upstream, values, strict=True) if g is not None)
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(loss, wanted, retain_graph=True))
    return [next(found) if x is not None and x.requires_grad else None for x in inputs]


@pytest.fixture
def projected(monkeypatch):
    """How many rows each product with the head's weight has had."""
    rows, original = [], lm_head._product
    monkeypatch.setattr(lm_head, "_product", lambda a, b, out: rows.append(len(a)) or original(a, b, out))
    return rows


@pytest.fixture
def differentiated(monkeypatch):
    """How many rows have gone into the gradients' products."""
    rows, original = [], lm_head._Sums.add
    monkeypatch.setattr(
        lm_head._Sums,
        "add",
        lambda self, work, d, hidden, at: rows.append(len(d)) or original(self, work, d, hidden, at),
    )
    return rows


@pytest.mark.parametrize("chunk", [1, 3, 7, 100, None])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values_and_gradients_are_those_of_the_head_written_out(options, chunk):
    inputs = operands()
    found, wanted = scores(*inputs, chunk=chunk, **options), written_out(*inputs, **options)
    assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    for upstream in ((torch.randn(N), None), (None, torch.randn(N)), (torch.randn(N), torch.randn(N))):
        ours, theirs = (gradients(values, inputs[:3], upstream) for values in (found, wanted))
        assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradcheck(options):
    hidden, weight, bias, targets = operands(count=3)
    assert torch.autograd.gradcheck(
        lambda h, w, b: scores(h, w, b, targets, chunk=2, **options), (hidden, weight, bias)
    )


def test_float32_is_as_close_to_the_truth_as_the_head_written_out():
    inputs = operands(torch.float32, count=64)
    truth = written_out(*(x.double() if x.is_floating_point() else x for x in inputs))
    for ours, plain, true in zip(scores(*inputs, chunk=16), written_out(*inputs), truth, strict=True):
        assert (ours - true).abs().max() <= 2 * (plain - true).abs().max() + 1e-6


@pytest.mark.parametrize("spread", [1.5, 30.0])
def test_bfloat16_errs_no_more_than_the_head_written_out(spread):
    # The head written out in bfloat16 rounds its probabilities too; the truth takes the same rounded operands.
    inputs = operands(torch.bfloat16, count=64, spread=spread)
    upstream = (torch.randn(64), None)
    exact = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    true = written_out(*exact)
    ours, plain = scores(*inputs, chunk=16), written_out(*inputs)
    assert ours[0].dtype == torch.float32
    assert (ours[0] - true[0]).abs().max() <= (plain[0] - true[0]).abs().max()
    wanted = gradients(true, exact[:3], upstream)
    for o, p, t in zip(
        gradients(ours, inputs[:3], upstream), gradients(plain, inputs[:3], upstream), wanted, strict=True
    ):
        assert o.dtype == torch.bfloat16
        assert (o - t).norm() <= 1.05 * (p - t).norm()


def test_near_certainty_a_low_precision_keeps_the_difference():
    # Two words whose logits differ by 8: p = 0.99966 rounds to 1 in bfloat16, and 1 - p = 3.35e-4 is the gradient.
    hidden = torch.tensor([[8.0]], dtype=torch.bfloat16)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16, requires_grad=True)
    scores(hidden, weight, None, torch.tensor([0]))[0].backward()
    assert weight.grad[0].item() == pytest.approx(8 * 3.3535e-4, rel=1e-2)


def test_autocast_is_followed_by_the_products_and_by_nothing_else():
    inputs = operands(torch.float32)
    low = [x.detach().bfloat16().requires_grad_() if x.is_floating_point() else x for x in inputs]
    upstream = (torch.randn(N), None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = scores(*inputs)
        precomputed = scores(*inputs, precomputed=PrecomputedGradient(lambda logp, at: upstream[0][at]))
    assert_close(found, scores(*low), rtol=0, atol=3e-2)  # the bias is not rounded here
    assert (found[0] - scores(*inputs)[0]).abs().max() > 1e-3
    assert_close(precomputed, found, rtol=0, atol=0)
    gradient = gradients(found, inputs[:3], upstream)
    assert {g.dtype for g in gradient} == {torch.float32}
    assert_close(gradients(precomputed, inputs[:3], upstream), gradient)
    for ours, rounded in zip(gradient, gradients(scores(*low), low[:3], upstream), strict=True):
        assert (ours - rounded).norm() <= 2e-2 * rounded.norm()


def test_the_dtype_of_the_products_can_be_chosen():
    inputs = operands(torch.float32)
    low = [x.bfloat16() if x.is_floating_point() else x for x in inputs]
    assert_close(scores(*inputs, dtype=torch.bfloat16)[0], scores(*low)[0], rtol=0, atol=1e-2)
    assert not torch.equal(scores(*inputs, dtype=torch.bfloat16)[0], scores(*inputs)[0])
    assert_close(
        scores(*low, dtype=torch.float32)[0], scores(*(x.float() if x.is_floating_point() else x for x in low))[0]
    )


def test_large_logits_stay_finite():
    # Logits 1000 and 0: log p of the second word is -1000, its entropy 0.
    weight = torch.tensor([[1000.0], [0.0]], requires_grad=True)
    logp, entropy = scores(torch.ones(2, 1), weight, None, torch.tensor([0, 1]))
    assert_close(logp, torch.tensor([0.0, -1000.0]))
    assert_close(entropy, torch.zeros(2))
    logp.sum().backward()
    assert_close(weight.grad, torch.tensor([[-1.0], [1.0]]))  # of the second token alone


def test_tied_weights_get_both_gradients():
    table = torch.randn(V, H, dtype=torch.float64, requires_grad=True)
    words, targets = torch.randint(V, (N,)), torch.randint(V, (N,))
    found = torch.autograd.grad(scores(table[words].tanh(), table, None, targets)[0].sum(), table)
    assert_close(found, torch.autograd.grad(written_out(table[words].tanh(), table, None, targets)[0].sum(), table))


@pytest.mark.parametrize("trained", [(True, False, False), (False, True, False), (False, False, True)])
@pytest.mark.parametrize("known", [False, True])
def test_only_what_is_trained_gets_a_gradient(trained, known):
    inputs = operands()
    for x, wanted in zip(inputs, trained, strict=False):
        x.requires_grad_(wanted)
    slope = torch.randn(N, dtype=torch.float64)
    found = scores(*inputs, precomputed=PrecomputedGradient(lambda logp, at: slope[at]) if known else None)
    upstream = (slope, None)
    ours, theirs = (gradients(v, inputs[:3], upstream) for v in (found, written_out(*inputs)))
    assert [g is not None for g in ours] == list(trained)
    assert_close(ours, theirs)


def test_a_frozen_head_makes_no_product_with_the_weights_shape():
    hidden, weight, _, targets = operands()
    weight.requires_grad_(False)
    with Sizes() as seen:
        scores(hidden, weight, None, targets, chunk=2)[0].sum().backward()
    assert (V, H) not in seen.shapes


class Sizes(TorchDispatchMode):
    """The shapes of everything that is computed."""

    def __init__(self):
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor) and "view" not in func.name() and func.name() != "aten::t":
                self.shapes.add(tuple(value.shape))
        return out


@pytest.mark.parametrize("known", [False, True])
def test_memory_does_not_grow_with_the_number_of_tokens(known):
    count = 300
    hidden, weight, bias, targets = operands(count=count)
    slope = torch.ones(count, dtype=torch.float64)
    precomputed = PrecomputedGradient(lambda logp, at: slope[at]) if known else None
    with Sizes() as seen:
        scores(hidden, weight, bias, targets, chunk=4, precomputed=precomputed)[0].sum().backward()
    assert max(shape[0] for shape in seen.shapes if V in shape and shape not in ((V, H), (H, V), (V,))) <= V
    assert max(math.prod(shape) for shape in seen.shapes) == count * H < count * V


# Masks


def test_masked_positions_are_not_computed_and_reach_nothing(projected):
    hidden, weight, bias, targets = operands(count=6)
    mask = torch.tensor([True, False, True, True, False, False])
    with torch.no_grad():
        hidden[1], hidden[4] = float("nan"), float("inf")
    out = LMHead(weight=weight, bias=bias)(hidden.view(2, 3, H), targets.view(2, 3), mask=mask.view(2, 3))
    assert projected == [3]
    assert out.logp.flatten()[~mask].tolist() == out.entropy.flatten()[~mask].tolist() == [0.0] * 3
    kept = (hidden[mask], weight, bias, targets[mask])
    assert_close(out.logp.flatten()[mask], written_out(*kept)[0])
    found = torch.autograd.grad(out.logp.sum() + out.entropy.sum(), (hidden, weight, bias))
    assert_close(found[0][~mask], torch.zeros(3, H, dtype=torch.float64))
    logp, entropy = written_out(*kept)
    assert_close(found, torch.autograd.grad(logp.sum() + entropy.sum(), (hidden, weight, bias)))


def test_nan_at_a_valid_position_stays_visible():
    hidden, weight, bias, targets = operands()
    with torch.no_grad():
        hidden[2, 0] = float("nan")
    logp, entropy = scores(hidden, weight, bias, targets, chunk=2)
    assert logp.isnan().tolist() == entropy.isnan().tolist() == [i == 2 for i in range(N)]
    logp.sum().backward()
    assert weight.grad.isnan().all()
    assert hidden.grad.isnan().any(1).tolist() == [i == 2 for i in range(N)]


def test_nothing_to_score_still_runs_backward():
    hidden, weight, bias, targets = operands()
    out = LMHead(weight=weight, bias=bias)(hidden, targets, mask=torch.zeros(N, dtype=torch.bool))
    (out.logp.sum() + out.entropy.sum()).backward()
    assert hidden.grad.tolist() == torch.zeros(N, H).tolist()
    assert weight.grad.tolist() == torch.zeros(V, H).tolist()


def test_a_token_without_gradient_is_not_projected_again(projected, differentiated):
    inputs = operands()
    upstream = torch.tensor([0.0, 1.0, 0.0, -2.0, 0.0, 0.0, 0.5], dtype=torch.float64)
    found = gradients(scores(*inputs, chunk=2), inputs[:3], (upstream, None))
    assert projected == [2, 2, 2, 1, 2, 1]
    assert differentiated == [2, 1]
    assert_close(found, gradients(written_out(*inputs), inputs[:3], (upstream, None)))


def test_an_entropy_gradient_alone_is_enough_to_be_projected(projected):
    inputs = operands()
    upstream = (torch.zeros(N), torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    found = gradients(scores(*inputs), inputs[:3], upstream)
    assert projected == [N, 1]
    assert_close(found, gradients(written_out(*inputs), inputs[:3], upstream))


# PrecomputedGradient


@pytest.mark.parametrize("factor", [1.0, -0.25, 3e4])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_precomputed_gradient_is_used_up_to_a_factor(options, factor, projected):
    inputs, precomputed = operands(), PrecomputedGradient(lambda logp, at: logp.exp() * (2.0 + torch.arange(N)[at]))
    found = scores(*inputs, precomputed=precomputed, chunk=3, **options)
    upstream = (factor * found[0].detach().exp() * (2.0 + torch.arange(N)), None)
    ours = gradients(found, inputs[:3], upstream)
    assert (precomputed.mismatched, sum(projected)) == (False, N)
    assert_close(ours, gradients(written_out(*inputs, **options), inputs[:3], upstream), rtol=1e-10, atol=1e-12)


def test_a_precomputed_zero_makes_no_product(differentiated):
    inputs, slope = operands(), torch.tensor([0.0, 0.0, 0.0, 0.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    found = scores(*inputs, precomputed=PrecomputedGradient(lambda logp, at: slope[at]), chunk=2)
    assert differentiated == [2, 1]
    assert_close(
        gradients(found, inputs[:3], (slope, None)), gradients(written_out(*inputs), inputs[:3], (slope, None))
    )


def test_rows_with_a_gradient_close_up_over_those_without():
    # A chunk of 100 rows is worked on in blocks of four.
    inputs, slope = operands(count=230), torch.randn(230, dtype=torch.float64) * (torch.arange(230) % 7 < 4)
    found = scores(*inputs, precomputed=PrecomputedGradient(lambda logp, at: slope[at]), chunk=100)
    assert_close(
        gradients(found, inputs[:3], (slope, None)), gradients(written_out(*inputs), inputs[:3], (slope, None))
    )


@pytest.mark.parametrize("wrong", ["one token", "entropy", "nothing", "nan"])
def test_a_wrong_precomputed_gradient_is_found_out_and_the_gradient_is_right(wrong):
    inputs, slope = operands(), torch.linspace(-1, 1, N, dtype=torch.float64)
    precomputed = PrecomputedGradient(lambda logp, at: slope[at])
    found = scores(*inputs, precomputed=precomputed)
    changed = slope.clone()
    changed[2] += {"one token": 1e-8, "nan": float("nan")}.get(wrong, 0.0)
    upstream = (None if wrong == "nothing" else changed, torch.ones(N) if wrong in ("entropy", "nothing") else None)
    ours = gradients(found, inputs[:3], upstream)
    assert precomputed.mismatched
    assert_close(ours, gradients(written_out(*inputs), inputs[:3], upstream), equal_nan=True)


def test_a_second_backward_pass_computes_again():
    inputs, slope = operands(), torch.linspace(-1, 1, N, dtype=torch.float64)
    found, wanted = scores(*inputs, precomputed=PrecomputedGradient(lambda logp, at: slope[at])), written_out(*inputs)
    for factor in (3.0, 1.0):
        ours, theirs = (gradients(values, inputs[:3], (factor * slope, None)) for values in (found, wanted))
        assert_close(ours, theirs)


def test_precomputed_gradient_without_gradient_or_tokens_is_harmless(projected):
    hidden, weight, bias, targets = operands()
    with torch.no_grad():
        scores(hidden, weight, bias, targets, precomputed=PrecomputedGradient(lambda logp, at: 1 / 0))
    out = scores(hidden[:0], weight, bias, targets[:0], precomputed=PrecomputedGradient(lambda logp, at: 1 / 0))
    out[0].sum().backward()
    assert weight.grad.abs().sum() == 0


def test_float16_is_refused_with_precomputed_gradient():
    inputs = [x.half() if x.is_floating_point() else x for x in operands()]
    with pytest.raises(ValueError, match="a precomputed gradient is not for float16"):
        scores(*inputs, precomputed=PrecomputedGradient(lambda logp, at: logp))


# PrecomputedGradient from a variant

SPECS = [
    *gv.names(),
    "grpo,kl=k3,kl.beta=0.1",
    "grpo,kl=k3,kl.beta=0.1,kl.weighted=ratio",
    "dapo,correction=token_truncate+geometric_mask,correction.low=0.5,correction.high=2.0",
    "gspo,kl=k2,kl.beta=0.1",
    "grpo,ratio=sequence_product",
    "dr_grpo,ratio.anchor=rollout",
]


@pytest.mark.parametrize("on_policy", [True, False], ids=["on-policy", "off-policy"])
@pytest.mark.parametrize("spec", SPECS)
def test_what_a_variant_precomputes_is_its_gradient(spec, on_policy):
    variant = gv.get(spec)
    case = cases.with_advantages(cases.random_case(3), variant)
    counts = cases.counts_for(variant, case) or gv.Counts.of(torch.as_tensor(case.mask), case.groups)
    case = cases.with_row_weights(variant, case, counts)
    x = case.tokens(**({"old_logp": None} if on_policy else {}))
    hidden = torch.randn(*x.mask.shape, H, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, H, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(V, x.mask.shape)
    precomputed = precompute(variant, x, counts, x.mask)
    assert (precomputed is not None) == per_token(variant, on_policy=on_policy)
    out = LMHead(weight=weight, chunk=5)(hidden, targets, mask=x.mask, precomputed=precomputed)
    found = torch.autograd.grad(gv.policy_loss(variant, with_logp(x, out.logp), counts).loss, (hidden, weight))
    assert precomputed is None or not precomputed.mismatched
    logp = torch.where(x.mask, written_out(hidden, weight, None, targets)[0], 0.0)
    wanted = torch.autograd.grad(gv.policy_loss(variant, with_logp(x, logp), counts).loss, (hidden, weight))
    assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def with_logp(x, logp):
    return gv.Tokens(**{**x.__dict__, "logp": logp})


# Off policy a response's ratio needs the whole response; the others span the batch, draw, or pool logp on policy too.
WAITS = {
    True: {"archer", "forking_tokens", "seq_mis", "deepseek_v32", "topr", "bapo", "m2po", "clip_cov", "kl_cov"},
    False: {"archer", "aspo", "forking_tokens", "deepseek_v32", "topr", "bapo", "m2po", "clip_cov", "kl_cov"}
    | {"gspo", "gspo_token", "grpo_s", "luspo", "vespo", "gmpo", "hmpo", "kimi_k15", "pmd_partition", "fipo"}
    | {"pmd_mean"},
}


@pytest.mark.parametrize("on_policy", [True, False], ids=["on-policy", "off-policy"])
def test_which_variants_foresee(on_policy):
    assert {name for name in gv.names() if not per_token(gv.get(name), on_policy=on_policy)} == WAITS[on_policy]


# Bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LMHead(weight=torch.zeros(0)), r"weight is torch.float32 of shape \[0\]; allowed: floating \[V, H\]"),
        (lambda: LMHead(weight=torch.zeros(4, 2, dtype=torch.uint8)), "weight is torch.uint8"),
        (
            lambda: LMHead(weight=torch.zeros(4, 2), bias=torch.zeros(2)),
            r"bias has shape \[2\]; allowed: \[V\] = \[4\]",
        ),
        (lambda: LMHead(weight=torch.zeros(4, 2), temperature=0.0), "temperature=0.0 is out of range"),
        (lambda: LMHead(weight=torch.zeros(4, 2), softcap=-1.0), "softcap=-1.0 is out of range"),
        (lambda: LMHead(weight=torch.zeros(4, 2), chunk=0), "chunk=0 is out of range"),
        (lambda: LMHead.of(torch.nn.ReLU()), "ReLU has no weight"),
        (
            lambda: LMHead(weight=torch.zeros(4, 2))(torch.zeros(3, 5), torch.zeros(3, dtype=torch.long)),
            r"hidden has shape \[3, 5\]; allowed with targets \[3\] and a head of 2 inputs: \[3, 2\]",
        ),
        (
            lambda: LMHead(weight=torch.zeros(4, 2))(
                torch.zeros(3, 2), torch.zeros(3, dtype=torch.long), mask=torch.ones(3)
            ),
            r"mask is torch.float32 of shape \[3\]; allowed: bool \[3\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_of_a_linear_layer():
    layer = torch.nn.Linear(H, V, dtype=torch.float64)
    hidden, _, _, targets = operands()
    out = LMHead.of(layer, temperature=0.5)(hidden, targets)
    assert_close(out.logp, written_out(hidden, layer.weight, layer.bias, targets, temperature=0.5)[0])


def test_the_example_of_the_docs_runs():
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "performance.md").read_text(), re.DOTALL).group(1)
    model = torch.nn.Linear(H, V)
    model.get_output_embeddings = lambda: model
    mask = torch.tensor([[True, True, False], [True, True, True]])
    names = {
        "gv": gv,
        "torch": torch,
        "model": model,
        "mask": mask,
        "hidden": torch.randn(2, 3, H),
        "targets": torch.randint(V, (2, 3)),
        "old_logp": -torch.rand(2, 3),
        "advantages": torch.tensor([1.0, -1.0]),
        "variant": gv.get("dr_grpo,aggregation.length=3"),
        "counts": gv.Counts.of(mask),
    }
    exec(block, names)
    wanted = written_out(names["hidden"], model.weight, model.bias, names["targets"], temperature=0.9)[0]
    assert_close(names["scores"].logp, torch.where(mask, wanted, 0.0))
