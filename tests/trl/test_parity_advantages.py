"""Advantages equal those that TRL computes itself, on the same rollouts; and where they do not, both numbers."""

import pytest
import torch
from support import tiny_model
from support.parity import words
from support.trl.rewards import MISSING, MIXED, SEVERAL, given, own, rollouts, stock

import grpo_variants as gv


@pytest.mark.parametrize("table", [MIXED, SEVERAL, MISSING], ids=["one reward", "two rewards", "missing rewards"])
@pytest.mark.parametrize(
    ("scale_rewards", "spec"),
    [
        ("group", "grpo,kl=none,conventions=trl"),
        ("batch", "grpo,kl=none,scale=batch_std,conventions=trl"),
        ("none", "dr_grpo,conventions=trl"),
    ],
)
def test_advantages_equal_the_trainer(parity, tmp_path, table, scale_rewards, spec):
    flags = {"scale_rewards": scale_rewards}
    theirs = stock(tmp_path, table, **flags)
    parity.equal(spec, words("", flags), rtol=1e-5, atol=1e-5, advantages=(own(tmp_path, spec, table), theirs))
    assert theirs.abs().max() > 0.4


def test_reward_weights_equal_the_trainer(parity, tmp_path):
    spec, flags = "grpo,kl=none,conventions=trl", {"reward_weights": [2.0, -0.5]}
    pair = (own(tmp_path, spec, SEVERAL, **flags), stock(tmp_path, SEVERAL, **flags))
    parity.equal(spec, words("scale_rewards='group'", flags), rtol=1e-5, atol=1e-5, advantages=pair)
    assert (pair[0] - own(tmp_path, spec, SEVERAL)).abs().max() > 0.1


def test_equal_rewards_have_a_residue_in_the_trainer_and_none_here(parity, tmp_path):
    """Eight rewards of 0.7: their float32 mean is off by one unit in the last place, and TRL divides that by 1e-4."""
    equal, spec = [[0.7]] * 16, "grpo,kl=none,conventions=trl"
    parity.differs(
        spec,
        "scale_rewards='group'",
        "advantage of eight rewards of 0.7",
        here=(own(tmp_path, spec, equal, num_generations=8).abs().max().item(), 0),
        there=(stock(tmp_path, equal, num_generations=8).abs().max().item(), 5.96e-4),
        cause="the float32 mean is off by a unit in the last place, and 1e-4 divides it",
        rel=1e-2,
    )


@pytest.mark.parametrize(
    ("group", "what", "theirs", "here"),
    [
        ([1, 1, 0, 0, 0, 0, 0, 0], "advantage, two of eight right", 1.6198, 1.6202),
        ([1.00001, 1], "advantage of 1.00001 against 1", 0.0468, 0.6196),
    ],
    ids=["two of eight right", "nearly equal"],
)
def test_the_trainer_adds_1e4_to_the_deviation_where_the_package_adds_1e6(parity, tmp_path, group, what, theirs, here):
    table, size = [[r] for r in group] * (16 // len(group)), len(group)
    parity.differs(
        "grpo,kl=none",
        "scale_rewards='group'",
        what,
        here=(own(tmp_path, "grpo,kl=none", table, num_generations=size)[0].item(), here),
        there=(stock(tmp_path, table, num_generations=size)[0].item(), theirs),
        cause="1e-4 is added to the deviation, 1e-6 here",
        rel=0,
        tol=6e-5,
    )


def test_leave_one_out_by_hand(tmp_path):
    # Group 1 is (1, 0, 0, 1): 1 - (0 + 0 + 1)/3 = 2/3, 0 - (1 + 0 + 1)/3 = -2/3.
    value = own(tmp_path, "rloo", MIXED)
    torch.testing.assert_close(value[:4], torch.tensor([2 / 3, -2 / 3, -2 / 3, 2 / 3]))


def test_penalised_rewards_by_hand(tmp_path):
    """The soft overlong punishment joins the total reward: with a limit of 6 and a buffer of 4, 6 tokens cost 1."""
    spec = "dr_grpo,overlong=penalty,overlong.buffer=4"
    _, out = rollouts(tmp_path, f"gv_{spec}", rewards=given(MIXED))
    length = out["completion_mask"].sum(1)
    punished = torch.tensor(MIXED).squeeze(1) + gv.soft_overlong_penalty(length, 6, 4)
    centred = punished - punished.view(4, 4).mean(1).repeat_interleave(4)
    torch.testing.assert_close(out["advantages"], centred, rtol=1e-5, atol=1e-6)
    assert (length > 2).any(), "no response is long enough to be punished"


def test_truncated_responses_can_leave_the_statistics(tmp_path):
    spec = "dr_grpo,overlong=mask,overlong.statistics=drop"
    table = [[float(i)] for i in range(16)]
    _, out = rollouts(tmp_path, f"gv_{spec}", rewards=given(table), max_completion_length=3)
    kept = out["completion_mask"].sum(1) > 0
    assert 0 < int(kept.sum()) < 16, "some responses must be truncated and some not"
    rewards = torch.arange(16.0).view(4, 4)
    shown = kept.view(4, 4)
    mean = torch.where(shown, rewards, 0).sum(1, keepdim=True) / shown.sum(1, keepdim=True).clamp(min=1)
    expected = torch.where(shown & (shown.sum(1, keepdim=True) > 1), rewards - mean, 0.0).flatten()
    torch.testing.assert_close(out["advantages"], expected)


def test_the_logged_advantages_and_share_of_constant_groups_are_the_variants(tmp_path):
    made, out = rollouts(tmp_path, "gv_dr_grpo", rewards=given([[0.7]] * 4 + MIXED[4:]))
    assert list(made._logs["advantages"]) == pytest.approx(out["advantages"].tolist())
    assert made._metrics["train"]["frac_reward_zero_std"][-1] == pytest.approx(0.25)


def test_token_credit_and_a_penalty_in_the_reward(tmp_path):
    """reinforce_pp: whitened over every token, so mean 0 and variance 1 over tokens, and the penalty moves it."""
    _, out = rollouts(tmp_path, "gv_reinforce_pp,kl.beta=1.0", rewards=[tiny_model.ones])
    mask, value = out["completion_mask"].bool(), out["advantages"]
    assert value.shape == mask.shape
    assert value[~mask].abs().max().item() == 0
    assert value[mask].mean().item() == pytest.approx(0, abs=1e-5)
    assert value[mask].var(correction=0).item() == pytest.approx(1, rel=1e-4)
    assert "old_per_token_logps" in out
