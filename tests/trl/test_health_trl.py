"""The health check in real TRL runs: each cause is warned of, counted and summed up; healthy runs hear nothing."""

import logging

import pytest
import torch
from grpo_variants_trl import VariantGRPOConfig
from grpo_variants_trl.config.builtins import opening
from support import tiny_model
from support.trl import engine as trl_engine
from support.trl.runs import logged, make
from trl import GRPOConfig

import grpo_variants as gv

LOOK = "look at the reward functions and at a few responses, or choose prompts of another difficulty"


@pytest.fixture
def warned(caplog):
    """Run a trainer; returns what the health check warned of, without its step."""

    def run(trainer):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="grpo_variants_trl"):
            trainer.train()
        return [record.getMessage() for record in caplog.records if record.name == "grpo_variants_trl"]

    return run


def counted(trainer):
    """The last value of each health counter in the log."""
    rows = [row for row in trainer.state.log_history if "gv/health/findings" in row]
    return {key.removeprefix("gv/health/"): v for key, v in rows[-1].items() if key.startswith("gv/health/")}


def constant(value):
    def reward(completions, **_):
        return [value] * len(completions)

    return reward


def test_every_response_masked_as_overlong(tmp_path, warned, capsys):
    """The README's example with a short limit: the model is not let to end, and every response is masked."""
    trainer = make(tmp_path, "gv_dapo,surrogate.high=0.3", generation_kwargs={"suppress_tokens": [tiny_model.END]})
    assert warned(trainer) == [
        "step 1: every response was cut off at the length limit and masked as overlong, so nothing is trained; raise "
        "max_completion_length (now 6), or train on truncated responses with overlong=keep in the loss type."
    ]
    assert counted(trainer) == {"findings": 1.0, "all_overlong": 1.0}
    assert "health: all_overlong in 2 of 2 steps; raise max_completion_length (now 6)" in capsys.readouterr().out


def test_the_same_run_without_the_mask_is_healthy(tmp_path, warned, capsys):
    flags = dict(generation_kwargs={"suppress_tokens": [tiny_model.END]}, rewards=[tiny_model.ones])
    trainer = make(tmp_path, "gv_dapo,overlong=keep", **flags)
    assert warned(trainer) == []
    assert "health: 2 steps checked, nothing found." in capsys.readouterr().out


SIGNALS = [
    (1.0, "every response of every group is right, or the reward function is constant, so every advantage is 0"),
    (0.0, "every response of every group is wrong, or the reward function is constant, so every advantage is 0"),
    (None, "no reward function gave a number for any response, so every advantage is 0"),
]


@pytest.mark.parametrize(("value", "cause"), SIGNALS)
@pytest.mark.parametrize("spec", ["gv_dr_grpo", "gv_grpo,kl=none", "gv_rloo"])
def test_no_signal(tmp_path, warned, spec, value, cause):
    trainer = make(tmp_path, spec, rewards=[constant(value)], max_steps=3)
    assert warned(trainer) == [f"step 1: {cause}; {LOOK}.", f"step 3, 3 steps in a row: {cause}; {LOOK}."]
    assert counted(trainer) == {"findings": 1.0, "no_signal": 1.0}


def test_a_reward_by_prompt_alone(tmp_path, warned):
    def by_prompt(t, **_):
        return [number / 4 for number in t]

    (warning,) = warned(make(tmp_path, "gv_dr_grpo", rewards=[by_prompt], per_device_train_batch_size=16))
    assert warning.startswith("step 1: no group has a signal (")
    assert warning.endswith(f"all wrong), so every advantage is 0; {LOOK}.")


def test_a_baseline_of_other_prompts_has_a_signal_in_constant_groups(tmp_path, warned):
    assert warned(make(tmp_path, "gv_reinforce", rewards=[constant(1.0)])) == []


def test_identical_responses(tmp_path, warned):
    trainer = make(tmp_path, "gv_dr_grpo", temperature=1e-4)
    assert warned(trainer) == [
        "step 1: all responses of each group are identical, so there is nothing to compare; raise temperature (now "
        "0.0001), or look whether sampling is seeded."
    ]
    assert logged(trainer, "gv/groups/identical") == [1.0, 1.0]


def test_nothing_scored(tmp_path, warned):
    """An environment that marks every token as its own."""

    def rollout(prompts, trainer):
        ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
        responses = [[1 + (i + j) % 2 for j in range(i % 4 + 1)] for i in range(len(prompts))]
        return {
            "prompt_ids": ids,
            "completion_ids": responses,
            "logprobs": None,
            "env_mask": [[0] * len(response) for response in responses],
        }

    trainer = make(tmp_path, "gv_grpo,kl=none", rollout_func=rollout, rewards=[tiny_model.ones])
    assert warned(trainer) == [
        "step 1: no token counts in the loss, so nothing is trained; look at the masks of tools and at the lengths of "
        "the responses."
    ]


def test_a_gradient_that_is_zero(tmp_path, warned):
    trainer = make(tmp_path, "gv_dr_grpo")
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(torch.zeros_like)
    assert warned(trainer) == [
        "step 1: the gradient is exactly 0 although tokens count in the loss; look whether the trained parameters "
        "require gradients."
    ]


def test_a_gradient_that_is_not_finite(tmp_path, warned):
    trainer = make(tmp_path, "gv_dr_grpo", max_steps=1)
    first = next(p for p in trainer.model.parameters() if p.requires_grad)
    first.register_hook(lambda gradient: gradient * float("inf"))
    (warning,) = warned(trainer)
    assert warning.startswith("step 1: the gradient is not finite (norm ")
    assert warning.endswith("); lower learning_rate (now 0.003), or look for overflows in the model's forward.")


def test_dropout_between_the_two_forwards(tmp_path, warned):
    """Old log-probabilities under other dropout: GSPO clips what has not moved."""
    model = tiny_model.model()
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    (warning,) = warned(make(tmp_path, "gv_gspo", model=model, num_iterations=2, max_steps=1))
    assert warning.startswith("step 1: the tokens' importance ratios are not 1 before the first update (mean ratio ")
    assert warning.endswith(
        "set the model's and LoRA's dropout to 0, or look for kernels that differ between its two forwards."
    )


def test_every_token_clipped(tmp_path, warned):
    """Bounds of 0: after the first update every response has moved the way its advantage pushes, and is clipped."""
    flags = dict(num_iterations=5, max_steps=4, num_generations=2, per_device_train_batch_size=2, seed=2)
    trainer = make(tmp_path, "gv_gspo,surrogate.low=0,surrogate.high=0", rewards=[tiny_model.ones], **flags)
    (warning,) = warned(trainer)
    assert warning == (
        "step 4, 3 steps in a row: 100% of the tokens are clipped and have no gradient from the policy term; lower "
        "learning_rate (now 0.003) or num_iterations (now 5), or widen the clip bounds."
    )


@pytest.mark.parametrize(("error", "said"), [(-5.0, 1), (0.0, 0)])
def test_a_correction_that_cuts_most(tmp_path, warned, monkeypatch, error, said):
    """An engine that reports every log-probability lower by 5: the weights are all truncated."""
    trl_engine.behind_trl(monkeypatch, trl_engine.Engine(error=error))
    flags = dict(use_vllm=True, vllm_mode="colocate", max_steps=1)
    trainer = make(tmp_path, "gv_grpo,kl=none,correction=token_truncate", **flags)
    warnings = warned(trainer)
    assert (
        warnings
        == [
            "step 1: the correction cuts 100% of its weights: trainer and engine disagree; compare dtypes and sampling "
            "settings of trainer and engine, or raise the cap."
        ]
        * said
    )


def test_a_kl_on_a_member_that_has_none(tmp_path, warned):
    trainer = make(tmp_path, "gv_dr_grpo", beta=0.01)
    assert warned(trainer) == [
        "step 1: kl.beta=0.01 adds a KL term and a reference that this member is defined without; set beta=0.0 to "
        "train it as it is defined."
    ]
    assert counted(trainer) == {"findings": 0.0}
    assert warned(make(tmp_path, "gv_grpo", beta=0.01)) == []


HEALTHY = ["grpo", "rloo", "dr_grpo", "gspo", "cispo", "reinforce_pp_baseline", "opo", "sapo", "remax", "dapo"]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_hears_nothing(tmp_path, warned, capsys, name):
    flags = dict(
        max_steps=6, num_iterations=2, learning_rate=1e-4, rewards=[tiny_model.ones], per_device_train_batch_size=16
    )
    trainer = make(tmp_path, f"gv_{name}", **flags)
    assert warned(trainer) == []
    assert logged(trainer, "gv/health/findings") == [0.0] * 6
    assert "health: 6 steps checked, nothing found." in capsys.readouterr().out


def test_it_reads_the_gradient_at_the_first_step_and_where_the_trainer_logs(tmp_path, warned):
    trainer = make(tmp_path, "gv_dr_grpo", max_steps=5, logging_steps=4)
    seen = []
    observe = trainer.health.check.observe
    trainer.health.check.observe = lambda step, what: seen.append((step, what.gradient_norm)) or observe(step, what)
    assert warned(trainer) == []
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5]
    assert [step for step, norm in seen if norm is not None] == [1, 4]


def test_switched_off_nothing_is_said_or_logged(tmp_path, warned, capsys):
    trainer = make(tmp_path, "gv_dr_grpo", rewards=[constant(1.0)], health_check=False)
    assert warned(trainer) == []
    assert not [key for row in trainer.state.log_history for key in row if "health" in key]
    assert "  health: not checked.\n" in capsys.readouterr().out


def test_a_built_in_loss_has_no_health_check(tmp_path, warned):
    trainer = make(tmp_path, "dr_grpo", rewards=[constant(1.0)])
    assert warned(trainer) == []
    with pytest.raises(ValueError, match="health_check=True has no effect with the built-in loss_type='dapo'"):
        VariantGRPOConfig("unused", health_check=True, use_cpu=True, bf16=False)


def test_a_run_opens_in_a_dozen_lines_at_most_and_print_card_has_all_values(tmp_path, capsys):
    spec = "gv_dapo,surrogate.high=0.3"
    make(tmp_path, spec, beta=0.1, gradient_accumulation_steps=2, max_steps=1).train()
    printed = capsys.readouterr().out.splitlines()
    opened = printed[: next(i for i, line in enumerate(printed) if line.startswith("  card: ")) + 1]
    assert len(opened) <= 12
    assert opened[0].startswith("variant dapo,kl=k3,surrogate.high=0.3,kl.beta=0.1  (objective hash ")
    assert opened[2] == (
        "  changed from its definition: surrogate.high=0.3 (defined: 0.28), kl=k3 (defined: none), kl.beta=0.1 "
        "(defined: none), 6 values that came with it"
    )
    assert "  an optimizer step of 2 x 1 micro-batches (per process x processes) is one batch." in opened
    assert opened[-2:] == [
        "  health: checked in every step (gv/health/* in the log).",
        f"  card: {tmp_path}/grpo_variant.json, with every value and where it comes from; print_card=True prints it.",
    ]
    trainer = make(tmp_path, spec, print_card=True, max_steps=1)
    trainer.train()
    assert capsys.readouterr().out.startswith(trainer.variant_card.text())


def test_every_variant_opens_in_a_dozen_lines():
    from grpo_variants.card import Card

    for name in gv.names():
        assert len(Card(variant=gv.get(name), trainer="trl").opening()) <= 8
        changed = Card(variant=gv.get(f"{name},conventions=trl"), trainer="trl", origins={"conventions": "loss_type"})
        assert "conventions=trl (defined: paper)" in changed.opening()[2]


BUILT_IN = [
    (
        {},
        "objective: TRL's own loss_type='dapo', which is TRL's default; the paper's is loss_type='gv_dapo', which has "
        "surrogate.high=0.28 (here: 0.2), filter=zero_variance (here: none), overlong=mask (here: keep).",
    ),
    (
        {"epsilon_high": 0.28, "mask_truncated_completions": True},
        "objective: TRL's own loss_type='dapo', which is TRL's default; the paper's is loss_type='gv_dapo', which has "
        "filter=zero_variance (here: none).",
    ),
    (
        {"loss_type": "grpo"},
        "objective: TRL's own loss_type='grpo'; the paper's is loss_type='gv_grpo', which has kl=k3 (here: none).",
    ),
    (
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
        "objective: TRL's own loss_type='dr_grpo'; the paper's is loss_type='gv_dr_grpo', the same here.",
    ),
    (
        {"loss_type": "cispo"},
        "objective: TRL's own loss_type='cispo'; the paper's is loss_type='gv_cispo', which has surrogate.cap=5.0 "
        "(here: 0.2), filter=zero_variance (here: none).",
    ),
    (
        {"loss_type": "luspo"},
        "objective: TRL's own loss_type='luspo'; the paper's is loss_type='gv_luspo', which has ratio=sequence (here: "
        "token), surrogate.low=0.002 (here: 0.2), surrogate.high=0.0025 (here: 0.2).",
    ),
    (
        {"loss_type": "bnpo"},
        "objective: TRL's own loss_type='bnpo', a token mean per micro-batch; gv_bnpo is another algorithm, of "
        "arXiv:2506.02864.",
    ),
]


def test_a_setting_that_no_variant_has_stops_no_run_of_trls_own(tmp_path, capsys):
    make(tmp_path, "grpo", delta=1.1, max_steps=1).train()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("objective: ")]
    assert line.startswith(
        "objective: TRL's own loss_type='grpo'; the paper's is loss_type='gv_grpo', which does not take a setting of "
        "this run: delta=1.1 is below 1 + 0.2,"
    )


def test_a_loss_type_of_a_derived_trainer_is_its_own(tmp_path):
    config = GRPOConfig(str(tmp_path), loss_type="mine", use_cpu=True, bf16=False)
    assert opening(config) == "objective: loss_type='mine' of this trainer's own."


@pytest.mark.parametrize(("flags", "line"), BUILT_IN)
def test_a_built_in_loss_type_says_which_objective_runs_and_what_the_paper_has(tmp_path, capsys, flags, line):
    trainer = make(tmp_path, **{"loss_type": "dapo", **flags}, max_steps=1)
    trainer.train()
    assert capsys.readouterr().out.splitlines()[0] == line
