"""Names as people type them: `Dr. GRPO`, `dr-grpo` and `gv_dr_grpo` are all `dr_grpo`."""

from __future__ import annotations

import re

# What a variant's name starts with where a trainer has names of its own: loss types, estimators, losses.
PREFIX = "gv_"
_BETWEEN = r"[\s\-\u2010-\u2015._]"  # with the hyphens and dashes of a printed page
_PREFIXED = re.compile(rf"gv{_BETWEEN}", re.IGNORECASE)


def key_of(name: str) -> str:
    """What two ways to write one name share: no case, no prefix, nothing between letters and digits, `++` as `pp`."""
    return re.sub(_BETWEEN, "", without_prefix(name).lower().replace("++", "pp"))


def without_prefix(word: str) -> str:
    """A trainer's word for a variant without its prefix; any other word as it is."""
    return _PREFIXED.sub("", word.strip(), count=1) if is_prefixed(word) else word


def is_prefixed(word: str) -> bool:
    """Whether a word of a trainer asks for a variant of this package: `gv_dapo`, `GV-DAPO`."""
    return _PREFIXED.match(word.strip()) is not None
