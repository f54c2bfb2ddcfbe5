"""What TRL cannot do for a variant is refused by name when the trainer is made, before any generation or step."""

import re

import pytest
import torch
from datasets import Dataset
from grpo_variants_trl import VariantGRPOConfig, VariantGRPOTrainer
from grpo_variants_trl.step.step_counts import needs_whole_step, spans_generations
from peft import LoraConfig, get_peft_model
from support import tiny_model
from support.trl.runs import lora, make
from trl import GRPOTrainer

import grpo_variants as gv


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    """A trainer makes its output folder; not in the tree."""
    monkeypatch.chdir(tmp_path)


class Untouched:
    """A model that must not be looked at: what a config says is refused first."""

    def __getattr__(self, name):
        raise AssertionError(f"the model's {name} was read before the config was refused")


def construct(loss_type, model=None, **more):
    flags = {"max_completion_length": 6, "num_generations": 4, "per_device_train_batch_size": 8}
    arguments = ("rollout_func", "tools", "environment_factory", "peft_config")
    extra = {name: more.pop(name) for name in arguments if name in more}
    config = VariantGRPOConfig(
        "unused", loss_type=loss_type, use_cpu=True, bf16=False, report_to="none", **flags | more
    )
    return VariantGRPOTrainer(
        Untouched() if model is None else model,
        tiny_model.ones,
        config,
        tiny_model.dataset(),
        processing_class=tiny_model.tokenizer(),
        **extra,
    )


ROLLOUT_LOGP = (
    "its correction or anchor reads the rollout engine's log-probabilities, which transformers' generation does not "
    "report. Set use_vllm=True, or remove it (correction=none, ratio.anchor=old)."
)
SPANS = (
    "an optimizer step of 4 micro-batches spans two generations of 2 x 1, so the lengths that its weights and "
    "statistics need are not known at its first micro-batch. Set steps_per_generation=4"
)
SPANS_BONUS = SPANS.replace(
    "lengths that its weights and statistics need", "tokens that the entropy bonus is a mean over"
)
UNEVEN = {"gradient_accumulation_steps": 4, "steps_per_generation": 2}

# (loss type, flags and arguments, text): refused from the config alone.
REFUSALS = {
    "correction without vLLM": ("gv_grpo,correction=token_truncate", {}, ROLLOUT_LOGP),
    "correction by TRL's flag without vLLM": ("gv_dapo", {"vllm_importance_sampling_correction": True}, ROLLOUT_LOGP),
    "rollout anchor without vLLM": ("gv_grpo,ratio.anchor=rollout", {}, ROLLOUT_LOGP),
    "kept denominator": (
        "gv_dapo,tokens=top_entropy,tokens.denominator=kept",
        {},
        "tokens.denominator=kept needs the number of kept tokens of the whole step before its first backward pass. "
        "Use tokens.denominator=all.",
    ),
    "dynamic sampling of one response": (
        "gv_reinforce,filter=zero_variance",
        {"num_generations": 1},
        "filter=zero_variance compares the responses of a prompt, and num_generations=1 leaves none. Set it to 2.",
    ),
    "dynamic sampling without a bound": (
        "gv_dapo,filter.max_rounds=none",
        {},
        "filter.max_rounds=none draws new prompts without a bound, so that a run whose prompts have no signal would "
        "never end. Set filter.max_rounds=10.",
    ),
    "overlong buffer": (
        "gv_dapo,overlong=penalty,overlong.buffer=7",
        {},
        "overlong.buffer=7 does not fit into max_completion_length=6; allowed: at most that length.",
    ),
    "overlong buffer without a limit": (
        "gv_dapo,overlong=penalty,overlong.buffer=7",
        {"max_completion_length": None},
        "overlong.buffer=7 does not fit into max_completion_length=None",
    ),
    "constant without length": (
        "gv_dr_grpo",
        {"max_completion_length": None},
        "aggregation=constant needs max_completion_length, or aggregation.length in the spec string.",
    ),
    "greedy baseline with tools": (
        "gv_remax",
        {"tools": [max]},
        "baseline=greedy draws a greedy response of one turn by TRL's own generation, which is not combined with "
        "tools. "
        "Remove it, or choose another baseline.",
    ),
    "greedy baseline with a rollout function": ("gv_remax", {"rollout_func": max}, "not combined with rollout_func."),
    "greedy baseline with an environment": (
        "gv_remax",
        {"environment_factory": max},
        "not combined with environment_factory.",
    ),
    "token mean over two generations": (
        "gv_dapo",
        UNEVEN,
        f"{SPANS}, or approximate_windows=True to count by TRL's rule.",
    ),
    "prompt mean over two generations, approximate or not": (
        "gv_dapo,aggregation=prompt_mean",
        {**UNEVEN, "approximate_windows": True},
        f"{SPANS}.",
    ),
    "an entropy bonus over two generations": (
        "gv_grpo",
        {**UNEVEN, "entropy_coef": 0.01},
        f"{SPANS_BONUS}, or approximate_windows=True to count by TRL's rule.",
    ),
    "an adaptive entropy bonus over two generations": (
        "gv_dr_grpo",
        {**UNEVEN, "use_adaptive_entropy": True},
        f"{SPANS_BONUS}, or approximate_windows=True to count by TRL's rule.",
    ),
    "lengths of two generations, approximate or not": (
        "gv_delta_l",
        {**UNEVEN, "approximate_windows": True},
        f"{SPANS}.",
    ),
    "a filter over two generations": ("gv_dr_grpo,filter=zero_variance", UNEVEN, SPANS),
    "empty rows left out over two generations": ("gv_grpo,aggregation.empty_rows=exclude", UNEVEN, SPANS),
    "the settings on both sides": (
        "gv_dapo",
        {"gradient_accumulation_steps": 4, "steps_per_generation": 6},
        "Set steps_per_generation=4 or steps_per_generation=8,",
    ),
    "several iterations": (
        "gv_dapo",
        {"gradient_accumulation_steps": 4, "steps_per_generation": 3, "num_iterations": 2},
        "spans two generations of 3 x 2, so the lengths that its weights and statistics need are not known at its "
        "first micro-batch. "
        "Set steps_per_generation=2 or steps_per_generation=4,",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_from_the_config_alone(case):
    loss_type, more, text = REFUSALS[case]
    whole = f"loss_type={loss_type!r} cannot be honoured by TRL: "
    with pytest.raises(ValueError, match=re.escape(text)) as refused:
        construct(loss_type, **more)
    assert str(refused.value).startswith(whole)


@pytest.mark.parametrize("loss_type", ["gv_spo", "gv_dcpo"])
@pytest.mark.parametrize("column", ["image", "images"])
def test_a_memory_of_prompts_is_refused_for_a_column_of_images(tmp_path, loss_type, column):
    rows = Dataset.from_list([{"prompt": "0 1", column: None}] * 8)
    text = (
        f"loss_type={loss_type!r} cannot be honoured by TRL: its memory goes by the text of a prompt, and the data set "
        f"has {column!r}, so that all images of a text would look the same."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        make(tmp_path, loss_type, train_dataset=rows)


def test_a_memory_of_prompts_is_refused_for_images_from_elsewhere(tmp_path, monkeypatch):
    """Such as an environment's: TRL then has pixels in its batch."""
    sampled = GRPOTrainer._generate_and_score_completions
    monkeypatch.setattr(
        GRPOTrainer,
        "_generate_and_score_completions",
        lambda self, inputs: {**sampled(self, inputs), "pixel_values": torch.zeros(8, 3)},
    )
    with pytest.raises(ValueError, match="goes by their text, and these hold something else, such as images"):
        make(tmp_path, "gv_spo").train()


@pytest.mark.parametrize("suggested", [2, 4])
def test_the_suggested_settings_are_accepted(tmp_path, suggested):
    more = dict(gradient_accumulation_steps=4, num_iterations=2)
    assert make(tmp_path, "gv_dapo", steps_per_generation=suggested, **more).variant == gv.get("dapo")


@pytest.mark.parametrize(
    ("loss_type", "more"),
    [
        ("gv_grpo", {}),
        ("gv_dr_grpo", {}),
        ("gv_rloo", {}),
        ("gv_gspo", {}),
        ("gv_dapo", {"approximate_windows": True}),
        ("gv_grpo", {"approximate_windows": True, "entropy_coef": 0.01}),
        ("gv_grpo,aggregation.empty_rows=exclude", {"approximate_windows": True}),
    ],
)
def test_an_optimizer_step_over_two_generations_is_accepted(tmp_path, loss_type, more):
    trainer = make(tmp_path, loss_type, **UNEVEN, **more)
    assert trainer.variant_card.effective.get("approximate_windows", False) == bool(more)


@pytest.mark.parametrize(
    ("accumulation", "steps", "iterations", "spans"),
    # Which optimizer steps span generations, counted by hand. A step of 4 over generations of 2 does every time;
    # generations of 4 hold two steps of 2; 3 micro-batches twice hold three steps of 2, but not of 4.
    [(4, 2, 1, True), (2, 1, 1, True), (2, 3, 1, True), (2, 4, 1, False), (2, 3, 2, False), (4, 3, 2, True)],
)
def test_which_schedules_span_generations(accumulation, steps, iterations, spans):
    assert spans_generations(accumulation, steps, iterations) is spans


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        ("grpo", False),
        ("dr_grpo", False),
        ("rloo", False),
        ("dapo", True),
        ("dapo,filter=none", True),
        ("dapo,aggregation=prompt_mean,filter=none", True),
        ("delta_l", True),
        ("grpo,filter=zero_variance", True),
        ("grpo,aggregation.empty_rows=exclude", True),
    ],
)
def test_which_variants_need_the_whole_optimizer_step(spec, needed):
    assert needs_whole_step(gv.get(spec)) is needed


def test_an_entropy_bonus_is_a_mean_over_the_whole_optimizer_step():
    assert all(needs_whole_step(gv.get(name), entropy_bonus=True) for name in ("grpo", "dr_grpo", "forking_tokens"))


def test_a_constant_length_of_its_own_needs_no_limit(tmp_path):
    trainer = make(tmp_path, "gv_dr_grpo,aggregation.length=6", max_completion_length=None)
    assert trainer.variant.aggregation.length == 6


def test_a_buffer_may_be_the_whole_length(tmp_path):
    assert make(tmp_path, "gv_dapo,overlong=penalty,overlong.buffer=6").variant.overlong.buffer == 6


def test_a_filter_metric_is_one_of_the_reward_functions(tmp_path):
    text = "filter.metric='length' is no reward function; allowed: exact, ones, none."
    with pytest.raises(ValueError, match=re.escape(text)):
        make(tmp_path, "gv_dapo,filter.metric=length")
    assert make(tmp_path, "gv_dapo,filter.metric=ones").variant.filter.metric == "ones"


NO_REFERENCE = (
    "its KL term needs a reference, which TRL loads from where the model came from, and this model was made in memory. "
    "Save it and give its path, or train with LoRA (peft_config=...), or switch the KL term off (beta=0.0)."
)


@pytest.mark.parametrize("loss_type", ["gv_grpo", "gv_reinforce_pp", "gv_dapo,kl=k2,kl.beta=0.1"])
def test_a_kl_term_without_reference_is_refused(loss_type):
    with pytest.raises(ValueError, match=re.escape(NO_REFERENCE)):
        construct(loss_type, model=tiny_model.model())


@pytest.mark.parametrize("loss_type", ["gv_grpo,kl=none", "gv_grpo,kl.beta=0", "gv_dr_grpo"])
def test_no_reference_is_needed_without_a_kl_term(loss_type):
    assert construct(loss_type, model=tiny_model.model()).ref_model is None


def test_a_saved_model_and_an_adapter_have_a_reference(tmp_path):
    tiny_model.model().save_pretrained(tmp_path)
    loaded = type(tiny_model.model()).from_pretrained(tmp_path)
    assert construct("gv_grpo", model=loaded).ref_model is not None
    assert construct("gv_grpo", model=tiny_model.model(), peft_config=lora()).ref_model is None
    assert construct("gv_grpo", model=get_peft_model(tiny_model.model(), lora())).ref_model is None


def test_an_adapter_on_the_head_is_refused_by_trl():
    head = LoraConfig(r=4, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="Applying a PEFT adapter to `lm_head` is not supported"):
        construct("gv_dr_grpo", model=tiny_model.model(), peft_config=head)


def test_a_built_in_loss_type_is_not_checked(tmp_path):
    assert make(tmp_path, "dapo", **UNEVEN).variant is None
