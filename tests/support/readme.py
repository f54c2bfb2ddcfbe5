"""What README.md holds: its fenced blocks, for the tests that run them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")


def blocks(language, text=TEXT):
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def is_trl(code):
    return "grpo_variants_trl" in code
