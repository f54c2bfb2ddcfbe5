"""What must not matter does not, and what must be equal is: identities over the registry and over random variants."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cases.variants import (
    LENGTH,
    TOKEN_INPUTS,
    compute_advantages,
    counts_for,
    loss_and_gradient,
    random_case,
    random_cases,
    random_variants,
    token_advantages,
    with_advantages,
    with_row_weights,
)
from torch.testing import assert_close

import grpo_variants as gv
from grpo_variants.advantage.baseline import Kalman
from grpo_variants.advantage.scale import KalmanStd
from grpo_variants.advantage.selection import Efficient, Shortest
from grpo_variants.objective.aggregation import trained
from grpo_variants.objective.inputs import read_tokens

EXACT = {"rtol": 1e-12, "atol": 1e-12}
seeds = st.integers(0, 2**32 - 1)
MORE = (
    "dapo,aggregation=prompt_mean",
    "grpo,aggregation.empty_rows=exclude,correction=token_truncate+geometric_mask,correction.low=0.9,correction.high=1.2",
    "gspo,correction=off_policy_mask,correction.threshold=0.1,kl=k2,kl.beta=0.1,kl.weighted=ratio",
    "dapo,tokens=top_entropy,tokens.fraction=0.4",
    "dapo,tokens=top_entropy,tokens.fraction=0.4,tokens.denominator=kept",
    "grpo,tokens=top_entropy,tokens.fraction=0.4,tokens.denominator=kept,aggregation.empty_rows=exclude",
)


# Splits into micro-batches


def step_counts(variant, case):
    """What a trainer computes once a step: counts, with the thresholds of statistics that span the batch."""
    mask, thresholds = trained(variant.aggregation, case.tokens()).mask.numpy(), {}
    if variant.surrogate.whole_batch:
        x = read_tokens(case.tokens())
        thresholds |= variant.surrogate.thresholds(variant.ratio(x).detach(), x)
    if variant.tokens.whole_batch:
        threshold = np.quantile(case.entropy[mask], 1 - variant.tokens.fraction) if mask.any() else 0.0
        thresholds |= {"entropy": threshold}
        if variant.tokens.denominator == "kept":
            mask = mask & (case.entropy >= threshold)
    given = {"thresholds": thresholds} if thresholds else {}
    return gv.Counts.of(torch.as_tensor(mask), case.groups, length=LENGTH, **given)


def trimmed(case):
    """Padding cut off at the right, down to two columns: at one, a sequence ratio's metrics count as a token's."""
    width = max(2, int((case.mask * (np.arange(case.mask.shape[1]) + 1)).max()))
    token_inputs = {name: getattr(case, name)[:, :width] for name in (*TOKEN_INPUTS, "mask")}
    a = case.advantages
    return replace(case, **token_inputs, advantages=a[:, :width] if a.ndim == 2 else a)


@pytest.mark.parametrize("spec", [*gv.names(), *MORE])
@settings(max_examples=15)
@given(case=random_cases(), labels=st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_losses_gradients_and_metrics_of_any_split_add_up_to_the_whole(spec, case, labels):
    variant = gv.get(spec)
    case = with_advantages(case, variant)
    counts = step_counts(variant, case)
    if variant.aggregation.of_group:
        case = with_row_weights(variant, case, counts)
    loss, gradient, whole = loss_and_gradient(variant, case, counts=counts)
    losses, metrics, rebuilt = [], [], torch.zeros_like(gradient)
    for label in set(labels[: len(case.groups)]):
        rows = [i for i in range(len(case.groups)) if labels[i] == label]
        part = trimmed(case[rows])
        value, slope, out = loss_and_gradient(variant, part, counts=counts)
        losses.append(value)
        metrics.append(out.metrics)
        rebuilt[rows, : slope.shape[1]] = slope
    assert_close(sum(losses), loss, **EXACT)
    assert_close(rebuilt, gradient, **EXACT)
    for name, value in whole.metrics.items():
        assert_close(sum(part[name] for part in metrics), value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("spec", [*gv.names(), *MORE])
def test_metrics_say_whether_they_are_means_over_tokens_or_over_responses(spec):
    """Weights from outside: the counts then matter to the metrics alone. Twice the tokens halve a mean over tokens."""
    variant = gv.get(spec)
    x = with_advantages(random_case(1), variant).tokens()
    x = replace(x, row_weights=torch.ones(len(x.mask)))
    counts = [gv.Counts(tokens=t, sequences=r, nonempty=r, length=9) for t, r in ((8, 4), (16, 4), (8, 8))]
    out, tokens, rows = (gv.policy_loss(variant, x, count) for count in counts)
    assert {"ratio/mean"} <= out.metrics.keys()
    for name, value in out.metrics.items():
        half = {True: (1.0, 0.5), False: (0.5, 1.0)}[name in out.per_response] if name != "policy_loss" else (1.0, 1.0)
        assert_close(tokens.metrics[name], value * half[0], rtol=1e-6, atol=1e-9, msg=name)
        assert_close(rows.metrics[name], value * half[1], rtol=1e-6, atol=1e-9, msg=name)
    assert ("ratio/mean" in out.per_response) == variant.ratio.per_sequence


@pytest.mark.parametrize("spec", [*gv.names(), *MORE])
def test_without_counts_the_batch_is_the_step(spec):
    variant = gv.get(spec)
    case = with_advantages(random_case(5), variant)
    counts = step_counts(variant, case)
    given = with_row_weights(variant, case, counts) if variant.aggregation.of_group else case
    with_counts, slope, _ = loss_and_gradient(variant, given, counts=counts)
    loss, gradient, _ = loss_and_gradient(variant, case)
    assert_close(loss, with_counts, **EXACT)
    assert_close(gradient, slope, **EXACT)
    assert gradient.abs().max() > 1e-6


@pytest.mark.parametrize("spec", gv.names())
def test_the_trainers_average_over_ranks_is_undone(spec):
    """Two ranks, each with its own rows, whose gradients the trainer averages."""
    variant = gv.get(spec)
    case = with_advantages(random_case(5), variant)
    counts = step_counts(variant, case)
    case = with_row_weights(variant, case, counts) if variant.aggregation.of_group else case
    whole, gradient, out = loss_and_gradient(variant, case, counts=counts)
    counts = replace(counts, grad_average=2)
    ranks = [loss_and_gradient(variant, case[rows], counts=counts) for rows in (range(0, 4), range(4, 9))]
    assert_close(sum(loss for loss, _, _ in ranks) / 2, whole, **EXACT)
    assert_close(torch.cat([slope for _, slope, _ in ranks]) / 2, gradient, **EXACT)
    for name, value in out.metrics.items():
        assert_close(sum(rank.metrics[name] for _, _, rank in ranks), value, rtol=1e-5, atol=1e-6, msg=name)


def test_extrema_combine_by_minimum_and_maximum():
    variant = gv.get("grpo,correction=token_truncate")
    case = with_advantages(random_case(5), variant)
    _, _, whole = loss_and_gradient(variant, case)
    parts = [loss_and_gradient(variant, case[[i]])[2].extrema for i in range(9)]
    assert set(whole.extrema) == {f"{name}/{end}" for name in ("ratio", "kl", "correction") for end in ("min", "max")}
    for name, value in whole.extrema.items():
        combine = min if name.endswith("min") else max
        assert_close(combine(part[name] for part in parts), value)
    assert whole.extrema["ratio/min"] < 1 < whole.extrema["ratio/max"]


# What is irrelevant


def order_matters(variant):
    """A filter runs through a group in order; a choice of responses breaks its ties by order."""
    return (
        isinstance(variant.baseline, Kalman)
        or isinstance(variant.scale, KalmanStd)
        or isinstance(variant.selection, Shortest | Efficient)
    )


@given(random_variants, random_cases(), st.randoms(use_true_random=False))
def test_the_order_of_responses_does_not_matter(variant, case, random):
    assume(not order_matters(variant))
    rows = list(range(len(case.groups)))
    random.shuffle(rows)
    case = with_advantages(case, variant)
    shuffled = with_advantages(case[rows], variant)
    assert_close(torch.as_tensor(shuffled.advantages), torch.as_tensor(case.advantages[rows]), rtol=1e-9, atol=1e-9)
    loss, gradient, _ = loss_and_gradient(variant, case)
    again, slope, _ = loss_and_gradient(variant, case[rows])
    assert_close(again, loss, **EXACT)
    assert_close(slope, gradient[rows], **EXACT)


@given(random_variants, random_cases())
def test_what_groups_are_called_does_not_matter(variant, case):
    names = {name: (len(name), -i) for i, name in enumerate(dict.fromkeys(case.groups))}
    for groups in ([names[g] for g in case.groups], torch.tensor([17 - 5 * names[g][1] for g in case.groups])):
        renamed = compute_advantages(variant, case.rollouts(groups=groups))
        assert_close(renamed, compute_advantages(variant, case.rollouts()), rtol=0, atol=0)
        filled = with_advantages(case, variant)
        expected, gradient, _ = loss_and_gradient(variant, filled)
        loss, slope, _ = loss_and_gradient(variant, filled, groups=groups)
        assert_close(loss, expected, rtol=0, atol=0)
        assert_close(slope, gradient, rtol=0, atol=0)


def padded(case, left, right, garbage):
    """The case with more columns, all outside the mask, whose content is garbage."""
    wide = {}
    for name in (*TOKEN_INPUTS, "sum_pi_squared", "mask", "token_rewards", "step_ends", "advantages"):
        value = getattr(case, name)
        if value is not None and value.ndim == 2:
            fill = {"mask": False, "step_ends": True}.get(name, garbage)
            wide[name] = np.pad(value, ((0, 0), (left, right)), constant_values=fill)
    return replace(case, **wide)


def test_padding_width_does_not_matter():
    """On the left and on the right; the columns that are added hold NaN."""
    for spec in [*gv.names(), *MORE, "dapo,credit=reward_to_go,credit.gamma=0.5"]:
        variant, case = gv.get(spec), random_case(2)
        narrow, wide = with_advantages(case, variant), with_advantages(padded(case, 2, 3, np.nan), variant)
        a = wide.advantages
        if a.ndim == 2:
            assert not a[:, :2].any()
            assert not a[:, -3:].any()
            a = a[:, 2:-3]
        np.testing.assert_allclose(a, narrow.advantages, rtol=1e-12, atol=1e-12)
        loss, gradient, out = loss_and_gradient(variant, narrow)
        again, slope, padded_out = loss_and_gradient(variant, wide)
        assert_close(again, loss, **EXACT)
        assert_close(slope, torch.nn.functional.pad(gradient, (2, 3)), **EXACT)
        assert_close(padded_out.metrics, out.metrics)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e38])
@pytest.mark.parametrize(
    "spec", [*gv.names(), *MORE, "dapo,credit=reward_to_go", "grpo,kl=k3,kl.beta=1,kl.placement=reward"]
)
def test_padding_content_reaches_neither_advantages_nor_loss_nor_gradient(spec, garbage):
    variant, case = gv.get(spec), with_advantages(random_case(2), gv.get(spec))
    names = [n for n in (*TOKEN_INPUTS, "sum_pi_squared", "token_rewards") if getattr(case, n) is not None]
    names += ["advantages"] if case.advantages.ndim == 2 else []
    dirty = replace(case, **{name: np.where(case.mask, getattr(case, name), garbage) for name in names})
    assert_close(
        compute_advantages(variant, dirty.rollouts()), compute_advantages(variant, case.rollouts()), rtol=0, atol=0
    )
    loss, gradient, out = loss_and_gradient(variant, case)
    again, slope, dirty_out = loss_and_gradient(variant, dirty)
    assert_close(again, loss, rtol=0, atol=0)
    assert_close(slope, gradient, rtol=0, atol=0)
    assert_close((dirty_out.metrics, dirty_out.extrema), (out.metrics, out.extrema), rtol=0, atol=0)


def test_garbage_in_token_advantages_does_not_spread_over_a_response():
    """One ratio per response sums the gradients of all its columns: a NaN under the mask must not be among them."""
    case = token_advantages(random_case(2))
    dirty = replace(case, advantages=np.where(case.mask, case.advantages, np.nan))
    loss, gradient, _ = loss_and_gradient(gv.get("gspo"), case)
    again, slope, _ = loss_and_gradient(gv.get("gspo"), dirty)
    assert gradient.abs().max() > 1e-3
    assert_close((again, slope), (loss, gradient), rtol=0, atol=0)


def test_garbage_in_a_row_without_tokens_does_not_matter():
    """Row 1 is empty: NaN as its advantage, correction weight or reward component does no harm."""
    variant = gv.get("grpo")
    case = with_advantages(random_case(2), variant)
    loss, gradient, _ = loss_and_gradient(variant, replace(case, correction=np.ones((9, 1))))
    dirty = replace(case, advantages=case.advantages.copy(), correction=np.ones((9, 1)))
    dirty.advantages[1] = dirty.correction[1] = np.nan
    again, slope, _ = loss_and_gradient(variant, dirty)
    assert_close(again, loss, rtol=0, atol=0)
    assert_close(slope, gradient, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        *((name, "logp") for name in gv.names()),
        *((name, "old_logp") for name in gv.names() if gv.get(name).ratio.anchor == "old"),
        *((name, "ref_logp") for name in gv.names() if gv.get(name).kl_in_loss),
        *((name, "advantages") for name in gv.names()),
        ("grpo,ratio.anchor=rollout", "rollout_logp"),
        *(
            (f"rloo,correction={c}", "rollout_logp")
            for c in ("token_truncate", "sequence_truncate", "geometric_truncate")
        ),
        *(
            (f"rloo,correction={c},correction.low=0.1,correction.high=9", "rollout_logp")
            for c in ("token_mask", "geometric_mask")
        ),
    ],
)
def test_a_nan_at_a_valid_position_stays_visible(spec, name):
    variant = gv.get(spec)
    case = token_advantages(random_case(2)) if name == "advantages" and variant.per_token else random_case(2)
    case = case if case.advantages is not None else with_advantages(case, variant)
    case = case if name == "rollout_logp" else replace(case, rollout_logp=case.old_logp)  # no correction drops it
    values = getattr(case, name).copy()
    # The token of the highest entropy, which a token filter may not drop; of the lowest where those have no KL.
    exempt = name == "ref_logp" and variant.kl.exempt is not None
    # Nor a response that the aggregation leaves out.
    mask = trained(variant.aggregation, case.tokens()).mask.numpy()
    order = np.where(mask, -case.entropy if exempt else case.entropy, -np.inf)
    row, column = np.unravel_index(order.argmax(), mask.shape)
    values[(row, column) if values.ndim == 2 else row] = np.nan
    loss, _, _ = loss_and_gradient(variant, replace(case, **{name: values}))
    assert loss.isnan()


@pytest.mark.parametrize("spec", ["reinforce_pp", "grpo,kl.placement=reward,scale=none"])
def test_a_nan_at_a_valid_position_stays_visible_in_the_reward(spec):
    case = random_case(2)
    old_logp = case.old_logp.copy()
    row = next(i for i in range(9) if case.valid[i] and case.mask[i].any() and not np.isnan(case.rewards[i]).all())
    old_logp[row, np.flatnonzero(case.mask[row])[0]] = np.nan
    found = compute_advantages(spec, replace(case, old_logp=old_logp).rollouts())
    assert found[row].isnan().any()


# Reward shifts and scales


def one_reward(case, rewards):
    return replace(case, rewards=rewards[:, None], reward_weights=None, valid=None, greedy_rewards=None)


@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "length_weighted"])
@given(case=random_cases(), seed=seeds)
def test_group_baselines_ignore_a_shift_of_each_groups_rewards(baseline, scale, case, seed):
    rng = np.random.default_rng(seed)
    rewards, shift = rng.normal(size=len(case.groups)), {g: rng.normal() * 10 for g in set(case.groups)}
    shifted = rewards + np.array([shift[g] for g in case.groups])
    # The deviation of the raw rewards of a batch is no group statistic; that of the centred ones is.
    spec = f"grpo,baseline={baseline},scale={scale}" + (",scale.of=centred" if scale == "batch_std" else "")
    before = compute_advantages(spec, one_reward(case, rewards).rollouts())
    after = compute_advantages(spec, one_reward(case, shifted).rollouts())
    # A group of one: with length weights of 0 the mean is not defined, its advantage is the reward itself.
    counted = case.mask.any(1) | (baseline != "length_weighted")
    for g in set(case.groups):
        members = [i for i in range(len(case.groups)) if case.groups[i] == g]
        if counted[members].any():
            assert_close(after[members], before[members], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "spec", ["reinforce,baseline=batch_mean", "grpo,baseline=batch_mean,scale=batch_std", "dapo", "rloo"]
)
@given(case=random_cases(), seed=seeds, shift=st.floats(-50, 50))
def test_baselines_ignore_a_shift_of_every_reward(spec, case, seed, shift):
    rewards = np.random.default_rng(seed).normal(size=len(case.groups))
    before = compute_advantages(spec, one_reward(case, rewards).rollouts())
    after = compute_advantages(spec, one_reward(case, rewards + shift).rollouts())
    assert_close(after, before, rtol=1e-9, atol=1e-9)


def test_remax_ignores_a_shift_of_both_rewards():
    case = random_case(0)
    moved = replace(case, rewards=case.rewards + 3.0, greedy_rewards=case.greedy_rewards + 3.0)
    full = ~np.isnan(case.rewards).any(1)
    before, after = (compute_advantages("remax", c.rollouts())[full] for c in (case, moved))
    assert before.abs().max() > 0.1
    assert_close(after, before, **EXACT)


@pytest.mark.parametrize(
    "spec",
    [
        "grpo,scale.eps=0",
        "rloo,scale=group_std,scale.eps=0,scale.eps_in=var",
        "grpo,scale=batch_std,scale.eps=0",
        "grpo,scale=batch_std,scale.of=centred,scale.eps=0",
        "reinforce_pp_baseline,scale.eps=0",
        "reinforce_pp,scale.eps=0,kl=none",
        "grpo_process,scale.eps=0",
    ],
)
@given(case=random_cases(), seed=seeds, factor=st.floats(0.01, 100))
def test_standard_deviations_ignore_the_scale_of_rewards(spec, case, seed, factor):
    rewards = np.random.default_rng(seed).normal(size=len(case.groups))
    before = one_reward(case, rewards)
    after = replace(one_reward(case, rewards * factor), token_rewards=case.token_rewards * factor)
    found = compute_advantages(spec, before.rollouts())
    assert_close(compute_advantages(spec, after.rollouts()), found, rtol=1e-8, atol=1e-8)


@given(random_cases(min_rows=2), seeds)
def test_leave_one_out_is_the_group_mean_times_g_over_g_minus_one(case, seed):
    rewards = np.random.default_rng(seed).normal(size=len(case.groups))
    case = one_reward(case, rewards)
    centred = compute_advantages("dr_grpo", case.rollouts())
    size = torch.tensor([case.groups.count(g) for g in case.groups], dtype=torch.float64)
    expected = torch.where(size > 1, centred * size / (size - 1).clamp(min=1), 0.0)
    assert_close(compute_advantages("rloo", case.rollouts()), expected, **EXACT)


# Identities of objectives


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "prompt_mean", "constant", "sequence_sum"])
@pytest.mark.parametrize(
    "options",
    ["token", "token,surrogate.low=0,surrogate.high=0", "sequence_token", "sequence_product", "sequence_arithmetic"],
)
def test_on_policy_a_clipped_gradient_is_reinforces(options, aggregation):
    """At ratio 1 nothing is clipped, and the gradient of the ratio is that of logp; a product's, of all tokens."""
    case = replace(with_advantages(random_case(2), gv.get("dapo")), old_logp=None)
    _, gradient, _ = loss_and_gradient(gv.get(f"dapo,aggregation={aggregation},ratio={options}"), case)
    reinforce = gv.get(f"dapo,aggregation={aggregation},ratio=none,surrogate=reinforce")
    _, expected, _ = loss_and_gradient(reinforce, case)
    assert expected.abs().max() > 1e-3
    times = case.mask.sum(1, keepdims=True) if options == "sequence_product" else 1
    assert_close(gradient, expected * torch.as_tensor(times), **EXACT)


def test_on_policy_gspos_gradient_is_reinforces():
    case = replace(with_advantages(random_case(2), gv.get("gspo")), old_logp=None)
    _, gradient, _ = loss_and_gradient(gv.get("gspo"), case)
    _, expected, _ = loss_and_gradient(gv.get("gspo,ratio=none,surrogate=reinforce"), case)
    assert expected.abs().max() > 1e-3
    assert_close(gradient, expected, **EXACT)


@pytest.mark.parametrize("ratio", ["token", "sequence", "sequence_token", "sequence_product"])
def test_infinite_clip_bounds_leave_the_ratio_alone(ratio):
    """The loss is then -sum of w rho A, and its gradient the importance-weighted score function's."""
    spec = f"dapo,ratio={ratio},ratio.bound_low=none,ratio.bound_high=none"
    case = with_advantages(random_case(2, spread=1.0), gv.get(spec))
    loss, gradient, out = loss_and_gradient(gv.get(f"{spec},surrogate.low=1e30,surrogate.high=1e30"), case)
    difference = np.where(case.mask, case.logp - case.old_logp, 0.0)
    sums = difference.sum(1, keepdims=True)
    log_ratio = {"token": difference, "sequence_product": sums}.get(
        ratio, sums / np.maximum(case.mask.sum(1, keepdims=True), 1)
    )
    expected = -(np.exp(log_ratio) * case.advantages[:, None] * case.mask).sum() / case.mask.sum()
    assert_close(loss.item(), expected, **EXACT)
    assert out.metrics["clip/region"] == 0
    if ratio in ("token", "sequence_token"):  # the others' gradient is that of the whole response, not of each token
        _, weighted, _ = loss_and_gradient(gv.get(f"{spec},surrogate=reinforce"), case)
        assert_close(gradient, weighted, **EXACT)


@pytest.mark.parametrize("ratio", ["sequence", "sequence_token", "sequence_product", "sequence_arithmetic"])
@given(seed=seeds)
def test_responses_of_one_token_make_sequence_and_token_ratios_equal(ratio, seed):
    case = with_advantages(random_case(seed, width=1), gv.get("grpo"))
    expected, gradient, _ = loss_and_gradient(gv.get("grpo"), case)
    loss, slope, _ = loss_and_gradient(gv.get(f"grpo,ratio={ratio}"), case)
    assert_close(loss, expected, **EXACT)
    assert_close(slope, gradient, **EXACT)


@settings(max_examples=100)
@given(random_cases(spread=5e-4))
def test_gspo_token_has_gspos_gradient_where_a_response_has_one_advantage(case):
    """Value and gradient: equations 13 to 17 of arXiv 2507.18071. The spread makes both sides of the clip matter."""
    case = with_advantages(case, gv.get("gspo"))
    loss, gradient, _ = loss_and_gradient(gv.get("gspo"), case)
    token_loss, slope, _ = loss_and_gradient(gv.get("gspo_token"), case)
    assert_close(token_loss, loss, **EXACT)
    assert_close(slope, gradient, **EXACT)


def test_gspo_clips_some_responses_in_the_cases_above():
    clipped = [
        loss_and_gradient(gv.get("gspo"), with_advantages(random_case(seed, spread=5e-4), gv.get("gspo")))[2].metrics
        for seed in range(10)
    ]
    assert 0.05 < sum(float(m["clip/region"]) for m in clipped) / 10 < 0.9


@given(random_cases(), st.floats(0.1, 10))
def test_a_policy_term_scales_with_its_advantages(case, factor):
    """Positive homogeneity in A: what lets a trainer rescale advantages instead of row weights."""
    for name in ("dapo", "gspo", "reinforce", "dapo,correction=token_truncate"):
        variant = gv.get(name)
        case = with_advantages(case, variant)
        scaled = replace(case, advantages=case.advantages * factor)
        loss, gradient, _ = loss_and_gradient(variant, case)
        again, slope, _ = loss_and_gradient(variant, scaled)
        assert_close(again, loss * factor, **EXACT)
        assert_close(slope, gradient * factor, **EXACT)


@given(random_cases(), seeds)
def test_in_expectation_the_gradient_of_k1_is_zero_and_k2s_is_the_reverse_kls(case, seed):
    """Over every token of a categorical policy, weighted by its probability; k3's is that of KL(ref || policy)."""
    logits = torch.randn(
        5, generator=torch.Generator().manual_seed(seed % 2**31), dtype=torch.float64, requires_grad=True
    )
    ref = torch.randn(5, generator=torch.Generator().manual_seed(seed // 2), dtype=torch.float64).log_softmax(0)
    assume(float(ref.abs().max()) < 10)

    def gradient(value):
        return torch.autograd.grad(value, logits)[0]

    logp = logits.log_softmax(0)
    probability = logp.detach().exp()
    expected = {
        "k1": torch.zeros(5, dtype=torch.float64),
        "k2": gradient((logp.exp() * (logp - ref)).sum()),
        "k3": gradient((ref.exp() * (ref - logits.log_softmax(0))).sum()),
    }
    for estimator, wanted in expected.items():
        found = gradient((probability * gv.kl(estimator, logits.log_softmax(0), ref, bound=None)).sum())
        assert_close(found, wanted, rtol=1e-9, atol=1e-10)
    found = gradient((probability * gv.kl("k3", logits.log_softmax(0), ref, gradient="k2", bound=None)).sum())
    assert_close(found, expected["k2"], rtol=1e-9, atol=1e-10)


def test_step_counts_are_those_the_variant_would_take():
    """The helper above agrees with the package where the package counts alone."""
    case = with_advantages(random_case(5), gv.get("dapo"))
    counts = step_counts(gv.get("dapo"), case)
    assert counts_for(gv.get("dapo"), case) is None
    assert (int(counts.tokens), counts.sequences, int(counts.nonempty)) == (case.mask.sum(), 9, case.mask.any(1).sum())
    assert counts.prompts == len(set(case.groups))
