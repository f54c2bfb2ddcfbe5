"""The chunked LM head inside TRL's trainer: the same run as with TRL's own, what is scored, and when it steps aside."""

import dataclasses
import inspect
import logging

import pytest
import torch
from grpo_variants_trl.step import lm_head as in_trl
from peft import LoraConfig, get_peft_model
from support import tiny_model
from support.trl.runs import logged, make, weights
from torch.testing import assert_close
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)
from trl import GRPOConfig, GRPOTrainer
from trl.kernels import ChunkedLogProbFunction
from trl.trainer import utils as trl_utils

from grpo_variants.lm_head import head as lm_head
from grpo_variants.lm_head.head import LMHead

_SIZE = {**tiny_model._SIZE, "tie_word_embeddings": True}


@pytest.fixture
def products(monkeypatch):
    """Rows of each product of hidden states and the head's weight, and of each step of its gradients."""
    rows = {"logits": [], "gradients": []}
    product, add = lm_head._product, lm_head._Sums.add
    monkeypatch.setattr(lm_head, "_product", lambda a, b, out: rows["logits"].append(len(a)) or product(a, b, out))
    monkeypatch.setattr(
        lm_head._Sums, "add", lambda self, work, d, h, at: rows["gradients"].append(len(d)) or add(self, work, d, h, at)
    )
    return rows


def trained(folder, monkeypatch, switch, spec, **flags):
    monkeypatch.setenv("GRPO_VARIANTS_FAST", switch)
    flags = {name: value() if callable(value) else value for name, value in flags.items()}
    # The switch would leave other rows out of the metrics too.
    trainer = make(folder / switch, spec, skip_zero_gradient_rows=False, **flags)
    trainer.train()
    return trainer


def tied():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=4, **_SIZE))


RUNS = {
    "LoRA, on policy": ("gv_grpo", {}),
    "two iterations": ("gv_grpo", {"num_iterations": 2}),
    "a sequence's ratio, on policy": ("gv_gspo", {}),
    "a sequence's ratio, off policy": ("gv_gspo", {"num_iterations": 2}),
    "accumulation": ("gv_dapo,filter=none", {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}),
    "dropped groups and truncation": ("gv_dapo,filter=zero_variance,overlong=mask", {"max_steps": 3}),
    "entropy bonus": ("gv_grpo", {"entropy_coef": 0.1}),
    "entropy filter": ("gv_forking_tokens", {}),
    "every weight": ("gv_dr_grpo", {"model": tiny_model.model, "peft_config": None}),
    "tied": ("gv_dr_grpo", {"model": tied, "peft_config": None, "max_grad_norm": 0.5}),
    "checkpointing": ("gv_dr_grpo", {"gradient_checkpointing": True, "temperature": 0.8}),
    "experts": ("gv_dr_grpo", {"model": tiny_model.mixture_of_experts, "peft_config": None}),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_run_is_the_same_with_either_head(tmp_path, monkeypatch, run, products):
    spec, flags = RUNS[run]
    stock = trained(tmp_path, monkeypatch, "0", spec, **flags)
    assert not products["logits"]
    ours = trained(tmp_path, monkeypatch, "1", spec, **flags)
    assert products["logits"]
    assert not ours._head._logged
    # Adam divides a gradient by its size, so that rounding of a tiny one moves a weight by more than itself.
    assert_close(weights(ours), weights(stock), rtol=0, atol=1e-5)
    for key in ("entropy", "loss", "grad_norm"):
        assert_close(logged(ours, key), logged(stock, key), rtol=1e-4, atol=1e-6)


def one_group(completion_ids, t, **kwargs):
    """Rewards that differ in one prompt's group and are equal in the other's."""
    return [float(len(ids) + sum(ids)) * (n == min(t)) for ids, n in zip(completion_ids, t, strict=True)]


def test_on_policy_the_gradient_is_taken_with_the_logits_and_only_where_it_is_not_zero(tmp_path, products):
    trainer = make(tmp_path, "gv_dr_grpo", max_steps=1, rewards=[one_group], skip_zero_gradient_rows=False)
    seen = {}
    compute = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: seen.update(inputs) or compute(model, inputs)
    trainer.train()
    mask, signal = seen["completion_mask"].bool(), seen["advantages"] != 0
    assert 0 < signal.sum() < len(signal)
    assert sum(products["logits"]) == mask.sum()
    assert sum(products["gradients"]) == mask[signal].sum()


def test_off_policy_a_sequences_ratio_is_computed_again_only_where_it_has_a_gradient(tmp_path, products):
    trainer = make(
        tmp_path,
        "gv_gspo,surrogate.low=0.5,surrogate.high=0.5",
        max_steps=1,
        num_iterations=2,
        rewards=[one_group],
        skip_zero_gradient_rows=False,
    )
    seen = {}
    compute = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: seen.update(inputs) or compute(model, inputs)
    trainer.train()
    mask, signal = seen["completion_mask"].bool(), seen["advantages"] != 0
    trained = mask[signal].sum().item()
    # The old policy's pass, the loss's forward, and the products of the backward pass once more.
    assert sum(products["logits"]) == 2 * mask.sum() + trained
    assert sum(products["gradients"]) == trained


def test_tool_output_is_not_scored(tmp_path, products):
    trainer = make(tmp_path, "gv_dr_grpo", max_steps=1)
    products["logits"].clear()  # of the two passes that look for random numbers
    generate = trainer._generate_and_score_completions

    def with_tools(inputs):
        out = generate(inputs)
        out["tool_mask"] = torch.ones_like(out["completion_mask"])
        out["tool_mask"][:, 0] = 0
        return out

    trainer._generate_and_score_completions = with_tools
    seen = {}
    compute = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: seen.update(inputs) or compute(model, inputs)
    trainer.train()
    assert sum(products["logits"]) == seen["completion_mask"][:, 1:].sum() < seen["completion_mask"].sum()


def gemma():
    return Gemma2ForCausalLM(Gemma2Config(num_key_value_heads=2, head_dim=8, final_logit_softcapping=3.0, **_SIZE))


def cohere():
    return CohereForCausalLM(CohereConfig(num_key_value_heads=2, logit_scale=0.3, **_SIZE))


def granite():
    return GraniteForCausalLM(GraniteConfig(num_key_value_heads=2, logits_scaling=1.7, **_SIZE))


def phi():
    model = PhiForCausalLM(PhiConfig(num_key_value_heads=2, **{**_SIZE, "tie_word_embeddings": False}))
    torch.nn.init.normal_(model.lm_head.bias)
    return model


def modules_to_save():
    config = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    return get_peft_model(tiny_model.model(), config)


@pytest.mark.parametrize("build", [gemma, cohere, granite, phi, tied, modules_to_save])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "autocast"])
def test_each_kind_of_head_scores_and_differentiates_as_trls(tmp_path, build, low):
    torch.manual_seed(0)
    trainer = make(tmp_path, "gv_dr_grpo", model=build(), peft_config=None, temperature=0.7, bf16=low)
    ids = torch.randint(3, (3, 9))
    attention = torch.ones_like(ids)
    attention[0, :2] = attention[1, 6:] = 0
    parameters = [p for p in trainer.model.parameters() if p.requires_grad]

    def result(score):
        logp, entropy, _ = score(trainer.model, ids, attention, 5, compute_entropy=True)
        found = torch.autograd.grad(logp[:, 1:].square().sum() + entropy.sum(), parameters, allow_unused=True)
        return logp, entropy, [g for g in found if g is not None]

    ours = result(trainer._get_per_token_logps_and_entropies)
    theirs = result(lambda *a, **k: GRPOTrainer._get_per_token_logps_and_entropies(trainer, *a, **k))
    assert ours[0][1, 2:].tolist() == [0.0] * 3
    assert ours[0][0].abs().min() > 0
    # TRL adds the bias in the low precision, and this head in float32.
    assert_close(ours[:2], theirs[:2], rtol=1e-4, atol=1e-2 if low else 1e-5)
    for mine, trainer_gradient in zip(ours[2], theirs[2], strict=True):
        # Under autocast the backbone rounds what comes back to it, and TRL also the gradient of the logits.
        assert (mine - trainer_gradient).norm() <= (0.1 if low else 1e-5) * trainer_gradient.norm()


# Stepping aside


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "grpo_variants_trl"]


def test_it_can_be_switched_off(tmp_path, monkeypatch, caplog, products):
    caplog.set_level(logging.INFO, logger="grpo_variants_trl")
    trained(tmp_path, monkeypatch, "0", "gv_grpo")
    assert said(caplog) == ["TRL's own LM head is used: GRPO_VARIANTS_FAST=0"]
    assert not products["logits"]


@pytest.mark.parametrize(
    ("device", "flags", "message"),
    [
        ("cuda", {}, "not measured on cuda, where TRL has kernels of its own"),
        ("cpu", {"torch_compile": True}, "torch_compile=True traces the model's forward"),
    ],
)
def test_what_stands_in_the_way_of_a_run(tmp_path, device, flags, message):
    args = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **flags)
    assert message in in_trl.obstacle(args, torch.device(device))


def test_nothing_stands_in_the_way_of_a_run_on_a_cpu(tmp_path):
    assert in_trl.obstacle(GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False), torch.device("cpu")) is None


def test_zero_3_keeps_trls(tmp_path, monkeypatch):
    monkeypatch.setattr(in_trl, "is_deepspeed_zero3_enabled", lambda: True)
    args = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    assert "DeepSpeed ZeRO-3 shards the head" in in_trl.obstacle(args, torch.device("cpu"))


def test_a_head_that_is_not_covered_goes_to_trl_and_says_so_once(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="grpo_variants_trl")
    trainer = make(tmp_path, "gv_dr_grpo")
    sharded = in_trl._Call.obstacle
    monkeypatch.setattr(
        in_trl._Call, "obstacle", lambda self: sharded(dataclasses.replace(self, weight=self.weight[0]))
    )
    trainer.train()
    assert said(caplog) == [
        "TRL's own LM head is used: the head's weight is torch.float32 of shape [32], sharded or quantised"
    ]
    assert logged(trainer, "entropy")


def test_other_outputs_of_trls_kernel_are_not_covered():
    call = in_trl._Call(
        torch.zeros(1, 2), torch.zeros(3, 2), None, torch.zeros(1), 1.0, 32, outputs=("entropy", "is_top1")
    )
    assert call.obstacle() == "it gives is_top1"


def test_trls_function_is_back_after_a_call_and_after_a_failure(tmp_path):
    trainer = make(tmp_path, "gv_dr_grpo")
    before = trl_utils._ChunkedLogProbFunction, trl_utils._use_triton
    with trainer._head.in_place():
        assert trl_utils._ChunkedLogProbFunction is not before[0]
    assert (trl_utils._ChunkedLogProbFunction, trl_utils._use_triton) == before
    with pytest.raises(AttributeError, match="NoneType"):
        trainer._get_per_token_logps_and_entropies(trainer.model, None, None, 3)
    assert (trl_utils._ChunkedLogProbFunction, trl_utils._use_triton) == before
    assert before[0] is ChunkedLogProbFunction


def test_the_arguments_of_trls_kernel_are_the_ones_that_are_read():
    theirs = list(inspect.signature(ChunkedLogProbFunction.forward).parameters)[1:]
    renamed = {"final_logit_softcapping": "softcap", "logit_scale": "scale"}
    assert [renamed.get(name, name) for name in theirs] == list(inspect.signature(in_trl._Call).parameters)


def test_a_built_in_loss_keeps_trls_head(tmp_path, products):
    trainer = make(tmp_path, "dapo", max_steps=1)
    trainer.train()
    assert not products["logits"]


def test_a_loss_with_another_gradient_is_trained_right_and_no_longer_precomputed(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="grpo_variants_trl")
    runs = []
    for switch in "01":
        monkeypatch.setenv("GRPO_VARIANTS_FAST", switch)
        trainer = make(tmp_path / switch, "gv_dr_grpo", max_steps=3)
        score = trainer._score_tokens

        def reweighted(*args, score=score, **options):
            logp, entropy, aux = score(*args, **options)
            return logp * torch.linspace(1, 2, logp.shape[1]), entropy, aux

        trainer._score_tokens = reweighted
        trainer.train()
        runs.append(weights(trainer))
    assert_close(*runs, rtol=0, atol=1e-5)
    assert said(caplog)[1:] == ["the loss's gradient was not the precomputed one, so it is no longer precomputed"]


# A head with a LoRA adapter, which TRL refuses and the core covers


def adapted(**options):
    torch.manual_seed(0)
    config = LoraConfig(r=2, lora_alpha=3, target_modules=["lm_head"], init_lora_weights=False, **options)
    return get_peft_model(tiny_model.model(), config).get_output_embeddings()


def test_a_lora_adapter_on_the_head_is_part_of_it():
    module = adapted()
    hidden, targets = torch.randn(5, 32, requires_grad=True), torch.randint(3, (5,))
    factors = (module.lora_A.default.weight, module.lora_B.default.weight)
    ours = LMHead.of(module)(hidden, targets).logp
    theirs = torch.log_softmax(module(hidden), -1).gather(1, targets.unsqueeze(1)).squeeze(1)
    assert_close(ours, theirs)
    found, wanted = (torch.autograd.grad(logp.square().sum(), (hidden, *factors)) for logp in (ours, theirs))
    assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_switched_off_or_merged_adapter():
    module = adapted()
    hidden, targets = torch.randn(5, 32), torch.randint(3, (5,))
    with_adapter = LMHead.of(module)(hidden, targets).logp
    module.enable_adapters(False)
    assert_close(LMHead.of(module)(hidden, targets).logp, LMHead.of(module.base_layer)(hidden, targets).logp)
    assert not torch.allclose(LMHead.of(module)(hidden, targets).logp, with_adapter)
    module.enable_adapters(True)
    module.merge()
    assert_close(LMHead.of(module)(hidden, targets).logp, with_adapter)


def test_an_adapter_that_no_weight_expresses_is_refused():
    with pytest.raises(ValueError, match=r"the head's LoRA has dropout 0.1, which no weight can express; allowed: 0.0"):
        LMHead.of(adapted(lora_dropout=0.1).train())
    with pytest.raises(ValueError, match="the head carries an adapter of type Linear; allowed: none, or plain LoRA"):
        LMHead.of(adapted(use_dora=True))
