"""The folder of a run, named by its spec string: `python run_folder.py 'GRPO,kl=none'` prints grpo__kl=none."""

from __future__ import annotations

import hashlib
import re
import sys

LONGEST = 100


def folder_name(spec: str) -> str:
    """A name that no other spec string gets: its own words, with a hash where they do not fit a folder's name."""
    name = re.sub(r"[^A-Za-z0-9_.=+-]", "-", spec.replace(",", "__"))
    same = name.replace("__", ",") == spec and len(name) <= LONGEST
    return name if same else f"{name[:LONGEST]}-{hashlib.sha256(spec.encode()).hexdigest()[:8]}"


if __name__ == "__main__":
    import grpo_variants as gv

    print(folder_name(str(gv.get(sys.argv[1]))))
