"""A step over two processes with uneven shares equals the step in one process, for every variant."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from support.ranks import two_ranks

import grpo_variants as gv
from grpo_variants.catalogue import CATALOGUE

# The small step's ratios to the engine lie outside of the narrow band.
WIDE = {"glm5_agentic": "glm5_agentic,surrogate.low=0.5,surrogate.high=4"}
SPECS = [
    *(WIDE.get(variant.name, variant.name) for variant in CATALOGUE),
    "dapo,aggregation=prompt_mean",
    "grpo,aggregation.empty_rows=exclude",
    "grpo,correction=token_truncate+geometric_mask,correction.low=0.9,correction.high=1.3",
    "grpo,kl.weighted=ratio,conventions=verl",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo here"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes found, for every spec and split: one start for all, since the start is what takes time."""
    folder = tmp_path_factory.mktemp("two_ranks")
    torch.multiprocessing.spawn(two_ranks.main, args=(SPECS, str(folder)), nprocs=2)
    return torch.load(folder / "found.pt")


@pytest.mark.parametrize("split", two_ranks.SPLITS)
@pytest.mark.parametrize("spec", SPECS)
def test_two_processes_equal_one(found, spec, split):
    out, gradient = two_ranks.one_process(spec)
    two = found[spec, split]
    torch.testing.assert_close(two["gradient"], gradient, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(two["loss"], out.loss.detach(), rtol=1e-12, atol=1e-14)
    for name, value in out.metrics.items():
        torch.testing.assert_close(two[name], value.double(), rtol=1e-6, atol=1e-8, msg=f"{name}: {two[name]} {value}")
    assert gradient.abs().max() > 1e-3


def test_ranks_that_average_their_own_means_would_differ():
    """The split is one that shows the usual mistake: each rank divides by its own counts, then ranks are averaged."""
    _, gradient = two_ranks.one_process("dapo")
    variant, x, drawn, parameter = two_ranks.prepared("dapo")
    for micro_batches in two_ranks.SPLITS["uneven"]:
        rows = two_ranks.rows_of(micro_batches)
        mine = two_ranks.with_policy(two_ranks.take(x, rows), drawn[rows], parameter)
        (gv.policy_loss(variant, mine).loss / 2).backward()
    assert (parameter.grad - gradient).abs().max() > 1e-3
