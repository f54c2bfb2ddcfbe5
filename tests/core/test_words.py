"""The field's words, where a person reads: pages, help texts, errors and docstrings; and plain English for a rate."""

import ast
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_variants.cli.app import app

ROOT = Path(__file__).parents[2]
# A trainer is no host; a stage no end; the others were words of this project alone.
OLD = re.compile(r"\b(?:hosts?|mend(?:s|ed)?|foresee[ns]?|foresight|verdict=|=verdict)\b", re.IGNORECASE)
THINGS = "response|prompt|token|group|rank|batch|micro-batch|line|generation|process|worker"
RATES = "once|one|two|ones|value|weight|ratio|estimate|number|numbers|penalty|reward|id"
A_FOR_PER = re.compile(rf"\b(?:{RATES}) an? (?:{THINGS})\b")
# Keys and names that stay: of the card, of verl's settings, of functions that are public.
KEPT = re.compile(r"extend_host|restore_host|EXTEND_HOST|card\['host'\]|\"host\"|self\.host|\bhost: str|`host`")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted(p for folder in ("grpo_variants", "adapters") for p in (ROOT / folder).rglob("*.py"))


def found(text):
    text = KEPT.sub("", text)
    return [match[0] for pattern in (OLD, A_FOR_PER) for match in pattern.finditer(text)]


def texts_of(path):
    """Every text in a source file that a person may read: docstrings, errors, help, log lines, summaries."""
    tree = ast.parse(path.read_text("utf-8"))
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_has_an_old_word(path):
    assert found(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_of_the_code_has_an_old_word(path):
    assert [word for text in texts_of(path) for word in found(text) if text != "host"] == []


@pytest.mark.parametrize("command", ["", "list", "show", "translate", "doctor"])
def test_no_help_text_has_an_old_word(command):
    done = CliRunner().invoke(app, [*command.split(), "--help"])
    assert done.exit_code == 0
    assert found(done.output) == []


def test_what_is_found():
    assert found("what the host mends") == ["host", "mends"]
    assert found("one value a response, once a batch") == ["value a response", "once a batch"]
    assert found("`extend_host=True`; one value per response; a response of one token") == []
