"""What a run logs is finite and the mean of what it says: steps without a scored token, missing rewards, overflows."""

import json
import math

import pytest
import torch
from grpo_variants_trl.step.finite import COUNTER, take_nonfinite
from support import tiny_model
from support.trl import engine as trl_engine
from support.trl.runs import logged, make
from trl import GRPOConfig, GRPOTrainer

SAVING = dict(save_strategy="steps", save_steps=2)
# What is a mean or an extreme over scored tokens or responses.
OF_TOKENS = ("entropy", "kl", "clip_ratio/", "gv/ratio/", "gv/kl/", "gv/correction/", "gv/mismatch/", "gv/tokens/")


def refuse(word):
    raise AssertionError(f"{word} is no JSON")


def strict_state(checkpoint):
    """trainer_state.json as a parser reads it that has no infinities."""
    return json.loads((checkpoint / "trainer_state.json").read_text(), parse_constant=refuse)


def of_tokens(row):
    return {name: value for name, value in row.items() if name.removeprefix("eval_").startswith(OF_TOKENS)}


def signal_in(*steps):
    """A reward that differs within every group in these optimizer steps, and is constant in the others."""

    def reward(completions, trainer_state, **kwargs):
        differs = trainer_state.global_step in steps
        return [[0.0, 1.0, 2.0, 6.0][i % 4] if differs else 1.0 for i in range(len(completions))]

    return reward


def answers(*ended):
    """Responses of three tokens, call by call either ended or cut off, with an engine's log-probabilities."""
    calls = iter(ended)

    def rollout(prompts, trainer):
        ids, _, _ = trainer._tokenize_prompts(prompts)
        end = next(calls)
        last = tiny_model.END if end else tiny_model.ONE
        completions = [[tiny_model.ONE, 1 + i % 2, last] for i in range(len(prompts))]
        reported = [-1.0 if end else None] * 3
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": [list(reported) for _ in ids]}

    return rollout


@pytest.mark.parametrize("empty", [0, 1])
def test_a_step_without_a_scored_response_counts_in_no_mean(tmp_path, empty):
    """Two steps a log entry, one of them without signal: the numbers are those of the other step, and TRL's own."""
    flags = dict(max_steps=2, rewards=[signal_in(1 - empty)], learning_rate=1e-2)
    alone = make(tmp_path / "alone", "gv_dr_grpo", **flags)
    alone.train()
    both = make(tmp_path, "gv_dr_grpo", logging_steps=2, **SAVING, **flags)
    both.train()
    assert logged(alone, "gv/scored_responses") == [empty == 1, empty == 0]
    (row,) = (row for row in both.state.log_history if "loss" in row)
    step = alone.state.log_history[1 - empty]
    assert of_tokens(row) == pytest.approx(of_tokens(step), rel=1e-6)
    assert (row["gv/ratio/min"], row["gv/ratio/max"]) == (1.0, 1.0)
    assert of_tokens(alone.state.log_history[empty]) == {}
    # TRL scores every response; those of the step with signal are all scored here too.
    stock = make(tmp_path / "stock", "dr_grpo", trainer=GRPOTrainer, config=GRPOConfig, **flags)
    stock.train()
    assert row["entropy"] == pytest.approx(logged(stock, "entropy")[1 - empty], rel=1e-5)
    strict_state(tmp_path / "checkpoint-2")


@pytest.mark.parametrize("logging_steps", [1, 2])
def test_a_run_in_which_every_response_is_masked_logs_no_mean_of_nothing(tmp_path, logging_steps):
    spec = "gv_grpo,kl=none,overlong=mask,correction=token_truncate"
    flags = dict(rollout_func=answers(False, False), rewards=[signal_in(0, 1)], max_completion_length=3)
    trainer = make(tmp_path, spec, logging_steps=logging_steps, **SAVING, **flags)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == 2 // logging_steps
    for row in rows:
        assert of_tokens(row) == {}
        assert (row["loss"], row["grad_norm"], row["gv/policy_loss"]) == (0, 0, 0)
    strict_state(tmp_path / "checkpoint-2")


def test_masked_steps_between_others_leave_every_metric_alone(tmp_path):
    """Corrections, mismatch, KL and ratios over two steps, the first of them masked."""
    spec = "gv_grpo,overlong=mask,correction=token_truncate"

    def run(folder, logging_steps):
        flags = dict(rollout_func=answers(False, True), rewards=[signal_in(0, 1)], max_completion_length=3)
        trainer = make(folder, spec, logging_steps=logging_steps, **flags)
        trainer.train()
        return [of_tokens(row) for row in trainer.state.log_history if "loss" in row]

    (both,), (_, alone) = run(tmp_path / "a", 2), run(tmp_path / "b", 1)
    assert set(both) == set(alone) >= {"kl", "gv/kl/max", "gv/correction/min", "gv/mismatch/ess", "gv/ratio/max"}
    assert both == pytest.approx(alone, rel=1e-5, abs=1e-7)


def test_tokens_that_the_engine_could_not_score_are_in_no_mismatch(tmp_path):
    """The step trains, and nothing can be said of the mismatch."""

    def rollout(prompts, trainer):
        out = answers(True)(prompts, trainer)
        return out | {"logprobs": [[None] * 3 for _ in prompts]}

    trainer = make(tmp_path, "gv_grpo,kl=none,correction=token_truncate", rollout_func=rollout, rewards=[signal_in(0)])
    trainer.train()
    row = trainer.state.log_history[0]
    assert not [name for name in row if name.startswith("gv/mismatch")]
    assert row["gv/correction/mean"] == 1


def test_an_evaluation_batch_without_a_token_counts_in_no_mean(tmp_path):
    flags = dict(
        rewards=[signal_in(0)], max_completion_length=3, num_generations_eval=4, eval_dataset=tiny_model.dataset(4)
    )

    def found(folder, *ended):
        trainer = make(folder, "gv_grpo,kl=none,overlong=mask", rollout_func=answers(*ended), **flags)
        return of_tokens(trainer.evaluate())

    one, two = found(tmp_path / "a", True, True), found(tmp_path / "b", True, False)
    assert {"eval_entropy", "eval_gv/ratio/min", "eval_gv/ratio/max"} <= set(one)
    assert two.keys() == one.keys()
    assert all(map(math.isfinite, two.values()))
    assert two["eval_gv/ratio/mean"] == pytest.approx(1, abs=1e-5)


def test_an_adaptive_entropy_coefficient_does_not_move_in_a_step_without_tokens(tmp_path):
    flags = dict(use_adaptive_entropy=True, entropy_coef=0.1, entropy_coef_delta=0.01, entropy_target=5.0)
    trainer = make(
        tmp_path,
        "gv_grpo,kl=none,overlong=mask",
        rollout_func=answers(True, False, True),
        rewards=[signal_in(0, 1, 2)],
        max_completion_length=3,
        max_steps=3,
        **flags,
    )
    trainer.train()
    assert logged(trainer, "entropy_coef") == pytest.approx([0.11, 0.11, 0.12])


# Numbers that are not finite


def with_first(trainer, change):
    """Let a trainer score each response's first token as `change` makes it."""
    score = trainer._score_tokens

    def scored(model, inputs, **options):
        logp, entropy, aux = score(model, inputs, **options)
        return torch.cat([change(logp[:, :1]), logp[:, 1:]], dim=1), entropy, aux

    trainer._score_tokens = scored
    return trainer


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_run_whose_numbers_are_not_finite_logs_none_of_them_and_says_how_many(tmp_path, value):
    flags = dict(logging_nan_inf_filter=False, max_steps=1, save_strategy="steps", save_steps=1)
    trainer = with_first(make(tmp_path, "gv_grpo,kl=none", **flags), lambda logp: logp * value)
    trainer.train()
    state = strict_state(tmp_path / "checkpoint-1")
    first = state["log_history"][0]
    assert not {"loss", "grad_norm", "gv/policy_loss"} & first.keys()
    assert first[COUNTER] >= 3
    assert {"entropy", "learning_rate", "reward"} <= first.keys()
    last = trainer.state.log_history[-1]
    assert "train_loss" not in last
    assert "train_runtime" in last


def test_what_is_returned_to_the_caller_is_trls(tmp_path):
    """`train` and `evaluate` return what they return in TRL; the log has what is finite."""
    trainer = make(tmp_path, "gv_grpo,kl=none", logging_nan_inf_filter=False, eval_dataset=tiny_model.dataset(4))
    with_first(trainer, lambda logp: logp.detach() * math.nan)  # the weights stay finite
    assert math.isnan(trainer.train().metrics["train_loss"])
    found = trainer.evaluate()
    assert math.isnan(found["eval_loss"])
    row = trainer.state.log_history[-1]
    assert "eval_loss" not in row
    assert row[f"eval_{COUNTER}"] >= 2


def test_a_reward_that_no_response_got_is_left_out(tmp_path):
    def nothing(completions, **kwargs):
        return [None] * len(completions)

    trainer = make(tmp_path, "gv_grpo,kl=none", rewards=[nothing], **SAVING)
    trainer.train()
    for row in strict_state(tmp_path / "checkpoint-2")["log_history"]:
        assert None not in row.values()
        assert not {"reward", "reward_std", COUNTER} & row.keys()
    assert all(map(math.isfinite, logged(trainer, "loss")))


def test_steps_that_no_response_has_are_left_out(tmp_path):
    """A mean over the steps that were scored, and no fault where there are none."""

    def steps(completions, trainer_state, **kwargs):
        scored = trainer_state.global_step == 0
        return [[(0, 1.0 * i)] if scored else None for i in range(len(completions))]

    trainer = make(tmp_path, "gv_grpo_process,kl=none", rewards=[steps])
    trainer.train()
    first, second = (row for row in trainer.state.log_history if "loss" in row)
    assert first["gv/step_reward"] == 3.5
    assert second["gv/steps_per_response"] == 0
    assert not {"gv/step_reward", COUNTER} & second.keys()


def test_an_evaluation_that_is_not_finite_is_no_best_one(tmp_path):
    """transformers would write -Infinity for the best metric so far."""

    def reward(completions, **kwargs):
        if trainer.model.training:
            return [float(i) for i in range(len(completions))]
        return [in_evaluation] * len(completions)

    in_evaluation = None
    trainer = make(
        tmp_path,
        "gv_grpo,kl=none",
        rewards=[reward],
        eval_dataset=tiny_model.dataset(2),
        eval_strategy="steps",
        eval_steps=1,
        metric_for_best_model="reward",
        greater_is_better=True,
        save_strategy="steps",
        save_steps=1,
    )
    trainer.train()
    assert strict_state(tmp_path / "checkpoint-2")["best_metric"] is None
    in_evaluation = 0.25
    trainer.train()
    assert strict_state(tmp_path / "checkpoint-2")["best_metric"] == 0.25


def test_what_is_taken_out_is_counted_and_given_back():
    logs = {"loss": math.nan, "learning_rate": 0.1, "step": 3, "name": "x"}
    named = {"a": [1.0, math.inf, 3.0], "b": [math.nan, -math.inf], "c": [2.0], "d": [], "reward": [math.nan, math.inf]}
    named |= {"gv/greedy_reward": [math.nan], "gv/step_reward": [0.5, math.nan]}
    metrics = {"train": dict(named), "eval": {}}
    left_out = take_nonfinite(logs, metrics, "train")
    assert logs == {"learning_rate": 0.1, "step": 3, "name": "x"}
    assert metrics == {
        "train": {"a": [1.0, 3.0], "c": [2.0], "d": [], "gv/step_reward": [0.5], COUNTER: [5.0]},
        "eval": {},
    }
    assert left_out.keys() == {"loss", "b", "reward", "gv/greedy_reward"}
    assert take_nonfinite({}, {"train": {}, "eval": {"a": [1.0], "b": [math.inf]}}, "eval") == {"eval_b": math.inf}
    quiet = {"train": {"a": [1.0]}}
    assert take_nonfinite({"loss": 1.0}, quiet, "train") == {}
    assert quiet == {"train": {"a": [1.0]}}


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_trls_own_correction_is_not_logged_as_the_variants(tmp_path, monkeypatch, mode):
    """TRL logs the ratio of a whole response, whatever the variant corrects by: e^(-0.3 n) for e^-0.3."""
    engine = trl_engine.behind_trl(monkeypatch, trl_engine.Engine())
    engine.error = 0.3
    spec = "gv_dapo,filter=none,overlong=keep,correction=token_truncate"
    trainer = make(tmp_path, spec, use_vllm=True, vllm_mode=mode, max_steps=1)
    trainer.train()
    row = trainer.state.log_history[0]
    assert row["gv/correction/mean"] == pytest.approx(math.exp(-0.3), rel=1e-3)
    assert not [name for name in row if name.startswith("sampling/importance_sampling_ratio")]
    assert row["sampling/sampling_logp_difference/mean"] == pytest.approx(0.3, rel=1e-3)
