"""The health check in a whole run of `verl.trainer.main_ppo`: a reward that never differs, and one that does."""

import pytest
from verl_cpu.run import metrics, script

CONSTANT = ("reward.custom_reward_function.name=constant", "trainer.total_training_steps=1")
SENTENCE = (
    "step 1: the reward is the same for all responses of a group, so every advantage is 0; look at the reward function "
    "and at a few responses, or choose prompts of another difficulty."
)


@pytest.mark.slow
def test_a_run_without_signal_says_so_and_counts_it(tmp_path):
    done = script("--cpu-smoke", "rloo", *CONSTANT, DATA=str(tmp_path / "data"), OUT=str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout[-2000:]
    assert SENTENCE in done.stdout
    (step,) = metrics(done.stdout)
    assert step["critic/advantages/max"] == step["critic/advantages/min"] == 0
    assert step["gv/health/findings"] == step["gv/health/no_signal"] == 1
    assert step["gv/groups/identical"] == 0
    assert "health: no_signal in 1 of 1 steps; look at the reward function" in done.stdout
