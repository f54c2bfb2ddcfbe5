"""`grpo-variants doctor` in a real environment with verl: healthy, plugins off, a module that fails, TRL beside it."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def doctor(**environment):
    code = "import sys; from grpo_variants.cli.app import main; sys.argv[1:] = ['doctor']; main()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout


def on_path(folder):
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def test_a_healthy_environment():
    status, text = doctor()
    assert status == 0
    assert "ok      verl 0.9.1" in text
    assert "losses gv_<name>" in text


def test_plugins_switched_off():
    status, text = doctor(VERL_USE_EXTERNAL_PLUGINS="none")
    assert status == 1
    assert "VERL_USE_EXTERNAL_PLUGINS=none switches plugins off" in text


def test_a_module_of_the_users_that_does_not_import(tmp_path):
    """verl swallows this: it says at debug level that a plugin failed, and trains on until the name is looked up."""
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    status, text = doctor(GRPO_VARIANTS_MODULES="broken", PYTHONPATH=on_path(tmp_path))
    assert status == 1
    assert "nothing_of_this_name" in text


def test_trl_beside_verl(tmp_path):
    """A package named trl without the value-head class, as TRL 1.16 is: verl looks for it where trl can be found."""
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl" / "__init__.py").write_text("__version__ = '1.16.0'\n")
    (tmp_path / "trl-1.16.0.dist-info").mkdir()
    (tmp_path / "trl-1.16.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: trl\nVersion: 1.16.0\n")
    status, text = doctor(PYTHONPATH=on_path(tmp_path))
    assert status == 1
    assert "its FSDP engine builds no model beside this TRL: it looks for trl.AutoModelForCausalLMWithValueHead" in text
    assert "Give each its own, in a clone of grpo-variants" in text
