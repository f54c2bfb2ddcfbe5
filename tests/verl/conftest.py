"""The verl suite: no hub, one thread, and the warnings of other packages are not ours to make errors of."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import socket
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # verl_configs and verl_cpu; tests/ alone would hide them behind its folders
collect_ignore_glob = [] if find_spec("verl") else ["test_*.py"]

if find_spec("verl"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import grpo_variants_verl  # noqa: F401


def pytest_configure(config):
    # While modules are collected too: what verl and Ray import warns.
    config.addinivalue_line("filterwarnings", "default")


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.verl)


@pytest.fixture(scope="session")
def free_port():
    """A function that finds a port nobody listens on."""

    def find():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    return find
