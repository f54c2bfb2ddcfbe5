"""Real TRL runs of every variant on a tiny model with LoRA: what was trained, logged, saved and resumed."""

import json
import math
from functools import partial
from pathlib import Path

import grpo_variants_trl as gvt
import pytest
import torch
import trl
from datasets import Dataset
from grpo_variants_trl.checkpoint.state import STATE_FILE
from support import tiny_model
from support.trl.runs import logged, make, recorded, weights
from support.trl.stock_loss import stub
from trl import GRPOConfig, GRPOTrainer

import grpo_variants as gv
from grpo_variants.files import read_json

# What TRL cannot supply: squared probabilities, and the engine's log-probabilities without an engine. Step rewards
# have tests of their own (test_process_rewards.py).
TRAINED = [n for n in gv.names() if n not in ("grpo_process", "otb") and not gv.get(n).needs_rollout_logp]
MORE = {"passk_analytic": ",transform.k=2"}  # with k = 4 of four responses every group that has a right one is equal


@pytest.mark.parametrize("name", TRAINED)
def test_every_variant_trains(tmp_path, name):
    spec = f"gv_{name}{MORE.get(name, '')}"
    trainer = make(tmp_path, spec, num_iterations=2, gradient_accumulation_steps=2, max_steps=3)
    before = weights(trainer)
    trainer.train()
    assert (weights(trainer) - before).abs().max() > 1e-4
    assert min(logged(trainer, "grad_norm")) > 1e-4
    assert logged(trainer, "gv/ratio/mean")[0] == pytest.approx(1, abs=1e-5)
    assert len(logged(trainer, "entropy")) == 3


@pytest.mark.parametrize("name", ["remax", "reinforce"])
def test_variants_without_a_group_train_on_one_response_a_prompt(tmp_path, name):
    trainer = make(tmp_path, f"gv_{name}", num_generations=1, rewards=[tiny_model.ones])
    before = weights(trainer)
    trainer.train()
    assert (weights(trainer) - before).abs().max() > 1e-4


class Game:
    """An environment that knows its task from the row, and says nothing of it in the prompt."""

    def reset(self, level, **row):
        return None

    def press(self, button: str) -> str:
        """Press a button.

        Args:
            button: its name.

        Returns:
            what happens.
        """
        return "nothing"


def in_games(folder, rows):
    """A trainer of a variant with memory whose prompts come from an environment."""
    tokenizer = tiny_model.tokenizer()
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    playing = partial(gvt.VariantGRPOTrainer, environment_factory=Game)
    rewards = [tiny_model.ones]
    return make(folder, "gv_spo", playing, train_dataset=rows, processing_class=tokenizer, rewards=rewards)


def test_a_memory_tells_an_environments_tasks_apart(tmp_path):
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": ""}], "level": level} for level in range(8)])
    trainer = in_games(tmp_path, rows)
    trainer.train()  # two steps of two prompts
    assert len(trainer.memory.state_dict()["tracked"]["keys"]) == 4
    with pytest.raises(ValueError, match="without a data set all tasks of an environment look the same"):
        in_games(tmp_path, None)


def test_greedy_baseline_is_the_reward_of_the_greedy_response(tmp_path):
    trainer = make(tmp_path, "gv_remax", rewards=[tiny_model.ones])
    inputs = [dict(trainer.train_dataset[i // 4]) for i in range(8)]
    out = trainer._generate_and_score_completions(inputs)
    rewards = torch.tensor(
        tiny_model.ones(
            [r[m.bool()].tolist() for r, m in zip(out["completion_ids"], out["completion_mask"], strict=True)]
        )
    )
    baseline = []
    for row in inputs:
        ids = torch.tensor([trainer.processing_class(row["prompt"])["input_ids"]])
        best = trainer.model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)[
            0, ids.shape[1] :
        ].tolist()
        end = best.index(tiny_model.END) + 1 if tiny_model.END in best else len(best)
        baseline.append(tiny_model.ones([best[:end]])[0])
    torch.testing.assert_close(out["advantages"], rewards - torch.tensor(baseline), rtol=1e-5, atol=1e-6)
    assert out["advantages"].abs().max() > 0.1
    assert len(trainer._logs["advantages"]) == 8


def trained(*args, **flags):
    """A trainer that was made and trained at once, so that two of them draw the same rollouts."""
    trainer = make(*args, **flags)
    start = weights(trainer)
    trainer.train()
    return trainer, start


def test_a_built_in_loss_type_is_trls_own(tmp_path):
    flags = dict(num_iterations=2, beta=0.1, epsilon=0.1, scale_rewards="batch", max_steps=3)
    mine, _ = trained(tmp_path / "mine", "grpo", **flags)
    stock, start = trained(tmp_path / "stock", "grpo", trainer=GRPOTrainer, config=GRPOConfig, **flags)
    torch.testing.assert_close(weights(mine), weights(stock), rtol=0, atol=0)
    assert (weights(stock) - start).abs().max() > 1e-4
    assert mine.variant is None


def test_the_same_numbers_as_trl_where_it_has_the_variant(tmp_path):
    """The whole trainer: same seed, same rollouts, same parameters after four steps of two iterations."""
    flags = dict(num_iterations=2, max_steps=4, learning_rate=1e-2)
    mine, _ = trained(tmp_path / "mine", "gv_grpo,conventions=trl", **flags)
    stock, start = trained(tmp_path / "stock", "grpo", trainer=GRPOTrainer, config=GRPOConfig, beta=0.04, **flags)
    moved = (weights(stock) - start).abs().max()
    assert (weights(mine) - weights(stock)).abs().max() < 1e-3 * moved
    assert logged(mine, "kl") == pytest.approx(logged(stock, "kl"), rel=1e-3, abs=1e-7)
    assert logged(mine, "entropy") == pytest.approx(logged(stock, "entropy"), rel=1e-4)


def test_evaluation_uses_its_own_group_size(tmp_path):
    trainer = make(
        tmp_path,
        "gv_grpo",
        eval_dataset=tiny_model.dataset(8),
        num_generations_eval=2,
        eval_strategy="no",
    )
    trainer.train()
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] != 0
    assert metrics["eval_gv/ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["eval_reward"] == pytest.approx(
        metrics["eval_rewards/exact/mean"] + metrics["eval_rewards/ones/mean"], abs=1e-5
    )


def test_evaluation_stays_evaluation_where_generation_leaves_the_model_in_training(tmp_path, monkeypatch):
    """As TRL's continuous batching does."""
    generate = GRPOTrainer._generate_single_turn

    def leaves(self, *args, **options):
        generated = generate(self, *args, **options)
        self.model.train()
        return generated

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", leaves)
    trainer = make(tmp_path, "gv_grpo", eval_dataset=tiny_model.dataset(4), num_generations_eval=2)
    found = trainer.evaluate()
    assert found["eval_gv/ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert not trainer._metrics["train"]


def test_off_policy_iterations_have_ratios_and_clipping(tmp_path):
    trainer = make(tmp_path, "gv_gspo", num_iterations=3, learning_rate=2e-2, max_steps=3)
    trainer.train()
    ratios = logged(trainer, "gv/ratio/max")
    assert ratios[0] == pytest.approx(1, abs=1e-5)
    assert ratios[2] > 1.001
    assert logged(trainer, "clip_ratio/region_mean")[2] > 0


def test_entropy_bonus_adds_the_mean_entropy_of_the_step(tmp_path):
    losses = []
    for coefficient in (0.0, 0.5):
        trainer = make(
            tmp_path / str(coefficient),
            "gv_dapo",
            entropy_coef=coefficient,
            gradient_accumulation_steps=2,
            max_steps=1,
        )
        seen = recorded(trainer)
        trainer.train()
        losses.append(sum(m["loss"].item() for m in seen))
    assert losses[0] - losses[1] == pytest.approx(0.5 * logged(trainer, "entropy")[0], rel=1e-4)
    assert logged(trainer, "entropy_coef") == [0.5]
    assert trainer.variant_card.effective == {"entropy_coef": 0.5}


def test_entropy_bonus_is_over_the_tokens_that_a_filter_keeps(tmp_path):
    """Loss and gradient of TRL's own code with both options."""
    flags = dict(top_entropy_quantile=0.3, entropy_coef=0.5, num_iterations=2, learning_rate=1e-2, max_steps=2)
    trainer = make(tmp_path, "gv_dapo,filter=none,overlong=keep,conventions=trl", **flags)
    seen = recorded(trainer)
    trainer.train()
    assert len(seen) == 2
    for micro in seen:
        logp = micro["logp"].detach().clone().requires_grad_(True)
        stock = dict(loss_type="dapo", epsilon_high=0.28, top_entropy_quantile=0.3, entropy_coef=0.5)
        loss = GRPOTrainer._compute_loss(stub(logp, micro["entropy"], **stock), None, micro["inputs"])
        (gradient,) = torch.autograd.grad(loss, logp)
        assert micro["loss"].item() == pytest.approx(loss.item(), rel=1e-5)
        torch.testing.assert_close(micro["logp"].grad, gradient, rtol=1e-5, atol=1e-8)


def test_load_balancing_loss_of_experts_is_added_as_in_trl(tmp_path):
    flags = dict(num_iterations=2, max_steps=2, peft_config=None)
    mine, _ = trained(tmp_path / "a", "gv_grpo,kl=none,conventions=trl", model=tiny_model.mixture_of_experts(), **flags)
    stock, start = trained(
        tmp_path / "b",
        "grpo",
        trainer=GRPOTrainer,
        config=GRPOConfig,
        model=tiny_model.mixture_of_experts(),
        **flags,
    )
    assert logged(mine, "aux_loss") == pytest.approx(logged(stock, "aux_loss"), rel=1e-5)
    assert logged(mine, "loss") == pytest.approx(logged(stock, "loss"), abs=1e-4)
    moved = (weights(stock) - start).abs().max()
    assert (weights(mine) - weights(stock)).abs().max() < 1e-2 * moved


def test_adaptive_entropy_moves_the_coefficient_towards_its_target(tmp_path):
    flags = dict(use_adaptive_entropy=True, entropy_coef=0.1, entropy_coef_delta=0.01, max_steps=3)
    rising = make(tmp_path / "rising", "gv_dapo", entropy_target=5.0, **flags)
    falling = make(tmp_path / "falling", "gv_dapo", entropy_target=0.01, **flags)
    rising.train()
    falling.train()
    assert logged(rising, "entropy_coef") == pytest.approx([0.11, 0.12, 0.13])
    assert logged(falling, "entropy_coef") == pytest.approx([0.09, 0.08, 0.07])


def test_tool_tokens_are_in_no_loss_and_no_count(tmp_path):
    """`env_mask` marks the second token of every completion as not the policy's own."""

    def rollout(prompts, trainer):
        ids, _, fields = trainer._tokenize_prompts(prompts)
        completions, _ = trainer._generate_single_turn(ids, None, fields, 4)
        mask = [[int(t != 1) for t in range(len(c))] for c in completions]
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None, "env_mask": mask}

    trainer = make(tmp_path, "gv_dapo,overlong=keep,filter=none", rollout_func=rollout, max_steps=1)
    seen = recorded(trainer)
    trainer.train()
    (micro,) = seen
    gradient, mask = micro["logp"].grad, micro["inputs"]["completion_mask"]
    assert gradient[:, 1].abs().max() == 0
    assert mask[:, 1].sum() > 0
    own = mask.sum() - mask[:, 1].sum()
    # On policy each token's gradient is -A_i / (own tokens of the step).
    expected = -micro["inputs"]["advantages"] / own
    torch.testing.assert_close(gradient[:, 0], expected)


def test_rollout_log_probabilities_are_honoured_from_the_batch(tmp_path):
    """A rollout engine that reports log-probabilities 0.5 too low: every weight is e^0.5, capped at 1.3.

    A token that it could not score (None) has weight 1.
    """

    def rollout(prompts, trainer):
        ids, _, fields = trainer._tokenize_prompts(prompts)
        completions, _ = trainer._generate_single_turn(ids, None, fields, 4)
        inputs = [torch.tensor([p + c]) for p, c in zip(ids, completions, strict=True)]
        logprobs = []
        for p, c, x in zip(ids, completions, inputs, strict=True):
            with torch.no_grad():
                full = trainer.model(x).logits[0, len(p) - 1 : -1].log_softmax(-1)
            logprobs.append([full[t, token].item() - 0.5 for t, token in enumerate(c)])
            logprobs[-1][0] = None
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": logprobs}

    spec = "gv_dapo,overlong=keep,filter=none,correction=token_truncate,correction.cap=1.3"
    trainer = make(tmp_path, spec, rollout_func=rollout, max_steps=1)
    seen = recorded(trainer)
    trainer.train()
    (micro,) = seen
    gradient, mask = micro["logp"].grad, micro["inputs"]["completion_mask"].bool()
    plain = (-micro["inputs"]["advantages"] / mask.sum()).unsqueeze(1)
    torch.testing.assert_close(gradient[:, :1], plain, rtol=1e-4, atol=1e-7)
    later = mask[:, 1:]
    torch.testing.assert_close(gradient[:, 1:][later], (1.3 * plain).expand_as(later)[later], rtol=1e-4, atol=1e-7)
    assert logged(trainer, "gv/correction/max") == pytest.approx([1.3])


def test_high_entropy_tokens_only(tmp_path):
    trainer = make(tmp_path, "gv_dapo,filter=none", top_entropy_quantile=0.3, max_steps=1)
    seen = recorded(trainer)
    trainer.train()
    (micro,) = seen
    mask = micro["inputs"]["completion_mask"].bool()
    threshold = torch.quantile(micro["entropy"][mask], 0.7)
    dropped = mask & (micro["entropy"] < threshold)
    assert micro["logp"].grad[dropped].abs().max() == 0
    assert micro["logp"].grad[mask & ~dropped].abs().max() > 0
    assert logged(trainer, "gv/tokens/kept")[0] == pytest.approx(0.3, abs=0.1)


def test_several_rewards_with_weights_and_missing_values(tmp_path):
    def sometimes(completions, **kwargs):
        return [None if i % 3 == 0 else 1.0 + i for i in range(len(completions))]

    trainer = make(tmp_path, "gv_grpo", rewards=[tiny_model.ones, sometimes], reward_weights=[1.0, 0.1])
    trainer.train()
    assert min(logged(trainer, "grad_norm")) > 1e-4
    assert trainer.variant_card.effective == {"reward_weights": [1.0, 0.1]}


def test_resume_continues_where_the_run_stopped(tmp_path):
    flags = dict(
        gradient_accumulation_steps=1, steps_per_generation=2, num_iterations=2, save_strategy="steps", save_steps=3
    )
    first = make(tmp_path, "gv_dr_grpo", max_steps=3, **flags)
    first.train()
    checkpoint = tmp_path / "checkpoint-3"
    assert read_json(checkpoint / STATE_FILE, "-") == {"optimizer_step": 3}
    second = make(tmp_path, "gv_dr_grpo", max_steps=5, **flags)
    seen = recorded(second)
    second.train(resume_from_checkpoint=str(checkpoint))
    assert second._step == 5
    assert [m["step"] for m in seen] == [3, 4]
    # The micro-batch after the third is the second half of its generation, then a new generation begins.
    assert second.state.global_step == 5
    assert not torch.equal(seen[0]["inputs"]["completion_ids"], seen[1]["inputs"]["completion_ids"])


def test_a_run_that_failed_in_the_middle_of_a_step_starts_a_new_one(tmp_path):
    calls = []

    def fails_once(completions, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the judge is down")
        return [float(len(c)) for c in completions]

    trainer = make(tmp_path, "gv_dr_grpo", rewards=[fails_once], gradient_accumulation_steps=2, steps_per_generation=1)
    with pytest.raises(RuntimeError, match="the judge is down"):
        trainer.train()
    trainer.train()
    assert trainer.state.global_step == 2


def test_steps_are_whole_again_after_an_interruption(tmp_path):
    """The second micro-batch of a step fails; the next run starts with new rollouts, and its counts are exact."""
    flags = dict(rewards=[tiny_model.ones], gradient_accumulation_steps=2, max_steps=3)
    trainer = make(tmp_path, "gv_dapo,filter=none", **flags)
    compute, calls = trainer._compute_loss, []

    def interrupted(model, inputs):
        calls.append(trainer._step)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return compute(model, inputs)

    trainer._compute_loss = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.train()
    assert calls == [0, 1, 2, 3, *range(6)]
    # On policy each step's mean ratio is 1; what the interrupted one had measured is in none of them.
    assert logged(trainer, "gv/ratio/mean")[-3:] == pytest.approx([1] * 3, abs=1e-5)


def test_a_nan_at_a_valid_token_is_not_hidden(tmp_path):
    trainer = make(tmp_path, "gv_grpo", max_steps=1, logging_nan_inf_filter=False)
    score = trainer._score_tokens

    def with_nan(model, inputs, **options):
        logp, entropy, aux = score(model, inputs, **options)
        return torch.cat([logp[:, :1] * float("nan"), logp[:, 1:]], dim=1), entropy, aux

    trainer._score_tokens = with_nan
    assert math.isnan(trainer.train().training_loss)
    assert logged(trainer, "loss") == logged(trainer, "gv/policy_loss") == []
    assert logged(trainer, "gv/health/nonfinite_values")[0] >= 3


def test_adapter_and_card_are_saved(tmp_path):
    trainer = make(tmp_path, "gv_gspo,surrogate.high=0.1", save_strategy="steps", save_steps=1, max_steps=1)
    trainer.train()
    card = json.loads((tmp_path / "checkpoint-1" / "grpo_variant.json").read_text())
    assert card["spec"] == "gspo,surrogate.high=0.1"
    assert card["values"]["surrogate.high"] == {"value": 0.1, "origin": "loss_type (surrogate.high=0.1)"}
    assert (Path(tmp_path) / "checkpoint-1" / "adapter_model.safetensors").exists()
