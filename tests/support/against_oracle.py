"""The package against the oracle, for one variant and one step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo_variants.spelling import resolved_values
from support.cases.variants import LENGTH, compute_advantages, counts_for, loss_and_gradient
from support.oracle import step as oracle

TOLERANCE = {torch.float64: {"rtol": 1e-9, "atol": 1e-9}, torch.float32: {"rtol": 2e-5, "atol": 2e-5}}


def plain_counts(variant, case):
    """The oracle's counts where the package is given any."""
    if counts_for(variant, case) is None:
        return None
    x = case.plain()
    return oracle.count(x, oracle.valid_cells(x)) | {"length": LENGTH}


def check_advantages(variant, case, dtype=torch.float64):
    """Compare advantages; returns the case with the oracle's in it."""
    expected = np.array(oracle.advantages(resolved_values(variant), case.plain(dtype)))
    found = compute_advantages(variant, case.rollouts(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=dtype), **TOLERANCE[dtype])
    return replace(case, advantages=expected)


def check_loss(variant, case, dtype=torch.float64):
    """Compare loss, gradient, metrics and extrema."""
    expected = oracle.loss_and_gradient(resolved_values(variant), case.plain(dtype), plain_counts(variant, case))
    loss, gradient, out = loss_and_gradient(variant, case, dtype)
    torch.testing.assert_close(loss, torch.tensor(expected.loss, dtype=dtype), **TOLERANCE[dtype])
    torch.testing.assert_close(gradient, torch.tensor(expected.gradient, dtype=dtype), **TOLERANCE[dtype])
    close = pytest.approx(expected.metrics | expected.extrema, rel=1e-5, abs=1e-5)
    assert {name: value.item() for name, value in (out.metrics | out.extrema).items()} == close
