"""The chunked LM head behind verl's fused kernels: verl's numbers, with less computed."""

import json
import os
import subprocess
import sys

import pytest
import torch
from grpo_variants_verl import chunked_head
from torch.testing import assert_close
from transformers import LlamaForCausalLM
from verl.models.transformers.monkey_patch import patch_forward_with_backends
from verl.utils.experimental import torch_functional as verl_functional
from verl_cpu import tiny

from grpo_variants.lm_head import head as lm_head

chunked_head.restore()  # for the other tests of this process


@pytest.fixture
def replaced():
    chunked_head.replace()
    yield
    chunked_head.restore()


@pytest.fixture
def products(monkeypatch):
    rows = {"logits": [], "gradients": []}
    product, add = lm_head._product, lm_head._Sums.add
    monkeypatch.setattr(lm_head, "_product", lambda a, b, out: rows["logits"].append(len(a)) or product(a, b, out))
    monkeypatch.setattr(
        lm_head._Sums, "add", lambda self, work, d, h, at: rows["gradients"].append(len(d)) or add(self, work, d, h, at)
    )
    return rows


def operands(dtype, shape):
    hidden = torch.randn(*shape, 5).to(dtype).requires_grad_()
    return hidden, torch.randn(11, 5).to(dtype).requires_grad_(), torch.randint(11, shape)


def step(hidden, weight, targets, upstream):
    logp, entropy = verl_functional.FusedLinearForPPO(chunk_size=4)(hidden, weight, targets, 0.7)
    assert logp.shape == entropy.shape == targets.shape
    loss = (upstream * logp).sum() + entropy.float().sum()
    return logp, entropy, *torch.autograd.grad(loss, (hidden, weight))


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_numbers_are_verls(dtype, shape):
    inputs, upstream = operands(dtype, shape), torch.randn(shape)
    theirs = step(*inputs, upstream)
    chunked_head.replace()
    try:
        ours = step(*inputs, upstream)
    finally:
        chunked_head.restore()
    assert verl_functional.FusedLinearForPPOFunction is chunked_head.VERLS_FUNCTION
    assert [x.dtype for x in ours] == [x.dtype for x in theirs]
    assert_close(
        ours, theirs, rtol=5e-2 if dtype == torch.bfloat16 else 1e-5, atol=0.1 if dtype == torch.bfloat16 else 1e-5
    )


def test_a_prompt_and_a_frozen_head_cost_no_gradient(replaced, products):
    hidden, weight, targets = operands(torch.float32, (2, 4))
    response = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]).bool()
    logp, _ = verl_functional.FusedLinearForPPO()(hidden, weight.requires_grad_(False), targets)
    torch.where(response, logp, 0.0).sum().backward()
    assert products == {"logits": [8, 5], "gradients": [5]}
    assert weight.grad is None
    assert hidden.grad[~response].abs().sum() == 0
    assert hidden.grad[response].abs().sum(-1).min() > 0


def test_through_verls_own_patch_of_a_model(replaced, products, monkeypatch):
    monkeypatch.setattr(LlamaForCausalLM, "forward", LlamaForCausalLM.forward)  # verl patches the class
    model = tiny.model()
    ids = torch.randint(3, (2, 7))
    logits = model(ids).logits / 0.7
    wanted = torch.log_softmax(logits, -1).gather(-1, ids.roll(-1, 1).unsqueeze(-1)).squeeze(-1)
    patch_forward_with_backends(model, use_fused_kernels=True, fused_kernels_backend="torch")
    out = model(input_ids=ids, temperature=0.7, return_dict=True)
    assert products["logits"] == [14]
    assert_close(out.log_probs, wanted)
    parameters = [p for p in model.parameters() if p.requires_grad]
    found, true = (torch.autograd.grad(x.square().sum(), parameters) for x in (out.log_probs, wanted))
    assert_close(found, true, rtol=1e-4, atol=1e-5)


def test_naming_the_module_replaces_the_head_in_a_new_process():
    code = """
import json, verl
from verl.utils.experimental.torch_functional import FusedLinearForPPOFunction
from verl.trainer.ppo import core_algos
print(json.dumps([FusedLinearForPPOFunction.__name__, "gv_grpo" in core_algos.POLICY_LOSS_REGISTRY]))
"""
    environment = {**os.environ, "GRPO_VARIANTS_MODULES": "grpo_variants_verl.chunked_head"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import grpo_variants_verl\n{code}"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["ChunkedLinearForPPO", True]
