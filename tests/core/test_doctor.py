"""The doctor's verdict on what a child interpreter found, and on this environment."""

import pytest
import typer
from typer.testing import CliRunner

import grpo_variants as gv
from grpo_variants.cli import doctor as module
from grpo_variants.trainers import TRAINERS
from grpo_variants.trainers.verl import doctor as in_verl
from grpo_variants.trainers.verl.doctor import POLICY

ALL = [f"gv_{name}" for name in gv.names()]
HEALTHY = {
    "error": None,
    "algorithms": None,
    "estimators": ALL,
    "losses": ALL,
    "queue": None,
    "engine": None,
    "beside_trl": None,
    "adapter": None,
}


@pytest.fixture
def examine(monkeypatch):
    """Run the doctor in an environment of one's choice: versions and facts of each trainer."""

    def run(versions, facts):
        monkeypatch.setattr(module, "installed", versions.get)
        monkeypatch.setattr(module, "probe", lambda adapter: facts.get(adapter.package))
        app = typer.Typer()
        app.command()(module.doctor)
        result = CliRunner().invoke(app)
        return result.exit_code, result.output

    return run


TRL, VERL = {"trl": "1.16.2"}, {"verl": "0.9.1"}


def test_neither_trainer_is_an_environment_for_the_core(examine):
    status, text = examine({}, {})
    assert status == 0
    assert "trl: not installed; in a clone of grpo-variants: pip install '.[trl]'\n" in text
    assert "verl: not installed; in a clone of grpo-variants: pip install '.[verl]'\n" in text


def test_trl_alone(examine):
    status, text = examine(TRL, {"trl": {"error": None, "adapter": None}})
    assert status == 0
    assert "ok      trl 1.16.2" in text
    assert "VariantGRPOTrainer takes every variant" in text
    assert (
        "note    verl: not installed here, and it needs an environment of its own: in a clone of grpo-variants: pip "
        "install '.[verl]'\n"
    ) in text


def test_verl_alone(examine):
    status, text = examine(VERL, {"verl": HEALTHY})
    assert status == 0
    assert f"verl: {len(ALL)} estimators and {len(ALL)} losses gv_<name>" in text


def test_both_in_one_environment(examine):
    verl = {**HEALTHY, "beside_trl": "it looks for trl.AutoModelForCausalLMWithValueHead"}
    status, text = examine(TRL | VERL, {"trl": {"error": None, "adapter": None}, "verl": verl})
    assert status == 1
    assert "no model beside this TRL: it looks for trl.AutoModelForCausalLMWithValueHead\n" in text
    assert text.splitlines()[-1] == (
        "note    TRL and verl are both in this environment, where they do not work together. Give each its own, in a "
        "clone of grpo-variants: python -m venv .venvs/verl && .venvs/verl/bin/pip install '.[verl]'"
    )


@pytest.mark.parametrize("broken", ["trl", "verl"])
def test_whatever_breaks_beside_the_other_trainer_the_advice_is_an_environment_each(examine, broken):
    facts = {"trl": {"error": None, "adapter": None}, "verl": HEALTHY}
    status, text = examine(TRL | VERL, facts | {broken: {**HEALTHY, "error": "ImportError: x"}})
    assert status == 1
    assert "Give each its own" in text
    status, text = examine(TRL | VERL, facts)
    assert (status, "Give each its own" in text) == (0, False)


@pytest.mark.parametrize(
    ("change", "environment", "reason"),
    [
        (
            {"adapter": "ImportError: no module mine"},
            {},
            "verl does not know the variants: ImportError: no module mine",
        ),
        ({}, {POLICY: "none"}, "VERL_USE_EXTERNAL_PLUGINS=none switches plugins off; unset it"),
        ({}, {POLICY: "other"}, "VERL_USE_EXTERNAL_PLUGINS=other leaves out grpo_variants; add it"),
        ({}, {}, "registered nothing"),
    ],
)
def test_why_verl_does_not_know_the_variants(examine, monkeypatch, change, environment, reason):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    status, text = examine(VERL, {"verl": {**HEALTHY, "estimators": [], "losses": [], **change}})
    assert status == 1
    assert reason in text


def test_no_entry_point(examine, monkeypatch):
    monkeypatch.setattr(in_verl, "entry_points", lambda group: [])
    status, text = examine(VERL, {"verl": {**HEALTHY, "losses": []}})
    assert status == 1
    assert (
        "no entry point verl.plugins: the package is on the path but not installed; in a clone of grpo-variants: pip"
        in text
    )


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"error": "ModuleNotFoundError: ray"}, "verl does not import: ModuleNotFoundError: ray"),
        ({**HEALTHY, "algorithms": "ImportError: x"}, "verl does not import: ImportError: x"),
        ({**HEALTHY, "engine": "ImportError: w"}, "verl: its FSDP engine does not import: ImportError: w"),
        ({**HEALTHY, "queue": "ModuleNotFoundError: transfer_queue"}, "transfer_queue (pip install TransferQueue)"),
        ({**HEALTHY, "estimators": ALL[1:]}, f"not registered: {ALL[0]}"),
    ],
)
def test_what_verl_lacks(examine, facts, text):
    status, found = examine(VERL, {"verl": facts})
    assert status == 1
    assert text in found


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"error": "ImportError: y"}, "trl does not import: ImportError: y"),
        ({"error": None, "adapter": "ImportError: z"}, "the variant trainer does not import: ImportError: z"),
    ],
)
def test_what_trl_lacks(examine, facts, text):
    status, found = examine(TRL, {"trl": facts})
    assert status == 1
    assert text in found


def test_an_untested_version_is_noted(examine):
    status, text = examine({"trl": "1.17.0"}, {"trl": {"error": None, "adapter": None}})
    assert status == 0
    assert "trl 1.17.0 was not tested; the adapter is tested with 1.16" in text


@pytest.mark.slow
def test_this_environment():
    """A real child interpreter imports what is installed here."""
    adapters = (trainer.adapter for trainer in TRAINERS.values() if trainer.adapter is not None)
    here = next((adapter for adapter in adapters if module.installed(adapter.package)), None)
    if here is None:
        pytest.skip("neither TRL nor verl is installed")
    facts = module.probe(here)
    assert (facts["error"], facts["adapter"]) == (None, None)


def test_a_child_that_dies_is_reported(monkeypatch):
    monkeypatch.setattr(module, "_PROBE", "import sys; sys.exit('no such library')")
    assert module.probe(TRAINERS["verl"].adapter) == {"error": "no such library"}
