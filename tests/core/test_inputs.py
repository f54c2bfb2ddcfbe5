"""What the public functions take and give: the text of every refusal, and the numbers of the small ones."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cases.variants import compute_advantages, random_case, with_advantages
from torch.testing import assert_close

import grpo_variants as gv
from grpo_variants.tensors.reading import infinite_entries, without_infinities

NAN = float("nan")
TWO = {"rewards": [1.0, 0.0], "groups": [0, 0]}
FULL, LOGP = torch.ones(2, 3), -torch.ones(2, 3)


# Refusals of advantages


@pytest.mark.parametrize(
    ("spec", "inputs", "message"),
    [
        ("grpo", {"groups": [0]}, "rewards= is missing: give [N] or [N, K] rewards, or token_rewards= [N, T]."),
        ("grpo", {"rewards": [1.0]}, "groups= is missing: give one hashable id per response"),
        ("grpo", TWO | {"groups": [0]}, "groups has 1 entries for 2 responses; give one per response."),
        ("grpo", TWO | {"rewards": torch.ones(2, 1, 1)}, "rewards has shape (2, 1, 1); allowed: [N], or [N, K]"),
        (
            "grpo",
            TWO | {"reward_weights": [1.0, 2.0]},
            "reward_weights has shape (2,); rewards has 1 reward function(s)",
        ),
        ("grpo", TWO | {"valid": [True]}, "valid has 1 entries for 2 responses"),
        ("grpo", TWO | {"valid": [[True], [True]]}, "valid has shape (2, 1); allowed: [N]."),
        ("grpo", TWO | {"lengths": [1, 2, 3]}, "lengths has 3 entries for 2 responses"),
        ("grpo", TWO | {"mask": torch.ones(2)}, "token inputs must all be [N, T]; given: {'mask': (2,)}."),
        (
            "grpo",
            TWO | {"mask": FULL, "token_rewards": torch.ones(2, 4)},
            "token inputs must all be [N, T]; given: {'mask': (2, 3), 'token_rewards': (2, 4)}.",
        ),
        ("grpo", TWO | {"mask": FULL, "old_logp": -torch.ones(2, 4)}, "'old_logp': (2, 4)"),
        ("grpo,baseline=length_weighted", TWO, "baseline=length_weighted needs lengths=; pass it to gv.advantages"),
        ("remax", TWO, "baseline=greedy needs greedy_rewards=; pass it to gv.advantages (or gv.Rollouts)."),
        ("remax", TWO | {"greedy_rewards": [1.0]}, "greedy_rewards has 1 entries for 2 responses"),
        (
            "remax",
            TWO | {"greedy_rewards": torch.ones(2, 3)},
            "greedy_rewards has shape (2, 3); allowed: [N], or [2, 1]",
        ),
        ("reinforce_pp_baseline", TWO, "scale.over=tokens needs lengths="),
        ("reinforce_pp", TWO, "credit=reward_to_go needs mask="),
        ("reinforce_pp", TWO | {"mask": FULL}, "kl.placement=reward needs old_logp="),
        ("reinforce_pp", TWO | {"mask": FULL, "old_logp": LOGP}, "kl.placement=reward needs ref_logp="),
        ("rloo,kl=k1,kl.beta=1,kl.placement=reward", TWO, "kl.placement=reward needs mask="),
        ("grpo_process", TWO, "credit=process needs mask="),
        ("grpo_process", TWO | {"mask": FULL}, "credit=process needs token_rewards="),
        ("grpo_process", TWO | {"mask": FULL, "token_rewards": FULL}, "credit=process needs step_ends="),
        (
            "grpo",
            TWO | {"state": object()},
            "state= has no effect: grpo remembers nothing of earlier steps. Leave it out.",
        ),
        ("nope", TWO, "unknown variant 'nope'"),
        ("grpo", TWO | {"rewards": ["yes", 0.0]}, "rewards holds the text 'yes'; allowed: numbers, and None or NaN"),
    ],
)
def test_advantages_refuse_with_the_name_of_the_input(spec, inputs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        gv.advantages(spec, **inputs)


def test_advantages_refuse_inputs_that_they_do_not_have():
    with pytest.raises(
        TypeError, match=r"advantages\(\) has no input 'lenghts'. Did you mean 'lengths'\? It takes: rewards, "
    ):
        gv.advantages("grpo", [1.0], [0], lenghts=[1])
    with pytest.raises(
        TypeError, match="Rollouts already holds every input; put groups, lengths into it instead of beside"
    ):
        gv.advantages("grpo", gv.Rollouts(rewards=[1.0], groups=[0]), [0], lengths=[1])
    with pytest.raises(
        TypeError, match=r"groups: ids must be hashable \(.*list.*\); give a string, an integer or a tuple"
    ):
        gv.advantages("grpo", [1.0], [[0]])


@pytest.mark.parametrize("name", gv.names())
def test_one_object_and_keywords_are_the_same(name):
    """By keyword, as one object, by spec string or by variant."""
    variant, rollouts = gv.get(name), random_case(0).rollouts()
    given = {field: value for field, value in vars(rollouts).items() if value is not None}
    once, again = ({"state": gv.Memory()} if variant.remembers else {} for _ in range(2))
    expected = gv.advantages(variant, rollouts, **once)
    found = gv.advantages(name, given.pop("rewards"), given.pop("groups"), **given, **again)
    assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("as_given", [list, tuple, np.array, torch.tensor])
def test_rewards_may_be_any_sequence(as_given):
    assert gv.advantages("dr_grpo", as_given([1.0, 0.0, 5.0]), ["a", "a", ("b", 1)]).tolist() == [0.5, -0.5, 0]


def test_groups_may_be_anything_hashable():
    for groups in (
        [3, -1, 3],
        ["x", "y", "x"],
        [("p", 1), None, ("p", 1)],
        torch.tensor([3, -1, 3]),
        np.array([3, -1, 3]),
    ):
        assert gv.advantages("dr_grpo", [1.0, 7.0, 0.0], groups).tolist() == [0.5, 0, -0.5]


def test_lengths_are_counted_from_the_mask_where_they_are_not_given():
    """Rewards 1 and 0 of lengths 3 and 1: the length-weighted mean is 3/4."""
    mask = torch.tensor([[1, 1, 1], [0, 1, 0]])
    assert gv.advantages("grpo,baseline=length_weighted,scale=none", **TWO, mask=mask).tolist() == [0.25, -0.75]
    found = gv.advantages("grpo,baseline=length_weighted,scale=none", **TWO, mask=mask, lengths=[1, 1])
    assert found.tolist() == [0.5, -0.5]


def test_a_greedy_total_may_stand_beside_several_reward_functions():
    """Rewards 1 + 2 * 3 = 7; greedy 5 as a total, or 1 + 2 * 2 = 5 in its components; without one, 0."""
    given = {"rewards": [[1.0, 3.0]], "groups": [0], "reward_weights": [1.0, 2.0]}
    assert gv.advantages("remax", **given, greedy_rewards=[5.0]).tolist() == [2]
    assert gv.advantages("remax", **given, greedy_rewards=[[1.0, 2.0]]).tolist() == [2]
    assert gv.advantages("remax", **given, greedy_rewards=[[1.0, None]]).tolist() == [6]
    assert gv.advantages("remax", **given, greedy_rewards=[[None, None]]).tolist() == [0]


def test_token_rewards_alone_are_rewards():
    """Totals 3 and 1, mean 2; a response's own rewards are then not needed."""
    token_rewards = torch.tensor([[1.0, 2.0, 9.0], [0.0, 1.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    assert gv.advantages("dr_grpo", groups=[0, 0], token_rewards=token_rewards, mask=mask).tolist() == [1, -1]
    found = gv.advantages("dr_grpo,credit=reward_to_go", groups=[0, 0], token_rewards=token_rewards, mask=mask)
    assert found.tolist() == [[1, 0, 0], [-1, -1, 0]]


# Numbers that are not finite


INFINITE = [float("inf"), float("-inf")]


@pytest.mark.parametrize("value", INFINITE)
@pytest.mark.parametrize("name", gv.names())
def test_an_infinite_reward_is_a_missing_one(name, value):
    """The numbers are those of NaN in its place; no other response, of its group or of another, is touched."""
    case = replace(random_case(1), greedy_rewards=None if name != "remax" else random_case(1).greedy_rewards)
    rewards = torch.as_tensor(case.rewards).clone()
    rewards[0] = NAN
    expected = compute_advantages(name, case.rollouts(rewards=rewards))
    with pytest.warns(
        UserWarning, match=f"rewards holds {value:g} \\(row 0, column 0\\) and 1 more: what is not finite"
    ):
        found = compute_advantages(
            name,
            case.rollouts(
                rewards=torch.where(rewards.isnan() & ~torch.as_tensor(case.rewards).isnan(), value, rewards)
            ),
        )
    assert_close(found, expected, rtol=0, atol=0)
    assert found.isfinite().all()


def test_an_infinite_reward_by_hand():
    """Of -inf, 0, 1, 0 three are left: 1 less the mean of two zeros, and 0 less the mean of 0 and 1."""
    message = (
        "rewards holds -inf (row 0, column 0): what is not finite counts as missing, so the response is left out "
        "unless another reward function scored it. Give None or NaN for a missing reward, or a large finite number."
    )
    with pytest.warns(UserWarning, match=re.escape(message)) as told:
        found = gv.advantages("rloo", [float("-inf"), 0, 1, 0], ["q"] * 4)
    assert found.tolist() == [0, -0.5, 1, -0.5]
    assert len(told) == 1


def test_a_response_that_another_function_scored_keeps_that_score():
    with pytest.warns(UserWarning, match=r"rewards holds inf \(row 1, column 1\): "):
        assert gv.advantages("dr_grpo", [[1.0, 1], [3.0, INFINITE[0]]], [0, 0]).tolist() == [-0.5, 0.5]


@pytest.mark.parametrize("value", INFINITE)
@pytest.mark.parametrize("name", ["reinforce_pp", "grpo_process", "dr_grpo,credit=reward_to_go", "grpo"])
def test_an_infinite_token_reward_within_the_mask_is_a_missing_one(name, value):
    case = random_case(0)
    row, column = (
        int(n[0]) for n in np.nonzero(case.mask & case.valid[:, None] & ~np.isnan(case.rewards).all(1)[:, None])
    )
    token_rewards = torch.as_tensor(case.token_rewards).clone()
    token_rewards[row, column] = NAN
    expected = compute_advantages(name, case.rollouts(token_rewards=token_rewards))
    token_rewards[row, column] = value
    with pytest.warns(UserWarning, match=rf"token_rewards holds {value:g} \(row {row}, column {column}\): "):
        found = compute_advantages(name, case.rollouts(token_rewards=token_rewards))
    assert_close(found, expected, rtol=0, atol=0)
    assert found.isfinite().all()
    assert found.abs().max() > 0.1
    outside = torch.where(torch.as_tensor(case.mask), torch.as_tensor(case.token_rewards), value)
    assert compute_advantages(name, case.rollouts(token_rewards=outside)).isfinite().all()


@pytest.mark.parametrize("value", INFINITE)
def test_a_response_with_an_infinite_greedy_reward_is_left_out(value):
    """Rewards 1 and 5 less greedy ones of 0 and none."""
    with pytest.warns(UserWarning, match=rf"greedy_rewards holds {value:g} \(row 1, column 0\): "):
        found = gv.advantages("remax", [1.0, 5.0], [0, 1], greedy_rewards=[0.0, value])
    assert found.tolist() == [1, 0]
    with pytest.warns(UserWarning, match="greedy_rewards holds"):
        scaled = gv.advantages("remax,scale=batch_std", [1.0, 5.0, 3.0], [0, 1, 2], greedy_rewards=[0.0, value, 0.0])
    assert_close(scaled, torch.tensor([1, 0, 3]) / 2**0.5)


@pytest.mark.parametrize("name", ["grpo,scale.eps=0", "gdpo,scale.eps=0,credit.eps=0"])
def test_a_function_of_weight_zero_scores_nobody(name):
    """Rewards 5, 6, 7 and none of the function that counts: mean 6, deviation 1; the other function is only logged."""
    found = gv.advantages(name, [[5, 1], [6, 2], [7, 3], [None, 4]], [0] * 4, reward_weights=[1.0, 0.0])
    assert found.tolist() == [-1, 0, 1, 0]


def test_a_total_beyond_the_numbers_is_missing():
    """Finite in each function, infinite in their sum: -1, 0, 1 of the others."""
    rewards = torch.tensor([[3e38, 3e38], [1.0, 0], [2.0, 0], [3.0, 0]])
    assert gv.advantages("dr_grpo", rewards, [0] * 4).tolist() == [0, -1, 0, 1]


@pytest.mark.parametrize("weight", [NAN, *INFINITE])
@pytest.mark.parametrize("name", ["grpo", "gdpo", "remax"])
def test_a_weight_that_is_not_finite_is_refused(name, weight):
    given = {"greedy_rewards": [[1.0, 2.0]] * 2} if name == "remax" else {}
    with pytest.raises(
        ValueError, match=re.escape(f"reward_weights=[1.0, {weight}] holds a weight that is not finite")
    ):
        gv.advantages(name, [[1.0, 2.0], [0.0, 1.0]], [0, 0], reward_weights=[1.0, weight], **given)


@pytest.mark.parametrize("value", INFINITE)
def test_an_infinite_value_is_no_signal(value):
    """Without it both responses of the first group are alike; the other group differs."""
    values, groups = [1.0, 1.0, value, 0.0, 1.0], [0, 0, 0, 1, 1]
    with pytest.warns(UserWarning, match="values holds"):
        assert gv.keep_groups(values, groups).tolist() == [False, False, False, True, True]
    with pytest.warns(UserWarning, match="rewards holds") as told:
        found = gv.group_signal(values, groups)
    assert len(told) == 1
    assert (int(found.effective), int(found.all_right), float(found.success_rate)) == (1, 1, 0.75)


def test_where_infinities_are():
    values = torch.tensor([[0.0, INFINITE[1]], [NAN, 1.0], [INFINITE[0], 2.0]])
    assert infinite_entries(values) == [(0, 1, INFINITE[1]), (2, 0, INFINITE[0])]
    assert infinite_entries(values[:, 1]) == [(0, 0, INFINITE[1])]
    assert infinite_entries(torch.zeros(0, 2)) == []
    assert_close(
        without_infinities(values), torch.tensor([[0.0, NAN], [NAN, 1.0], [NAN, 2.0]]), equal_nan=True, rtol=0, atol=0
    )


# Refusals of policy_loss


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        ("grpo", {"logp": torch.ones(2)}, "logp has shape (2,); allowed: [B, T]."),
        ("grpo", {"logp": [[-1.0] * 3] * 2}, "logp is of type list; allowed: a tensor, as in logp=torch.tensor(...)."),
        ("grpo", {"advantages": np.ones(2)}, "advantages is of type ndarray; allowed: a tensor"),
        ("grpo", {"mask": torch.ones(2, 4)}, "mask has shape [2, 4]; allowed with logp [2, 3]: [B, T] = [2, 3]."),
        (
            "grpo",
            {"advantages": torch.ones(2, 1)},
            "advantages has shape [2, 1]; allowed with logp [2, 3]: [B] = [2] or [B, T] = [2, 3].",
        ),
        ("grpo", {"advantages": torch.ones(3)}, "advantages has shape [3]; allowed"),
        ("grpo", {"advantages": torch.tensor(1.0)}, "advantages has shape []; allowed"),
        ("grpo", {"old_logp": torch.ones(2)}, "old_logp has shape [2]; allowed"),
        ("grpo", {"ref_logp": torch.ones(2, 4)}, "ref_logp has shape [2, 4]; allowed"),
        ("grpo", {"rollout_logp": torch.ones(3, 3)}, "rollout_logp has shape [3, 3]; allowed"),
        ("grpo", {"entropy": torch.ones(2)}, "entropy has shape [2]; allowed"),
        (
            "grpo",
            {"row_weights": torch.ones(2, 1)},
            "row_weights has shape [2, 1]; allowed with logp [2, 3]: [B] = [2].",
        ),
        (
            "grpo",
            {"keep": torch.ones(2, 1)},
            "keep has shape [2, 1]; allowed with logp [2, 3]: [B, T] = [2, 3] or [B] = [2].",
        ),
        (
            "grpo",
            {"correction": torch.ones(2)},
            "correction has shape [2]; allowed with logp [2, 3]: [B, T] = [2, 3] or [B, 1] = [2, 1].",
        ),
        ("grpo", {"groups": [0]}, "groups has 1 entries for 2 responses"),
        ("grpo", {"ref_logp": None}, "grpo's kl=k3 needs ref_logp=; pass it to gv.Tokens."),
        ("reinforce_pp_baseline", {"ref_logp": None}, "reinforce_pp_baseline's kl=k2 needs ref_logp="),
        ("grpo,ratio.anchor=rollout", {"rollout_logp": None}, "ratio.anchor=rollout needs rollout_logp="),
        ("grpo,correction=token_truncate", {"rollout_logp": None}, "correction needs rollout_logp="),
        ("grpo,tokens=top_entropy", {"entropy": None}, "tokens=top_entropy needs entropy="),
        ("dr_grpo", {}, "aggregation=constant needs its length: set aggregation.length, or counts.length"),
        ("dapo,aggregation=prompt_mean", {"groups": None}, "aggregation=prompt_mean needs groups= and counts.prompts"),
        ("nope", {}, "unknown variant 'nope'"),
    ],
)
def test_policy_loss_refuses_with_the_name_of_the_input(spec, changes, message):
    given = dict.fromkeys(("logp", "old_logp", "ref_logp", "rollout_logp"), LOGP) | {"entropy": FULL, "mask": FULL}
    given |= {"advantages": torch.ones(2), "groups": [0, 1]} | changes
    with pytest.raises(ValueError, match=re.escape(message)):
        gv.policy_loss(spec, gv.Tokens(**given))


@pytest.mark.parametrize(
    ("spec", "counts", "message"),
    [
        (
            "dapo,aggregation=prompt_mean",
            {"prompts": 2},
            "pass row_weights=gv.row_weights(variant, lengths, counts, groups)",
        ),
        ("grpo,aggregation.empty_rows=exclude", {}, "aggregation.empty_rows=exclude needs counts.nonempty"),
        ("dr_grpo", {}, "aggregation=constant needs its length"),
    ],
)
def test_policy_loss_refuses_counts_that_lack_something(spec, counts, message):
    x = gv.Tokens(logp=LOGP, ref_logp=LOGP, mask=FULL, advantages=torch.ones(2), groups=[0, 1])
    with pytest.raises(ValueError, match=re.escape(message)):
        gv.policy_loss(spec, x, gv.Counts(tokens=6, sequences=2, **counts))


def test_policy_loss_refuses_a_generator_that_nothing_draws_from():
    x = gv.Tokens(logp=LOGP, mask=FULL, advantages=torch.ones(2))
    with pytest.raises(
        ValueError, match=re.escape("generator= has no effect: dapo draws nothing at random. Leave it out.")
    ):
        gv.policy_loss("dapo", x, generator=torch.Generator())


def test_kl_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match=re.escape("kl='k4' is unknown; allowed: k1, k2, k3, abs.")):
        gv.kl("k4", FULL, FULL)
    with pytest.raises(ValueError, match=re.escape("kl.gradient='k1' is unknown; allowed: own, k2.")):
        gv.kl("k3", FULL, FULL, gradient="k1")


# Counts and weights


def test_counts_of_a_mask():
    counts = gv.Counts.of(torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]), ["a", "b", "a"], length=8, grad_average=4)
    assert (int(counts.tokens), counts.sequences, int(counts.nonempty), counts.prompts) == (5, 3, 2, 2)
    assert (counts.length, counts.grad_average, counts.thresholds) == (8, 4, None)
    assert gv.Counts.of(torch.ones(2, 3)).prompts is None
    assert gv.Counts.of(torch.ones(2, 3), sequences=16).sequences == 16


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # Lengths 4, 0, 2, 4; the step has 100 tokens in 20 responses, 16 of them with a token, of 5 prompts; L = 50.
        ("grpo", [1 / 80, 1 / 20, 1 / 40, 1 / 80]),
        ("grpo,aggregation.empty_rows=exclude", [1 / 64, 1 / 16, 1 / 32, 1 / 64]),
        ("dapo", [1 / 100] * 4),
        ("dr_grpo", [1 / 1000] * 4),
        ("dr_grpo,aggregation.length=10", [1 / 200] * 4),
        ("dr_grpo,aggregation.empty_rows=exclude", [1 / 800] * 4),
        ("rloo", [1 / 20] * 4),
        ("rloo,aggregation.empty_rows=exclude", [1 / 16] * 4),
        # Groups a: 4 + 2 tokens, b: 0 + 4.
        ("dapo,aggregation=prompt_mean", [1 / 30, 1 / 20, 1 / 30, 1 / 20]),
    ],
)
def test_row_weights_by_hand(spec, expected):
    counts = gv.Counts(tokens=100, sequences=20, nonempty=16, prompts=5, length=50, grad_average=8)
    found = gv.row_weights(spec, torch.tensor([4, 0, 2, 4]), counts, ["a", "b", "a", "b"])
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected)
    tensors = {
        name: torch.tensor(getattr(counts, name)) for name in ("tokens", "sequences", "nonempty", "prompts", "length")
    }
    assert_close(gv.row_weights(spec, torch.tensor([4, 0, 2, 4]), replace(counts, **tensors), list("abab")), found)


def test_row_weights_without_what_they_need():
    counts = gv.Counts(tokens=1, sequences=1)
    for spec in ("dapo,aggregation=prompt_mean", "dr_grpo", "rloo,aggregation.empty_rows=exclude"):
        with pytest.raises(ValueError, match="needs"):
            gv.row_weights(spec, torch.tensor([1]), counts, [0])
    with pytest.raises(ValueError, match=re.escape("needs groups= and counts.prompts")):
        gv.row_weights("dapo,aggregation=prompt_mean", torch.tensor([1]), replace(counts, prompts=1))


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        # Weights e^(old - mu) of the first row: 3, 1/2 and a hole; product 1.5, geometric mean sqrt 1.5 = 1.2247.
        # Second row: 4, 1/4, 1/4; product 1/4, geometric mean 4^(-1/3) = 0.6300.
        ("token_truncate", [[2, 0.5, 0], [2, 0.25, 0.25]]),
        ("token_truncate,correction.cap=3.5,correction.floor=0.4", [[3, 0.5, 0], [3.5, 0.4, 0.4]]),
        ("token_mask,correction.low=0.4,correction.high=3.5", [[3, 0.5, 0], [0, 0, 0]]),
        ("token_mask,correction.low=none,correction.high=3.5", [[3, 0.5, 0], [0, 0.25, 0.25]]),
        ("token_mask,correction.low=0.4,correction.high=none", [[3, 0.5, 0], [4, 0, 0]]),
        ("sequence_truncate,correction.cap=1.25", [[1.25, 1.25, 0], [0.25] * 3]),
        ("sequence_mask,correction.low=0.5,correction.high=2", [[1.5, 1.5, 0], [0, 0, 0]]),
        ("geometric_truncate,correction.cap=1.1", [[1.1, 1.1, 0], [4 ** (-1 / 3)] * 3]),
        ("geometric_mask,correction.low=0.7,correction.high=2", [[1, 1, 0], [0, 0, 0]]),
        ("geometric_mask,correction.low=none,correction.high=1", [[0, 0, 0], [1, 1, 1]]),
        # mu - logp: the mean of log(2/3), log 2 is 0.1438; of -log 2, log 4 twice 0.6931. A < 0 in row 2.
        ("off_policy_mask,correction.threshold=0.5", [[1, 1, 0], [0, 0, 0]]),
        ("off_policy_mask,correction.threshold=0.7", [[1, 1, 0], [1, 1, 1]]),
        ("geometric_mask+token_truncate,correction.low=1,correction.high=2", [[2, 0.5, 0], [0, 0, 0]]),
        ("token_truncate+sequence_truncate,correction.token_truncate.cap=1,correction.sequence_truncate.cap=9", [
            [1.5, 0.75, 0],
            [0.25, 0.0625, 0.0625],
        ]),
        ("none", [[1, 1, 0], [1, 1, 1]]),
    ],
)  # fmt: skip
def test_correction_weights_by_hand(part, expected):
    log = math.log
    x = gv.Tokens(
        logp=torch.full((2, 3), -2.0, requires_grad=True),
        mask=torch.tensor([[1, 1, 0], [1, 1, 1]]),
        advantages=torch.tensor([1.0, -1.0]),
        old_logp=torch.tensor([[log(2), 0.0, NAN], [log(2), 0.0, 0.0]]) - 2,
        rollout_logp=torch.tensor([[log(2 / 3), log(2), NAN], [-log(2), log(4), log(4)]]) - 2,
    )
    found = gv.correction_weights(f"grpo,correction={part}", x)
    assert_close(found, torch.tensor(expected, dtype=torch.float32))
    assert not found.requires_grad


def test_an_off_policy_mask_follows_token_advantages_and_does_without_an_engine():
    """Without the engine's log-probabilities drift is old - logp = 1; only the token with A < 0 goes."""
    x = gv.Tokens(
        logp=torch.full((1, 2), -1.0),
        mask=torch.ones(1, 2),
        advantages=torch.tensor([[1.0, -1.0]]),
        old_logp=torch.zeros(1, 2),
    )
    assert gv.correction_weights("grpo,correction=off_policy_mask,correction.threshold=0.5", x).tolist() == [[1, 0]]
    assert gv.correction_weights("grpo,correction=off_policy_mask,correction.threshold=1", x).tolist() == [[1, 1]]


def test_given_correction_weights_come_back_masked():
    x = gv.Tokens(
        logp=torch.zeros(1, 3),
        mask=torch.tensor([[1, 0, 1]]),
        advantages=torch.ones(1),
        correction=torch.tensor([[0.5]]),
    )
    assert gv.correction_weights("grpo", x).tolist() == [[0.5, 0, 0.5]]


# Dynamic sampling, overlong responses


def test_keep_groups_keeps_whole_groups_in_which_a_value_differs():
    groups = ["a", "b", "a", "c", "b", "a"]
    assert gv.keep_groups([1.0, 0.7, 0.0, 1.0, 0.7, 0.0], groups).tolist() == [True, False, True, False, False, True]


def test_keep_groups_ignores_missing_and_invalid_values():
    assert gv.keep_groups([1.0, None, 1.0, NAN], [0, 0, 1, 1]).tolist() == [False] * 4
    assert gv.keep_groups([1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1], valid=[True, False, True, True]).tolist() == [
        False,
        False,
        True,
        True,
    ]
    assert gv.keep_groups([NAN, NAN], [0, 0]).tolist() == [False, False]


def test_keep_groups_looks_at_each_reward_function():
    """Totals are equal in the first group, and yet each function tells its responses apart."""
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, NAN], [0.5, 0.1]])
    assert gv.keep_groups(values, [0, 0, 1, 1]).tolist() == [True, True, False, False]


@pytest.mark.parametrize("value", [0.7, 0.1, 1 / 3])
def test_keep_groups_does_not_split_hairs(value):
    """Equal floats are equal whatever their mean rounds to; one unit in the last place is a difference."""
    rewards = torch.full((16,), value)
    assert not gv.keep_groups(rewards, [0] * 16).any()
    rewards[3] = torch.nextafter(rewards[3], torch.tensor(1.0))
    assert gv.keep_groups(rewards, [0] * 16).all()


def test_keep_groups_agrees_with_the_advantages():
    """A group is kept exactly where its advantages are not all 0."""
    for seed in range(20):
        case = random_case(seed)
        totals = gv.advantages("reinforce", case.rollouts())
        usable = torch.as_tensor(case.valid) & ~torch.as_tensor(case.rewards).isnan().all(1)
        kept = gv.keep_groups(totals, case.groups, usable)
        found = gv.advantages("dr_grpo", case.rollouts())
        for g in set(case.groups):
            members = torch.tensor([own == g for own in case.groups])
            assert kept[members].tolist() == [bool((found[members] != 0).any())] * int(members.sum())


def test_keep_groups_refuses_a_wrong_length():
    with pytest.raises(ValueError, match="groups has 1 entries for 2 responses"):
        gv.keep_groups([1.0, 2.0], [0])


def test_soft_overlong_penalty_by_hand():
    """L = 20480, b = 4096: 0 up to 16384, half at the midpoint 18432, 1 at L, and no more beyond."""
    lengths = [0, 16384, 16385, 18432, 20480, 20481, 40000]
    expected = [0, 0, -1 / 4096, -0.5, -1, -1, -1]
    assert gv.soft_overlong_penalty(lengths, 20480, 4096).tolist() == pytest.approx(expected)
    assert gv.soft_overlong_penalty(lengths, 20480, 4096, factor=0.5).tolist() == pytest.approx(
        [e / 2 for e in expected]
    )
    assert gv.soft_overlong_penalty(torch.tensor([5, 10]), 10, 10).tolist() == pytest.approx([-0.5, -1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffer": 0}, "buffer=0 is out of range; allowed: a finite number above 0."),
        ({"buffer": 11}, "buffer=11 is longer than max_length=10; allowed: at most max_length."),
        ({"factor": -1.0}, "factor=-1.0 is out of range"),
    ],
)
def test_soft_overlong_penalty_refuses(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        gv.soft_overlong_penalty([1], **({"max_length": 10, "buffer": 5} | changes))


# KL


def test_kl_estimators_by_hand():
    """u = ref - logp = log 2: k1 = -0.6931, k2 = 0.2402, k3 = 1 - 0.6931 = 0.3069, abs = 0.6931; bounds 0.5, 0.1."""
    logp, ref = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), math.log(2), dtype=torch.float64)
    expected = {"k1": -0.693147, "k2": 0.240227, "k3": 0.306853, "abs": 0.693147}
    bounded = {"k1": -0.5, "k2": 0.125, "k3": math.exp(0.5) - 1.5, "abs": 0.5}
    for estimator, value in expected.items():
        assert gv.kl(estimator, logp, ref).item() == pytest.approx(value, abs=1e-6)
        assert gv.kl(estimator, logp, ref, bound=0.5).item() == pytest.approx(bounded[estimator], abs=1e-9)
        limited = gv.kl(estimator, logp, ref, value_bound=0.1).item()
        assert limited == pytest.approx(-0.1 if estimator == "k1" else 0.1)


def test_counts_may_be_tensors_or_numbers():
    case = with_advantages(random_case(0), gv.get("grpo"))
    numbers = gv.Counts(tokens=int(case.mask.sum()), sequences=9)
    tensors = gv.Counts(tokens=torch.tensor(int(case.mask.sum())), sequences=torch.tensor(9))
    for name in ("grpo", "dapo"):
        first, second = (gv.policy_loss(name, case.tokens(), counts).loss for counts in (numbers, tensors))
        assert_close(first, second)
        assert_close(first, gv.policy_loss(name, case.tokens()).loss)
