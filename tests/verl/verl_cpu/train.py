"""verl's FSDP2 engine on one mini-batch a variant, beside the core on a plain model of the same weights.

`python -m verl_cpu.train MODEL OUT LORA_RANK [fused]`, alone or under torchrun: writes what each variant gave to OUT.
"""

import os
import sys
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from grpo_variants_verl import VariantPolicyLossConfig
from grpo_variants_verl.estimator import Estimator
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric
from verl.workers.config import (
    FSDPActorConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

import grpo_variants as gv
from grpo_variants.trainers.verl.words import ACTOR, aggregation_settings, kl_in_loss_settings
from verl_cpu import VARIANTS

MAX_LENGTH = 6
PROMPTS, LENGTHS = (3, 2, 4, 2, 5, 3, 2, 4), (3, 5, 2, 4, 6, 1, 5, 3)
ROWS = len(LENGTHS)
REWARDS = (1.0, 0.25, -0.5, 0.75, 0.5, 0.0, 2.0, -1.0)
UIDS = np.array(["a", "a", "a", "b", "b", "b", "b", "a"], dtype=object)
PRECISION = {f"{kind}_dtype": "fp32" for kind in ("param", "reduce", "buffer")}


def data():
    """Tokens of eight responses; the third token of every long response was written by a tool."""
    torch.manual_seed(1)
    prompts = [torch.randint(4, 250, (n,)) for n in PROMPTS]
    responses = [torch.randint(4, 250, (n,)) for n in LENGTHS]
    masks = [torch.tensor([int(t != 2 or n < 5) for t in range(n)]) for n in LENGTHS]
    return prompts, responses, masks


def log_probs(model, prompts, responses):
    """Log-probabilities of each response's tokens under a plain transformers model, one list entry a response."""
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        found.append(logits.float().log_softmax(-1).gather(1, response[:, None]).squeeze(1))
    return found


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def advantages(name, masks):
    """Advantages [B, T] by the adapter's estimator, with one reward per response at its last token."""
    rewards = padded([torch.eye(n)[-1] * r for n, r in zip(LENGTHS, REWARDS, strict=True)])
    return Estimator(name)(rewards, padded(masks), index=UIDS)[0]


def actor_config(name):
    """verl's actor config for a variant, with the KL term and the aggregation that translate would print."""
    variant = gv.get(name)
    settings = {**aggregation_settings(variant), **kl_in_loss_settings(variant.kl)}
    fields = {key.removeprefix(f"{ACTOR}."): value for key, value in settings.items()}
    if "loss_scale_factor" in fields:
        fields["loss_scale_factor"] = MAX_LENGTH
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=4,
        ppo_micro_batch_size_per_gpu=2,
        ppo_mini_batch_size=ROWS,
        policy_loss=VariantPolicyLossConfig(loss_mode=f"gv_{name}"),
        **fields,
    )


def worker(model_path, lora_rank, fused):
    """verl's training worker with its FSDP2 engine; a learning rate that shows and no gradient clipping."""
    model = HFModelConfig(
        use_fused_kernels=fused,
        fused_kernel_options={"impl_backend": "torch"},
        path=model_path,
        use_remove_padding=False,
        lora_rank=lora_rank,
        lora_alpha=2 * lora_rank,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    engine = FSDPEngineConfig(
        strategy="fsdp2",
        use_torch_compile=False,
        mixed_precision=PRECISION,
        micro_batch_size_per_gpu=2,
        infer_micro_batch_size_per_gpu=2,
        use_dynamic_bsz=False,
    )
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=FSDPOptimizerConfig(lr=1e-3, clip_grad=1e9, total_training_steps=10),
            checkpoint_config=CheckpointConfig(),
            profiler_config=None,
        )
    )
    made.reset()
    return made


# verl's fused kernels replace it in the class, for every model of the process.
FORWARD = Qwen2ForCausalLM.forward


def plain_model(model_path, lora_rank, weights):
    """A transformers model with the engine's weights, for the core."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="sdpa")
    model.forward = partial(FORWARD, model)
    if lora_rank:
        model = get_peft_model(model, LoraConfig(r=lora_rank, lora_alpha=2 * lora_rank, target_modules="all-linear"))
    found = model.load_state_dict(weights, strict=False)
    assert not found.unexpected_keys, found
    return model


def batch(rows, prompts, responses, masks, **per_token):
    """verl's nested mini-batch of some rows."""

    def nested(values):
        return torch.nested.as_nested_tensor([values[i].contiguous() for i in rows], layout=torch.jagged)

    whole = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": whole,
        "position_ids": [torch.arange(len(ids)) for ids in whole],
        "response_mask": masks,
        "loss_mask": masks,
        **per_token,
    }
    other = {"temperature": 1.0, "global_batch_size": ROWS, "calculate_entropy": True, "pad_token_id": 0}
    lengths = {"global_token_num": [len(whole[i]) for i in rows]}
    return tu.get_tensordict({key: nested(value) for key, value in tensors.items()}, other | lengths)


def full(value):
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()


def reduced(value):
    """A metric over micro-batches and ranks, as verl's trainer reduces it."""
    several = isinstance(value, list) and isinstance(value[0], Metric)
    return float(Metric.aggregate_dp(value)) if several else value


def trained(engine):
    return {name: p for name, p in engine.module.named_parameters() if p.requires_grad}


@torch.no_grad()
def stir(engine):
    """An adapter starts with zeros in B, which hides half of the gradient."""
    for name, parameter in trained(engine).items():
        if "lora_B" in name:
            parameter.to_local().normal_(0, 0.05)


@contextmanager
def before_the_step(engine, look):
    """Look at the gradients while they are there: the engine drops them after its optimizer step."""
    own = engine.optimizer_step

    def looked_at():
        look()
        return own()

    engine.optimizer_step = looked_at
    yield
    engine.optimizer_step = own


def core_gradient(name, model, inputs, per_token):
    """Loss and gradients of the core's whole objective, KL included, on the plain model."""
    prompts, responses, masks = inputs
    model.zero_grad()
    mask = padded(masks).bool()
    x = gv.Tokens(
        logp=padded(log_probs(model, prompts, responses)),
        mask=mask,
        advantages=advantages(name, masks),
        old_logp=padded(per_token["old_log_probs"]),
        ref_logp=padded(per_token["ref_log_prob"]),
    )
    out = gv.policy_loss(name, x, gv.Counts.of(mask, length=MAX_LENGTH))
    out.loss.backward()
    gradients = {key: p.grad.clone() for key, p in model.named_parameters() if p.requires_grad}
    return out.loss.item(), gradients, {key: value.item() for key, value in out.metrics.items()}


def step(name, made, rows, inputs, per_token):
    """One optimizer step of the engine: loss, gradients, how far parameters moved; then back to where they were."""
    prompts, responses, masks = inputs
    made.set_loss_fn(partial(ppo_loss, config=actor_config(name)))
    parameters = trained(made.engine)
    before = {key: full(p) for key, p in parameters.items()}
    kept = {key: p.detach().clone() for key, p in parameters.items()}
    rule = [row[:n] for row, n in zip(advantages(name, masks), LENGTHS, strict=True)]
    gradients = {}
    with before_the_step(made.engine, lambda: gradients.update({key: full(p.grad) for key, p in parameters.items()})):
        out = made.train_batch(batch(rows, prompts, responses, masks, advantages=rule, **per_token))
    moved = {key: (full(p) - before[key]).abs().max().item() for key, p in parameters.items()}
    with torch.no_grad():
        for key, parameter in parameters.items():
            parameter.copy_(kept[key])
    metrics = {key: reduced(value) for key, value in tu.get(out, "metrics").items()}
    return {"loss": metrics["loss"], "gradients": gradients, "moved": moved, "metrics": metrics}


def main(model_path, out, lora_rank, fused):
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    made = worker(model_path, lora_rank, fused)
    stir(made.engine)
    weights = {key: full(value) for key, value in made.engine.module.state_dict().items()}
    model = plain_model(model_path, lora_rank, weights)
    inputs = data()
    with torch.no_grad():
        now = log_probs(model, *inputs[:2])
    torch.manual_seed(2)  # off policy, so that ratios are not 1 and some tokens are clipped
    per_token = {
        "old_log_probs": [row + 0.3 * torch.randn_like(row) for row in now],
        "ref_log_prob": [row + 0.5 * torch.randn_like(row) for row in now],
    }
    rows = range(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    results = {}
    for name in VARIANTS:
        loss, gradients, metrics = core_gradient(name, model, inputs, per_token)
        core = {"loss": loss, "gradients": gradients, "metrics": metrics}
        results[name] = {"engine": step(name, made, rows, inputs, per_token), "core": core}
    if rank == 0:
        torch.save(results, out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), "fused" in sys.argv[4:])
