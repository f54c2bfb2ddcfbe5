"""TRL's column of docs/trainer-differences.md, out of TRL's own code: if TRL fixes a number, its test here fails."""

import math

import pytest
import torch
from support.parity import words
from support.trl.stock_loss import own_loss, stock_loss

import grpo_variants as gv


def tokens(logp, advantages, mask=None, **given):
    """A micro-batch from nested lists; what is not given is on policy and equal to the reference."""
    logp = torch.tensor(logp)
    same = dict.fromkeys(("old_logp", "ref_logp", "rollout_logp", "entropy"), logp)
    mask = torch.ones_like(logp) if mask is None else torch.tensor(mask)
    return {**same, **given, "logp": logp, "advantages": torch.tensor(advantages), "mask": mask.bool()}


def one_token(advantage=0.0, log_ratio=0.0, u=0.0):
    """A response of one token."""
    logp = torch.tensor([[-1.0 - u]])
    return tokens(logp.tolist(), [advantage], old_logp=logp - log_ratio, ref_logp=logp + u)


def in_trl(batch, **flags):
    """TRL's loss and gradient."""
    loss, gradient, _ = stock_loss(batch, **flags)
    return [loss.item(), *gradient.flatten().tolist()]


def here(spec, batch, counts=None):
    """The package's loss and gradient."""
    out, gradient = own_loss(spec, batch, counts)
    return [out.loss.item(), *gradient.flatten().tolist()]


K3 = "grpo,kl=k3,kl.beta=1"
PLAIN = {"beta": 1.0, "use_bias_correction_kl": False}
# What is compared: our spec, TRL's flags beside loss_type='grpo', the token, and loss and gradient on both sides.
ONE_TOKEN = {
    "loss and gradient at log ratio 25, A = -1": (
        "grpo,kl=none",
        {},
        {"advantage": -1.0, "log_ratio": 25.0},
        [math.exp(20), 0],
        [math.exp(25), math.exp(25)],
        "no bound on the log ratio; here it is 20",
    ),
    "loss and gradient of k3 at u = 100": (
        K3,
        PLAIN,
        {"u": 100.0},
        [math.exp(20) - 21, 0],
        [math.inf, -math.inf],
        "u has no bound; here it is 20",
    ),
    # With u = 1 and a ratio of 2: 2 (e - 2) and 2 (1 - e) + 2 (e - 2) = -2; without the ratio e - 2 and 1 - e.
    "loss and gradient of k3 at u = 1, ratio 2": (
        K3,
        {"beta": 1.0},
        {"u": 1.0, "log_ratio": math.log(2)},
        [math.e - 2, 1 - math.e],
        [2 * (math.e - 2), -2],
        "use_bias_correction_kl is on by default: the KL is multiplied by the ratio",
    ),
    "loss and gradient at ratio 1.25, A = 1": (
        "dapo",
        {},
        {"advantage": 1.0, "log_ratio": math.log(1.25)},
        [-1.25, -1.25],
        [-1.2, 0],
        "epsilon_high is epsilon unless it is set, so that DAPO's 0.28 is 0.2",
    ),
}


@pytest.mark.parametrize("what", ONE_TOKEN)
def test_a_token_has_another_number(parity, what):
    spec, flags, token, ours, theirs, cause = ONE_TOKEN[what]
    flags = {"loss_type": "dapo" if spec == "dapo" else "grpo", **flags}
    batch = one_token(**token)
    pair = {"here": (here(spec, batch), ours), "there": (in_trl(batch, **flags), theirs)}
    parity.differs(spec, words("", flags), what, cause=cause, **pair)


@pytest.mark.parametrize(
    ("spec", "flags", "token", "numbers"),
    [
        ("grpo,kl=none", {}, {"advantage": -1.0, "log_ratio": math.log(5)}, (5, 5)),  # no dual clip
        (K3, PLAIN, {"u": 3.0}, (16.0855, -19.0855)),  # no bound on the KL's value
    ],
)
def test_a_token_has_the_papers_number(spec, flags, token, numbers):
    batch = one_token(**token)
    assert in_trl(batch, loss_type="grpo", **flags) == pytest.approx(numbers, rel=1e-5)
    assert here(spec, batch) == pytest.approx(numbers, rel=1e-5)


def test_nan_under_the_mask_is_nan(parity):
    batch = tokens([[-1.0, math.nan]], [2.0], mask=[[1, 0]])
    parity.differs(
        "grpo",
        "loss_type='grpo', beta=0.04",
        "loss of A = 2 with a NaN under the mask",
        here=(here("grpo", batch)[0], -2),
        there=(in_trl(batch, loss_type="grpo", beta=0.04)[0], math.nan),
        cause="the mask is a factor: NaN times 0",
    )


def test_an_empty_row_counts_in_the_sequence_mean():
    batch = tokens([[0.0], [0.0]], [1.0, 1.0], mask=[[1], [0]])
    assert in_trl(batch, loss_type="grpo")[0] == here("grpo,kl=none", batch)[0] == pytest.approx(-0.5)


def test_the_token_mean_of_two_steps_is_that_of_their_generation(parity):
    """100 and 300 tokens in one generation batch of two steps: a token weighs 1/200 in both, not 1/100 and 1/300."""
    batches = [tokens([[0.0] * length], [1.0]) | {"num_items": torch.tensor(400)} for length in (100, 300)]
    parity.differs(
        "dapo",
        "loss_type='dapo'",
        "gradient of a token, A = 1, in two steps of 100 and 300 tokens of one generation",
        here=([here("dapo", batch)[1] for batch in batches], [-1 / 100, -1 / 300]),
        there=([in_trl(batch, accumulation=1, steps=2, loss_type="dapo")[1] for batch in batches], [-1 / 200] * 2),
        cause="both steps divide by half of the generation's tokens",
    )


def test_bnpo_is_the_mean_of_a_micro_batch(parity):
    """3 tokens and 1 token, in two micro-batches: a token weighs 1/(2 * 3) and 1/(2 * 1), not 1/4."""
    batches = [tokens([[0.0] * length], [1.0]) for length in (3, 1)]
    counts = gv.Counts(tokens=4, sequences=2)
    parity.differs(
        "dapo,surrogate.high=0.2",
        "loss_type='bnpo'",
        "gradient of a token, A = 1, in two micro-batches of 3 and 1 tokens",
        here=([here("dapo,surrogate.high=0.2", batch, counts)[1] for batch in batches], [-1 / 4] * 2),
        there=([in_trl(batch, accumulation=2, steps=2, loss_type="bnpo")[1] for batch in batches], [-1 / 6, -1 / 2]),
        cause="a mean of each micro-batch, then of them: it depends on the split, and so has no counterpart here",
    )
