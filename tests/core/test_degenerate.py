"""Inputs at the edge: nothing to learn from, one of a kind, missing rewards, ratios that overflow."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cases.variants import (
    LENGTH,
    TOKEN_INPUTS,
    compute_advantages,
    counts_for,
    loss_and_gradient,
    random_case,
    with_advantages,
)
from torch.testing import assert_close

import grpo_variants as gv
from grpo_variants.objective.aggregation import Constant, LengthPower
from grpo_variants.objective.surrogate import Clip

NAN = float("nan")
# Without the one that tells equal rewards apart by how likely a response was.
GROUPED = [n for n in gv.names() if gv.get(n).baseline.of_group and not gv.get(n).per_token and n != "unlikeliness"]
BASELINES = ["group_mean", "leave_one_out", "length_weighted"]
SCALES = ["none", "group_std", "batch_std", "batch_std,scale.of=centred,scale.over=tokens"]


def tokens(logp, mask, advantages, **others):
    return gv.Tokens(logp=logp, mask=torch.tensor(mask), advantages=torch.tensor(advantages), **others)


# Nothing to learn from


@pytest.mark.parametrize(
    "spec",
    [*gv.names(), "dapo,aggregation=prompt_mean", "dapo,tokens=top_entropy", "grpo,correction=sequence_truncate"],
)
def test_an_empty_mask_gives_a_zero_loss_that_runs_backward(spec):
    variant = gv.get(spec)
    case = with_advantages(random_case(0), variant)
    empty = replace(case, mask=np.zeros_like(case.mask))
    loss, gradient, out = loss_and_gradient(variant, empty)
    assert loss == 0
    assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=0)
    assert all(float(value) == 0 for value in out.metrics.values())
    assert (out.extrema["ratio/min"], out.extrema["ratio/max"]) == (math.inf, -math.inf)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
@pytest.mark.parametrize("spec", [*gv.names(), "dapo,tokens=top_entropy", "gspo,correction=geometric_truncate"])
def test_no_responses_or_no_columns_give_a_zero_loss_that_runs_backward(spec, shape):
    """What a rank has left when every row of its micro-batch was skipped."""
    logp = torch.zeros(shape, requires_grad=True)
    others = dict.fromkeys(("mask", "ref_logp", "rollout_logp", "entropy"), torch.zeros(shape))
    x = gv.Tokens(logp=logp, advantages=torch.zeros(shape[0]), row_weights=torch.ones(shape[0]), **others)
    out = gv.policy_loss(spec, x, gv.Counts(tokens=5, sequences=2, length=3))
    out.loss.backward()
    assert out.loss == 0
    assert logp.grad.shape == shape
    assert all(float(value) == 0 for value in out.metrics.values())
    assert (out.extrema["ratio/min"], out.extrema["ratio/max"]) == (math.inf, -math.inf)


@pytest.mark.parametrize("name", gv.names())
def test_no_responses_have_no_advantages(name):
    empty = torch.zeros(0, 3)
    named = ("mask", "token_rewards", "step_ends", "old_logp", "ref_logp", "entropy", "sum_pi_squared")
    inputs = {**dict.fromkeys(named, empty), "greedy_rewards": torch.zeros(0)}
    state = gv.Memory() if gv.get(name).remembers else None
    found = gv.advantages(name, torch.zeros(0), [], state=state, **inputs)
    assert found.shape == ((0, 3) if gv.get(name).per_token else (0,))


@pytest.mark.parametrize("name", gv.names())
def test_advantages_of_an_empty_mask_are_finite(name):
    case = random_case(0)
    found = compute_advantages(name, replace(case, mask=np.zeros_like(case.mask)).rollouts())
    assert found.isfinite().all()


@pytest.mark.parametrize("name", gv.names())
def test_an_empty_row_adds_nothing_and_counts_as_a_response(name):
    """Without the empty row the rest is the same but for N, which counts it: 9 responses against 8."""
    variant = gv.get(name)
    case = with_advantages(random_case(0), variant)
    others = [i for i in range(9) if i != 1]
    assert not case.mask[1].any()
    loss, gradient, _ = loss_and_gradient(variant, case)
    fewer, slope, _ = loss_and_gradient(variant, case[others])
    share = 8 / 9 if hasattr(variant.aggregation, "empty_rows") else 1.0  # rules that divide by N
    assert_close(loss, fewer * share)
    assert_close(gradient[others], slope * share)
    assert_close(gradient[1], torch.zeros_like(gradient[1]), rtol=0, atol=0)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "sequence_sum", "constant"])
def test_excluded_empty_rows_do_not_count(aggregation):
    """The mean over responses is then over the 8 that have a token."""
    variant = gv.get(f"grpo,aggregation={aggregation},aggregation.empty_rows=exclude")
    case = with_advantages(random_case(0), variant)
    others = [i for i in range(9) if i != 1]
    loss, _, _ = loss_and_gradient(variant, case)
    fewer, _, _ = loss_and_gradient(variant, case[others])
    assert case.mask[others].any(1).all()
    assert_close(loss, fewer)


@pytest.mark.parametrize("name", gv.names())
def test_a_batch_of_one_response_with_one_token(name):
    case = random_case(0, rows=1, width=1)
    variant, case = gv.get(name), replace(case, rewards=np.array([[0.5, 0.2]]), valid=None)
    found = compute_advantages(name, case.rollouts())
    # Alone there is nothing to compare with, and no deviation to divide by; two members keep the reward itself.
    total = float(case.rewards[0] @ case.reward_weights)
    own = {"reinforce": total, "remax": total - float(case.greedy_rewards[0] @ case.reward_weights)}
    gain = 1.00001 / 1.01001  # a Kalman filter that starts at 0 with a variance of 1, compared after it has seen r
    own["krpo"] = (1 - gain) * total / (((1 - gain) * 1.00001) ** 0.5 + 1e-8)
    own |= {
        "topr": total,
        "w_reinforce": 0.1,
        "psr": 1.0,
        "nsr": 0.0,
        "raft_pp": 1.0,
        "reinforce_rej": total,
    }  # a reward above 0 is a right answer
    assert_close(found.flatten(), torch.tensor([own.get(name, 0.0)], dtype=torch.float64))
    on_policy = replace(
        case, advantages=np.array([2.0]), old_logp=None, ref_logp=case.logp, rollout_logp=case.logp, groups=["g"]
    )
    _, gradient, _ = loss_and_gradient(variant, on_policy)
    assert gradient.item() == pytest.approx(
        -2 / LENGTH if isinstance(variant.aggregation, (Constant, LengthPower)) else -2
    )


# Groups of one, uneven and interleaved groups


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", ["none", "group_std", "batch_std"])
def test_a_singleton_gets_zero_or_its_raw_reward(baseline, scale):
    """verl's rule keeps the reward, over 1 + eps where a group's deviation is taken; a batch's sees it as it is."""
    spec = f"grpo,baseline={baseline},scale={scale}"
    rewards, groups, lengths = [0.7, 0.2, 1.0], ["a", "b", "b"], [3, 2, 2]
    assert compute_advantages(spec, rewards, groups, lengths=lengths)[0] == 0
    raw = compute_advantages(f"{spec},singleton=raw", rewards, groups, lengths=lengths)[0]
    # The sample deviation of .7, .2, 1 is sqrt(((.2/3)^2 + (1.3/3)^2 + (1.1/3)^2) / 2) = 0.404145.
    divisor = {"none": 1.0, "group_std": 1 + 1e-6, "batch_std": 0.404145 + 1e-6}[scale]
    assert float(raw) == pytest.approx(0.7 / divisor, rel=1e-6)


def test_the_last_valid_response_of_a_group_is_a_singleton():
    """100 was rejected: its sibling is alone, and gets 0 instead of -49.5."""
    found = compute_advantages("dr_grpo", [100.0, 1.0, 3.0, 5.0], [0, 0, 1, 1], valid=[False, True, True, True])
    assert found.tolist() == [0, 0, -1, 1]


@pytest.mark.parametrize("credit", ["reward_to_go", "process"])
def test_a_singleton_gets_zero_at_every_token(credit):
    """Token rewards that add up to 6: the return from each token on, less a baseline of 6, would be 0, -1, -3."""
    case = {
        "mask": torch.ones(1, 3),
        "token_rewards": torch.tensor([[1.0, 2.0, 3.0]]),
        "step_ends": torch.tensor([[0, 0, 1]]),
    }
    found = compute_advantages(f"grpo_process,scale=none,credit={credit}", [6.0], [0], **case)
    assert found.tolist() == [[0, 0, 0]]


def test_uneven_interleaved_groups_by_hand():
    """Groups a: 0, 1, 5 with mean 2; b: 4, 8 with mean 6; c alone."""
    rewards, groups = [0.0, 4.0, 1.0, 9.0, 8.0, 5.0], ["a", "b", "a", "c", "b", "a"]
    assert compute_advantages("dr_grpo", rewards, groups).tolist() == [-2, -2, -1, 0, 2, 3]
    # Leave one out: 0 - 3, 4 - 8, 1 - 2.5, alone, 8 - 4, 5 - 0.5.
    assert compute_advantages("rloo", rewards, groups).tolist() == [-3, -4, -1.5, 0, 4, 4.5]
    # Deviations: sqrt((4 + 1 + 9) / 2) = sqrt 7 and sqrt((4 + 4) / 1) = sqrt 8.
    expected = [-2 / 7**0.5, -2 / 8**0.5, -1 / 7**0.5, 0, 2 / 8**0.5, 3 / 7**0.5]
    assert compute_advantages("grpo,scale.eps=0", rewards, groups).tolist() == pytest.approx(expected, rel=1e-6)


# Equal rewards


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [0.7, 0.1, 1 / 3, -1e-3, 3e4 + 0.1])
@pytest.mark.parametrize("baseline", BASELINES)
def test_equal_rewards_have_an_advantage_of_exactly_zero(baseline, value, dtype):
    """Rounding in the mean must not survive: 8 x 0.7 would become 0.056 each over an epsilon of 1e-6."""
    groups = [size for size in range(2, 17) for _ in range(size)]
    rewards, lengths = torch.full((len(groups),), value, dtype=dtype), [1 + i % 5 for i in range(len(groups))]
    for scale in SCALES:
        for eps in (0.0, 1e-8):
            spec = f"grpo,baseline={baseline},scale={scale}" + (f",scale.eps={eps}" if scale != "none" else "")
            assert compute_advantages(spec, rewards, groups, lengths=lengths).tolist() == [0.0] * len(groups), spec


@pytest.mark.parametrize("name", GROUPED)
def test_one_constant_group_among_others_has_exactly_zero(name):
    """Where a batch statistic divides, the constant group's centred rewards are 0 before it, and equal after it."""
    rewards, groups = [0.7] * 8 + [0.1, 0.9, 0.4, 0.2, 0.3], [0] * 8 + [1] * 5
    found = compute_advantages(name, rewards, groups, lengths=[2] * 13)
    if name in ("reinforce_pp_baseline", "gdpo"):  # the batch's mean is subtracted last
        assert found[:8].tolist() == [found[0].item()] * 8
        assert float(found.mean()) == pytest.approx(0, abs=1e-6)
    else:
        assert found[:8].tolist() == [0.0] * 8
    assert found[8:].abs().max() > 0.01


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("count", [2, 5, 33])
def test_equal_weighted_sums_of_rewards_have_an_advantage_of_exactly_zero(count, layout):
    """A sum over reward functions must not depend on the row: a vectorised reduction adds the last rows differently."""
    generator = torch.Generator().manual_seed(count)
    one, weights = torch.randn(count, generator=generator), torch.randn(count, generator=generator)
    for size in range(2, 40):
        rewards = one.expand(size, count)
        rewards = rewards.contiguous() if layout == "rows" else rewards.T.contiguous().T
        for given in (None, weights):
            assert compute_advantages("grpo", rewards, [0] * size, reward_weights=given).tolist() == [0.0] * size


@pytest.mark.parametrize("credit", ["reward_to_go", "process"])
def test_equal_rewards_have_exactly_zero_at_every_token(credit):
    """The reward is one step's, at the last token."""
    mask = torch.arange(4) < torch.tensor([[1], [2], [3], [4], [4], [2], [3]])
    last = mask & ~mask.roll(-1, 1).logical_and(torch.arange(4) < 3)
    given = {"mask": mask, "token_rewards": last * 0.7, "step_ends": last}
    for scale in ("none", "group_std", "batch_std"):
        found = compute_advantages(f"grpo_process,credit={credit},scale={scale}", [0.7] * 7, [0] * 7, **given)
        assert found.tolist() == torch.zeros(7, 4).tolist()


def test_nearly_equal_rewards_are_not_taken_for_equal():
    """Two passes keep the digits: (1, 1.00001) has a deviation of 7.07e-6, so +-5e-6 / (7.07e-6 + 1e-6) = +-0.6195."""
    rewards = torch.tensor([1.0, 1.00001, 2.0, 2.00001], dtype=torch.float64)
    found = compute_advantages("grpo", rewards, [0, 0, 1, 1])
    assert found.tolist() == pytest.approx([-0.61951, 0.61951] * 2, abs=1e-4)
    assert compute_advantages("grpo", rewards.float(), [0, 0, 1, 1]).tolist() == pytest.approx(
        [-0.6195, 0.6195] * 2, abs=0.02
    )


def test_leave_one_out_with_a_deviation_does_not_explode():
    """One 0 among seven 0.95: the others' rewards are equal, their residue must not be taken for a deviation."""
    found = compute_advantages("rloo,scale=group_std", [0.0] + [0.95] * 7, [0] * 8)
    # Deviation sqrt(0.95^2 / 8) = 0.335876; leave one out: -0.95, and 0.95 - 6 * 0.95 / 7 = 0.135714.
    assert found.tolist() == pytest.approx([-0.95 / 0.335876] + [0.135714 / 0.335876] * 7, rel=1e-4)


# Missing rewards


@pytest.mark.parametrize("name", gv.names())
def test_all_rewards_missing_is_all_zero(name):
    case = random_case(0)
    case = replace(case, rewards=np.full_like(case.rewards, NAN))
    found = compute_advantages(name, case.rollouts())
    assert_close(found, torch.zeros_like(found), rtol=0, atol=0)


@pytest.mark.parametrize("missing", [None, NAN])
def test_missing_rewards_by_hand(missing):
    """Totals 1 + 2, 3, 2 and none: mean 8/3 of the three that have one."""
    rewards = [[1.0, 2.0], [3.0, missing], [missing, 2.0], [missing, missing]]
    found = compute_advantages("dr_grpo", rewards, [0] * 4)
    assert found.tolist() == pytest.approx([1 / 3, 1 / 3, -2 / 3, 0])
    # Weights 1 and 10: totals 21, 3, 20, mean 44/3.
    found = compute_advantages("dr_grpo", rewards, [0] * 4, reward_weights=[1.0, 10.0])
    assert found.tolist() == pytest.approx([19 / 3, -35 / 3, 16 / 3, 0])


def test_a_missing_reward_in_a_flat_list():
    assert compute_advantages("dr_grpo", [1.0, None, 3.0], [0, 0, 0]).tolist() == [-1, 0, 1]


def test_a_response_that_is_not_valid_is_out_of_every_statistic():
    """Rewards 1, 1, 0, 0 with the second one masked: mean 1/3."""
    found = compute_advantages("dr_grpo", [1.0, 1.0, 0.0, 0.0], [0] * 4, valid=[True, False, True, True])
    assert found.tolist() == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])
    for name in gv.names():
        case = replace(random_case(4), valid=np.arange(9) != 3)
        wild = replace(case, rewards=case.rewards.copy(), token_rewards=case.token_rewards.copy())
        wild.rewards[3], wild.token_rewards[3] = 1e6, NAN
        found, expected = (compute_advantages(name, c.rollouts()) for c in (wild, case))
        assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("outcome", [True, False])
@pytest.mark.parametrize("name", gv.names())
def test_a_missing_token_reward_takes_its_response_out(name, outcome):
    """As if the response were not valid, whichever rewards the rule reads; in the padding it means nothing."""
    case = random_case(4)
    holed = replace(case, token_rewards=np.where(case.mask, case.token_rewards, NAN))
    holed.token_rewards[3, case.mask.argmax(1)[3]] = NAN
    both = [one.rollouts() for one in (holed, replace(case, valid=case.valid & (np.arange(9) != 3)))]
    if not outcome:
        both = [replace(x, rewards=None, reward_weights=None, greedy_rewards=x.greedy_rewards[:, 0]) for x in both]
    found, expected = (compute_advantages(name, one) for one in both)
    assert_close(found, expected, rtol=0, atol=0)
    assert not found[3].any()


def test_a_missing_step_reward_by_hand():
    """Steps 0 and 1, none and 0, 0 and 1, 0 and 0; without the second response mean 1/3 and deviation sqrt(4/15)."""
    rewards = torch.tensor([[0.0, 0, 1], [0, NAN, 0], [0, 0, 1], [0, 0, 0]])
    ends = torch.tensor([[0, 1, 1]] * 4).bool()
    found = gv.advantages(
        "grpo_process,scale.eps=0", None, [0] * 4, token_rewards=rewards, step_ends=ends, mask=torch.ones(4, 3)
    )
    right, wrong = (2 / 3) / (4 / 15) ** 0.5, (-1 / 3) / (4 / 15) ** 0.5
    good, bad = [right + wrong] * 2 + [right], [2 * wrong] * 2 + [wrong]
    assert_close(found, torch.tensor([good, [0.0] * 3, good, bad]))


def test_a_response_without_loss_tokens_stays_in_its_groups_statistics():
    """A truncated answer whose mask is emptied has still told what its prompt is worth: rewards 1, 3, 2 with mean 2."""
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]])
    assert compute_advantages("dr_grpo", [1.0, 3.0, 2.0], [0, 0, 0], mask=mask).tolist() == [-1, 1, 0]
    by_token = compute_advantages("dr_grpo,credit=reward_to_go", [1.0, 3.0, 2.0], [0, 0, 0], mask=mask)
    assert by_token.tolist() == [[-1, -1, 0], [0, 0, 0], [0, 0, 0]]


# Overflow


def far_off_policy(variant, advantage, log_ratio=100.0):
    """Loss and gradient of one response of two tokens to which one of the two policies gives next to no probability."""
    logp = torch.full((1, 2), min(log_ratio, 0.0), requires_grad=True)
    old = logp.detach() - log_ratio
    given = {"old_logp": old, "rollout_logp": old, "ref_logp": torch.zeros(1, 2), "entropy": torch.ones(1, 2)}
    x = tokens(logp, [[1, 1]], [advantage], **given, row_weights=torch.tensor([0.5]))
    out = gv.policy_loss(variant, x, gv.Counts(tokens=2, sequences=1, length=2, prompts=1))
    out.loss.backward()
    return out.loss.item(), logp.grad


@pytest.mark.parametrize("advantage", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("name", [n for n in gv.names() if isinstance(gv.get(n).surrogate, Clip)])
def test_a_log_ratio_of_100_is_clipped_or_bounded(name, advantage):
    """exp(100) is infinite in float32, and 0 times infinity no number; bounded at 20 it is 4.9e8, without gradient."""
    surrogate = gv.get(name).surrogate
    loss, gradient = far_off_policy(gv.get(name), advantage)
    # For A = 1 the loss is that of the clip, for A = -1 it is the bound's, or the dual clip's.
    expected = {0.0: 0.0, 1.0: -1 - surrogate.high, -1.0: surrogate.dual or math.exp(20)}[advantage]
    assert loss == pytest.approx(expected, rel=1e-6)
    assert gradient.abs().max() == 0


@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
@pytest.mark.parametrize("advantage", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("name", [n for n in gv.names() if not isinstance(gv.get(n).surrogate, Clip)])
def test_a_log_ratio_of_100_is_finite(name, advantage, log_ratio):
    loss, gradient = far_off_policy(gv.get(name), advantage, log_ratio)
    assert math.isfinite(loss)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("difference", [100.0, -100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_at_a_difference_of_100_is_finite(difference, dtype):
    """u is bounded by 20: exp(20) - 21 = 485165174.41 and exp(-20) + 19 = 19.000000002; no gradient outside."""
    logp = torch.zeros(1, 1, dtype=dtype, requires_grad=True)
    value = gv.kl("k3", logp, torch.full((1, 1), difference, dtype=dtype))
    value.backward()
    assert value.item() == pytest.approx(485165174.4097903 if difference > 0 else 19.000000002061153, rel=1e-6)
    assert logp.grad.item() == 0


def test_a_dropped_token_may_overflow():
    """What a correction or a token filter drops is dropped by selection: 0 times an infinite loss is no number."""
    logp = torch.zeros(2, 2, requires_grad=True)
    x = tokens(
        logp,
        [[1, 1], [1, 1]],
        [-1.0, -1.0],
        old_logp=torch.tensor([[0.0, -500.0], [0.0, 0.0]]),
        rollout_logp=torch.tensor([[0.0, 0.0], [0.0, 0.0]]),
        entropy=torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
    )
    for part in (
        "correction=token_mask,correction.low=0.5,correction.high=2",
        "tokens=top_entropy,tokens.fraction=0.5",
    ):
        spec = f"dapo,ratio.bound_high=none,{part}"
        out = gv.policy_loss(spec, x)
        assert out.loss.item() == 0.75  # three tokens of ratio 1 and A = -1, over four


def test_masks_of_any_type_mean_the_same():
    case = with_advantages(random_case(0), gv.get("grpo"))
    expected, gradient, _ = loss_and_gradient(gv.get("grpo"), case)
    for dtype in (torch.int64, torch.float32, torch.uint8):
        loss, slope, _ = loss_and_gradient(gv.get("grpo"), case, mask=torch.as_tensor(case.mask).to(dtype))
        assert_close((loss, slope), (expected, gradient), rtol=0, atol=0)


def test_dr_grpo_divides_by_the_given_length_whatever_the_width():
    """The divisor is N times the trainer's maximum length, not the padded width: 10 or 20 columns, the same loss."""
    variant = gv.get("dr_grpo")
    for width in (10, 20):
        case = with_advantages(random_case(0), variant)
        wide = {n: np.pad(getattr(case, n), ((0, 0), (0, width - 6))) for n in ("mask", *TOKEN_INPUTS)}
        loss, _, _ = loss_and_gradient(variant, replace(case, **wide), counts=counts_for(variant, case))
        ratio = np.exp(case.logp - case.old_logp)
        a = case.advantages[:, None]
        terms = np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a) * case.mask
        assert loss.item() == pytest.approx(-terms.sum() / (9 * LENGTH))
