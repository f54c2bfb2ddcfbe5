"""docs/before-the-loss.md: its Python blocks run and print what they say, its settings are what translate prints."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import grpo_variants as gv
from grpo_variants.trainers.verl.translate import verl_lines

TEXT = (Path(__file__).parents[2] / "docs" / "before-the-loss.md").read_text("utf-8")
BLOCKS = [code for code in re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE) if "print(" in code]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


@pytest.mark.parametrize("code", BLOCKS, ids=[code.split("\n")[-2][:40] for code in BLOCKS])
def test_a_block_prints_the_numbers_beside_it(code):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "before-the-loss.md", "exec"), {})
    beside = [line.split("#", 1)[1] for line in code.splitlines() if line.startswith("print(")]
    found = [float(x) for x in NUMBER.findall(printed.getvalue())]
    assert found == pytest.approx([float(x) for x in NUMBER.findall(" ".join(beside))], abs=1e-3)
    assert found


def test_the_settings_for_verl_are_what_is_printed():
    spec, rest = TEXT.split("$ grpo-variants translate '", 1)[1].split("' --to verl\n", 1)
    assert rest.split("\n```", 1)[0] == "\n".join(verl_lines(gv.get(spec)))
