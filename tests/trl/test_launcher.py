"""`grpo-variants trl` in a child process: TRL's own script with flags and YAML, the card, errors, two processes."""

import inspect
import os
import re
import subprocess
import sys

import pytest
import trl
from grpo_variants_trl import launcher
from support import tiny_model, torchrun
from trl.scripts import grpo

from grpo_variants.card import read_card
from grpo_variants.cli import app

REWARDS = """
def ones(completion_ids, **kwargs):
    return [sum(token == 1 for token in ids) / 6 for ids in completion_ids]

def broken(completion_ids, **kwargs):
    raise ValueError("the reward function is broken")
"""

COMMON = {
    "reward_funcs": "rewards.ones",
    "use_cpu": "true",
    "bf16": "false",
    "report_to": "none",
    "num_generations": "4",
    "per_device_train_batch_size": "4",
    "max_completion_length": "6",
    "max_steps": "2",
    "logging_steps": "1",
    "save_steps": "2",
    "disable_tqdm": "true",
}
COMMAND = [sys.executable, "-c", "from grpo_variants.cli.app import main; main()", "trl"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A user's folder: a saved model, a dataset, a module with a reward function."""
    folder = tmp_path_factory.mktemp("project")
    tiny_model.model().save_pretrained(folder / "model")
    tiny_model.tokenizer().save_pretrained(folder / "model")
    (folder / "data").mkdir()
    tiny_model.dataset(16).to_json(folder / "data" / "train.jsonl")
    (folder / "rewards.py").write_text(REWARDS)
    return folder


@pytest.fixture
def here(project, monkeypatch):
    """This process in the user's folder."""
    monkeypatch.chdir(project)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", project / "cache")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("rewards", None)


def settings(project, name, **more):
    paths = {"model_name_or_path": project / "model", "dataset_name": project / "data", "output_dir": project / name}
    return {**{key: str(path) for key, path in paths.items()}, **COMMON, **more}


def flags(values):
    return [part for key, value in values.items() for part in (f"--{key}", value)]


def child(project, command, arguments, **environment):
    caches = {"HF_HOME": str(project / "cache"), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [*command, *arguments],
        cwd=project,
        env={**os.environ, **caches},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_flags_reach_the_variant_and_the_card_is_written(project):
    values = settings(project, "flags", loss_type="gv_dapo,surrogate.high=0.3", beta="0.1", epsilon="0.3")
    values |= {"epsilon_high": "0.3"}
    done = child(project, COMMAND, flags(values))
    assert done.returncode == 0, done.stderr
    for folder in ("flags", "flags/checkpoint-2"):
        written = read_card(project / folder)["values"]
        assert written["surrogate.high"] == {"value": 0.3, "origin": "loss_type (surrogate.high=0.3)"}
        assert written["surrogate.low"] == {"value": 0.3, "origin": "flag epsilon=0.3"}
        assert written["kl.beta"] == {"value": 0.1, "origin": "flag beta=0.1"}
    assert "variant dapo,kl=k3,surrogate.low=0.3,surrogate.high=0.3,kl.beta=0.1  (objective hash" in done.stdout
    assert "gv/policy_loss" in done.stdout


def test_yaml_reaches_the_variant(project, here):
    values = settings(project, "yaml", loss_type="gv_dapo,surrogate.high=0.3", scale_rewards="none")
    lines = [f"{key}: {value}" for key, value in values.items() if key != "reward_funcs"]
    (project / "run.yaml").write_text("\n".join([*lines, "reward_funcs: [rewards.ones]"]))
    launcher.main(["--config", "run.yaml"])
    assert read_card(project / "yaml")["spec"] == "dapo,scale=none,surrogate.high=0.3"


WRONG = {
    "gv_dapo,surrogate.hi=0.3": (
        "error: dapo: surrogate=clip has no field 'hi'. Did you mean 'high'? Its fields: low, high, dual."
    ),
    "gv_dapo,tokens=top_entropy,tokens.denominator=kept": (
        "error: loss_type='gv_dapo,tokens=top_entropy,tokens.denominator=kept' cannot be honoured by TRL: "
        "tokens.denominator=kept needs the number of kept tokens of the whole step before its first backward pass. Use "
        "tokens.denominator=all."
    ),
}


def test_a_wrong_spec_ends_with_one_line_before_anything_loads(project):
    values = settings(project, "wrong", loss_type="gv_dapo,surrogate.hi=0.3", model_name_or_path="/no/such/model")
    done = child(project, [sys.executable, "-m", "grpo_variants_trl"], flags(values))
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == WRONG["gv_dapo,surrogate.hi=0.3"]
    assert "Traceback" not in done.stderr
    assert not (project / "wrong").exists()


@pytest.mark.parametrize("loss_type", WRONG)
def test_what_cannot_be_honoured_ends_with_status_2(project, capsys, loss_type):
    values = settings(project, "wrong", loss_type=loss_type, model_name_or_path="/no/such/model")
    with pytest.raises(SystemExit) as ended:
        launcher.main(flags(values))
    assert ended.value.code == 2
    assert capsys.readouterr().err == WRONG[loss_type] + "\n"


MISSING = {
    "no such file": (
        ["--config", "missing.yaml"],
        {},
        "--config missing.yaml: No such file or directory; give the path",
    ),
    "no such file, by an equals sign": (
        ["--config=missing.yaml"],
        {},
        "--config missing.yaml: No such file or directory",
    ),
    "a folder": (["--config", "data"], {}, "--config data: Is a directory; give the path of a YAML file."),
    "no path": (["--config"], {}, "--config needs the path of a YAML file."),
    "no YAML": (
        ["--config", "broken.yaml"],
        {},
        "--config broken.yaml is not YAML: mapping values are not allowed here",
    ),
    "no such function of TRL's": (
        [],
        {"reward_funcs": "acuracy_reward"},
        "--reward_funcs acuracy_reward is neither module.function nor one of TRL's. Did you mean 'accuracy_reward'? "
        "TRL's: accuracy_reward, reasoning_accuracy_reward, think_format_reward, get_soft_overlong_punishment.",
    ),
    "no such function": (
        [],
        {"reward_funcs": "rewards.one"},
        "--reward_funcs rewards.one: no function 'one'. Did you mean 'ones'? It has: ones, broken.",
    ),
    "no such module": ([], {"reward_funcs": "nope.ones"}, "--reward_funcs nope.ones: there is no module 'nope' here."),
    "no reward": (
        [],
        {"reward_funcs": None},
        "--reward_funcs is missing: module.function of your own, or one of TRL's",
    ),
    "no data": (
        [],
        {"dataset_name": None},
        "--dataset_name is missing: the prompts to train on, a folder or a name on",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_what_is_missing_ends_with_one_sentence(project, here, capsys, case):
    arguments, changes, text = MISSING[case]
    (project / "broken.yaml").write_text("loss_type: a: b")
    values = settings(project, "missing", loss_type="gv_dapo", model_name_or_path="/no/such/model") | changes
    with pytest.raises(SystemExit) as ended:
        launcher.main([*flags({key: value for key, value in values.items() if value is not None}), *arguments])
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert printed.startswith(f"error: {text}")
    assert printed.count("\n") == 1
    assert not (project / "missing").exists()


def test_a_module_that_is_broken_itself_keeps_its_traceback(project, here):
    (project / "needy.py").write_text("import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        launcher.main(flags(settings(project, "missing", loss_type="gv_dapo", reward_funcs="needy.ones")))


def test_the_reward_functions_that_trls_script_knows():
    """They stand in the body of its main function."""
    registry = inspect.getsource(grpo.main).partition("reward_funcs_registry = {")[2].partition("}")[0]
    assert tuple(re.findall(r'"(\w+)":', registry)) == launcher.REWARDS


def test_trls_own_classes_are_put_back(project):
    before = trl.GRPOTrainer, trl.GRPOConfig
    with pytest.raises(SystemExit):
        launcher.main(flags(settings(project, "wrong", loss_type="gv_nope")))
    assert (trl.GRPOTrainer, trl.GRPOConfig) == before


def test_a_run_that_fails_keeps_its_traceback(project, here, monkeypatch, capfd):
    values = settings(project, "broken", loss_type="gv_dapo", reward_funcs="rewards.broken")
    monkeypatch.setattr(sys, "argv", ["grpo-variants", "trl", *flags(values)])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 1
    printed = capfd.readouterr().err
    assert 'rewards.py", line 6, in broken' in printed
    assert printed.strip().endswith("ValueError: the reward function is broken")


@pytest.mark.slow
def test_two_processes_train_and_write_one_card(project):
    values = settings(project, "two", loss_type="gv_grpo", per_device_train_batch_size="2")
    done = child(project, [*torchrun.LAUNCH, "-m", "grpo_variants_trl"], flags(values), ACCELERATE_USE_CPU="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("objective hash") == 1
    assert read_card(project / "two" / "checkpoint-2")["spec"] == "grpo"
    assert (project / "two" / "README.md").read_text().count("## Objective") == 1
