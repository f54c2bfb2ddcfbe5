"""verl's own FSDP2 engine on the CPU: gradients equal the core's, parameters move, two ranks equal one."""

import subprocess
import sys

import pytest
import torch
import verl_cpu
from torch.testing import assert_close
from verl_cpu import VARIANTS, tiny

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.model().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def start(model, out, lora_rank, *flags, launcher=(), **extra):
    command = [sys.executable, "-W", "ignore", *launcher, "-m", "verl_cpu.train", model, str(out), str(lora_rank)]
    environment = verl_cpu.environment(**extra)
    return subprocess.run([*command, *flags], env=environment, capture_output=True, text=True, timeout=300)


def run(model, out, lora_rank, *flags, **extra):
    done = start(model, out, lora_rank, *flags, **extra)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out, weights_only=False)


def two_ranks(free_port):
    return ["-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]


def assert_equal_to_the_core(results):
    for name in VARIANTS:
        engine, core = results[name]["engine"], results[name]["core"]
        assert engine["loss"] == pytest.approx(core["loss"], rel=1e-5, abs=1e-6)
        assert engine["gradients"].keys() == core["gradients"].keys()
        for key, gradient in engine["gradients"].items():
            assert_close(gradient, core["gradients"][key], rtol=2e-4, atol=2e-6)


@pytest.fixture(scope="module", params=[0, 4], ids=["full", "lora"])
def results(request, model, tmp_path_factory, free_port):
    out = tmp_path_factory.mktemp("engine") / f"{request.param}.pt"
    return run(model, out, request.param, **ALONE, MASTER_PORT=str(free_port()))


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_equal_the_cores(results, name):
    """One mini-batch of eight responses in four micro-batches, off policy, with holes in the mask and the KL term."""
    engine, core = results[name]["engine"], results[name]["core"]
    assert engine["gradients"].keys() == core["gradients"].keys()
    assert engine["loss"] == pytest.approx(core["loss"], rel=1e-5, abs=1e-6)
    for key, gradient in engine["gradients"].items():
        assert_close(gradient, core["gradients"][key], rtol=2e-4, atol=2e-6)
    assert max(g.abs().max() for g in engine["gradients"].values()) > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_every_trained_parameter_moves(results, name):
    """AdamW's first step moves a weight that has a gradient by about the learning rate, 1e-3."""
    engine = results[name]["engine"]
    with_gradient = {key for key, gradient in engine["gradients"].items() if gradient.abs().max() > 1e-6}
    assert len(with_gradient) > 0.9 * len(engine["moved"])
    assert all(5e-4 < engine["moved"][key] < 2e-3 for key in with_gradient)


def test_something_is_clipped(results):
    """The comparison covers the clip: with old log-probabilities off by 0.3 a part of the tokens is outside."""
    assert 0.05 < results["dapo"]["core"]["metrics"]["clip/region"] < 0.5


@pytest.mark.parametrize("metric", ["actor/pg_clipfrac", "actor/ppo_kl"])
def test_verls_metrics_are_there(results, metric):
    assert results["dapo"]["engine"]["metrics"][metric] != 0


@pytest.mark.parametrize("name", VARIANTS)
def test_metrics_are_means_over_the_whole_update(results, name):
    """Four micro-batches with 6, 6, 5 and 7 tokens: the means of one batch of all responses."""
    assert_means_of_the_core(results[name])


def assert_means_of_the_core(result):
    """Every number that verl adds nothing to: over tokens, or over responses where it is a response's."""
    found, wanted = result["engine"]["metrics"], result["core"]["metrics"]
    names = wanted.keys() - {"policy_loss", "kl"}
    assert "ratio/mean" in names
    for name in names:
        assert found[f"actor/gv_{name}"] == pytest.approx(wanted[name], rel=1e-5), name


def test_two_ranks_equal_one(model, tmp_path, free_port):
    """Half of the responses on each rank; verl averages gradients over ranks, the loss multiplies by dp_size."""
    results = run(model, tmp_path / "two.pt", 0, launcher=two_ranks(free_port))
    assert_equal_to_the_core(results)
    for name in VARIANTS:
        assert_means_of_the_core(results[name])


CHUNKED = {"GRPO_VARIANTS_MODULES": "grpo_variants_verl.chunked_head"}


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_chunked_head_gathers_a_head_that_is_sharded(model, tmp_path, free_port, lora_rank):
    """verl's fused kernels on two ranks, and a head that is not the embedding: FSDP2 shards it by itself."""
    results = run(model, tmp_path / "fused.pt", lora_rank, "fused", launcher=two_ranks(free_port), **CHUNKED)
    assert_equal_to_the_core(results)
    head = results["rloo"]["engine"]["gradients"].get("lm_head.weight")
    assert head is None if lora_rank else head.abs().max() > 1e-3


def test_verls_own_fused_kernels_fail_with_such_a_head(model, tmp_path, free_port):
    """Where this passes no more, docs/verl.md says too much."""
    done = start(model, tmp_path / "none.pt", 0, "fused", **ALONE, MASTER_PORT=str(free_port()))
    assert done.returncode != 0
    assert "got mixed torch.Tensor and DTensor" in done.stderr
