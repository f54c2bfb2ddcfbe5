"""The TRL suite: no hub, one thread, and warnings of other packages are not ours to make errors of."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
collect_ignore_glob = [] if find_spec("trl") else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.trl)
            item.add_marker(pytest.mark.filterwarnings("default"))
