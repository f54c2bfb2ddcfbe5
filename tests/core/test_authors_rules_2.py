"""Members against the rule that their authors' code follows, written anew from what that code does.

A rule takes one response after the other, as the scripts do whose micro-batch is one response, and lets autograd find
the gradient. The step has responses of 1 to 9 tokens, log ratios up to 1.5 and beyond every bound, both signs of A.
"""

import math

import pytest
import torch
from torch.testing import assert_close

import grpo_variants as gv

EXACT = {"rtol": 1e-9, "atol": 1e-11}
ROWS, WIDTH, LONGEST = 12, 9, 20


def step(seed=0, spread=0.6):
    """Inputs of `gv.Tokens`, in float64, with holes; logp is a leaf."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.tensor([9, 7, 1, 8, 5, 9, 6, 2, 9, 4, 3, 8])
    mask = (torch.arange(WIDTH) < lengths[:, None]) & (torch.rand(ROWS, WIDTH, generator=generator) < 0.9)
    mask[:, 0] = True
    old = -normal(ROWS, WIDTH).abs() - 4.0
    logp = old + spread * normal(ROWS, WIDTH)
    logp[0, 0], logp[1, 0], logp[3, 0] = old[0, 0] + 2.5, old[1, 0] + 2.5, old[3, 0] - 2.5
    return {
        "logp": logp.requires_grad_(),
        "mask": mask,
        "advantages": torch.tensor([1.5, -0.5, 1.0, 0.7, -1.2, 2.0, -2.0, -0.3, 0.0, 0.4, -1.0, 1.0]).double(),
        "old_logp": old,
        "ref_logp": old + 0.3 * normal(ROWS, WIDTH),
        "rollout_logp": old + 0.1 * normal(ROWS, WIDTH),
        "entropy": normal(ROWS, WIDTH).abs(),
    }


def responses(x):
    """Each response as a dict of its own tokens."""
    for i, here in enumerate(x["mask"]):
        own = {name: x[name][i][here] for name in ("logp", "old_logp", "ref_logp", "rollout_logp", "entropy")}
        yield own | {"a": float(x["advantages"][i]), "ratio": (own["logp"] - own["old_logp"]).clamp(-20, 20).exp()}


def k3(row):
    u = row["ref_logp"] - row["logp"]
    return u.exp() - u - 1


def low_entropy(row):
    """At or below the 80 % quantile of the response's own entropies."""
    return row["entropy"] <= torch.quantile(row["entropy"], 0.8)


def mean_over_responses(rule):
    return lambda x: sum(rule(row) for row in responses(x)) / ROWS


def archer(row):
    """The maximum of two products, cut at 10 for A < 0; the KL is a mean over the tokens of low entropy."""
    low, a, ratio = low_entropy(row), row["a"], row["ratio"]
    clipped = torch.where(low, ratio.clamp(0.8, 1.2), ratio.clamp(0.5, 1.5))
    loss = torch.maximum(-a * ratio, -a * clipped)
    loss = torch.minimum(loss, torch.full_like(loss, -10 * a)) if a < 0 else loss
    return loss.mean() + 0.001 * k3(row)[low].mean()


def aspo(width):
    """Weights by the sign of A, one-sided bounds, a soft cap of 3; a KL of 0.001 over every token."""

    def rule(row):
        a, ratio = row["a"], row["ratio"]
        wide = torch.full_like(ratio, width).masked_fill(low_entropy(row), 0.2)
        if a < 0:
            weight = torch.maximum(ratio, 1 - wide)
            value = -a * weight
        else:
            bounded = torch.minimum(ratio, 1 + wide)
            weight = 1 / bounded.detach()
            value = -a * bounded / bounded.detach() * weight
        loss = torch.where(weight.detach() > 3, -a * 3 * row["logp"], value)
        return loss.mean() + 0.001 * k3(row).mean()

    return rule


def delta_l(alpha):
    """Advantages are rescaled over the whole batch; then every token is divided by rows times the longest length."""

    def rule(x):
        rows = list(responses(x))
        lengths = [len(row["logp"]) for row in rows]
        rare = [(length / (sum(lengths) / ROWS)) ** -alpha for length in lengths]
        total = 0.0
        for row, share in zip(rows, rare, strict=True):
            a, ratio = row["a"] * share / (sum(rare) / ROWS), row["ratio"]
            loss = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.3))
            total = total + (torch.minimum(loss, torch.full_like(loss, -3 * a)) if a < 0 else loss).sum()
        return total / (ROWS * LONGEST)

    return rule


RULES = {
    "archer": mean_over_responses(archer),
    "aspo": mean_over_responses(aspo(0.4)),
    # The paper's single range.
    "aspo,surrogate.fraction=none": mean_over_responses(aspo(0.2)),
    "delta_l,surrogate.dual=3": delta_l(0.75),
    "delta_l,surrogate.dual=3,aggregation.alpha=1": delta_l(1),
}


def tokens(x, **changes):
    return gv.Tokens(**(x | changes))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spec", RULES)
def test_loss_and_gradient_are_those_of_the_authors_rule(spec, seed):
    x = step(seed)
    expected = RULES[spec](x)
    (slope,) = torch.autograd.grad(expected, x["logp"])
    counts = gv.Counts.of(x["mask"], length=LONGEST) if "delta_l" in spec else None
    found = gv.policy_loss(spec, tokens(x), counts).loss
    (gradient,) = torch.autograd.grad(found, x["logp"])
    assert slope.abs().max() > 1e-3
    assert_close(found, expected, **EXACT)
    assert_close(gradient, slope, **EXACT)


def gradient_of(spec, log_ratio, advantage, entropy):
    """Gradient of each token of one response, times its length."""
    width = len(entropy)
    logp = torch.full((1, width), -4.0, dtype=torch.float64, requires_grad=True)
    x = gv.Tokens(
        logp=logp,
        mask=torch.ones(1, width, dtype=torch.bool),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        old_logp=logp.detach() - log_ratio,
        ref_logp=logp.detach(),
        entropy=torch.tensor([entropy], dtype=torch.float64),
    )
    gv.policy_loss(spec, x).loss.backward()
    return (logp.grad[0] * width).tolist()


def test_only_tokens_above_the_quantile_have_the_wide_range():
    """Eleven entropies 0 to 10: the 80 % quantile is 8, which is itself a token's, so that 9 and 10 are above it."""
    rising = [float(n) for n in range(11)]
    narrow = [0.0] * 9
    assert gradient_of("archer", math.log(1.3), 1.0, rising) == pytest.approx([*narrow, -1.3, -1.3])
    assert gradient_of("archer", math.log(0.6), -1.0, rising) == pytest.approx([*narrow, 0.6, 0.6])
    assert gradient_of("aspo", math.log(1.3), 1.0, rising) == pytest.approx([*narrow, -1 / 1.3, -1 / 1.3])
    assert gradient_of("aspo", math.log(0.7), -1.0, rising) == pytest.approx([*narrow, 0.7, 0.7])
    # Within the narrow range all learn, beyond the wide one none.
    assert gradient_of("aspo", math.log(1.1), 1.0, rising) == pytest.approx([-1 / 1.1] * 11)
    assert gradient_of("aspo", math.log(1.5), 1.0, rising) == [0.0] * 11
    assert gradient_of("archer", math.log(1.6), 1.0, rising) == [0.0] * 11


def test_equal_entropies_are_all_low():
    assert gradient_of("archer", math.log(1.3), 1.0, [0.5] * 5) == [0.0] * 5


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.3, 0.7])
def test_a_share_that_is_whole_is_not_moved_by_rounding(fraction):
    """Of 101 tokens exactly 100 times the fraction are above the quantile."""
    gradient = gradient_of(f"archer,surrogate.fraction={fraction}", math.log(1.3), 1.0, [n / 3 for n in range(101)])
    assert sum(g != 0 for g in gradient) == round(100 * fraction)


def test_the_first_release_had_one_range_no_kl_and_a_token_mean():
    """What the spec string for it gives: PPO's range of 0.2 for every token, over the count of tokens."""
    x = step()
    before = gv.policy_loss("aspo,surrogate.fraction=none,kl=none,aggregation=token_mean", tokens(x))
    tokens_of = sum(len(row["logp"]) for row in responses(x))
    sums = sum((aspo(0.2)(row) - 0.001 * k3(row).mean()) * len(row["logp"]) for row in responses(x))
    assert_close(before.loss, sums / tokens_of, **EXACT)


# Delta L


@pytest.mark.parametrize(
    ("alpha", "shares"),
    [
        (1, [0.571428571, 0.285714286, 0.142857143]),
        (0.75, [0.513305666, 0.305213375, 0.181480959]),
        (0, [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_the_weights_of_lengths_1_2_and_4(alpha, shares):
    lengths = torch.tensor([1, 2, 4, 0])
    counts = gv.Counts(tokens=7, sequences=4, length=10, lengths=lengths)
    found = gv.row_weights(f"delta_l,aggregation.alpha={alpha}", lengths, counts)
    assert_close(found * 10, torch.tensor([*shares, 0.0]), rtol=1e-6, atol=1e-7)


def test_alpha_0_is_the_constant_length_of_the_responses_with_a_token():
    x = step()
    x["mask"][2] = False
    counts = gv.Counts.of(x["mask"], length=LONGEST)
    found = gv.policy_loss("delta_l,aggregation.alpha=0", tokens(x), counts).loss
    constant = "delta_l,aggregation=constant,aggregation.empty_rows=exclude"
    assert_close(found, gv.policy_loss(constant, tokens(x), counts).loss, **EXACT)


def test_micro_batches_with_the_lengths_of_the_step_add_up_to_it():
    x = step()
    counts = gv.Counts.of(x["mask"], length=LONGEST)
    whole = gv.policy_loss("delta_l", tokens(x), counts).loss
    parts = [tokens({name: value[rows] for name, value in x.items()}) for rows in (slice(0, 5), slice(5, 12))]
    assert_close(sum(gv.policy_loss("delta_l", part, counts).loss for part in parts), whole, **EXACT)
    alone = sum(gv.policy_loss("delta_l", part, gv.Counts.of(part.mask, length=LONGEST)).loss for part in parts)
    assert (alone - whole).abs() > 1e-3


def test_the_lengths_of_the_step_are_asked_for():
    counts = gv.Counts(tokens=7, sequences=3, length=10)
    with pytest.raises(ValueError, match=r"needs counts.lengths, the length of every response of the step; gv.Counts"):
        gv.row_weights("delta_l", torch.tensor([1, 2, 4]), counts)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "archer,surrogate.fraction=1",
            r"surrogate.fraction=1.0 is out of range; allowed: a finite number above 0 and below 1\.",
        ),
        (
            "aspo,surrogate.fraction=0",
            r"surrogate.fraction=0.0 is out of range; allowed: a finite number above 0 and below 1, or none\.",
        ),
        ("archer,kl.exempt=1", "kl.exempt=1.0 is out of range"),
        ("grpo,kl.exempt=0.2,kl.placement=reward", r"set kl.exempt=none, or kl.placement=loss\."),
        ("gspo,surrogate=aspo", r"Choose ratio=token, ratio=sequence_token, or surrogate.fraction=none\."),
    ],
)
def test_what_means_nothing_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        gv.get(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("archer", "surrogate=entropy_clip needs entropy="),
        ("aspo", "needs entropy="),
        ("grpo,kl.exempt=0.2", "kl.exempt"),
    ],
)
def test_entropies_are_asked_for(spec, message):
    with pytest.raises(ValueError, match=message):
        gv.policy_loss(spec, tokens(step(), entropy=None))
