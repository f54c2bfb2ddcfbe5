"""Rewards that are missing in real TRL runs: infinities, and functions of weight 0 that score nobody."""

import json
import math
import warnings

import pytest
import torch
from grpo_variants_trl.rollout.prompts import task_text
from support import tiny_model
from support.trl.rewards import given, own, rollouts, stock
from support.trl.runs import logged, make, weights
from trl import GRPOConfig, GRPOTrainer

ROW = 1


def scoring(value):
    """A reward function that gives `value` to one row of every call."""

    def reward(completion_ids, **kwargs):
        rewards = [sum(t == tiny_model.ONE for t in ids) / 6 + 0.01 * i for i, ids in enumerate(completion_ids)]
        return [value if i == ROW else r for i, r in enumerate(rewards)]

    return reward


def scoring_steps(value):
    def steps(completion_ids, **kwargs):
        rows = [
            [(0, 0.1 * i), (len(ids) - 1, 0.5)] if len(ids) > 1 else [(0, 0.1 * i)]
            for i, ids in enumerate(completion_ids)
        ]
        return [[(0, value)] if i == ROW else row for i, row in enumerate(rows)]

    return steps


def scoring_steps_later(value):
    now = scoring_steps(value)

    async def steps(completion_ids, **kwargs):
        return now(completion_ids, **kwargs)

    return steps


RUNS = {
    "grpo": ("gv_grpo", scoring),
    "rloo": ("gv_rloo", scoring),
    "a deviation of the batch": ("gv_lite_ppo", scoring),
    "functions one by one": ("gv_gdpo", scoring),
    "a memory": ("gv_spo", scoring),
    "whitened tokens": ("gv_reinforce_pp", scoring),
    "steps": ("gv_grpo_process", scoring_steps),
    "steps of a function that is awaited": ("gv_grpo_process", scoring_steps_later),
    "greedy responses too": ("gv_remax", scoring),
    "dynamic sampling": ("gv_dapo,overlong=keep", scoring),
    "a filter alone": ("gv_dapo,overlong=keep,filter.max_rounds=0", scoring),
    "a penalty of length": ("gv_dapo,overlong=penalty,overlong.buffer=3", scoring),
}


def trained(folder, case, value):
    """A run of two steps, its weights, and what was warned of."""
    spec, function = RUNS[case]
    rewards = [function(value)]
    if spec == "gv_gdpo":
        rewards.append(tiny_model.ones)
    trainer = make(folder, spec, rewards=rewards, learning_rate=0.02, save_strategy="steps", save_steps=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    return trainer, [str(w.message) for w in caught if "is not finite counts as missing" in str(w.message)]


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.parametrize("value", [-math.inf, math.inf])
def test_an_infinite_reward_is_a_missing_one_and_said_once(tmp_path, case, value):
    start = weights(make(tmp_path / "start", "gv_rloo"))
    missing, silent = trained(tmp_path / "none", case, None if "steps" not in case else math.nan)
    infinite, said = trained(tmp_path / "inf", case, value)
    assert torch.isfinite(weights(infinite)).all()
    assert (weights(infinite) - start).abs().max() > 1e-4
    assert torch.equal(weights(infinite), weights(missing))
    assert silent == []
    name = infinite.reward_func_names[0]
    assert len(said) == 1
    assert said[0].startswith(f"reward function {name} gave {value} for response {ROW}, prompt '")
    asked = said[0].split("prompt '")[1].split("'")[0]
    assert asked in {task_text(infinite, row) for row in infinite.train_dataset}
    log = json.loads((tmp_path / "inf" / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    assert all(math.isfinite(v) for row in log for v in row.values() if isinstance(v, float))
    assert logged(infinite, "reward") == logged(missing, "reward")
    assert logged(infinite, f"rewards/{name}/mean") == logged(missing, f"rewards/{name}/mean")


@pytest.mark.parametrize("value", [-math.inf, math.inf])
def test_an_infinite_reward_costs_one_response_and_not_its_group(tmp_path, value):
    table = [[value], [0], [1], [0]] + [[i % 4] for i in range(12)]
    assert stock(tmp_path / "stock", table)[:4].tolist() == [0, 0, 0, 0]
    with pytest.warns(UserWarning, match="reward function given_0 gave"):
        found = own(tmp_path / "own", "grpo,kl=none", table)[:4]
    torch.testing.assert_close(found, torch.tensor([0.0, -0.5774, 1.1547, -0.5774]), atol=1e-4, rtol=0)


def test_an_infinity_that_a_derived_trainer_makes_is_missing_too(tmp_path):
    def overflowing(self, *args):
        return 1e38 * type(self).__mro__[1]._calculate_rewards(self, *args)

    trainer, _ = make(tmp_path, "gv_rloo", rewards=[lambda completions, **kwargs: [8.0] + [1.0] * 7]), None
    trainer.__class__ = type("Overflowing", (type(trainer),), {"_calculate_rewards": overflowing})
    with pytest.warns(UserWarning, match="gave inf for response 0, prompt '"):
        trainer.train()
    assert torch.isfinite(weights(trainer)).all()


def test_a_weight_that_is_not_finite_is_refused_at_the_start(tmp_path):
    with pytest.raises(ValueError, match=r"reward_weights=\[1\.0, inf\] holds a weight that is not finite"):
        make(tmp_path, "gv_rloo", reward_weights=[1.0, math.inf])


# One group of four beside others: what the task's function abstains from, the function of weight 0 has scored.
TABLE = [[5, 1], [6, 1], [7, 1], [None, 1]] + [[i % 4, 2] for i in range(12)]
LOGGED = dict(reward_weights=[1.0, 0.0])


def test_a_function_of_weight_0_scores_nobody(tmp_path):
    torch.testing.assert_close(
        own(tmp_path / "own", "grpo,kl=none", TABLE, **LOGGED)[:4],
        torch.tensor([-1.0, 0.0, 1.0, 0.0]),
        atol=1e-5,
        rtol=0,
    )
    theirs = stock(tmp_path / "stock", TABLE, **LOGGED)[:4]
    torch.testing.assert_close(theirs, torch.tensor([0.1608, 0.4824, 0.8040, -1.4473]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("spec", ["rloo", "gdpo", "lite_ppo", "dapo,filter.max_rounds=0,overlong=keep", "spo"])
def test_a_function_of_weight_0_changes_no_advantage(tmp_path, spec):
    alone = own(tmp_path / "alone", spec, [row[:1] for row in TABLE])
    beside = own(tmp_path / "beside", spec, TABLE, **LOGGED)
    assert alone.abs().max() > 0.1
    torch.testing.assert_close(beside, alone)


def test_what_is_logged_leaves_unscored_responses_out(tmp_path):
    """TRL's mean reward has a 0 for the response that only a function of weight 0 has scored."""
    means = {}
    for cls, config, loss in ((None, None, "gv_rloo"), (GRPOTrainer, GRPOConfig, "dapo")):
        kind = {} if cls is None else {"trainer": cls, "config": config}
        trainer, _ = rollouts(tmp_path / loss, loss, rewards=given(TABLE), **kind, **LOGGED)
        means[loss] = trainer._metrics["train"]["reward"][-1]
    assert means["gv_rloo"] == pytest.approx((5 + 6 + 7 + 18) / 15)
    assert means["dapo"] == pytest.approx((5 + 6 + 7 + 18) / 16)


def test_steps_of_a_function_of_weight_0_are_no_steps(tmp_path):
    def logged_steps(completion_ids, **kwargs):
        return [[(0, 5.0 * i)] for i in range(len(completion_ids))]

    _, alone = rollouts(tmp_path / "alone", "gv_grpo_process,kl=none", rewards=[scoring_steps(0.3)])
    _, beside = rollouts(
        tmp_path / "beside",
        "gv_grpo_process,kl=none",
        rewards=[scoring_steps(0.3), logged_steps],
        reward_weights=[1.0, 0.0],
    )
    assert alone["advantages"].abs().max() > 0.1
    torch.testing.assert_close(beside["advantages"], alone["advantages"])
