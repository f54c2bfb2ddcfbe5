"""What every test shares: one thread, a fixed seed, and the table of what was compared with a trainer."""

import importlib
import sys

import pytest
import torch
from support.parity import (  # noqa: F401
    compared,
    parity,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_deselected,
)

from grpo_variants import registry

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def custom_parts(monkeypatch):
    """The module of examples/custom_parts.py, imported for one test: its variant is forgotten afterwards."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.delitem(sys.modules, "custom_parts", raising=False)
    module = importlib.import_module("custom_parts")
    yield module
    sys.modules.pop("custom_parts", None)
