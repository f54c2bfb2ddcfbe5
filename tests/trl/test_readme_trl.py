"""README.md's TRL snippet and command run as they stand, with a tiny model, dataset and reward for the user's own."""

import re
import shlex

import grpo_variants_trl
from grpo_variants_trl import launcher
from support import readme, tiny_model

import grpo_variants as gv
from grpo_variants.card import read_card

SMALL = dict(use_cpu=True, bf16=False, report_to="none", max_completion_length=6, max_steps=2, logging_steps=1)


def snippet(folder, monkeypatch, **flags):
    """The trainer of README.md's snippet after its run, on a CPU and with a test's flags."""
    (code,) = [block for block in readme.blocks("python") if readme.is_trl(block)]
    config = grpo_variants_trl.VariantGRPOConfig
    tiny_model.model().save_pretrained(folder / "model")
    tiny_model.tokenizer().save_pretrained(folder / "model")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(grpo_variants_trl, "VariantGRPOConfig", lambda **given: config(**given | SMALL | flags))
    names = {"model": str(folder / "model"), "reward": tiny_model.ones, "dataset": tiny_model.dataset()}
    exec(compile(code, "README.md", "exec"), names)
    return names["trainer"]


def test_the_snippet_with_a_short_completion_length_warns(tmp_path, monkeypatch, caplog):
    """The model may not end within the limit, so every response is truncated and masked."""
    snippet(tmp_path, monkeypatch, max_completion_length=3, generation_kwargs={"suppress_tokens": [tiny_model.END]})
    assert [record.getMessage() for record in caplog.records if record.name == "grpo_variants_trl"] == [
        "step 1: every response was cut off at the length limit and masked as overlong, so nothing is trained; raise "
        "max_completion_length (now 3), or train on truncated responses with overlong=keep in the loss type."
    ]


def test_the_snippet_trains_the_variant_that_it_names(tmp_path, monkeypatch):
    trainer = snippet(tmp_path, monkeypatch)
    assert trainer.state.global_step == 2
    assert trainer.variant == gv.get("dapo,surrogate.high=0.3")
    assert read_card(tmp_path / "run")["values"]["surrogate.high"]["value"] == 0.3
    assert max(row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row) > 1e-3


def test_the_command_parses_and_names_a_variant(tmp_path, monkeypatch):
    (line,) = re.findall(r"^grpo-variants trl (.*)$", "\n".join(readme.blocks("sh")), re.MULTILINE)
    (tmp_path / "run.yaml").write_text(
        "output_dir: run\nuse_cpu: true\nbf16: false\nreport_to: none\nreward_funcs: [accuracy_reward]\n"
        "dataset_name: rows\n"
    )
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(launcher.grpo, "main", lambda *parsed: seen.extend(parsed))
    launcher.main(shlex.split(line))
    (config,) = [part for part in seen if hasattr(part, "choice")]
    assert config.choice.variant == gv.get("dapo,surrogate.high=0.3")
