"""README.md's TRL snippet and command run as they stand, with a tiny model, dataset and reward for the user's own."""

import re
import shlex

import grpo_variants_trl
import readme
import tiny_model
from grpo_variants_trl import launcher

import grpo_variants as gv
from grpo_variants.card import read_card


def small(**given):
    """The snippet's config, on a CPU and two steps long."""
    test = dict(use_cpu=True, bf16=False, report_to="none", max_completion_length=6, max_steps=2, logging_steps=1)
    return grpo_variants_trl.config.VariantGRPOConfig(**given | test)


def test_the_snippet_trains_the_variant_that_it_names(tmp_path, monkeypatch):
    (code,) = [block for block in readme.blocks("python") if readme.is_trl(block)]
    tiny_model.model().save_pretrained(tmp_path / "model")
    tiny_model.tokenizer().save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grpo_variants_trl, "VariantGRPOConfig", small)
    names = {"model": str(tmp_path / "model"), "reward": tiny_model.ones, "dataset": tiny_model.dataset()}
    exec(compile(code, "README.md", "exec"), names)
    trainer = names["trainer"]
    assert trainer.state.global_step == 2
    assert trainer.variant == gv.get("dapo,surrogate.high=0.3")
    assert read_card(tmp_path / "run")["values"]["surrogate.high"]["value"] == 0.3
    assert max(row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row) > 1e-3


def test_the_command_parses_and_names_a_variant(tmp_path, monkeypatch):
    (line,) = re.findall(r"^grpo-variants trl (.*)$", "\n".join(readme.blocks("sh")), re.MULTILINE)
    (tmp_path / "run.yaml").write_text("output_dir: run\nuse_cpu: true\nbf16: false\nreport_to: none\n")
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(launcher.grpo, "main", lambda *parsed: seen.extend(parsed))
    launcher.main(shlex.split(line))
    (config,) = [part for part in seen if hasattr(part, "choice")]
    assert config.choice.variant == gv.get("dapo,surrogate.high=0.3")
