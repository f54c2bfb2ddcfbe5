"""The variant card of a TRL run: printed, beside the output and every checkpoint, in the model card, and on resume."""

import json
import re

import pytest
from grpo_variants_trl import VariantGRPOConfig
from grpo_variants_trl.checkpoint.cards import make_card
from grpo_variants_trl.checkpoint.model_card import name_of
from huggingface_hub import ModelCard
from peft import LoraConfig
from support import tiny_model
from support.trl.runs import make

import grpo_variants as gv
from grpo_variants.card import read_card

SAVING = dict(save_strategy="steps", save_steps=1)


def card_of(loss_type, functions=2, **flags):
    config = VariantGRPOConfig("unused", loss_type=loss_type, use_cpu=True, bf16=False, report_to="none", **flags)
    return make_card(config.choice, config, functions)


def test_the_card_is_printed_at_the_start_and_lies_beside_the_output_and_every_checkpoint(tmp_path, capsys):
    trainer = make(tmp_path, "gv_dapo,surrogate.high=0.3", beta=0.1, **SAVING)
    trainer.train()
    printed = capsys.readouterr().out
    card = trainer.variant_card
    assert printed.startswith("\n  ".join(card.opening()) + "\n")
    assert printed.count("objective hash") == 1
    folders = [tmp_path, tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"]
    assert [read_card(folder) for folder in folders] == [card.as_dict()] * 3
    values = card.as_dict()["values"]
    assert values["surrogate.high"] == {"value": 0.3, "origin": "loss_type (surrogate.high=0.3)"}
    assert values["kl.beta"] == {"value": 0.1, "origin": "flag beta=0.1"}
    assert values["surrogate.low"] == {"value": 0.2, "origin": "paper"}
    assert (card.trainer, card.variant) == ("trl", gv.get("dapo,surrogate.high=0.3,kl=k3,kl.beta=0.1"))
    assert set(card.as_dict()["versions"]) >= {"torch", "trl", "transformers"}


def test_the_model_card_has_the_objective_once(tmp_path):
    trainer = make(tmp_path, "gv_dr_grpo", **SAVING)
    trainer.train()
    trainer.create_model_card()
    text = (tmp_path / "README.md").read_text()
    assert text.endswith(trainer.variant_card.paragraph())
    assert text.count("## Objective") == 1
    assert text.startswith("---"), "TRL's own front matter must stay first"
    assert f"objective hash `{trainer.variant_card.hash}`" in text


PAPERS = {
    "gv_dapo": (
        "trained with dapo, a method introduced in [DAPO: An Open-Source LLM Reinforcement Learning System at Scale]"
        "(https://huggingface.co/papers/2503.14476)",
        "@misc{dapo2025,\n"
        "  title         = {{DAPO: An Open-Source LLM Reinforcement Learning System at Scale}},\n"
        "  year          = {2025},\n"
        "  eprint        = {2503.14476},\n"
        "  archivePrefix = {arXiv},\n"
        "  url           = {https://arxiv.org/abs/2503.14476},\n"
        "}",
    ),
    # The second of two papers is on no arXiv.
    "gv_rloo": ("(https://huggingface.co/papers/2402.14740)", "  year          = {2024},\n  eprint"),
    "gv_reinforce": ("trained with reinforce.", "@misc{reinforce1992,\n  title         = {{Simple Statistical"),
}


@pytest.mark.parametrize("loss_type", PAPERS)
def test_the_model_card_cites_the_variants_paper_and_no_other(tmp_path, loss_type):
    trainer = make(tmp_path, loss_type)
    trainer.create_model_card()
    text = (tmp_path / "README.md").read_text()
    introduced, entry = PAPERS[loss_type]
    assert introduced in text
    assert entry in text
    assert f"Cite {loss_type.removeprefix('gv_')} as:" in text
    assert "DeepSeekMath" not in text
    assert "vonwerra2020trl" in text


@pytest.mark.parametrize("adapter", [True, False])
def test_the_model_card_has_the_base_models_name_and_no_path(tmp_path, adapter):
    """In the output folder and in every checkpoint, where PEFT writes the path of a local model."""
    base = tmp_path / "private" / "My-Model"
    tiny_model.model().save_pretrained(base)
    lora = LoraConfig(r=2, target_modules="all-linear") if adapter else None
    trainer = make(tmp_path / "out", "gv_rloo", model=str(base), peft_config=lora, **SAVING)
    trainer.train()
    trainer.save_model()
    cards = list((tmp_path / "out").rglob("README.md"))
    assert len(cards) == (3 if adapter else 1)
    for path in cards:
        assert "private" not in path.read_text()
        assert ModelCard.load(path).data.base_model == "My-Model"
    assert "a fine-tuned version of `My-Model`" in (tmp_path / "out" / "README.md").read_text()
    if adapter:  # what loads the adapter has to find its base
        config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == str(base)


@pytest.mark.parametrize(
    ("folder", "name"),
    [("models/Qwen2.5-0.5B", "Qwen2.5-0.5B"), ("hub/models--Qwen--Qwen2.5-0.5B/snapshots/060db6", "Qwen/Qwen2.5-0.5B")],
)
def test_the_name_of_a_local_model(tmp_path, folder, name):
    (tmp_path / folder).mkdir(parents=True)
    assert name_of(str(tmp_path / folder)) == name
    assert name_of("Qwen/Qwen2.5-0.5B") == "Qwen/Qwen2.5-0.5B"


def test_a_built_in_loss_type_writes_no_card(tmp_path, capsys):
    trainer = make(tmp_path, "dr_grpo", **SAVING)
    trainer.train()
    assert "objective hash" not in capsys.readouterr().out
    assert read_card(tmp_path) is None
    assert read_card(tmp_path / "checkpoint-1") is None
    assert "## Objective" not in (tmp_path / "README.md").read_text()


def test_resuming_with_the_same_objective_says_nothing_and_with_another_says_what_changed(tmp_path, capsys):
    make(tmp_path, "gv_dr_grpo", max_steps=1, **SAVING).train()
    checkpoint = str(tmp_path / "checkpoint-1")
    # The same objective in other words.
    same = make(tmp_path, "gv_grpo,kl=none,aggregation=constant", scale_rewards="none")
    same.train(resume_from_checkpoint=checkpoint)
    assert "warning" not in capsys.readouterr().out
    other = make(tmp_path, "gv_dr_grpo", epsilon=0.1, max_completion_length=5)
    other.train(resume_from_checkpoint=checkpoint)
    printed = capsys.readouterr().out
    expected = (
        f"warning: {checkpoint} was trained with another objective:\n"
        "  surrogate.low: 0.2 -> 0.1\n"
        "  surrogate.high: 0.2 -> 0.1\n"
        "  max_completion_length: 6 -> 5\n"
    )
    assert expected in printed


def test_resuming_from_a_checkpoint_without_card_says_nothing(tmp_path, capsys):
    make(tmp_path, "dr_grpo", max_steps=1, **SAVING).train()
    make(tmp_path, "gv_dr_grpo").train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert "warning" not in capsys.readouterr().out


def test_a_damaged_card_is_named_and_does_not_stop_a_resume(tmp_path, capsys):
    make(tmp_path, "gv_dr_grpo", max_steps=1, **SAVING).train()
    card = tmp_path / "checkpoint-1" / "grpo_variant.json"
    card.write_bytes(card.read_bytes()[:40])
    trainer = make(tmp_path, "gv_dr_grpo")
    trainer.train(resume_from_checkpoint=str(card.parent))
    assert trainer.state.global_step == 2
    warning = (
        f"warning: {card} is truncated or damaged, since it is not valid JSON (line 3, column 24): delete it, since a "
        "card is only compared.\n"
    )
    assert warning in capsys.readouterr().out


# (loss type, flags, what TRL adds to the objective)
EFFECTIVE = [
    ("gv_dr_grpo", {"max_completion_length": 7}, {"max_completion_length": 7}),
    ("gv_dr_grpo,aggregation.length=7", {"max_completion_length": 9}, {}),
    ("gv_grpo", {"max_completion_length": 7}, {}),
    ("gv_grpo", {"entropy_coef": 0.01}, {"entropy_coef": 0.01}),
    (
        "gv_grpo",
        {"use_adaptive_entropy": True, "entropy_target": 2.0},
        {
            "use_adaptive_entropy": True,
            "entropy_target": 2.0,
            "entropy_coef_delta": 0.005,
            "entropy_coef_min": 0.0,
            "entropy_coef_max": 1.0,
        },
    ),
    ("gv_grpo", {"router_aux_loss_coef": 0.01}, {"router_aux_loss_coef": 0.01}),
    ("gv_dapo,overlong=penalty,overlong.buffer=4", {"max_completion_length": 7}, {"max_completion_length": 7}),
    ("gv_grpo", {"reward_weights": [1.0, 0.5]}, {"reward_weights": [1.0, 0.5]}),
    ("gv_dapo", {"approximate_windows": True}, {}),
    (
        "gv_dapo",
        {"approximate_windows": True, "gradient_accumulation_steps": 4, "steps_per_generation": 2},
        {"approximate_windows": True},
    ),
    (
        "gv_grpo",
        {"approximate_windows": True, "entropy_coef": 0.1, "gradient_accumulation_steps": 4, "steps_per_generation": 2},
        {"approximate_windows": True, "entropy_coef": 0.1},
    ),
]


@pytest.mark.parametrize(("loss_type", "flags", "expected"), EFFECTIVE)
def test_what_trl_adds_is_on_the_card(loss_type, flags, expected):
    assert card_of(loss_type, **flags).effective == expected


def test_what_differs_from_the_paper_is_noted():
    assert card_of("gv_grpo").notes == ()
    assert card_of("gv_gfpo", num_generations=8).notes == (
        "selection.keep=8 keeps every response of a group of 8, so that nothing is selected. Set num_generations=16.",
    )
    assert card_of("gv_gfpo,selection.keep=4", num_generations=8).notes == ()
    assert card_of("gv_mc_grpo", num_generations=4).notes == (
        "a group of 4 has no response in the middle, and its median is the lower of the middle two. Set "
        "num_generations=5.",
    )
    assert card_of("gv_passk_analytic", num_generations=4).notes == (
        "transform.k=4 draws every response of a group of 4, so that all of them count the same. Set "
        "num_generations=8.",
    )
    assert card_of("gv_gdpo").notes == ()
    assert card_of("gv_gdpo", functions=1).notes == (
        "credit=decoupled normalises a single reward function twice, where the authors' code (NVlabs/GDPO) is plain "
        "GRPO. Set credit=outcome for that.",
    )
    (replaced,) = card_of("gv_dapo").notes
    assert replaced.startswith("Groups without signal are replaced by new prompts', in at most 10 rounds; those still")
    (drop,) = card_of("gv_dapo,filter.max_rounds=0").notes
    assert drop.startswith("Groups without signal leave the loss and its counts; no new prompts are drawn for them")
    spans = {"approximate_windows": True, "gradient_accumulation_steps": 4, "steps_per_generation": 2}
    (spanning,) = card_of("gv_dapo,filter=none", **spans).notes
    assert spanning == "Token counts of an optimizer step that spans two generations follow TRL's rule, not exactly."


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("gv_dr_grpo", {}), ("gv_grpo,kl=none,scale=none,aggregation=constant", {})),
        (("gv_dr_grpo", {}), ("gv_grpo,aggregation=constant", {"beta": 0.0, "scale_rewards": "none"})),
        (("gv_dapo,surrogate.high=0.3", {}), ("gv_dapo", {"epsilon_high": 0.3})),
        (
            ("gv_gspo,surrogate.low=0.2,surrogate.high=0.2,scale=none", {}),
            ("gv_dr_grpo,aggregation=sequence_mean", {"importance_sampling_level": "sequence"}),
        ),
    ],
)
def test_equal_objectives_have_the_same_hash_however_they_are_asked_for(one, other):
    assert card_of(one[0], **one[1]).hash == card_of(other[0], **other[1]).hash


@pytest.mark.parametrize(
    ("loss_type", "flags"),
    [
        ("gv_dr_grpo", {"epsilon": 0.1}),
        ("gv_dr_grpo", {"max_completion_length": 7}),
        ("gv_dr_grpo", {"entropy_coef": 0.1}),
    ],
)
def test_another_objective_has_another_hash(loss_type, flags):
    assert card_of(loss_type, **flags).hash != card_of("gv_dr_grpo").hash


def test_settings_that_are_no_part_of_the_objective_leave_the_hash_alone():
    assert card_of("gv_grpo", learning_rate=1e-3, max_completion_length=7, seed=3).hash == card_of("gv_grpo").hash


def test_the_card_is_json_without_surprises(tmp_path):
    path = card_of("gv_dapo").write(tmp_path)
    assert json.loads(path.read_text())["format"] == 2
    assert re.search(r"NaN|Infinity", path.read_text()) is None
