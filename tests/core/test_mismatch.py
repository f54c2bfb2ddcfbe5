"""Diagnostics of the mismatch between rollout engine and trainer, against loops over tokens."""

import math

import pytest
import torch

from grpo_variants.rollout.mismatch import mismatch_extrema, mismatch_report, mismatch_sums

MASK = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0]]).bool()
OLD = torch.tensor([[-1.0, -2.0, -0.5], [-0.1, 9.0, -3.0], [-1.0, -1.0, -1.0], [-2.0, -1.0, float("nan")]])
MU = torch.tensor([[-1.2, -1.5, -0.5], [float("nan"), -1.0, -2.5], [-1.0, -1.0, -1.0], [-2.1, -1.4, -1.0]])
# d at the tokens that the engine scored, by row: 0.2, -0.5, 0; -0.5 (its first one has no number); nothing; 0.1, 0.4.
ROWS = [[0.2, -0.5, 0.0], [-0.5], [0.1, 0.4]]


def report(*batches):
    every = [mismatch_sums(*batch) for batch in batches]
    return mismatch_report({name: sum(sums[name] for sums in every) for name in every[0]})


def test_the_numbers_by_loops():
    flat = [d for row in ROWS for d in row]
    w, products = [math.exp(d) for d in flat], [math.exp(sum(row)) for row in ROWS]
    expected = {
        "mismatch/ratio/mean": sum(w) / 6,
        "mismatch/ess": sum(w) ** 2 / (6 * sum(x * x for x in w)),
        "mismatch/ess/sequence": sum(products) ** 2 / (3 * sum(x * x for x in products)),
        "mismatch/distance": 1.7 / 6,
        "mismatch/kl/k1": 0.3 / 6,
        "mismatch/kl/k3": sum(math.exp(d) - 1 - d for d in flat) / 6,
    }
    found = report((OLD, MU, MASK))
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, abs=1e-6)
    extrema = {name: value.item() for name, value in mismatch_extrema(OLD, MU, MASK).items()}
    assert extrema == pytest.approx({"mismatch/ratio/min": math.exp(-0.5), "mismatch/ratio/max": math.exp(0.4)})


def test_any_split_of_the_step_gives_the_same():
    parts = [(OLD[rows], MU[rows], MASK[rows]) for rows in ([0], [1, 2], [3])]
    for name, value in report((OLD, MU, MASK)).items():
        torch.testing.assert_close(report(*parts)[name], value, msg=name)


def test_equal_probabilities_are_no_mismatch():
    found = report((OLD[:1], OLD[:1], MASK[:1]))
    assert [found[name].item() for name in ("mismatch/ratio/mean", "mismatch/ess", "mismatch/ess/sequence")] == [
        1,
        1,
        1,
    ]
    assert [found[name].item() for name in ("mismatch/distance", "mismatch/kl/k1", "mismatch/kl/k3")] == [0, 0, 0]


def test_an_engine_far_off_counts_as_the_bound_and_a_nan_of_the_trainer_stays_visible():
    """A log weight of 500 is taken as 20, for each token and for their product, so that all weights are equal."""
    far = report((OLD[:1], OLD[:1] - 500, MASK[:1]))
    assert {name: value.item() for name, value in far.items()} == pytest.approx(
        {
            "mismatch/ratio/mean": math.exp(20),
            "mismatch/ess": 1,
            "mismatch/ess/sequence": 1,
            "mismatch/distance": 20,
            "mismatch/kl/k1": -20,
            "mismatch/kl/k3": math.exp(20) - 21,
        }
    )
    broken = OLD[:1].clone()
    broken[0, 1] = float("nan")
    assert math.isnan(report((broken, MU[:1], MASK[:1]))["mismatch/kl/k1"])


def test_k1_and_k3_estimate_the_engines_divergence():
    """Forty thousand draws from an engine's distribution: both estimate KL(engine || trainer), the mean weight is 1."""
    random = torch.Generator().manual_seed(0)
    engine, trainer = (torch.randn(2, 8, generator=random) / 2).log_softmax(-1)
    drawn = torch.multinomial(engine.exp(), 40000, replacement=True, generator=random)
    found = report((trainer[drawn].view(-1, 8), engine[drawn].view(-1, 8), torch.ones(5000, 8).bool()))
    exact = (engine.exp() * (engine - trainer)).sum().item()
    assert exact > 0.05
    assert found["mismatch/kl/k1"].item() == pytest.approx(exact, abs=0.02)
    assert found["mismatch/kl/k3"].item() == pytest.approx(exact, abs=0.02)
    assert found["mismatch/ratio/mean"].item() == pytest.approx(1, abs=0.02)


def test_nothing_synchronises_with_the_host():
    logp = torch.zeros(2, 3, device="meta", requires_grad=True)
    found = mismatch_report(mismatch_sums(logp, logp, torch.ones(2, 3, device="meta").bool()))
    found |= mismatch_extrema(logp, logp, torch.ones(2, 3, device="meta").bool())
    assert {value.shape for value in found.values()} == {torch.Size([])}
    assert not any(value.requires_grad for value in found.values())
