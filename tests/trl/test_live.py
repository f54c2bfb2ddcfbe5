"""What a callback sets on a running trainer: TRL's own trainer, with the same callback, is the yardstick."""

import json
import math
import re
from pathlib import Path

import grpo_variants_trl as gvt
import pytest
import torch
from peft import LoraConfig
from support import tiny_model
from support.trl.runs import logged, make, weights
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import grpo_variants as gv
from grpo_variants.card import read_card


class Setting(TrainerCallback):
    """Sets attributes when so many optimizer steps are done: {steps: {"beta": 0.5, "args.delta": 4.0}}."""

    def __init__(self, schedule):
        self.schedule = schedule

    def on_step_end(self, args, state, control, **kwargs):
        for path, value in self.schedule.get(state.global_step, {}).items():
            *holder, name = path.split(".")
            setattr(self.trainer.args if holder else self.trainer, name, value)


def ran(folder, loss_type, schedule, **flags):
    callback = Setting(schedule)
    flags = {"max_steps": 4, "learning_rate": 0.05, "num_iterations": 2, "rewards": [tiny_model.ones], **flags}
    callback.trainer = trainer = make(folder, loss_type, callbacks=[callback], **flags)
    trainer.start = weights(trainer)
    trainer.train()
    return trainer


OWN = dict(trainer=GRPOTrainer, config=GRPOConfig)
# TRL's loss, the variant that it is, flags of both, and what is set after a step. Four steps, two of each generation.
READ_LIVE = {
    "a KL coefficient": ("grpo", "grpo", {"beta": 0.04}, {1: {"beta": 2.0}}),
    "a KL coefficient that is off for a while": ("grpo", "grpo", {"beta": 2.0}, {1: {"beta": 0.0}, 2: {"beta": 2.0}}),
    "a KL term that comes on": ("grpo", "grpo,kl=none", {}, {2: {"beta": 2.0}}),
    "clip bounds": ("grpo", "grpo,kl=none", {}, {1: {"epsilon_low": 0.01, "epsilon_high": 0.02}}),
    "cispo's cap": ("cispo", "cispo", {"epsilon_high": 5.0}, {1: {"epsilon_high": 0.9}}),
    "a second clip": ("grpo", "grpo,kl=none", {"epsilon": 0.01}, {1: {"args.delta": 1.011}}),
    "a second clip that goes": ("grpo", "grpo,kl=none", {"epsilon": 0.01, "delta": 1.011}, {1: {"args.delta": None}}),
    "the KL term's weight": ("grpo", "grpo", {"beta": 2.0}, {1: {"args.use_bias_correction_kl": False}}),
    "sapo's temperatures": (
        "sapo",
        "sapo,kl=none",
        {},
        {1: {"args.sapo_temperature_pos": 5.0, "args.sapo_temperature_neg": 0.5}},
    ),
    "the ratio": ("grpo", "grpo,kl=none", {}, {1: {"importance_sampling_level": "sequence"}}),
    "the scale": ("grpo", "grpo,kl=none", {}, {1: {"scale_rewards": "none"}}),
    "the share of tokens": ("grpo", "grpo,kl=none", {}, {1: {"top_entropy_quantile": 0.3}}),
    "a mask of truncated responses": ("grpo", "grpo,kl=none", {}, {2: {"mask_truncated_completions": True}}),
    "an off-policy mask": ("grpo", "grpo,kl=none", {}, {1: {"off_policy_mask_threshold": 1e-4}}),
    "an entropy bonus": ("grpo", "grpo,kl=none", {"entropy_coef": 0.1}, {1: {"entropy_coef": 5.0}}),
    "reward weights": (
        "grpo",
        "grpo,kl=none",
        {"rewards": [tiny_model.ones, tiny_model.exact]},
        {2: {"reward_weights": torch.tensor([-1.0, 1.0])}},
    ),
}


@pytest.mark.parametrize("case", READ_LIVE)
def test_what_trl_reads_live_is_read_live(tmp_path, case):
    loss_type, spec, flags, schedule = READ_LIVE[case]
    theirs = ran(tmp_path / "theirs", loss_type, schedule, **OWN, **flags)
    ours = ran(tmp_path / "ours", f"gv_{spec},conventions=trl", schedule, **flags)
    unmoved = ran(tmp_path / "unmoved", loss_type, {}, **OWN, **flags)
    wanted, found, still = (weights(t) - t.start for t in (theirs, ours, unmoved))
    assert (wanted - still).abs().max() > 1e-3, "the change changes nothing, so nothing is compared"
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max().item())


def entries(trainer):
    return [(entry["step"], entry["key"], entry["old"], entry["new"]) for entry in trainer.variant_card.history]


def test_the_card_says_what_was_changed_and_when(tmp_path):
    schedule = {1: {"beta": 0.5}, 2: {"beta": 0.25, "epsilon_low": 0.1}, 3: {"reward_weights": torch.tensor([2.0])}}
    flags = dict(num_iterations=1, save_strategy="steps", save_steps=2)
    trainer = ran(tmp_path, "gv_grpo", schedule, **flags)
    expected = [
        (2, "kl.beta", 0.04, 0.5),
        (3, "kl.beta", 0.5, 0.25),
        (3, "surrogate.low", 0.2, 0.1),
        (4, "reward_weights", [1.0], [2.0]),
    ]
    assert sorted(entries(trainer)) == expected
    written = read_card(tmp_path)
    assert written["history"] == list(trainer.variant_card.history)
    assert [entry["step"] for entry in read_card(tmp_path / "checkpoint-2")["history"]] == [2]
    # The rest is what the run started with, and so is the hash: a resume finds the same objective.
    assert written["values"]["kl.beta"] == {"value": 0.04, "origin": "paper"}
    assert written["hash"] == make(tmp_path, "gv_grpo", rewards=[tiny_model.ones]).variant_card.hash
    text = (
        "Changed while it trained: `kl.beta` from 0.04 to 0.25 (2 times, steps 2 to 3); `surrogate.low` from 0.2 to 0.1"
    )
    assert text in (tmp_path / "README.md").read_text()
    assert trainer.variant == gv.get("grpo,kl.beta=0.25,surrogate.low=0.1")


def test_a_run_without_a_change_has_no_history(tmp_path):
    trainer = ran(tmp_path, "gv_grpo", {})
    assert read_card(tmp_path)["history"] == []
    assert "Changed while it trained" not in trainer.variant_card.paragraph()


@pytest.mark.parametrize("beta", [torch.tensor(0.5), torch.tensor(0.5).numpy()])
def test_a_number_of_any_kind_is_a_number(tmp_path, beta):
    assert entries(ran(tmp_path, "gv_grpo", {1: {"beta": beta}}, max_steps=2)) == [(2, "kl.beta", 0.04, 0.5)]


def test_a_kl_term_that_goes_and_comes_back_is_the_same_one(tmp_path):
    """It has the estimator that it had. Within a generation without reference it waits for the next one."""
    schedule = {2: {"beta": 0.0}, 3: {"beta": 0.5}}
    trainer = ran(tmp_path, "gv_grpo,kl=k2,kl.beta=0.1", schedule, max_steps=6)
    assert entries(trainer) == [
        (3, "kl", "k2", "none"),
        (3, "kl.beta", 0.1, None),
        (5, "kl", "none", "k2"),
        (5, "kl.beta", None, 0.5),
    ]
    assert trainer.variant == gv.get("grpo,kl=k2,kl.beta=0.5")
    assert [("kl" in row) for row in trainer.state.log_history if "loss" in row] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]


def test_a_penalty_in_the_reward_follows_too(tmp_path):
    trainer = ran(tmp_path, "gv_reinforce_pp", {2: {"beta": 0.0}, 4: {"beta": 3.0}}, max_steps=6)
    assert trainer.variant == gv.get("reinforce_pp,kl.beta=3")
    assert all(map(math.isfinite, logged(trainer, "loss")))


def test_responses_without_advantage_are_scored_again_when_a_kl_term_comes_on(tmp_path):
    rewards = [lambda completions, **kwargs: [1.0] * len(completions)]
    flags = dict(rewards=rewards, num_iterations=1, max_steps=3)
    trainer = ran(tmp_path / "a", "gv_grpo,kl=none", {1: {"beta": 0.5}}, **flags)
    assert logged(trainer, "gv/scored_responses") == [0, 1, 1]
    with pytest.raises(
        ValueError, match=r"^beta=0\.5 was set during the run: skip_zero_gradient_rows=True would change"
    ):
        ran(tmp_path / "b", "gv_grpo,kl=none", {1: {"beta": 0.5}}, skip_zero_gradient_rows=True, **flags)


def test_evaluation_between_two_steps_sees_the_change(tmp_path):
    """TRL no longer computes log-probabilities of the reference, so the term must be gone."""
    flags = dict(eval_strategy="steps", eval_steps=1, eval_dataset=tiny_model.dataset(8), max_steps=3)
    trainer = ran(tmp_path, "gv_grpo", {1: {"beta": 0.0}}, **flags)
    assert len(logged(trainer, "eval_loss")) == 3
    assert "eval_kl" not in [row for row in trainer.state.log_history if "eval_loss" in row][1]


REFUSED = {
    "a flag without effect": (
        "gv_rloo",
        {"epsilon_low": 0.1},
        "epsilon_low=0.1 was set during the run: epsilon=0.1 has no effect: gv_rloo has surrogate=reinforce",
    ),
    "a field of another surrogate": (
        "gv_dr_grpo",
        {"args.vespo_k_pos": 9.0},
        "vespo_k_pos=9.0 was set during the run: vespo_k_pos=9.0: no effect on gv_dr_grpo, whose surrogate is clip",
    ),
    "a number out of range": ("gv_grpo", {"beta": -1.0}, "beta=-1.0 was set during the run: beta=-1.0: "),
    "no number": ("gv_grpo", {"beta": math.nan}, "kl.beta=nan is out of range"),
    "a configuration that TRL does not read": (
        "gv_grpo",
        {"args.beta": 0.1},
        "args.beta=0.1 was set during the run, where TRL reads trainer.beta. Set that.",
    ),
    "another name there": (
        "gv_grpo",
        {"args.epsilon": 0.1},
        "args.epsilon=0.1 was set during the run, where TRL reads trainer.epsilon_low. Set that.",
    ),
    "another loss": (
        "gv_grpo",
        {"loss_type": "gv_dapo"},
        "trainer.loss_type='gv_dapo' was set during the run, which is built around 'gv_grpo'. Make a new trainer with",
    ),
    "another size of groups": ("gv_grpo", {"num_generations": 2}, "trainer.num_generations=2 was set during the run"),
    "a correction without an engine": (
        "gv_grpo",
        {"vllm_importance_sampling_correction": True},
        "vllm_importance_sampling_correction=True was set during the run: loss_type='gv_grpo' cannot be honoured",
    ),
    "siblings of a response that has none": (
        "gv_reinforce",
        {"scale_rewards": "group"},
        "it compares the responses of a prompt, and num_generations=1 leaves none. Set it to 2.",
        {"num_generations": 1},
    ),
    "a scale that remembers": (
        "gv_dcpo",
        {"scale_rewards": "group"},
        "scale_rewards='group' was set during the run: the memory of earlier steps belongs to the rule",
    ),
    "an entropy bonus that TRL did not build": (
        "gv_dr_grpo",
        {"entropy_coef": 0.1},
        "entropy_coef=0.1 was set during the run and has no effect: the run started with 0.0, and TRL decides at the",
    ),
    "a weight that is no number": (
        "gv_dr_grpo",
        {"reward_weights": torch.tensor([math.inf])},
        "reward_weights=[inf] was set during the run; allowed: finite numbers.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_stops_the_next_step(tmp_path, case):
    loss_type, values, text, *flags = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(text)):
        ran(tmp_path, loss_type, {1: values}, num_iterations=1, **dict(*flags))


def test_a_kl_term_needs_a_reference_that_was_made(tmp_path):
    """A full model has one only where beta is not 0 at the start."""
    text = "beta=0.5 was set during the run: TRL makes its reference at the start, and only where beta is not 0 then."
    with pytest.raises(ValueError, match=re.escape(text)):
        ran(tmp_path, "gv_dr_grpo", {1: {"beta": 0.5}}, peft_config=None, num_iterations=1)


def test_the_model_without_an_adapter_that_splits_the_weights_is_no_reference(tmp_path):
    config = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights="pissa")
    with pytest.raises(ValueError, match="TRL makes its reference at the start"):
        ran(tmp_path, "gv_dr_grpo", {1: {"beta": 0.5}}, peft_config=config, num_iterations=1)


def test_a_resumed_run_tells_the_whole_history(tmp_path):
    """Settings are the configuration's again, as in TRL, and the history says so."""
    flags = dict(num_iterations=1, save_strategy="steps", save_steps=2)
    ran(tmp_path, "gv_grpo", {1: {"beta": 0.5}}, **flags)
    trainer = make(tmp_path, "gv_grpo", max_steps=4, rewards=[tiny_model.ones], **flags)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert entries(trainer) == [(2, "kl.beta", 0.04, 0.5), (3, "kl.beta", 0.5, 0.04)]
    assert json.loads((tmp_path / "checkpoint-4" / "grpo_variant.json").read_text())["history"][1]["step"] == 3


def test_the_callback_of_the_documentation_moves_the_coefficient(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "trl.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class AdaptiveKL" in block]
    names = {}
    exec(code, names)
    callback = names["AdaptiveKL"]()
    callback.trainer = make(tmp_path, "gv_grpo", callbacks=[callback], max_steps=3, logging_steps=1)
    callback.trainer.train()
    assert [new / old for _, _, old, new in entries(callback.trainer)] == pytest.approx([0.9, 0.9])


def test_the_stock_trainer_follows_too(tmp_path):
    with gvt.registered():
        trainer = ran(tmp_path, "gv_dr_grpo", {1: {"epsilon_high": 0.4}}, **OWN)
    assert entries(trainer) == [(2, "surrogate.high", 0.2, 0.4)]
