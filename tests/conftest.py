"""What every test shares: one thread, a fixed seed, and the table of what was compared with a host."""

import pytest
import torch
from support.parity import (  # noqa: F401
    compared,
    parity,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_deselected,
)

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
