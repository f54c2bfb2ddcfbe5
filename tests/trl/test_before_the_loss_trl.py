"""docs/before-the-loss.md: its trainers run as they stand, with a tiny model, data and reward for the user's own."""

import re
from pathlib import Path

import grpo_variants_trl
import pytest
from support import tiny_model
from support.trl.runs import logged, lora

TEXT = (Path(__file__).parents[2] / "docs" / "before-the-loss.md").read_text("utf-8")
BLOCKS = [
    b for b in re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE) if "VariantGRPOTrainer(" in b
]


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the blocks take for granted, and a config on a CPU and three steps long."""
    config = grpo_variants_trl.VariantGRPOConfig

    def small(**given):
        test = dict(use_cpu=True, bf16=False, report_to="none", max_completion_length=6, max_steps=3, logging_steps=1)
        return config(**given | test)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grpo_variants_trl, "VariantGRPOConfig", small)
    tiny_model.model().save_pretrained("model")
    tiny_model.tokenizer().save_pretrained("model")
    return {"model": "model", "dataset": tiny_model.dataset(), "reward": tiny_model.ones, "peft_config": lora()}


def test_there_are_two():
    assert len(BLOCKS) == 2


def test_process_rewards(names):
    (code,) = [block for block in BLOCKS if "gv_grpo_process" in block]
    exec(compile(code, "before-the-loss.md", "exec"), names)
    trainer = names["trainer"]
    assert trainer.state.global_step == 3
    assert max(logged(trainer, "grad_norm")) > 1e-3
    assert logged(trainer, "rewards/short_steps/mean") == pytest.approx(logged(trainer, "gv/step_reward"), abs=1e-6)


def test_moving_references(names):
    (code,) = [block for block in BLOCKS if "reset_reference_every" in block]
    exec(compile(code, "before-the-loss.md", "exec"), names)
    assert logged(names["trainer"], "gv/reference_resets") == [0, 0, 1]
    assert logged(names["trainer"], "kl")[2] == pytest.approx(0, abs=1e-9)
