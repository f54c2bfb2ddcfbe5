"""The family once more, as loops over responses and tokens in plain Python numbers, straight from its formulas.

It shares nothing with the package and uses no tensors. Means and variances are exact (the module `statistics` works in
rationals), and the gradient comes from complex steps: a formula is evaluated at logp + 1e-30 i, and the imaginary part
of the result is its derivative, to the last digit. Stop-gradient is `stop`, which takes the real part.

`values` is a dict from the keys of a spec string to plain values; rollouts and tokens are dicts of nested lists,
absent inputs are None.
"""

import cmath
import math
from typing import Any, NamedTuple

from support.oracle import advantages as wider
from support.oracle.numbers import bounded, mean, minus, stop, upper_quantile, variance
from support.oracle.objectives import CLIPPING, STATISTICS, SURROGATES, Cell, Here, Loss

STEP = 1e-30


class Outcome(NamedTuple):
    """A loss, its gradient with respect to logp as nested lists, its metrics and extrema."""

    loss: float
    gradient: list[list[float]]
    metrics: dict[str, float]
    extrema: dict[str, float]


# Advantages


class Sample(NamedTuple):
    """A thing whose reward is compared with others: a response, or a step of one."""

    reward: float
    group: Any
    length: int = 0
    greedy: float = math.nan
    old: tuple = ()


def siblings(sample, samples):
    return [other for other in samples if other.group == sample.group]


def no_baseline(sample, samples):
    return 0.0


def group_mean(sample, samples):
    return mean([other.reward for other in siblings(sample, samples)])


def leave_one_out(sample, samples):
    return mean([other.reward for other in siblings(sample, samples) if other is not sample])


def greedy(sample, samples):
    return sample.greedy


def batch_mean(sample, samples):
    return mean([other.reward for other in samples])


def length_weighted(sample, samples):
    return mean([other.reward for other in siblings(sample, samples) for _ in range(other.length)])


BASELINES = {
    "none": no_baseline,
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
    "greedy": greedy,
    "batch_mean": batch_mean,
    "length_weighted": length_weighted,
    **wider.BASELINES,
}
OF_GROUP = ("group_mean", "leave_one_out", "length_weighted", *wider.GROUPED)


def baseline(values, sample, samples):
    if values["baseline"] in OF_GROUP and len(siblings(sample, samples)) == 1:
        return sample.reward if values["singleton"] == "zero" else 0.0
    rule = BASELINES[values["baseline"]]
    return rule(values, sample, samples) if values["baseline"] in wider.BASELINES else rule(sample, samples)


def no_scale(values, sample, samples):
    return None


def group_std(values, sample, samples):
    group = siblings(sample, samples)
    if len(group) == 1 and values["singleton"] == "raw":
        return 1.0
    return variance([other.reward for other in group], values["scale.ddof"])


def batch_std(values, sample, samples):
    less = 0.0 if values["scale.of"] == "raw" else 1.0
    return variance([s.reward - less * baseline(values, s, samples) for s in samples], values["scale.ddof"])


SCALES = {"none": no_scale, "group_std": group_std, "batch_std": batch_std, **wider.SCALES}


def over_root(values, number, var):
    """A number over the root of a variance, with its epsilon; no variance, no signal."""
    if var == 0:
        return 0.0
    if values["scale.eps_in"] == "floor":
        return number / math.sqrt(max(var, values["scale.eps"]))
    if values["scale.eps_in"] == "var":
        return number / math.sqrt(var + values["scale.eps"])
    return number / (math.sqrt(var) + values["scale.eps"])


def compensation(values, sample, samples):
    """The group's size over the number of its advantages that are not 0, where the sample's is among them."""
    if values.get("scale.compensate", "none") == "none":
        return 1.0
    group = siblings(sample, samples)
    own = [wider.divided(values, s.reward - baseline(values, s, samples), s, samples) for s in group]
    alive = [s for s, number in zip(group, own, strict=True) if abs(number) > 1e-6]
    return len(group) / len(alive) if any(s is sample for s in alive) else 1.0


def scaled(values, number, sample, samples):
    if values["scale"] in wider.SCALES:
        return wider.divided(values, number, sample, samples) * compensation(values, sample, samples)
    if values.get("scale.mean") == "subtract":
        number -= mean([s.reward - baseline(values, s, samples) for s in samples])
    var = SCALES[values["scale"]](values, sample, samples)
    return number if var is None else over_root(values, number, var)


def whitens(values):
    return values.get("scale.over") == "tokens"


def whitened(values, rows, repeats):
    """Numbers less the mean of all, over their deviation; number j of row i counts repeats[i][j] times, 0 if never."""
    cells = [list(zip(row, times, strict=True)) for row, times in zip(rows, repeats, strict=True)]
    pool = [n for row in cells for n, times in row for _ in range(times)]
    centre, var = mean(pool), variance(pool, values["scale.ddof"])
    return [[over_root(values, n - centre, var) if times else 0.0 for n, times in row] for row in cells]


def token_estimate(values, logp, ref):
    u = bounded(ref - logp, minus(values["kl.bound"]), values["kl.bound"])
    k = ESTIMATORS[values["kl"]](u)
    return bounded(k, minus(values["kl.value_bound"]), values["kl.value_bound"])


def penalties(values, x, i):
    """What the KL in the reward takes from each token of a response."""
    width = len(x["mask"][i]) if x.get("mask") else 0
    if values["kl"] == "none" or values["kl.placement"] != "reward":
        return [0.0] * width
    old, ref, mask = x["old_logp"][i], x["ref_logp"][i], x["mask"][i]
    return [values["kl.beta"] * token_estimate(values, old[t], ref[t]) if mask[t] else 0.0 for t in range(width)]


def total(row, weights):
    weights = weights or [1.0] * len(row)
    return sum(w * r for w, r in zip(weights, row, strict=True) if not math.isnan(r))


def usable(values, x):
    """Indices of the responses that enter statistics: valid, with at least one reward, and selected."""
    valid = x.get("valid") or [True] * len(x["rewards"])
    rows = [i for i, row in enumerate(x["rewards"]) if valid[i] and not all(map(math.isnan, row))]
    samples = {i: sample_of(values, x, i, total(x["rewards"][i], x.get("reward_weights"))) for i in rows}
    return wider.SELECTIONS[values["selection"]](values, samples)


def sample_of(values, x, i, reward):
    length = x["lengths"][i] if x.get("lengths") else sum(x["mask"][i]) if x.get("mask") else 0
    greedy_reward = total(x["greedy_rewards"][i], x.get("reward_weights")) if x.get("greedy_rewards") else math.nan
    scored = x["old_logp"][i] if x.get("old_logp") and x.get("mask") else []
    old = tuple(lp for lp, m in zip(scored, x["mask"][i], strict=True) if m) if scored else ()
    return Sample(reward, x["groups"][i], length, greedy_reward, old)


def outcome(values, x):
    """One advantage per response."""
    chosen = usable(values, x)
    plain = {i: sample_of(values, x, i, total(x["rewards"][i], x.get("reward_weights"))) for i in chosen}
    samples = {}
    for i in chosen:
        reward = wider.TRANSFORMS[values["transform"]](values, plain[i], list(plain.values()))
        samples[i] = sample_of(values, x, i, reward - sum(penalties(values, x, i)))
    everyone = list(samples.values())
    result = [0.0] * len(x["groups"])
    for i, s in samples.items():
        result[i] = s.reward - baseline(values, s, everyone)
    if whitens(values):
        rows = whitened(values, [[result[i]] for i in chosen], [[samples[i].length] for i in chosen])
        for i, (number,) in zip(chosen, rows, strict=True):
            result[i] = number
        return result
    for i, s in samples.items():
        result[i] = scaled(values, result[i], s, everyone)
    return result


def rewards_of_tokens(values, x, i):
    mask = x["mask"][i]
    if x.get("token_rewards"):
        return [r if m else 0.0 for r, m in zip(x["token_rewards"][i], mask, strict=True)]
    rewards = [0.0] * len(mask)
    if any(mask):
        rewards[max(t for t, m in enumerate(mask) if m)] = total(x["rewards"][i], x.get("reward_weights"))
    return rewards


def reward_to_go(values, x):
    """One advantage per token: what is still to come, discounted once a token of the policy's own."""
    chosen, mask = usable(values, x), x["mask"]
    tokens, samples = {}, {}
    for i in chosen:
        penalty = penalties(values, x, i)
        tokens[i] = [r - p for r, p in zip(rewards_of_tokens(values, x, i), penalty, strict=True)]
        whole = (
            sum(tokens[i]) if x.get("token_rewards") else total(x["rewards"][i], x.get("reward_weights")) - sum(penalty)
        )
        samples[i] = sample_of(values, x, i, whole)
    everyone = list(samples.values())
    result = [[0.0] * len(row) for row in mask]
    for i, s in samples.items():
        own = [t for t, m in enumerate(mask[i]) if m]
        silent = values["baseline"] in OF_GROUP and values["singleton"] == "zero" and len(siblings(s, everyone)) == 1
        for n, t in enumerate(own):
            later = sum(values["credit.gamma"] ** k * tokens[i][u] for k, u in enumerate(own[n:]))
            result[i][t] = 0.0 if silent else later - baseline(values, s, everyone)
    if whitens(values):
        rows = whitened(values, [result[i] for i in chosen], [[int(m) for m in mask[i]] for i in chosen])
        for i, row in zip(chosen, rows, strict=True):
            result[i] = row
        return result
    for i, s in samples.items():
        result[i] = [scaled(values, n, s, everyone) if m else 0.0 for n, m in zip(result[i], mask[i], strict=True)]
    return result


def process(values, x):
    """One advantage per token: the sum of the normalised rewards of the steps that end at it or later."""
    steps = {}
    for i in usable(values, x):
        for t, m in enumerate(x["mask"][i]):
            if m and x["step_ends"][i][t] and not math.isnan(x["token_rewards"][i][t]):
                steps[i, t] = Sample(x["token_rewards"][i][t], x["groups"][i])
    everyone = list(steps.values())
    normal = {key: scaled(values, s.reward - baseline(values, s, everyone), s, everyone) for key, s in steps.items()}
    result = [[0.0] * len(row) for row in x["mask"]]
    for i, row in enumerate(x["mask"]):
        for t, m in enumerate(row):
            if m:
                result[i][t] = sum(number for (j, end), number in normal.items() if j == i and end >= t)
    return result


def decoupled(values, x):
    """Each column of rewards by itself, then the weighted sum less its mean over its deviation."""
    chosen, weights = usable(values, x), x.get("reward_weights") or [1.0] * len(x["rewards"][0])
    sums = dict.fromkeys(chosen, 0.0)
    for k, weight in enumerate(weights):
        given = {i: x["rewards"][i][k] for i in chosen if not math.isnan(x["rewards"][i][k])}
        samples = {i: sample_of(values, x, i, reward) for i, reward in given.items()}
        everyone = list(samples.values())
        for i, s in samples.items():
            sums[i] += weight * scaled(values, s.reward - baseline(values, s, everyone), s, everyone)
    stage = {f"scale.{name}": values[f"credit.{name}"] for name in ("eps", "ddof", "eps_in", "over")}
    lengths = {i: sample_of(values, x, i, 0.0).length if whitens(stage) else 1 for i in chosen}
    rows = whitened(stage, [[sums[i]] for i in chosen], [[lengths[i]] for i in chosen])
    result = [0.0] * len(x["groups"])
    for i, (number,) in zip(chosen, rows, strict=True):
        result[i] = number
    return result


def own_rule(values, x):
    """A credit that has its own baseline and scale."""
    chosen, width = usable(values, x), len(x["mask"][0])
    plain = {i: sample_of(values, x, i, total(x["rewards"][i], x.get("reward_weights"))) for i in chosen}
    rows = []
    for i in chosen:
        penalty = penalties(values, x, i)
        given = {name: x[name][i] for name in ("entropy", "old_logp", "sum_pi_squared") if x.get(name)}
        rows.append(
            {
                "index": i,
                "group": x["groups"][i],
                "reward": wider.TRANSFORMS[values["transform"]](values, plain[i], list(plain.values())),
                "tokens": [t for t, m in enumerate(x["mask"][i]) if m],
                "token_rewards": [r - p for r, p in zip(rewards_of_tokens(values, x, i), penalty, strict=True)],
                **given,
            }
        )
    found = wider.CREDITS[values["credit"]](values, rows, width)
    nothing = [0.0] * width if values["credit"] in wider.PER_TOKEN else 0.0
    return [found.get(i, nothing) for i in range(len(x["groups"]))]


CREDITS = {"outcome": outcome, "reward_to_go": reward_to_go, "process": process, "decoupled": decoupled}
CREDITS |= dict.fromkeys(wider.CREDITS, own_rule)


def advantages(values, x):
    """Advantages of a batch of rollouts: a list of N numbers, or of N lists of T."""
    found = CREDITS[values["credit"]](values, x)
    if values["selection"] != "largest_advantage":
        return found
    samples = {i: sample_of(values, x, i, 0.0) for i in usable(values, x)}
    kept = wider.largest_advantage(values, found, samples)
    return [number if i in kept else 0.0 for i, number in enumerate(found)]


# The loss: everything that follows is about one response, its valid tokens only


class Row(NamedTuple):
    """The valid tokens of a response; `logp` may be complex."""

    logp: list
    old: list
    ref: list | None
    rollout: list | None
    advantage: list
    entropy: list | None = None


def row_of(x, i, logp=None):
    at = [t for t, m in enumerate(x["mask"][i]) if m]

    def pick(name):
        return [x[name][i][t] for t in at] if x.get(name) else None

    a = x["advantages"][i]
    logp = logp if logp is not None else pick("logp")
    old = pick("old_logp") or [stop(z) for z in logp]
    advantage = [a[t] for t in at] if isinstance(a, list) else [a] * len(at)
    return Row(logp, old, pick("ref_logp"), pick("rollout_logp"), advantage, pick("entropy"))


def differences(values, row):
    anchor = row.old if values["ratio.anchor"] == "old" else row.rollout
    return [lp - a for lp, a in zip(row.logp, anchor, strict=True)]


def within(values, d):
    return bounded(d, minus(values["ratio.bound_low"]), values["ratio.bound_high"])


def no_ratio(values, row):
    return [lp - stop(lp) for lp in row.logp]


def token_ratio(values, row):
    return [within(values, d) for d in differences(values, row)]


def sequence_ratio(values, row):
    d = differences(values, row)
    return [within(values, sum(d) / len(d))] * len(d)


def sequence_token_ratio(values, row):
    d = differences(values, row)
    return [within(values, stop(sum(d) / len(d)) + lp - stop(lp)) for lp in row.logp]


def sequence_product(values, row):
    d = differences(values, row)
    return [within(values, sum(d))] * len(d)


def sequence_arithmetic(values, row):
    kept = [within(values, d) for d in differences(values, row)]
    return [cmath.log(sum(cmath.exp(d) for d in kept) / len(kept))] * len(kept)


RATIOS = {
    "none": no_ratio,
    "token": token_ratio,
    "sequence": sequence_ratio,
    "sequence_token": sequence_token_ratio,
    "sequence_product": sequence_product,
    "sequence_arithmetic": sequence_arithmetic,
}
PER_RESPONSE = ("sequence", "sequence_product", "sequence_arithmetic")


ESTIMATORS = {
    "k1": lambda u: -u,
    "k2": lambda u: u * u / 2,
    "k3": lambda u: cmath.exp(u) - 1 - u if isinstance(u, complex) else math.exp(u) - 1 - u,
    "abs": lambda u: u if stop(u) >= 0 else -u,
}


def kl_term(values, d, lp, ref, n, row):
    k = token_estimate(values, lp, ref)
    if values["kl.gradient"] == "k2":
        u = bounded(ref - lp, minus(values["kl.bound"]), values["kl.bound"])
        k = stop(k) + u * u / 2 - stop(u * u / 2)
    k = k * cmath.exp(d) if values["kl.weighted"] == "ratio" else k
    if values["kl.exempt"] is None:
        return k
    bound = upper_quantile(row.entropy, values["kl.exempt"])
    paying = [h for h in row.entropy if h <= bound]
    return k * len(row.entropy) / len(paying) if row.entropy[n] <= bound else 0.0


def in_loss(values):
    return values["kl"] != "none" and values["kl.placement"] == "loss" and values["kl.beta"] > 0


# Corrections: weights of the response's valid tokens


def mismatch(row):
    return [stop(old) - mu for old, mu in zip(row.old, row.rollout, strict=True)]


def weight(log_weight):
    return math.exp(bounded(log_weight, -20.0, 20.0))


def token_weights(row):
    return [weight(d) for d in mismatch(row)]


def sequence_weights(row):
    return [weight(sum(mismatch(row)))] * len(row.logp)


def geometric_weights(row):
    return [weight(sum(mismatch(row)) / len(row.logp))] * len(row.logp)


TRUNCATED = {
    "token_truncate": token_weights,
    "sequence_truncate": sequence_weights,
    "geometric_truncate": geometric_weights,
}


def truncated(fields, w):
    return bounded(w, fields["floor"], fields["cap"])


def inside(fields, w):
    return (fields["low"] is None or w >= fields["low"]) and (fields["high"] is None or w <= fields["high"])


def banded(fields, w):
    return w if inside(fields, w) else 0.0


def gate(fields, w):
    return 1.0 if inside(fields, w) else 0.0


def off_policy_mask(fields, row):
    sampled = row.old if row.rollout is None else row.rollout
    drift = sum(stop(mu) - stop(lp) for mu, lp in zip(sampled, row.logp, strict=True)) / len(row.logp)
    return [0.0 if a < 0 and drift > fields["threshold"] else 1.0 for a in row.advantage]


def binary_divergence(log_p, log_q):
    p, q = math.exp(log_p), math.exp(log_q)
    rest_p, rest_q = max(1 - p, 1e-6), max(1 - q, 1e-6)
    return p * (log_p - log_q) + rest_p * math.log(rest_p / rest_q)


def kpop(fields, row):
    pairs = [(stop(old), mu) for old, mu in zip(row.old, row.rollout, strict=True)]
    apart = [max(binary_divergence(a, b), binary_divergence(b, a)) for a, b in pairs]
    return [w if d <= fields["threshold"] else 0.0 for w, d in zip(token_weights(row), apart, strict=True)]


def each(weights, rule):
    return lambda fields, row: [rule(fields, w) for w in weights(row)]


CORRECTIONS = {
    "none": lambda fields, row: [1.0] * len(row.logp),
    "token_truncate": each(token_weights, truncated),
    "token_mask": each(token_weights, banded),
    "sequence_truncate": each(sequence_weights, truncated),
    "sequence_mask": each(sequence_weights, banded),
    "geometric_truncate": each(geometric_weights, truncated),
    "geometric_mask": each(geometric_weights, gate),
    "off_policy_mask": off_policy_mask,
    "kpop": kpop,
}


def corrections(values, x, i, row):
    if x.get("correction"):
        given = x["correction"][i]
        return given * len(row.logp) if len(given) == 1 else [w for w, m in zip(given, x["mask"][i], strict=True) if m]
    weights = [1.0] * len(row.logp)
    for word, fields in correction_parts(values):
        weights = [a * b for a, b in zip(weights, CORRECTIONS[word](fields, row), strict=True)]
    return weights


def correction_parts(values):
    words = values["correction"].split("+")
    for word in words:
        prefix = f"correction.{word}." if len(words) > 1 else "correction."
        yield word, {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}


def per_response(values, x):
    """Whether the correction is one number per response, for its metric."""
    if x.get("correction"):
        return len(x["correction"][0]) == 1
    by_token = isinstance(x["advantages"][0], list)
    return not any(
        word.startswith(("token", "kpop")) or (word == "off_policy_mask" and by_token)
        for word in values["correction"].split("+")
    )


# Which tokens count, and the weight of a response


def valid_cells(x):
    return [(i, t) for i, row in enumerate(x["mask"]) for t, m in enumerate(row) if m]


def quantile(numbers, q):
    ordered, position = sorted(numbers), (len(numbers) - 1) * q
    low = math.floor(position)
    above = ordered[min(low + 1, len(ordered) - 1)]
    return ordered[low] + (above - ordered[low]) * (position - low)


def all_tokens(values, x, counts):
    return set(valid_cells(x))


def top_entropy(values, x, counts):
    cells = valid_cells(x)
    threshold = (counts.get("thresholds") or {}).get("entropy")
    if threshold is None and cells:
        threshold = quantile([x["entropy"][i][t] for i, t in cells], 1 - values["tokens.fraction"])
    return {(i, t) for i, t in cells if x["entropy"][i][t] >= threshold}


TOKENS = {"all": all_tokens, "top_entropy": top_entropy}


def kept_cells(values, x, counts):
    if x.get("keep") is None:
        return TOKENS[values["tokens"]](values, x, counts)
    keep = x["keep"]
    return {(i, t) for i, t in valid_cells(x) if (keep[i][t] if isinstance(keep[i], list) else keep[i])}


def sequences(values, counts):
    return max(counts["sequences"] if values["aggregation.empty_rows"] == "count" else counts["nonempty"], 1)


AGGREGATIONS = {
    "sequence_mean": lambda v, c, length, group: 1 / (sequences(v, c) * max(length, 1)),
    "token_mean": lambda v, c, length, group: 1 / max(c["tokens"], 1),
    "prompt_mean": lambda v, c, length, group: 1 / (max(c["prompts"], 1) * max(group, 1)),
    "constant": lambda v, c, length, group: 1 / (sequences(v, c) * (v["aggregation.length"] or c["length"])),
    "sequence_sum": lambda v, c, length, group: 1 / sequences(v, c),
    "length_power": lambda v, c, length, group: length_power(v, c, length),
}


def length_power(values, counts, length):
    """The response's share of the sum of powers, over the constant length."""
    powers = [n ** -values["aggregation.alpha"] for n in [length, *counts["lengths"]] if n]
    return powers[0] / sum(powers[1:]) / (values["aggregation.length"] or counts["length"]) if length else 0.0


def row_weights(values, x, counts, cells):
    """Weight of each response, from the cells of the step that are counted."""
    if x.get("row_weights"):
        return x["row_weights"]
    lengths = [sum(1 for j, _ in cells if j == i) for i in range(len(x["mask"]))]
    groups = x.get("groups") or [None] * len(lengths)
    rule = AGGREGATIONS[values["aggregation"]]
    totals = [sum(n for n, g in zip(lengths, groups, strict=True) if g == own) for own in groups]
    return [rule(values, counts, n, group) for n, group in zip(lengths, totals, strict=True)]


def count(x, cells):
    return {
        "tokens": len(cells),
        "sequences": len(x["mask"]),
        "nonempty": len({i for i, _ in cells}),
        "prompts": len(set(x["groups"])) if x.get("groups") else None,
        "lengths": [sum(1 for j, _ in cells if j == i) for i in range(len(x["mask"]))],
    }


class Token(NamedTuple):
    """What a token contributes: policy and KL parts of its loss, and what the metrics read."""

    policy: Any
    kl: Any
    ratio: float
    clip: Loss
    correction: float
    kept: bool


class Step(NamedTuple):
    """What spans the batch: the cells that the token filter keeps, and the surrogate's statistics."""

    kept: set
    batch: Any = None


def step_of(values, x, counts):
    batch = None
    if values["surrogate"] in STATISTICS:
        cells = [cell for i in range(len(x["mask"])) for cell in cells_of(values, x, i)]
        batch = STATISTICS[values["surrogate"]](values, cells, counts.get("thresholds") or {})
    return Step(kept_cells(values, x, counts), batch)


def cells_of(values, x, i):
    """A response's tokens as the statistics of a batch read them."""
    row, at = row_of(x, i), [t for t, m in enumerate(x["mask"][i]) if m]
    if not at:
        return []
    draws = x["draws"][i] if x.get("draws") else [0.0] * len(x["mask"][i])
    numbers = zip(at, RATIOS[values["ratio"]](values, row), row.advantage, row.logp, strict=True)
    return [Cell((i, t), stop(d), a, stop(lp), draws[t]) for t, d, a, lp in numbers]


def tokens_of(values, x, i, step, logp=None):
    row = row_of(x, i, logp)
    if not row.logp:
        return []
    weights, at = corrections(values, x, i, row), [t for t, m in enumerate(x["mask"][i]) if m]
    result = []
    ratios = RATIOS[values["ratio"]](values, row)
    for n, d in enumerate(ratios):
        here = Here(d, row.advantage[n], row.logp[n], row, ratios, n, (i, at[n]), step.batch, at)
        term = SURROGATES[values["surrogate"]](values, here)
        stays = (i, at[n]) in step.kept
        policy = weights[n] * term.loss if stays and weights[n] != 0 else 0.0
        kl = kl_term(values, d, row.logp[n], row.ref[n], n, row) if in_loss(values) else 0.0
        result.append(Token(policy, kl, stop(cmath.exp(d)), term, weights[n], stays))
    return result


def row_loss(values, x, i, step, logp=None):
    beta = values["kl.beta"] if in_loss(values) else 0.0
    return sum((token.policy + beta * token.kl for token in tokens_of(values, x, i, step, logp)), 0.0)


def row_gradient(values, x, i, step):
    """Derivative of a response's loss with respect to each of its log-probabilities, by complex steps."""
    at = [t for t, m in enumerate(x["mask"][i]) if m]
    gradient = [0.0] * len(x["mask"][i])
    for t in at:
        moved = [complex(x["logp"][i][u], STEP if u == t else 0.0) for u in at]
        gradient[t] = complex(row_loss(values, x, i, step, moved)).imag / STEP
    return gradient


def trained(values, x):
    """The batch without responses that have no advantage, where they are dropped."""
    if values.get("aggregation.rows", "all") == "all":
        return x
    kept = []
    for a, row in zip(x["advantages"], x["mask"], strict=True):
        own = [number for number, m in zip(a if isinstance(a, list) else [a] * len(row), row, strict=True) if m]
        kept.append([m and any(number != 0 for number in own) for m in row])
    return {**x, "mask": kept}


def loss_and_gradient(values, x, counts=None):
    """Loss of a batch, its gradient, metrics and extrema; `counts` of the step, or the batch is the step."""
    x = trained(values, x)
    here = count(x, valid_cells(x))
    step = step_of(values, x, counts or here)
    cells = step.kept if values.get("tokens.denominator") == "kept" else set(valid_cells(x))
    weights = row_weights(values, x, counts or count(x, cells), cells)
    average = (counts or {}).get("grad_average", 1)
    rows = range(len(x["mask"]))
    loss = average * sum(weights[i] * stop(row_loss(values, x, i, step)) for i in rows)
    gradient = [[average * weights[i] * g for g in row_gradient(values, x, i, step)] for i in rows]
    tokens = [tokens_of(values, x, i, step) for i in rows]
    return Outcome(loss, gradient, metrics(values, x, tokens, weights, counts or here), extrema(values, x, tokens))


# Metrics


def metrics(values, x, tokens, weights, counts):
    def share(numbers, by_response):
        rows = [[float(n) for n in numbers(i)] for i in range(len(tokens))]
        if by_response:
            return sum(row[0] for row in rows if row) / max(counts["nonempty"], 1)
        return sum(map(sum, rows)) / max(counts["tokens"], 1)

    one = values["ratio"] in PER_RESPONSE
    found = {
        "policy_loss": sum(w * sum(stop(k.policy) for k in row) for w, row in zip(weights, tokens, strict=True)),
        "ratio/mean": share(lambda i: [k.ratio for k in tokens[i]], one),
    }
    if values["surrogate"] in CLIPPING:
        found["clip/low"] = share(lambda i: [k.clip.low for k in tokens[i]], one)
        found["clip/high"] = share(lambda i: [k.clip.high for k in tokens[i]], one)
        found["clip/region"] = share(lambda i: [k.clip.low or k.clip.high for k in tokens[i]], one)
    if in_loss(values):
        found["kl"] = share(lambda i: [stop(k.kl) for k in tokens[i]], False)
    if x.get("entropy"):
        found["entropy"] = share(lambda i: [e for e, m in zip(x["entropy"][i], x["mask"][i], strict=True) if m], False)
    if x.get("keep") is not None or values["tokens"] != "all":
        by_row = x.get("keep") is not None and not isinstance(x["keep"][0], list)
        found["tokens/kept"] = share(lambda i: [k.kept for k in tokens[i]], by_row)
    if corrected(values, x):
        by_row = per_response(values, x)
        found["correction/mean"] = share(lambda i: [k.correction for k in tokens[i]], by_row)
        found["correction/zero"] = share(lambda i: [k.correction == 0 for k in tokens[i]], by_row)
        if not x.get("correction") and "truncate" in values["correction"]:
            found["correction/truncated"] = share(lambda i: cut_tokens(values, x, i), cut_by_response(values))
    return found


def cut_tokens(values, x, i):
    row = row_of(x, i)
    if not row.logp:
        return []
    parts = [part for part in correction_parts(values) if part[0] in TRUNCATED]
    cuts = [[not fields["floor"] <= w <= fields["cap"] for w in TRUNCATED[word](row)] for word, fields in parts]
    return [any(cut) for cut in zip(*cuts, strict=True)]


def cut_by_response(values):
    return not any(word == "token_truncate" for word, _ in correction_parts(values))


def corrected(values, x):
    return bool(x.get("correction")) or values["correction"] != "none"


def extrema(values, x, tokens):
    named = {"ratio": [k.ratio for row in tokens for k in row]}
    if corrected(values, x):
        named["correction"] = [k.correction for row in tokens for k in row]
    if in_loss(values):
        named["kl"] = [stop(k.kl) for row in tokens for k in row]
    found = {f"{name}/min": min(numbers, default=math.inf) for name, numbers in named.items()}
    return found | {f"{name}/max": max(numbers, default=-math.inf) for name, numbers in named.items()}
