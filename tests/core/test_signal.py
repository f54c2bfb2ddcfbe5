"""Zero-signal accounting: groups counted by hand."""

import math

import pytest
import torch

import grpo_variants as gv

GROUPS = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def counts(found):
    return [int(getattr(found, name)) for name in ("groups", "effective", "all_right", "all_wrong", "constant")]


def test_groups_are_counted_by_what_they_teach():
    """Four groups of four: all right, all wrong, one right, all wrong; 5 of 16 right."""
    rewards = [1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    found = gv.group_signal(rewards, GROUPS)
    assert counts(found) == [4, 1, 1, 2, 0]
    assert float(found.without) == 0.75
    assert float(found.share("all_wrong")) == 0.5
    assert float(found.success_rate) == 5 / 16
    assert float(found.expected_without) == pytest.approx((5 / 16) ** 4 + (11 / 16) ** 4)


def test_the_share_that_chance_leaves_without_signal():
    """The seed's number: at p = 0.05 and G = 8 a share of 0.34 of the groups is mixed."""
    rewards = torch.zeros(160)
    rewards[::20] = 1
    found = gv.group_signal(rewards, torch.arange(160) // 8)
    assert float(found.success_rate) == pytest.approx(0.05)
    assert 1 - float(found.expected_without) == pytest.approx(1 - 0.05**8 - 0.95**8)
    assert 1 - float(found.expected_without) == pytest.approx(0.34, abs=0.005)


def test_rewards_in_between_are_constant_and_have_no_success_rate():
    rewards = [0.7] * 4 + [0.0, 0.5, 0.0, 1.0] + [0.0] * 4 + [1.0] * 4
    found = gv.group_signal(rewards, GROUPS)
    assert counts(found) == [4, 1, 1, 1, 1]
    assert math.isnan(found.success_rate)
    assert math.isnan(found.expected_without)


@pytest.mark.parametrize(("reward", "right", "wrong"), [(0.0, 0, 1), (1.0, 1, 0), (-1.0, 0, 1), (0.3, 1, 0)])
def test_before_anything_else_is_seen_zero_and_less_is_wrong(reward, right, wrong):
    found = gv.group_signal([reward] * 4, [0] * 4)
    assert counts(found) == [1, 0, right, wrong, 0]


def test_what_the_run_has_seen_before_sets_right_and_wrong():
    found = gv.group_signal([0.7] * 4, [0] * 4, lowest=0.0, highest=1.0)
    assert counts(found) == [1, 0, 0, 0, 1]
    found = gv.group_signal([-1.0, -1.0, 2.0, 2.0], [0, 0, 1, 1], lowest=-1.0, highest=2.0)
    assert counts(found) == [2, 0, 1, 1, 0]
    assert float(found.success_rate) == 0.5


def test_missing_and_invalid_responses_are_in_no_count():
    """Group 0 is constant without its missing row, group 1 has no valid response."""
    rewards = [None, 1, 1, 1, 0, 1, 0, 1]
    found = gv.group_signal(rewards, [0] * 4 + [1] * 4, valid=[True] * 4 + [False] * 4)
    assert counts(found) == [1, 0, 1, 0, 0]
    assert float(found.success_rate) == 1


def test_a_trainer_may_know_of_a_signal_that_the_rewards_do_not_show():
    """Equal totals of unequal steps: the first group has signal, the second, all wrong, has none."""
    kept = torch.tensor([True, True, False, False])
    assert counts(gv.group_signal([1, 1, 0, 0], [0, 0, 1, 1], kept=kept)) == [2, 1, 0, 1, 0]


def test_with_several_rewards_a_difference_in_any_is_a_signal():
    """The total is 1 everywhere; in group 0 the parts differ."""
    rewards = [[1, 0], [0, 1], [0.5, 0.5], [0.5, 0.5]]
    assert counts(gv.group_signal(rewards, [0, 0, 1, 1])) == [2, 1, 1, 0, 0]
