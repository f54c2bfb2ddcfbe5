"""Authors' rules of the members with a credit, a median, several reward functions or a verdict, written down once more.

Each rule is in plain numbers and loops, from the place that its docstring names; it knows nothing of the package's
parts. Losses are compared far off policy, with their gradient, for advantages of both signs.
"""

from collections.abc import Callable
from statistics import mean, stdev

import numpy as np
import pytest
import torch
from support.authors import CLOSE, Step, flat, of_the_package, of_the_rule, ppo, step, tokens
from torch import Tensor

import grpo_variants as gv
from grpo_variants import fast_paths

# Two prompts with right and wrong responses, interleaved.
PROMPTS = [*"aababbaab"]
RIGHT = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0]


def of_prompt(prompt: str) -> list[int]:
    return [i for i, other in enumerate(PROMPTS) if other == prompt]


# GRPO-S


def grpo_s_code(entropies: list[list[float]]) -> list[float]:
    """bliskavets/aiim_research, entropy_utils.py and grpo_s_trainer.py, without its clip of the entropies."""
    heights, found = [mean(row) for row in entropies], [0.0] * len(entropies)
    for members in map(of_prompt, "ab"):
        rewards = [RIGHT[i] for i in members]
        right = [i for i in members if RIGHT[i] - mean(rewards) > 0]
        wrong = [i for i in members if i not in right]
        shaped = {}
        for i in right:
            shaped[i] = 1 + 0.1 * len(right) * heights[i] / sum(heights[k] for k in right)
        for i in wrong:
            shaped[i] = -(1 + 0.1 * len(wrong) * (1 / heights[i]) / sum(1 / heights[k] for k in wrong))
        centre, deviation = mean(shaped.values()), max(stdev(shaped.values()), 1e-8)
        for i in members:
            found[i] = (shaped[i] - centre) / deviation
    return found


def test_grpo_s_advantages_are_those_of_the_implementation():
    random = np.random.default_rng(3)
    entropies = [list(random.exponential(0.7, n)) for n in random.integers(1, 6, len(PROMPTS))]
    mask = torch.zeros(len(PROMPTS), 6, dtype=torch.bool)
    padded = torch.full(mask.shape, torch.nan, dtype=torch.float64)
    for i, row in enumerate(entropies):
        mask[i, : len(row)] = True
        padded[i, : len(row)] = torch.tensor(row, dtype=torch.float64)
    rewards = torch.tensor(RIGHT, dtype=torch.float64)
    found = gv.advantages("grpo_s", rewards, PROMPTS, mask=mask, entropy=padded)
    # It holds the deviation above 1e-8, where the package adds 1e-8, the paper's epsilon.
    expected = torch.tensor(grpo_s_code(entropies), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=3e-8, atol=1e-12)
    assert (found.sign() == (2 * rewards - 1)).all()


def test_by_side_a_wrong_response_can_get_a_positive_advantage():
    inputs = {"mask": torch.ones(4, 1), "entropy": torch.tensor([[0.1], [0.3], [0.2], [0.6]], dtype=torch.float64)}
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    # Shaped 1.05, 1.15, -1.15, -1.05, of mean 0 and variance (2 * 1.05^2 + 2 * 1.15^2)/3.
    unit = (2 * (1.05**2 + 1.15**2) / 3) ** 0.5
    whole = torch.tensor([1.05, 1.15, -1.15, -1.05], dtype=torch.float64) / unit
    near = {"rtol": 1e-6, "atol": 0.0}
    torch.testing.assert_close(gv.advantages("grpo_s", rewards, [0] * 4, **inputs), whole, **near)
    found = gv.advantages("grpo_s,credit.over=side", rewards, [0] * 4, **inputs)
    torch.testing.assert_close(found, 0.5**0.5 * torch.tensor([-1.0, 1, -1, 1], dtype=torch.float64), **near)


def grpo_s_loss(x: Step) -> Tensor:
    """bliskavets/aiim_research, grpo_s_trainer.py: the clip of the mean of a response's token ratios."""
    rows = tokens(x)
    means = [sum((lp - old).exp() for lp, _, old, _ in row) / len(row) for row in rows]
    return sum(ppo(w, row[0][1], 0.8, 1.2) for w, row in zip(means, rows, strict=True)) / len(rows)


# MC-GRPO


def lower_median(numbers: list[float]) -> float:
    """torch.median: an element, the lower one of the two in the middle."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def mc_grpo_code(rewards: list[float], *, gsm8k: bool) -> list[float]:
    """lotusroot-kim/MC-GRPO, grpo_trainer_gsm.py 2010 to 2110 and grpo_trainer_math.py, one prompt."""
    centre = lower_median(rewards)
    scale = lower_median([abs(r - centre) for r in rewards]) + 1e-3
    found = [(r - centre) / scale for r in rewards]
    alive = sum(abs(a) > 1e-6 for a in found)
    if gsm8k and alive:
        found = [a * len(rewards) / alive if abs(a) > 1e-6 else a for a in found]
    return found


GROUPS_OF_REWARDS = (
    [0.0, 0, 1, 1, 0],
    [1.0, 2, 4, 8, 16],
    [0.0, 1, 2, 4],  # even: median 1 and not 1.5, distances 1, 0, 1, 3 of median 1
    [1.0, 1, 1],
    [2.0, 0, 0, 2],
    [-0.3, 0.1, 7, 0.1, 0.10000000001, 2],  # one distance is far below 1e-6 of the scale
)


@pytest.mark.parametrize(("spec", "gsm8k"), [("mc_grpo", False), ("mc_grpo,scale.compensate=group", True)])
def test_mc_grpo_advantages_are_the_authors(spec, gsm8k):
    rewards = [r for group in GROUPS_OF_REWARDS for r in group]
    ids = [g for g, group in enumerate(GROUPS_OF_REWARDS) for _ in group]
    expected = [a for group in GROUPS_OF_REWARDS for a in mc_grpo_code(group, gsm8k=gsm8k)]
    order = np.random.default_rng(0).permutation(len(ids))
    found = gv.advantages(spec, torch.tensor(rewards, dtype=torch.float64)[order], [ids[i] for i in order])
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64)[order], **CLOSE)


def test_mc_grpo_of_two_right_of_five():
    rewards = torch.tensor(GROUPS_OF_REWARDS[0], dtype=torch.float64)
    near = {"rtol": 1e-12, "atol": 0.0}
    for spec, size in (("mc_grpo", 1000.0), ("mc_grpo,scale.compensate=group", 2500.0)):
        torch.testing.assert_close(gv.advantages(spec, rewards, [0] * 5), size * rewards, **near)


def test_mc_grpo_of_0_1_0_takes_the_mean_of_the_middle_two():
    found = gv.advantages(
        "mc_grpo,baseline.even=mean,scale.even=mean", torch.tensor([0.0, 1, 2, 4], dtype=torch.float64), [0] * 4
    )
    expected = torch.tensor([-1.5, -0.5, 0.5, 2.5], dtype=torch.float64) / 1.001
    torch.testing.assert_close(found, expected, **CLOSE)


def mc_grpo_loss(x: Step) -> Tensor:
    """TRL 0.26's loss_type grpo under the recipes: k3 with 0.04, the mean over a response's tokens, then over those."""
    total = 0.0
    rows = tokens(x)
    for row in rows:
        k3 = sum((ref - lp).exp() - (ref - lp) - 1 for lp, _, _, ref in row)
        total = total + (sum(ppo((lp - old).exp(), a, 0.8, 1.2) for lp, a, old, _ in row) + 0.04 * k3) / len(row)
    return total / len(rows)


# GDPO


def standardised(numbers: list[float], eps: float = 1e-4) -> list[float]:
    return [(n - mean(numbers)) / (stdev(numbers) + eps) for n in numbers]


def gdpo_code(table: list[list[float]], weights: list[float]) -> list[float]:
    """NVlabs/GDPO, trl-0.18.0-gdpo/trl/trainer/grpo_trainer.py 1221 to 1266; NaN for a reward that is missing."""
    total = [0.0] * len(table)
    if len(weights) > 1:
        for k, weight in enumerate(weights):
            column = [0.0 if np.isnan(row[k]) else row[k] for row in table]
            for members in map(of_prompt, "ab"):
                for i, a in zip(members, standardised([column[i] for i in members]), strict=True):
                    total[i] += weight * a
        return standardised(total)
    for members in map(of_prompt, "ab"):
        for i, a in zip(members, standardised([weights[0] * table[i][0] for i in members]), strict=True):
            total[i] = a
    return total


def gdpo_table(functions: int) -> list[list[float]]:
    """Rewards of very different sizes, one of them flat within a prompt."""
    random = np.random.default_rng(8)
    table = random.normal(size=(len(PROMPTS), functions)) * 10.0 ** np.arange(functions)
    table[of_prompt("b"), functions - 1] = 3.0
    return table.tolist()


@pytest.mark.parametrize("weights", [[1.0, 1.0], [2.0, 0.3, 0.5]])
def test_gdpo_advantages_are_the_authors(weights):
    table = gdpo_table(len(weights))
    given = torch.tensor(weights, dtype=torch.float64)
    found = gv.advantages("gdpo", torch.tensor(table, dtype=torch.float64), PROMPTS, reward_weights=given)
    torch.testing.assert_close(found, torch.tensor(gdpo_code(table, weights), dtype=torch.float64), **CLOSE)


def test_gdpo_of_one_reward_function_says_so_and_how_to_have_the_authors():
    rewards = [row[0] for row in gdpo_table(2)]
    expected = torch.tensor(gdpo_code([[r] for r in rewards], [0.7]), dtype=torch.float64)
    given = {"rewards": torch.tensor(rewards, dtype=torch.float64), "groups": PROMPTS}
    given["reward_weights"] = torch.tensor([0.7], dtype=torch.float64)
    torch.testing.assert_close(gv.advantages("gdpo,credit=outcome", **given), expected, **CLOSE)
    with pytest.warns(UserWarning, match="single") as caught:
        found = gv.advantages("gdpo", **given)
    assert [str(w.message) for w in caught] == [
        "gdpo: credit=decoupled normalises a single reward function twice, where the authors' code (NVlabs/GDPO) is "
        "plain GRPO. Set credit=outcome for that."
    ]
    assert caught[0].filename == __file__
    a = [0.7 * n for n in gdpo_code([[r] for r in rewards], [1.0])]
    torch.testing.assert_close(found, torch.tensor(standardised(a), dtype=torch.float64), **CLOSE)


def test_a_missing_reward_is_left_out_of_gdpos_statistics_where_the_authors_count_0():
    table = [[1.0, 0.0], [3.0, 1.0], [float("nan"), 0.0], [2.0, 1.0]]
    first = [(n - 2) / (1 + 1e-4) for n in (1, 3, 2, 2)]  # of 1, 3 and 2; the response without one adds nothing
    second = [n / ((1 / 3) ** 0.5 + 1e-4) for n in (-0.5, 0.5, -0.5, 0.5)]
    expected = standardised([x + y for x, y in zip(first, second, strict=True)])
    found = gv.advantages("gdpo", torch.tensor(table, dtype=torch.float64), [0] * 4)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), **CLOSE)
    filled = torch.tensor(table, dtype=torch.float64).nan_to_num(0.0)
    theirs = standardised(
        [x + y for x, y in zip(standardised([1.0, 3.0, 0.0, 2.0]), standardised([0.0, 1, 0, 1]), strict=True)]
    )
    torch.testing.assert_close(
        gv.advantages("gdpo", filled, [0] * 4), torch.tensor(theirs, dtype=torch.float64), **CLOSE
    )


def clipped_sequence_mean(x: Step) -> Tensor:
    """arXiv 2601.05242, equations 3 and 5: PPO's clip, the mean over a response's tokens, then over responses."""
    rows = tokens(x)
    return sum(sum(ppo((lp - old).exp(), a, 0.8, 1.2) for lp, a, old, _ in row) / len(row) for row in rows) / len(rows)


def gdpo_trl(x: Step) -> Tensor:
    """NVlabs/GDPO, its recipe for TRL under grpo_config.py's defaults: k3 with 0.04 and the mean over tokens."""
    batch = flat(x)
    total = sum(
        ppo((lp - old).exp(), a, 0.8, 1.2) + 0.04 * ((ref - lp).exp() - (ref - lp) - 1) for lp, a, old, ref in batch
    )
    return total / len(batch)


# PSR, NSR


def verdict_code(sign: int) -> Callable[[Step], Tensor]:
    """TianHongZXY/RLVR-Decomposed, ray_trainer.py 1192 to 1200 and core_algos.py 111 to 154, 319 to 364.

    Rewards are 0 and 1; here a response is right where the advantage of the shared step is above 0.
    """

    def rule(x: Step) -> Tensor:
        kept = [row for row in tokens(x) if (row[0][1] > 0) == (sign > 0)]
        batch = [token for row in kept for token in row]
        return sum(ppo((lp - old).exp(), sign, 0.8, 1.2) for lp, _, old, _ in batch) / len(batch)

    return rule


@pytest.mark.parametrize(("name", "sign"), [("psr", 1), ("nsr", -1)])
@pytest.mark.parametrize("spread", [0.02, 0.8, 2.5])
@pytest.mark.parametrize("mode", ["0", "1"])
def test_psr_and_nsr_are_the_authors(name, sign, spread, mode):
    for seed in range(4):
        x = step(seed, spread)
        expected = of_the_rule(verdict_code(sign), x)
        own = gv.advantages(name, (x["advantages"] > 0).double(), [0] * len(x["mask"]))
        assert set(own.tolist()) == {0.0, float(sign)}
        with fast_paths.mode(mode):
            torch.testing.assert_close(of_the_package(name, {**x, "advantages": own}), expected, **CLOSE)
            _, diluted = of_the_package(f"{name},aggregation.rows=all", {**x, "advantages": own})
        share = x["mask"][own != 0].sum() / x["mask"].sum()
        torch.testing.assert_close(diluted, expected[1] * share.double(), rtol=1e-6, atol=1e-11)


def test_a_dropped_response_leaves_with_its_kl_term_and_micro_batches_add_up():
    x = step(7)
    x["advantages"] = (x["advantages"] > 0).double()
    kept = x["advantages"] != 0
    spec = "psr,kl=k3,kl.beta=0.1"
    expected = of_the_package("w_reinforce,kl=k3,kl.beta=0.1", {name: value[kept] for name, value in x.items()})
    loss, gradient = of_the_package(spec, x)
    torch.testing.assert_close((loss, gradient[kept]), expected, **CLOSE)
    assert gradient[~kept].eq(0).all()
    counts = gv.Counts.of(x["mask"] & kept[:, None])
    halves = [gv.Tokens(**{name: value[rows] for name, value in x.items()}) for rows in (slice(0, 5), slice(5, None))]
    torch.testing.assert_close(sum(gv.policy_loss(spec, half, counts).loss for half in halves), loss, **CLOSE)


@pytest.mark.parametrize("name", ["psr", "nsr"])
def test_a_batch_without_the_kind_that_is_learnt_from_has_loss_0(name):
    x = step(2)
    x["advantages"] = torch.zeros(len(x["mask"]), dtype=torch.float64)
    loss, gradient = of_the_package(name, x)
    assert loss == 0
    assert gradient.eq(0).all()


# Losses by the spec that runs them.
LOSSES: dict[str, Callable[[Step], Tensor]] = {
    "grpo_s": grpo_s_loss,
    "mc_grpo": mc_grpo_loss,
    "gdpo": clipped_sequence_mean,
    "gdpo,kl=k3,kl.beta=0.04,aggregation=token_mean": gdpo_trl,
}


@pytest.mark.parametrize("spec", LOSSES)
@pytest.mark.parametrize("spread", [0.02, 0.2, 0.8, 2.5])
def test_loss_and_gradient_are_the_authors(spec, spread):
    for seed in range(6):
        x = step(seed, spread)
        torch.testing.assert_close(of_the_package(spec, x), of_the_rule(LOSSES[spec], x), **CLOSE)
