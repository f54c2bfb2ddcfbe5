"""Estimators: verl's own functions under conventions=verl, and the inputs that verl really hands over."""

import logging
import math

import numpy as np
import pytest
import torch
from grpo_variants_verl import builtins
from grpo_variants_verl import estimator as estimator_module
from omegaconf import OmegaConf
from support.parity import words
from torch.testing import assert_close
from verl.trainer.ppo import core_algos

import grpo_variants as gv
from grpo_variants.trainers.verl.limits import advantage_refusals
from grpo_variants.trainers.verl.words import carried_over

HOLES = torch.tensor(
    [
        [1, 1, 0, 0, 1, 1],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 1],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0],
    ]
)
UIDS = np.array(["b", "a", "b", "a", "b", "c", "a"], dtype=object)
OUTCOMES = torch.tensor([1.0, 0.25, -0.5, 0.75, 0.5, 0.7, 0.0])


def algorithm(**values):
    return OmegaConf.create({"gamma": 1.0, "norm_adv_by_std_in_grpo": True, **values})


def at_last_action(rewards, mask):
    """[B, T] with each reward at its row's last valid token."""
    placed = torch.zeros(mask.shape)
    last = (mask * (torch.arange(mask.shape[1]) + 1)).argmax(1)
    placed[torch.arange(len(rewards)), last] = rewards
    return placed


def estimate(name, rewards, mask=HOLES, uids=UIDS, config=None, **inputs):
    estimator = core_algos.get_adv_estimator_fn(name)
    return estimator(
        token_level_rewards=rewards.clone(), response_mask=mask, index=uids, config=config or algorithm(), **inputs
    )


def verls_own(name, rewards, mask=HOLES, uids=UIDS, config=None, **inputs):
    given = {"index": uids, "config": config or algorithm(), **inputs}
    if name in ("grpo", "grpo_vectorized"):  # verl calls these with the flag, not with the configuration
        given = {"index": uids}
    return core_algos.get_adv_estimator_fn(name)(token_level_rewards=rewards.clone(), response_mask=mask, **given)


def ours(name, **options):
    """The estimator that equals verl's `name`, and its configuration."""
    spec = builtins.ESTIMATORS[name]
    base, _, rest = spec.partition(",")
    return f"gv_{base}", algorithm(grpo_variants={"options": rest}, **options)


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "reinforce_plus_plus", "opo"])
def test_equals_the_trainers_own_estimator(parity, name):
    rewards = at_last_action(OUTCOMES, HOLES)
    mine, config = ours(name)
    pair = (estimate(mine, rewards, config=config)[0], verls_own(name, rewards)[0])
    parity.equal(builtins.ESTIMATORS[name], f"estimator {name}", atol=2e-6, rtol=2e-6, advantages=pair)


def test_dr_grpo_equals_grpo_without_the_deviation(parity):
    rewards = at_last_action(OUTCOMES, HOLES)
    config = algorithm(grpo_variants={"options": "conventions=verl"})
    flag = {"norm_adv_by_std_in_grpo": False}
    wanted = core_algos.get_adv_estimator_fn("grpo")(rewards.clone(), HOLES, UIDS, **flag)[0]
    pair = (estimate("gv_dr_grpo", rewards, config=config)[0], wanted)
    parity.equal("dr_grpo,conventions=verl", words("estimator grpo", flag), atol=2e-6, rtol=2e-6, advantages=pair)


def test_pmd_mean_has_the_advantages_of_the_trainers_rloo(parity):
    rewards = at_last_action(OUTCOMES, HOLES)
    config = algorithm(grpo_variants={"options": "conventions=verl"})
    pair = (estimate("gv_pmd_mean", rewards, config=config)[0], verls_own("rloo", rewards)[0])
    parity.equal("pmd_mean,conventions=verl", "estimator rloo", atol=2e-6, rtol=2e-6, advantages=pair)


def test_reinforce_pp_baseline_equals_the_trainer(parity):
    """Its singleton keeps the raw reward in verl, as under singleton=raw."""
    rewards = at_last_action(OUTCOMES, HOLES)
    mine, config = ours("reinforce_plus_plus_baseline")
    wanted = verls_own("reinforce_plus_plus_baseline", rewards)[0]
    pair = (estimate(mine, rewards, config=config)[0], wanted)
    spec, builtin = builtins.ESTIMATORS["reinforce_plus_plus_baseline"], "estimator reinforce_plus_plus_baseline"
    parity.equal(spec, builtin, atol=2e-6, rtol=2e-6, advantages=pair)


def test_remax_equals_the_trainer_given_its_greedy_rewards(parity):
    rewards = at_last_action(OUTCOMES, HOLES)
    greedy = torch.tensor([0.5, 0.25, 0.5, 0.25, 0.5, 1.0, 0.25])
    mine, config = ours("remax")
    wanted = verls_own("remax", rewards, reward_baselines=greedy)[0]
    found = estimate(mine, rewards, config=config, reward_baselines=greedy)[0]
    parity.equal(
        builtins.ESTIMATORS["remax"], "estimator remax", atol=1e-6, rtol=1e-6, advantages=(found, wanted * HOLES)
    )
    assert wanted[0, 2] == 1.0, "verl leaves the return in the holes of the mask, where its loss does not look"


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.5])
def test_reinforce_pp_discounts_and_returns_as_the_trainer_does(parity, gamma):
    """Token rewards on valid tokens; a hole is not discounted (verl carries the return through)."""
    torch.manual_seed(3)
    rewards = torch.randn(HOLES.shape) * HOLES
    mine, config = ours("reinforce_plus_plus", gamma=gamma)
    advantages, returns = estimate(mine, rewards, config=config)
    wanted, wanted_returns = verls_own("reinforce_plus_plus", rewards, config=algorithm(gamma=gamma))
    pairs = {"advantages": (advantages, wanted), "returns": (returns, wanted_returns)}
    builtin = words("estimator reinforce_plus_plus", {"gamma": gamma})
    parity.equal(
        f"{builtins.ESTIMATORS['reinforce_plus_plus']},credit.gamma={gamma}", builtin, atol=3e-6, rtol=3e-6, **pairs
    )


def test_eight_rewards_of_seven_tenths_are_zero_here_and_not_in_the_trainer(parity):
    """Float32 sums leave mean(0.7 x 8) below 0.7; verl divides that residue by 0 + 1e-6."""
    mask, uids = torch.ones(8, 1, dtype=torch.long), np.array(["a"] * 8, dtype=object)
    rewards = torch.full((8, 1), 0.7)
    for name in ("grpo", "grpo_vectorized"):
        mine, config = ours(name)
        parity.differs(
            builtins.ESTIMATORS[name],
            f"estimator {name}",
            "advantage of eight rewards of 0.7",
            here=(estimate(mine, rewards, mask, uids, config=config)[0].abs().max().item(), 0),
            there=(verls_own(name, rewards, mask, uids)[0][0].item(), 0.0560),
            cause="the float32 mean is off by a unit in the last place, and 1e-6 divides it",
            rel=1e-3,
        )


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized", "rloo", "opo"])
def test_a_group_of_one_keeps_its_raw_reward_in_the_trainer(parity, name):
    mask, uids = torch.ones(1, 2, dtype=torch.long), np.array(["a"], dtype=object)
    rewards = at_last_action(torch.tensor([0.7]), mask)
    mine, config = ours(name)
    found = verls_own(name, rewards, mask, uids)[0][0, 0].item()
    assert estimate(mine, rewards, mask, uids, config=config)[0][0, 0].item() == pytest.approx(found, abs=1e-6)
    parity.differs(
        builtins.ESTIMATORS[name].partition(",")[0],
        f"estimator {name}",
        "advantage of a group of one, reward 0.7",
        here=(estimate(mine, rewards, mask, uids)[0][0, 0].item(), 0),
        there=(found, 0.7),
        cause="its baseline is 0; singleton=raw, part of conventions=verl, is the same",
    )


def test_a_group_of_one_is_0_in_rloo_vectorized():
    mask, uids = torch.ones(1, 2, dtype=torch.long), np.array(["a"], dtype=object)
    rewards = at_last_action(torch.tensor([0.7]), mask)
    mine, config = ours("rloo_vectorized")
    assert verls_own("rloo_vectorized", rewards, mask, uids)[0].abs().max() == 0
    assert estimate(mine, rewards, mask, uids, config=config)[0].abs().max() == 0


def test_padding_rows_of_the_v1_trainer_change_nothing():
    """They have an empty mask, reward 0 and one uid of their own; the batch statistics must not see them."""
    rewards = at_last_action(OUTCOMES, HOLES)
    padded_mask = torch.cat([HOLES, torch.zeros(3, 6, dtype=HOLES.dtype)])
    padded_rewards = torch.cat([rewards, torch.zeros(3, 6)])
    padded_uids = np.concatenate([UIDS, np.array(["pad0a"] * 3, dtype=object)])
    config = algorithm(grpo_variants={"options": "baseline=batch_mean,scale=batch_std"})
    plain = estimate("gv_grpo", rewards, config=config)[0]
    padded = estimate("gv_grpo", padded_rewards, padded_mask, padded_uids, config=config)[0]
    assert_close(padded[:7], plain)
    assert padded[7:].abs().max() == 0
    assert plain.abs().max() > 0.5


def test_a_rejected_row_stays_in_its_groups_statistics():
    """verl's rejection empties the mask of a response, which is still a sample of its prompt: 1, 0 -> +-0.7071."""
    mask, uids = torch.tensor([[1, 1], [0, 0]]), np.array(["a", "a"], dtype=object)
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    advantages = estimate("gv_grpo", rewards, mask, uids)[0]
    assert_close(advantages, torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, 0.0]]), atol=2e-6, rtol=0)


def test_a_reward_on_a_tools_token_belongs_to_the_last_action():
    """verl writes the reward to the last token, here a tool's; its own reinforce_plus_plus then loses it."""
    mask, uids = torch.tensor([[1, 1, 0], [1, 1, 1]]), np.array(["a", "b"], dtype=object)
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.5]])
    returns = estimate("gv_reinforce_pp", rewards, mask, uids)[1]
    assert_close(returns, torch.tensor([[1.0, 1.0, 0.0], [0.5, 0.5, 0.5]]))
    assert_close(verls_own("reinforce_plus_plus", rewards, mask, uids)[1][0], torch.zeros(3))


def test_process_supervision_from_step_rewards():
    """Steps 1, 0.5 | 0.5, 2 of one prompt: mean 1, sample std sqrt(0.5); normalised 0, -.7071 | -.7071, 1.4142."""
    mask, uids = torch.ones(2, 4, dtype=torch.long), np.array(["a", "a"], dtype=object)
    rewards = torch.tensor([[0.0, 1.0, 0.0, 0.5], [0.5, 0.0, 0.0, 2.0]])
    config = algorithm(grpo_variants={"step_rewards": "nonzero"})
    advantages = estimate("gv_grpo_process", rewards, mask, uids, config=config)[0]
    half = 0.5**0.5
    wanted = torch.tensor([[-half, -half, -half, -half], [half, 2 * half, 2 * half, 2 * half]])
    assert_close(advantages, wanted, atol=5e-6, rtol=0)


def test_prompt_mean_moves_the_weights_into_the_advantages():
    """Groups of 4 and 2 tokens of 6: the token mean's 1/6 becomes 1/(2*4) and 1/(2*2), factors 0.75 and 1.5."""
    mask, uids = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]]), np.array(list("aabb"), dtype=object)
    rewards = at_last_action(torch.tensor([1.0, 0.0, 0.0, 1.0]), mask)
    plain = estimate("gv_dapo", rewards, mask, uids)[0]
    carried = estimate(
        "gv_dapo", rewards, mask, uids, config=algorithm(grpo_variants={"options": "aggregation=prompt_mean"})
    )
    assert_close(carried[0], plain * torch.tensor([[0.75], [0.75], [1.5], [1.5]]))
    assert plain.abs().max() > 0.7


def test_delta_l_moves_its_weights_into_the_advantages():
    """Lengths 3, 1, 1, 1 to the power of -1: 1/3, 1, 1, 1 with mean 5/6, so factors 0.4 and 1.2."""
    mask, uids = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]]), np.array(list("aabb"), dtype=object)
    rewards = at_last_action(torch.tensor([1.0, 0.0, 0.0, 1.0]), mask)
    plain = estimate("gv_grpo", rewards, mask, uids)[0]
    options = {"options": "aggregation.alpha=1"}
    carried = estimate("gv_delta_l", rewards, mask, uids, config=algorithm(grpo_variants=options))
    assert_close(carried[0], plain * torch.tensor([[0.4], [1.2], [1.2], [1.2]]))


def test_a_mean_over_responses_with_an_advantage_moves_into_the_advantages():
    """Right responses of 3 and 1 tokens of 7: the token mean's 1/7 becomes 1/4."""
    mask, uids = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]]), np.array(list("aabb"), dtype=object)
    rewards = at_last_action(torch.tensor([1.0, 0.0, 0.0, 1.0]), mask)
    right = torch.tensor([[1.0, 1, 1], [0, 0, 0], [0, 0, 0], [1, 0, 0]])
    assert_close(estimate("gv_psr", rewards, mask, uids)[0], 1.75 * right)
    assert_close(estimate("gv_nsr", rewards, mask, uids)[0], -7 / 3 * (mask - right))
    every = algorithm(grpo_variants={"options": "aggregation.rows=all"})
    assert_close(estimate("gv_psr", rewards, mask, uids, config=every)[0], right)
    assert_close(estimate("gv_nsr", rewards, mask, uids, config=every)[0], right - mask)
    nothing = estimate("gv_psr", torch.zeros_like(rewards), mask, uids)[0]
    assert_close(nothing, torch.zeros_like(nothing))


def test_kl_in_the_reward_is_taken_off_once_by_verl():
    """verl has reduced the rewards already; the estimator's own penalty must not be applied again."""
    rewards = at_last_action(OUTCOMES, HOLES)
    free = algorithm(grpo_variants={"options": "kl=none"})
    assert_close(estimate("gv_reinforce_pp", rewards)[0], estimate("gv_reinforce_pp", rewards, config=free)[0])


# What verl hands everything to; without the rule that moves the loss's weights into the advantages.
PLAIN = [
    name
    for name in gv.names()
    if name != "grpo_process"
    and not carried_over(gv.get(name).aggregation)
    and not list(advantage_refusals(gv.get(name)))
]


@pytest.mark.parametrize("name", PLAIN)
def test_equals_the_core_in_float64(name):
    rewards = at_last_action(OUTCOMES, HOLES).double()
    core = gv.get(f"{name},kl=none")
    given = {"token_rewards": rewards} if core.per_token else {"rewards": rewards.sum(1)}
    wanted = gv.advantages(core, groups=UIDS.tolist(), mask=HOLES.bool(), **given)
    wanted = wanted if wanted.dim() == 2 else wanted.unsqueeze(1) * HOLES
    assert_close(estimate(f"gv_{name}", rewards)[0], wanted, atol=1e-12, rtol=1e-12)


def test_a_row_without_uid_is_an_error():
    with pytest.raises(ValueError, match="gv_grpo: verl gave no uid per response"):
        estimate("gv_grpo", at_last_action(OUTCOMES, HOLES), uids=None)


def test_remax_without_greedy_rewards_is_an_error():
    with pytest.raises(ValueError, match="baseline=greedy needs greedy_rewards="):
        estimate("gv_remax", at_last_action(OUTCOMES, HOLES))


@pytest.fixture
def reported(monkeypatch, caplog):
    """What the adapter reports, in a process that has reported nothing yet."""
    monkeypatch.setattr(estimator_module, "_reported", set())
    caplog.set_level(logging.WARNING, logger="grpo_variants_verl")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "grpo_variants_verl"]


@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("name", PLAIN)
def test_a_reward_that_is_not_finite_is_missing(name, bad, reported):
    """The response has advantage 0, and the others have what they have without it."""
    rewards = at_last_action(OUTCOMES, HOLES)
    rewards[2, 1] = bad  # not the last token: a process of a user's own writes rewards anywhere
    found, returns = estimate(f"gv_{name}", rewards)
    kept = [row for row in range(7) if row != 2]
    without = estimate(f"gv_{name}", at_last_action(OUTCOMES, HOLES)[kept], HOLES[kept], UIDS[kept])
    assert_close(found[kept], without[0], atol=1e-6, rtol=1e-5)
    assert_close(returns[kept], without[1], atol=1e-6, rtol=1e-5)
    assert found[2].abs().max() == returns[2].abs().max() == 0


def test_a_penalty_and_a_tools_token_do_not_hide_an_infinite_reward(reported):
    """verl takes its KL penalty off every token, and writes the reward where a tool wrote last."""
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1]])
    rewards = torch.tensor([[-0.1, -0.2, math.inf], [-0.1, -0.1, 1.0], [-0.2, -0.2, 0.5]])
    for name in ("gv_rloo", "gv_reinforce_pp"):
        found = estimate(name, rewards, mask, np.array(["a"] * 3, dtype=object))[0]
        assert found.isfinite().all()
        assert found[0].abs().max() == 0
    assert estimate("gv_rloo", rewards, mask, np.array(["a"] * 3, dtype=object))[0][1, 0] == pytest.approx(0.7)


def test_an_infinite_reward_is_reported_once_a_run_and_by_name(reported):
    rewards = at_last_action(OUTCOMES, HOLES)
    rewards[3, 2] = -math.inf
    for _ in range(3):
        estimate("gv_rloo", rewards)
    assert reported() == [
        "gv_rloo: the reward of response 3 (uid a) is -inf at token 2. What is not finite is missing: such a response "
        "has advantage 0 and is in no statistic. Let the reward function return a finite number, or NaN for a response "
        "that it cannot judge. This warning comes once per run."
    ]


def test_a_missing_reward_is_nothing_to_report(reported):
    rewards = at_last_action(OUTCOMES, HOLES)
    rewards[3, 2] = math.nan
    estimate("gv_rloo", rewards)
    assert reported() == []
