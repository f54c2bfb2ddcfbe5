"""The oracle's wider advantage side: order statistics, other scales, transforms and selections, as loops.

As `step`, which takes these tables in: plain numbers, nothing of the package, straight from the formulas.
A sample has a reward, a group and a length; `values` are those of a spec string.
"""

import math
import statistics
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations


def group_of(sample, samples):
    return [other for other in samples if other.group == sample.group]


def rewards_of(sample, samples):
    return [other.reward for other in group_of(sample, samples)]


def average(numbers):
    return float(sum(map(Fraction, numbers)) / len(numbers))


def constant(numbers):
    return min(numbers) == max(numbers)


# Baselines


def second_best(values, sample, samples):
    group = group_of(sample, samples)
    best = max(s.reward for s in group)
    winner = [s for s in group if s.reward == best][-1]
    return max(s.reward for s in group if s is not winner) if sample is winner else sample.reward


def median(numbers, even):
    ordered, n = sorted(numbers), len(numbers)
    low, high = ordered[(n - 1) // 2], ordered[n // 2]
    return low if even == "lower" else low + (high - low) / 2


def group_median(values, sample, samples):
    return median(rewards_of(sample, samples), values["baseline.even"])


def group_quantile(values, sample, samples):
    ordered, level = sorted(rewards_of(sample, samples)), values["baseline.level"]
    if values["baseline.interpolation"] == "inverse":
        return next(x for i, x in enumerate(ordered) if (i + 1) / len(ordered) >= level - 1e-12)
    position = level * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def tracked(values, sample, samples):
    """The rate of a prompt that was never seen; tests/core/test_memory.py goes on from there."""
    return values["baseline.prior"] / (2 * values["baseline.prior"])


def filtered(values, sample, samples):
    """State and variance of a filter that has run over the group up to a sample."""
    x, variance = values["baseline.mean"], values["baseline.variance"]
    for other in group_of(sample, samples):
        predicted = variance + values["baseline.process"]
        gain = predicted / (predicted + values["baseline.measurement"])
        x, variance = x + gain * (other.reward - x), (1 - gain) * predicted
        if other is sample:
            return x, variance
    raise LookupError("the sample is in no group")


def kalman(values, sample, samples):
    return filtered(values, sample, samples)[0]


def partition(values, sample, samples):
    """In powers of ten digits more than a float has: the others' exponentials may lie far below the sample's own."""
    tau, members = values["baseline.tau"], group_of(sample, samples)
    best = max(other.reward for other in members)
    with localcontext(prec=60):
        powers = [Decimal((other.reward - best) / tau).exp() for other in members if other is not sample]
        baseline = best + tau * float((sum(powers) / len(powers)).ln())
    return (
        baseline if values["baseline.floor"] is None else max(baseline, best + tau * math.log(values["baseline.floor"]))
    )


GROUPED = {
    "second_best": second_best,
    "group_median": group_median,
    "group_quantile": group_quantile,
    "partition": partition,
}
BASELINES = {**GROUPED, "tracked": tracked, "kalman": kalman}


# Scales: what a number is divided by; None for no signal


def mean_reward(values, sample, samples):
    mean = average(rewards_of(sample, samples))
    return mean + values["scale.eps"] if mean > 0 else None


def group_mad(values, sample, samples):
    rewards, even = rewards_of(sample, samples), values["scale.even"]
    return median([abs(r - median(rewards, even)) for r in rewards], even) + values["scale.eps"]


def bernoulli(values, sample, samples):
    p = average(rewards_of(sample, samples))
    return math.sqrt(p * (1 - p)) + values["scale.eps"] if 0 < p < 1 else None


def beta_density(values, sample, samples):
    groups = dict.fromkeys(s.group for s in samples)
    means = [average([s.reward for s in samples if s.group == g]) for g in groups]
    p = average(rewards_of(sample, samples))
    if not 0 < p < 1:
        return None
    alpha = beta = 1.0
    if not constant(means):
        m = average(means)
        v = sum((x - m) ** 2 for x in means) / (len(means) - 1)
        size = m * (1 - m) / v - 1
        alpha, beta = max(1 + size * m / 3, 1), max(1 + size * (1 - m) / 3, 1)
    whole = math.gamma(alpha) * math.gamma(beta) / math.gamma(alpha + beta)
    return max(p ** (alpha - 1) * (1 - p) ** (beta - 1) / whole, 1 / values["scale.cap"])


def signal_share(values, sample, samples):
    mixed = [s for s in samples if not constant(rewards_of(s, samples))]
    return len(mixed) / len(samples) if mixed else None


def kalman_std(values, sample, samples):
    return math.sqrt(filtered(values, sample, samples)[1]) + values["scale.eps"]


def smoothed_std(values, sample, samples):
    """At the first step there is no history: the deviation of the group, without an epsilon."""
    rewards, mean = rewards_of(sample, samples), average(rewards_of(sample, samples))
    if constant(rewards):
        return None
    return math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - values["scale.ddof"]))


SCALES = {
    "kalman_std": kalman_std,
    "smoothed_std": smoothed_std,
    "group_mean": mean_reward,
    "group_mad": group_mad,
    "bernoulli": bernoulli,
    "beta_density": beta_density,
    "signal_share": signal_share,
}
# Those that a group of one is not divided by where it keeps its raw reward.
OF_GROUP = ("group_mean", "group_mad", "bernoulli", "beta_density")


def divided(values, number, sample, samples):
    alone = len(group_of(sample, samples)) == 1 and values["singleton"] == "raw"
    if alone and values["scale"] in OF_GROUP:
        extra = values.get("scale.eps", 0.0)
        return number / (1 + extra)
    scale = SCALES[values["scale"]](values, sample, samples)
    return number / scale if scale else 0.0


# Credit with a rule of its own. Rows: one dict a response that enters statistics, in order


def gaps(numbers):
    """Each number's distance from the mean over the sample deviation; None where there is no deviation."""
    mean = average(numbers)
    if constant(numbers):
        return [0.0] * len(numbers), None
    return [n - mean for n in numbers], math.sqrt(sum((n - mean) ** 2 for n in numbers) / (len(numbers) - 1))


def normalised(numbers, eps):
    away, std = gaps(numbers)
    return [0.0 if std is None else n / (std + eps) for n in away]


def shaped(values, row, entropy, rivals):
    """A right response's reward with its share of the entropies of its rivals, itself among them."""
    eps = values["credit.eps"]
    if row["reward"] > values["credit.above"]:
        share = entropy / sum(rivals) * len(rivals) if sum(rivals) > 0 else 0.0
        return values["credit.base"] * row["reward"] + values["credit.bonus"] * share
    share = 1 / (entropy + eps) / sum(1 / (h + eps) for h in rivals) * len(rivals)
    return -values["credit.base"] - values["credit.bonus"] * share


def sides(values, rows):
    """The rows of each group that are right, and those that are wrong."""
    split = {}
    for row in rows:
        split.setdefault((row["group"], row["reward"] > values["credit.above"]), []).append(row)
    return split.values()


def entropy_tokens(values, rows, width):
    result = {row["index"]: [0.0] * width for row in rows}
    for side in sides(values, rows):
        cells = []
        for row in side:
            for t in row["tokens"]:
                rivals = [other["entropy"][t] for other in side if t in other["tokens"]]
                cells.append((row["index"], t, shaped(values, row, row["entropy"][t], rivals)))
        if cells:
            numbers = normalised([n for _, _, n in cells], values["credit.eps"])
            for (i, t, _), number in zip(cells, numbers, strict=True):
                result[i][t] = number
    return result


def entropy_responses(values, rows, width):
    numbers, result = {}, {}
    for side in sides(values, rows):
        means = [sum(row["entropy"][t] for t in row["tokens"]) / max(len(row["tokens"]), 1) for row in side]
        numbers |= {row["index"]: shaped(values, row, mean, means) for row, mean in zip(side, means, strict=True)}
    groups = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    for members in sides(values, rows) if values["credit.over"] == "side" else groups.values():
        places = [row["index"] for row in members]
        result |= zip(places, normalised([numbers[i] for i in places], values["credit.eps"]), strict=True)
    return result


def moved(row, t):
    """How far the tokens up to t have moved the policy."""
    return sum(1 - 2 * math.exp(row["old_logp"][j]) + row["sum_pi_squared"][j] for j in row["tokens"] if j <= t)


def later(row, t):
    return sum(row["token_rewards"][j] for j in row["tokens"] if j >= t)


def optimal_token(values, rows, width):
    result = {row["index"]: [0.0] * width for row in rows}
    for row in rows:
        group = [other for other in rows if other["group"] == row["group"]]
        for t in row["tokens"]:
            here = [other for other in group if t in other["tokens"]]
            weight = sum(moved(other, t) for other in here) + values["credit.eps"]
            baseline = sum(later(other, t) * moved(other, t) for other in here) / weight
            left = [other for other in group if other["tokens"] and max(other["tokens"]) >= t]
            if len(left) == 1 and values["credit.tail"] == "zero":
                baseline = 0.0
            if len(group) == 1:
                baseline = later(row, t) if values["singleton"] == "zero" else 0.0
            result[row["index"]][t] = later(row, t) - baseline
    return result


CREDITS = {
    "entropy_tokens": entropy_tokens,
    "entropy_responses": entropy_responses,
    "optimal_token": optimal_token,
}
PER_TOKEN = ("entropy_tokens", "optimal_token")


# Transforms: reward of a sample among all


def signed(values, sample, samples):
    return values["transform.right"] if sample.reward > values["transform.above"] else values["transform.wrong"]


def pass_at_k(values, sample, samples):
    """The mean of the maximum over every subset that holds the sample."""
    others = [s.reward for s in group_of(sample, samples) if s is not sample]
    drawn = min(values["transform.k"] - 1, len(others))
    return average([max([sample.reward, *chosen]) for chosen in combinations(others, drawn)])


def unlikeliness(values, sample, samples):
    """A reward less a share by how many of the group are less likely."""

    def likely(s):
        return sum(s.old) / max(len(s.old), 1) if values["transform.of"] == "mean" else sum(s.old)

    group = sorted(group_of(sample, samples), key=likely)
    place = next(n for n, other in enumerate(group) if other is sample) + (values["transform.first"] == "one")
    return sample.reward * (1 - values["transform.penalty"] * place / len(group))


TRANSFORMS = {
    "none": lambda values, sample, samples: sample.reward,
    "signed": signed,
    "pass_at_k": pass_at_k,
    "unlikeliness": unlikeliness,
}


# Selections: indices that stay


def cheapest(cost):
    def select(values, samples):
        kept = []
        for group in {s.group: None for s in samples.values()}:
            members = sorted((cost(s), i) for i, s in samples.items() if s.group == group)
            kept += [i for _, i in members[: values["selection.keep"]]]
        return sorted(kept)

    return select


def mixed(values, samples):
    def stays(s):
        rewards = [other.reward for other in samples.values() if other.group == s.group]
        return len(rewards) == 1 or len(set(rewards)) > 1

    return [i for i, s in samples.items() if stays(s)]


def max_variance(values, samples):
    """Every way to keep so many highest and the rest lowest, tried in the order in which ties go."""
    kept, keep = [], values["selection.keep"]
    for group in {s.group: None for s in samples.values()}:
        members = sorted((s.reward, i) for i, s in samples.items() if s.group == group)
        ways = [members[: keep - high] + members[len(members) - high :] for high in (keep, *range(keep))]
        spread = [statistics.pvariance([Fraction(reward) for reward, _ in way]) for way in ways] or [0]
        best = members if len(members) <= keep else ways[spread.index(max(spread))]
        kept += [i for _, i in best]
    return sorted(kept)


def largest_advantage(values, found, samples):
    """Indices that stay, of the advantages by index."""
    whole = values["selection.over"] == "batch"
    kept = []
    for group in {None: None} if whole else {s.group: None for s in samples.values()}:
        members = [i for i, s in samples.items() if whole or s.group == group]
        count = max(math.floor(len(members) * values["selection.share"] + 1e-9), 1)
        kept += sorted(members, key=lambda i: -abs(found[i]))[:count]
    return kept


SELECTIONS = {
    "none": lambda values, samples: list(samples),
    "shortest": cheapest(lambda s: s.length),
    "efficient": cheapest(lambda s: -s.reward / max(s.length, 1)),
    "mixed": mixed,
    "max_variance": max_variance,
    "largest_advantage": lambda values, samples: list(samples),
}
