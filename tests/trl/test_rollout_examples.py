"""The examples of what happens before the loss: shortened, and what a reader is told to see."""

import iterative_grpo
import process_rewards
import pytest


def test_steps_are_scored_and_a_missing_step_costs():
    answers = ["boil water\nwarm the pot\nfill the cup\nboil water\nwait four minutes\nfill the cup\n", "boil water\n"]
    steps = process_rewards.right_steps(completions=answers)
    assert [[step.reward for step in own] for own in steps] == [[1, 1, 0, 0, 1, 1], [1 - 5]]
    assert process_rewards.tea_made([*answers, "".join(f"{step}\n" for step in process_rewards.RECIPE)]) == [0, 0, 1]


def test_a_reward_for_each_step_teaches_at_once():
    """Forty steps: from chance to twice that and more; the whole recipe is out of reach of both still."""
    history = process_rewards.train("gv_grpo_process,kl=none", process_rewards.right_steps, 40)
    start = sum(right for right, _ in history[:5]) / 5
    assert sum(right for right, _ in history[-5:]) / 5 > 2 * start


@pytest.mark.slow
def test_one_reward_at_the_end_teaches_nothing():
    history = process_rewards.train("gv_grpo,kl=none", process_rewards.tea_made, 40)
    assert max(made for _, made in history) == 0


def test_what_the_judge_likes():
    assert [iterative_grpo.judged(a) for a in ("", "0 1 0", "1 0", "0 1 1 0", "0 0")] == [0, 3, 0, 2, 1]
    pairs = iterative_grpo.pairs_of(["0 1", "0", "1"] * 4, seed=0)
    assert pairs
    assert all(iterative_grpo.judged(p["chosen"]) > iterative_grpo.judged(p["rejected"]) for p in pairs)


@pytest.mark.slow
def test_rounds_retrain_the_reward_model_and_move_the_reference():
    lines = iterative_grpo.main(rounds=3, steps=10)
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    # The first step of every round trains against itself; the last has moved.
    assert [line["kl_first"] for line in lines[1:]] == pytest.approx([0, 0, 0], abs=1e-9)
    assert min(line["kl_last"] for line in lines[1:]) > 1e-4
    assert lines[0]["after"] > lines[0]["before"]
    assert lines[-1]["judge"] > lines[0]["judge"] + 0.2


def test_a_tenth_of_the_pairs_are_old_ones(tmp_path, monkeypatch):
    """Of 40 fresh pairs 4, however many there are."""
    seen = []

    class Recorded:
        def __init__(self, model, config, train_dataset, processing_class):
            seen.append(train_dataset["chosen"])

        def remove_callback(self, callback):
            pass

        def train(self):
            pass

    monkeypatch.setattr(iterative_grpo, "RewardTrainer", Recorded)
    reward = iterative_grpo.RewardModel(str(tmp_path))
    for name in ("a", "b", "c"):
        reward.train([{"chosen": f"{name}{i}", "rejected": "0"} for i in range(40)], seed=1)
    assert [len(rows) for rows in seen] == [40, 44, 44]
    assert sum(text.startswith("write c") for text in seen[2]) == 40
