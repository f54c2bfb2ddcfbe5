"""The surrogate that CONTRIBUTING.md adds step by step, added to a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CHANGES = re.findall(r"(?s)```diff\n(.*?\n)```", TEXT)
COPIED = ("grpo_variants", "adapters", "tests", "tools", "docs", "examples")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml", "pyproject.toml")
# What speaks about the new member, and what fails as long as something is missing.
CHOSEN = "ppo_rb or rollback or test_the_oracle_knows or test_the_specs_cover or exactly_the_catalogue or every_choice"


def test_adding_a_surrogate_touches_five_files_by_hand():
    touched = [re.search(r"^\+\+\+ b/(\S+)", change, re.MULTILINE)[1] for change in CHANGES]
    assert len(touched) == len(set(touched)) == 5
    assert all((ROOT / path).exists() for path in touched)


@pytest.fixture
def copy(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__", "trl", "verl")
    for folder in COPIED:
        keeps = folder in ("grpo_variants", "adapters")
        leave_out = shutil.ignore_patterns("__pycache__") if keeps else ignored
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave_out)
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(folder, *command):
    path = os.pathsep.join(map(str, (folder, folder / "adapters")))
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )


def suite(folder):
    names = ("completeness", "oracle", "handworked", "effects", "fast", "custom_parts", "degenerate")
    return run(folder, "-m", "pytest", "-q", "-k", CHOSEN, *(f"tests/core/test_{name}.py" for name in names))


@pytest.mark.slow
def test_the_example_passes_every_test_over_a_new_member(copy):
    for change in CHANGES:
        subprocess.run(["git", "apply", "-C1", "-"], input=change, cwd=copy, text=True, check=True, timeout=60)
    assert run(copy, "-m", "tools.docs.pages").returncode == 0
    done = suite(copy)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 60


@pytest.mark.slow
def test_without_its_oracle_function_it_is_not_complete(copy):
    for change in CHANGES:
        if "/oracle/" not in change:
            subprocess.run(["git", "apply", "-C1", "-"], input=change, cwd=copy, text=True, check=True, timeout=60)
    assert run(copy, "-m", "tools.docs.pages").returncode == 0
    done = suite(copy)
    assert done.returncode == 1
    assert "test_the_oracle_knows_every_choice" in done.stdout
