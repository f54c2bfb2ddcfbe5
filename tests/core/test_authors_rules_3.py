"""Members against what their authors wrote and ran: thresholds of a batch, remembered rates, whitening, greedy rewards.

Each rule is written down once more from the place that its docstring names, in plain numbers and loops, with autograd
for the gradient; it knows nothing of the package's parts. Steps are far off policy: every bound is passed, by tokens
whose advantages have both signs.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.authors import CLOSE, Step, Token, flat, of_the_package, of_the_rule, ppo, step, tokens
from torch import Tensor

import grpo_variants as gv


def m2po_code(x: Step, budget: float = 0.04) -> Tensor:
    """Infini-AI-Lab/M2PO, core_algos.py 683 to 867, as its actor calls it: no narrowest range."""
    batch = flat(x)
    harmful = sorted((lp - old).item() ** 2 for lp, a, old, _ in batch if a * (lp - old).item() > 0)
    n, low, high = len(harmful), 0.0, 1e5
    if n and sum(harmful) / n > budget + 1e-12:
        k = next(
            k for k in range(n) if (harmful[k] - 1e-12) * (n - k - 1) + sum(harmful[: k + 1]) >= budget * n - 1e-12
        )
        tau = 0.0 if k == 0 else math.sqrt(max(harmful[k - 1] - 1e-12, 0.0))
        low, high = math.exp(-tau), math.exp(tau)
    return sum(ppo((lp - old).exp(), a, low, high) for lp, a, old, _ in batch) / len(batch)


def m2po_paper(x: Step, budget: float = 0.04) -> Tensor:
    """arXiv 2510.01161, algorithm 1: the largest harmful token is masked until the mean of the others fits."""
    batch = flat(x)
    moved = [(lp - old).item() for lp, _, old, _ in batch]
    left = sorted((d**2, n) for n, (d, (_, a, _, _)) in enumerate(zip(moved, batch, strict=True)) if a * d > 0)
    masked = set()
    while left and sum(square for square, _ in left) / len(left) > budget:
        masked.add(left.pop()[1])
    kept = [-(lp - old).exp() * a for n, (lp, a, old, _) in enumerate(batch) if n not in masked]
    return sum(kept) / len(batch)


def bapo_sums(batch: list[Token], low: float, high: float) -> tuple[float, float]:
    """What positive and negative advantages add to the objective between two bounds."""
    ratios = [(math.exp(min(max((lp - old).item(), -20), 20)), a) for lp, a, old, _ in batch]
    gain = sum(min(rho, high) * a for rho, a in ratios if a >= 0)
    return gain, sum(max(rho, low) * -a for rho, a in ratios if a < 0)


def bapo_code(low: float, low_end: float, high: float, high_end: float, high_step: float, target: float) -> Callable:
    """WooooDyy/BAPO, recipe/bapo/policy_loss.py: the floor goes first, the target is the ratio of the two sums."""

    def rule(x: Step) -> Tensor:
        batch, floor, ceiling = flat(x), low, high

        def ratio() -> float:
            gain, loss = bapo_sums(batch, floor, ceiling)
            return math.inf if loss <= 0 else gain / (loss + 1e-8)

        while ratio() < target and floor < low_end:
            floor = min(floor + 0.05, low_end)
        while ratio() < target and ceiling < high_end:
            ceiling = min(ceiling + high_step, high_end)
        return sum(ppo((lp - old).exp(), a, floor, ceiling, 3.0) for lp, a, old, _ in batch) / len(batch)

    return rule


def bapo_paper(x: Step) -> Tensor:
    """arXiv 2510.18927, algorithm 1, section 5.1: the ceiling by 0.05, then the floor by 0.02, until a share of 0.4."""
    batch, i, j = flat(x), 0, 0
    while True:
        floor, ceiling = 0.6 + 0.02 * i, 1.2 + 0.05 * j
        gain, loss = bapo_sums(batch, floor, ceiling)
        if gain + loss == 0 or gain / (gain + loss) >= 0.4 or i == 15:
            break
        i, j = (i, j + 1) if j < 36 else (i + 1, j)
    return sum(ppo((lp - old).exp(), a, floor, ceiling) for lp, a, old, _ in batch) / len(batch)


def dcpo_token(lp: Tensor, a: float, old: Tensor, low: float, high: float) -> Tensor:
    """lime-RL/DCPO, core_algos.py 978 to 1093, clip_type dynamic with clip_ratio_c = 10."""
    q = math.exp(old.item())
    floor = (1 + math.sqrt(max(1 - 4 * low / q, 0))) / 2
    return ppo((lp - old).exp(), a, floor, min((1 + math.sqrt(1 + 4 * high / q)) / 2, 10), 10)


def dcpo_paper(x: Step) -> Tensor:
    """arXiv 2509.02333, appendix A.9: 0.16 and 0.2; the mean over a response's tokens."""
    rows = tokens(x)
    means = [sum(dcpo_token(lp, a, old, 0.16, 0.2) for lp, a, old, _ in row) / len(row) for row in rows]
    return sum(means) / len(rows)


def dcpo_script(x: Step) -> Tensor:
    """lime-RL/DCPO, recipe/dcpo/run_dcpo.sh: 0.2 and 0.28, the mean over tokens."""
    batch = flat(x)
    return sum(dcpo_token(lp, a, old, 0.2, 0.28) for lp, a, old, _ in batch) / len(batch)


def clipped_token_mean(low: float, high: float, dual: float | None = None) -> Callable[[Step], Tensor]:
    """verl's loss vanilla with token-mean."""

    def rule(x: Step) -> Tensor:
        batch = flat(x)
        return sum(ppo((lp - old).exp(), a, 1 - low, 1 + high, dual) for lp, a, old, _ in batch) / len(batch)

    return rule


def openrlhf_baseline(x: Step) -> Tensor:
    """OpenRLHF: PPO's clip of 0.2 and 1e-5 times k2, held at 10 by a clamp that has no gradient beyond it."""
    batch = flat(x)
    total = 0.0
    for lp, a, old, ref in batch:
        k2 = ((lp - ref) ** 2 / 2).clamp(-10, 10)
        total = total + ppo((lp - old).exp(), a, 0.8, 1.2) + 1e-5 * k2
    return total / len(batch)


def grpo_paper(x: Step) -> Tensor:
    """arXiv 2402.03300, equations 3 and 4, with beta of 0.04 and PPO's range."""
    rows = tokens(x)
    total = 0.0
    for row in rows:
        k3 = sum((ref - lp).exp() - (ref - lp) - 1 for lp, _, _, ref in row)
        policy = sum(ppo((lp - old).exp(), a, 0.8, 1.2) for lp, a, old, _ in row)
        total = total + (policy + 0.04 * k3) / len(row)
    return total / len(rows)


def gfpo_paper(x: Step) -> Tensor:
    """arXiv 2508.09726, equation 2: every token is counted, also those of responses that were not kept (A = 0)."""
    batch = flat(x)
    total = 0.0
    for lp, a, old, ref in batch:
        total = total + ppo((lp - old).exp(), a, 0.8, 1.2) + 0.001 * ((ref - lp).exp() - (ref - lp) - 1)
    return total / len(batch)


CODE = "bapo,surrogate.first=floor,surrogate.ceiling_end=2,surrogate.dual=3"
# Losses by the spec that runs them.
LOSSES: dict[str, Callable[[Step], Tensor]] = {
    "m2po": m2po_code,
    "m2po,surrogate.rule=mask": m2po_paper,
    "bapo": bapo_paper,
    f"{CODE},surrogate.floor_end=0.8,surrogate.target=0.5": bapo_code(0.6, 0.8, 1.2, 2.0, 0.05, 1.0),
    f"{CODE},surrogate.floor=0.8,surrogate.floor_end=0.95,surrogate.step=0.1,surrogate.target=0.3333333333": (
        bapo_code(0.8, 0.95, 1.2, 2.0, 0.1, 0.5)
    ),
    "dcpo": dcpo_paper,
    "dcpo,surrogate.low=0.2,surrogate.high=0.28,aggregation=token_mean": dcpo_script,
    "spo": clipped_token_mean(0.2, 0.28, 10.0),
    "dapo": clipped_token_mean(0.2, 0.28),
    "dapo,surrogate.dual=10,overlong=penalty,overlong.buffer=4096,filter.metric=acc": clipped_token_mean(0.2, 0.28, 10),
    "lite_ppo": clipped_token_mean(0.2, 0.2),
    "reinforce_pp": clipped_token_mean(0.2, 0.2),
    "reinforce_pp_baseline": openrlhf_baseline,
    "grpo": grpo_paper,
    "gfpo": gfpo_paper,
}


@pytest.mark.parametrize("spec", LOSSES)
@pytest.mark.parametrize("spread", [0.02, 0.2, 0.8, 2.5])
def test_loss_and_gradient_are_the_authors(spec, spread):
    for seed in range(6):
        x = step(seed, spread)
        torch.testing.assert_close(of_the_package(spec, x), of_the_rule(LOSSES[spec], x), **CLOSE)


def test_the_steps_pass_every_bound_with_both_signs():
    x = step(0, 2.5)
    ratios = [((lp - old).exp().item(), a) for lp, a, old, _ in flat(x)]
    for above, below in ((10, 0.5), (1.28, 0.8)):
        for sign in (1, -1):
            assert any(rho > above and a * sign > 0 for rho, a in ratios)
            assert any(rho < below and a * sign > 0 for rho, a in ratios)
    assert any((lp - ref).item() ** 2 / 2 > 10 for lp, _, _, ref in flat(x))


@pytest.mark.parametrize(("budget", "what"), [(3.0, "nothing is clipped"), (0.04, "some"), (1e-9, "all")])
@pytest.mark.parametrize(("rule", "authors"), [("clip", m2po_code), ("mask", m2po_paper)])
def test_m2po_is_the_authors_under_any_budget(budget, what, rule, authors):
    x = step(1, 0.5)
    spec = f"m2po,surrogate.budget={budget},surrogate.rule={rule}"
    found, gradient = of_the_package(spec, x)
    torch.testing.assert_close((found, gradient), of_the_rule(lambda y: authors(y, budget), x), **CLOSE)
    d, a = (x["logp"] - x["old_logp"]), x["advantages"].unsqueeze(1)
    harmful = x["mask"] & (a * d > 0)
    without = (gradient[harmful] == 0).float().mean()
    assert {"nothing is clipped": without == 0, "some": 0 < without < 1, "all": without == 1}[what]
    assert (gradient[x["mask"] & (a * d < 0)] != 0).all()


def test_m2po_clips_tighter_than_the_paper_masks():
    # v = .01, .01, .01, .2 with a mean of .0575: the paper masks the last one, mean of the others .01. The code's range
    # is 0.1, since four of .01 sum to .04, below 4 * .04, and cut to .2 to .23: whoever is at the range is clipped.
    x = {
        "logp": torch.tensor([[0.1, 0.1, 0.1, 0.2**0.5]], dtype=torch.float64) - 2,
        "old_logp": torch.full((1, 4), -2.0, dtype=torch.float64),
        "mask": torch.ones(1, 4, dtype=torch.bool),
        "advantages": torch.ones(1, dtype=torch.float64),
    }
    low = x["logp"].clone()
    low[0, 1:3] -= 1e-9  # no ties in the order of the first three
    loss, gradient = of_the_package("m2po", {**x, "logp": low})
    assert gradient.count_nonzero() == 2  # the two that are a hair below the range
    assert loss.item() == pytest.approx(-math.exp(0.1), rel=1e-8)
    loss, gradient = of_the_package("m2po,surrogate.rule=mask", x)
    assert loss.item() == pytest.approx(-3 * math.exp(0.1) / 4, rel=1e-12)
    assert (gradient != 0).tolist() == [[True, True, True, False]]


def test_m2po_keeps_the_narrowest_range_that_is_asked_for():
    # Version 0.1's: with it the clip of a far batch is 0.7 and 1.5 whatever the budget says.
    for seed in range(4):
        x = step(seed, 0.8)
        expected = of_the_rule(clipped_token_mean(0.3, 0.5), x)
        torch.testing.assert_close(of_the_package("m2po,surrogate.low=0.3,surrogate.high=0.5", x), expected, **CLOSE)
        assert not torch.allclose(of_the_package("m2po", x)[0], expected[0])


def test_bapo_takes_the_last_bounds_where_none_balances():
    # Only wrong responses: both bounds go to their ends. Only right ones: both stay.
    x = step(2, 1.5)
    for sign, bounds in ((-1, (0.9, 3.0)), (1, (0.6, 1.2))):
        y = {**x, "advantages": sign * x["advantages"].abs()}
        found = gv.get("bapo").thresholds(gv.Tokens(**y))
        assert (found["floor"].item(), found["ceiling"].item()) == bounds
        torch.testing.assert_close(of_the_package("bapo", y), of_the_rule(bapo_paper, y), **CLOSE)


def test_dcpo_reads_the_probability_of_the_old_policy_where_the_ratio_is_bounded():
    # q = e^-0.05: floor 1/2 + sqrt(1 - 0.64/q)/2. The log ratio of -22 is held at -20 in the ratio alone.
    x = {
        "logp": torch.tensor([[-22.05]], dtype=torch.float64),
        "old_logp": torch.tensor([[-0.05]], dtype=torch.float64),
        "mask": torch.ones(1, 1, dtype=torch.bool),
        "advantages": torch.tensor([-2.0], dtype=torch.float64),
    }
    floor = 0.5 + 0.5 * math.sqrt(1 - 0.64 * math.exp(0.05))
    assert of_the_package("dcpo", x)[0].item() == pytest.approx(2 * floor, rel=1e-12)


# Rewards of prompts over steps, by prompt.
HISTORY: list[dict[str, list[float]]] = [
    {"p": [1, 0, 0, 1, 0], "q": [0, 0, 0], "r": [1, 1]},
    {"p": [1, 1, 1, 1, 1], "q": [0, 1, 0], "r": [1, 0]},
    {"p": [0, 1, 1, 1, 1], "q": [0, 0, 0], "r": [0, 0]},
]


def dcpo_advantages(history: list[dict[str, list[float]]]) -> list[list[float]]:
    """lime-RL/DCPO, core_algos.py 365 to 479: sample deviation, no epsilon, the nearer to 0 of two mixes."""
    past: dict[str, tuple[int, float, float]] = {}
    steps = []
    for groups in history:
        values: list[float] = []
        for prompt, rewards in groups.items():
            mean, std = np.mean(rewards), np.std(rewards, ddof=1)
            times, old_mean, old_std = past.get(prompt, (0, 0.0, 0.0))
            n = times + 1
            total = (old_mean * times + mean) / n if times else mean
            var = (times * old_std**2 + std**2 + times / n * (mean - old_mean) ** 2) / n if times else std**2
            past[prompt] = (n, total, math.sqrt(var))
            for r in rewards:
                new = (r - mean) / std if std > 0 else 0.0
                ever = (r - total) / math.sqrt(var) if var > 0 else 0.0
                one, two = ever / n + (1 - 1 / n) * new, new / n + (1 - 1 / n) * ever
                values.append(one if abs(one) < abs(two) else two)
        steps.append(values)
    return steps


def spo_advantages(history: list[dict[str, list[float]]], rho: float = 0.875) -> list[list[float]]:
    """verl-recipe, spo/spo_ray_trainer.py 533 to 561 and 658 to 670, of constant rho and without offline samples."""
    alpha, beta = {}, {}
    steps = []
    for groups in history:
        rewards = {prompt: own[0] for prompt, own in groups.items()}
        rates = {p: alpha.get(p, 0.5) / (alpha.get(p, 0.5) + beta.get(p, 0.5)) for p in rewards}
        a = np.array([r - rates[p] for p, r in rewards.items()])
        steps.append(((a - a.mean()) / (a.std(ddof=1) + 1e-8)).tolist())
        for p, r in rewards.items():
            alpha[p], beta[p] = rho * alpha.get(p, 0.5) + r, rho * beta.get(p, 0.5) + 1 - r
    return steps


@pytest.mark.parametrize(("name", "authors", "each"), [("dcpo", dcpo_advantages, None), ("spo", spo_advantages, 1)])
def test_remembered_advantages_are_the_authors_over_several_steps(name, authors, each):
    memory = gv.Memory()
    for groups, expected in zip(HISTORY, authors(HISTORY), strict=True):
        ids = [prompt for prompt, rewards in groups.items() for _ in rewards[:each]]
        rewards = torch.tensor([r for own in groups.values() for r in own[:each]], dtype=torch.float64)
        found = gv.advantages(name, rewards, ids, state=memory)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), **CLOSE)


def test_dcpos_population_deviation_is_one_string_away():
    found = gv.advantages("dcpo,scale.ddof=0", torch.tensor([0.0, 1, 2]).double(), ["p"] * 3, state=gv.Memory())
    torch.testing.assert_close(found, torch.tensor([-1.0, 0, 1]).double() / math.sqrt(2 / 3), **CLOSE)


def whitened(returns: list[list[float]], floor: float = 1e-8) -> list[list[float]]:
    """OpenRLHF, experience_maker.py 314 to 328: the population's variance over tokens, held above 1e-8."""
    pool = [value for row in returns for value in row]
    mean = sum(pool) / len(pool)
    var = sum((value - mean) ** 2 for value in pool) / len(pool)
    return [[(value - mean) / math.sqrt(max(var, floor)) for value in row] for row in returns]


# From rewards that differ by tenths to some whose variance is below OpenRLHF's 1e-8.
SIZES = [1.0, 1e-3, 3e-5]


@pytest.mark.parametrize("size", SIZES)
def test_reinforce_pp_advantages_are_openrlhfs(size):
    # k1 of a token is held within 10, 0.01 of it is taken off its reward; returns are sums to the end.
    random = np.random.default_rng(3)
    lengths, rewards = [3, 1, 4, 2], size * random.normal(size=4)
    old, ref = (size * random.normal(size=(4, 4)) - 4 for _ in range(2))
    if size == 1.0:
        old[0, 1], ref[2, 3] = -0.5, -0.5
        ref[0, 1], old[2, 3] = -14.5, -13.0  # k1 of 14 and of -12.5: beyond the clamp on both sides
    returns = []
    for i, length in enumerate(lengths):
        token = [-0.01 * min(max(old[i, t] - ref[i, t], -10), 10) for t in range(length)]
        token[-1] += rewards[i]
        returns.append([sum(token[t:]) for t in range(length)])
    mask = torch.arange(4) < torch.tensor(lengths).unsqueeze(1)
    inputs = {"old_logp": torch.tensor(old), "ref_logp": torch.tensor(ref), "mask": mask}
    found = gv.advantages("reinforce_pp", torch.tensor(rewards), list("abcd"), **inputs)
    expected = torch.tensor([value for row in whitened(returns) for value in row], dtype=torch.float64)
    torch.testing.assert_close(found[mask], expected, **CLOSE)


@pytest.mark.parametrize("size", SIZES)
def test_reinforce_pp_baseline_advantages_are_openrlhfs(size):
    rewards, ids, lengths = [1.0, 0.0, 0.0, 2.0, 0.5], [*"aab", *"bb"], [3, 1, 2, 5, 1]
    rewards = [size * r for r in rewards]
    means = {g: np.mean([r for r, own in zip(rewards, ids, strict=True) if own == g]) for g in ids}
    returns = [[r - means[g]] * n for r, g, n in zip(rewards, ids, lengths, strict=True)]
    expected = torch.tensor([row[0] for row in whitened(returns)], dtype=torch.float64)
    inputs = {"lengths": torch.tensor(lengths)}
    found = gv.advantages("reinforce_pp_baseline", torch.tensor(rewards, dtype=torch.float64), ids, **inputs)
    torch.testing.assert_close(found, expected, **CLOSE)


def test_remax_code_has_the_gradient_of_the_spec_that_its_page_gives():
    # liziniu/ReMax, remax_trainer.py 236 to 302 without its discount: each token's return is the difference of the
    # rewards and its own -0.05 (logp - ref), detached; the mean over tokens. On policy, as there.
    x = step(5)
    x["old_logp"] = x["logp"]

    def rule(y: Step) -> Tensor:
        batch = flat(y)
        returns = [a - 0.05 * (lp - ref).item() for lp, a, _, ref in batch]
        return sum(-value * lp for value, (lp, *_) in zip(returns, batch, strict=True)) / len(batch)

    _, gradient = of_the_package("remax,aggregation=token_mean,kl=k2,kl.beta=0.05,kl.bound=none", x)
    torch.testing.assert_close(gradient, of_the_rule(rule, x)[1], **CLOSE)


def test_remax_advantages_are_the_papers():
    greedy = [0.5, 0.5, -7.0]
    found = gv.advantages("remax", [1.0, 0.0, 2.0], ["a", "a", "b"], greedy_rewards=greedy)
    assert found.tolist() == [0.5, -0.5, 9.0]  # the authors' code holds the last one at 5


def test_gfpo_advantages_are_the_papers():
    # Section 3: mean and population deviation of the two shortest of each group, 0 for the others; no ties in length.
    rewards, lengths, ids = [1.0, 0.0, 1.0, 0.25, 0.0, 2.0], [5, 2, 3, 9, 4, 7], [*"aaa", *"bbb"]
    # a: lengths 2 and 3, rewards 0 and 1: mean 0.5, deviation 0.5. b: lengths 4 and 7, rewards 0 and 2: 1 and 1.
    inputs = {"lengths": torch.tensor(lengths)}
    found = gv.advantages(
        "gfpo,selection.keep=2,scale.eps=0", torch.tensor(rewards, dtype=torch.float64), ids, **inputs
    )
    assert found.tolist() == [0.0, -1.0, 1.0, 0.0, -1.0, 1.0]


def test_lite_ppo_divides_by_the_deviation_of_raw_rewards():
    # Paper, equation 6, and ROLL's reward_norm: rewards 0, 1, 2, 5, mean 2, variance (4 + 1 + 0 + 9)/3.
    std = math.sqrt(14 / 3) + 1e-6
    found = gv.advantages("lite_ppo", torch.tensor([0.0, 1.0, 2.0, 5.0], dtype=torch.float64), [*"aabb"])
    torch.testing.assert_close(found, torch.tensor([-0.5, 0.5, -1.5, 1.5], dtype=torch.float64) / std, **CLOSE)
