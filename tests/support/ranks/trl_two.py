"""Child of test_two_processes.py: one rank of a real TRL run; compares its share with the step as one batch."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import grpo_variants as gv
from support.trl.runs import make, recorded, weights


def everywhere(value):
    """A value of every rank, in rank order."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def joined(values):
    width = max(v.shape[-1] for v in values)
    return torch.cat([v if v.dim() == 1 else torch.nn.functional.pad(v, (0, width - v.shape[1])) for v in values])


def compare(variant, micro, spec_advantages):
    """Largest deviation of loss, gradient and advantages from those of every rank's micro-batches as one batch."""
    rank = dist.get_rank()
    fields = ("completion_mask", "advantages", "gv_group")
    statistics = ("entropy", "draws") if micro[0]["draws"] is not None else ("entropy",)
    own = {name: joined([m["inputs"][name] for m in micro]) for name in fields}
    own |= {"logp": joined([m["logp"].detach() for m in micro]), "loss": sum(m["loss"] for m in micro)}
    own |= {name: joined([m[name] for m in micro]) for name in statistics}
    if "gv_keep" in micro[0]["inputs"]:
        own["completion_mask"] = own["completion_mask"] * joined([m["inputs"]["gv_keep"] for m in micro]).unsqueeze(1)
    parts = everywhere(own)
    every = {name: joined([part[name] for part in parts]) for name in (*fields, "logp", *statistics)}
    mask = every["completion_mask"].bool()
    rows = mask.any(1) if "gv_keep" in micro[0]["inputs"] else torch.ones_like(mask[:, 0])
    counts = gv.Counts.of(mask, every["gv_group"][rows], length=6, sequences=rows.sum())
    logp = every["logp"].double().requires_grad_(True)
    row_weights = gv.row_weights(variant, mask.sum(1).double(), counts, every["gv_group"])
    advantages = every["advantages"].double()
    seen = {name: every[name].double() for name in statistics}
    x = gv.Tokens(logp=logp, mask=mask, advantages=advantages, row_weights=row_weights, **seen)
    loss = gv.policy_loss(variant, x, counts).loss
    loss.backward()
    size = len(own["advantages"])
    mine = logp.grad[rank * size :][:size, : own["logp"].shape[1]]
    gradient = joined([m["logp"].grad for m in micro])
    mean_loss = sum(part["loss"] for part in parts) / len(parts)
    return {
        "loss": abs(mean_loss.item() - loss.item()),
        "gradient": (gradient / len(parts) - mine).abs().max().item(),
        "size": mine.abs().max().item(),
        "advantages": spec_advantages,
    }


def run(folder, spec):
    rewards = []

    def varied(completion_ids, **kwargs):
        value = [len(ids) + 0.1 * i + dist.get_rank() for i, ids in enumerate(completion_ids)]
        rewards.append(value)
        return value

    # 10 responses per rank and generation, in groups of 4: one group lies on both ranks.
    trainer = make(
        Path(folder) / spec.split(",")[0],
        f"gv_{spec}",
        rewards=[varied],
        per_device_train_batch_size=5,
        gradient_accumulation_steps=2,
        steps_per_generation=2,
        peft_config=None,
        max_steps=2,
    )
    generated = []
    generate = trainer._generate_and_score_completions

    def keep(inputs):
        out = generate(inputs)
        generated.append(out)
        return out

    trainer._generate_and_score_completions = keep
    seen = recorded(trainer)
    trainer.train()
    steps = [[m for m in seen if m["step"] == step] for step in (0, 1)]
    found = [
        compare(gv.get(spec), micro, _advantages(spec, r, g))
        for micro, r, g in zip(steps, rewards, generated, strict=True)
    ]
    vectors = everywhere(weights(trainer))
    found[0]["parameters"] = (vectors[0] - vectors[1]).abs().max().item()
    return found


def _advantages(spec, rewards, out):
    """Deviation of this rank's advantages from the core's on every rank's rewards (response-level variants)."""
    if out["advantages"].dim() == 2:
        return 0.0
    every = [r for part in everywhere(rewards) for r in part]
    lengths = torch.cat(everywhere(out["completion_mask"].sum(1)))
    value = gv.advantages(spec, every, [i // 4 for i in range(len(every))], lengths=lengths)
    size = len(rewards)
    return (value[dist.get_rank() * size :][:size] - out["advantages"]).abs().max().item()


def leave(folder, results):
    """Write this rank's results and end the process."""
    (Path(folder) / f"rank{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
    # Leaving the interpreter in the usual way races with gloo's threads now and then ("terminate called").
    os._exit(0)


if __name__ == "__main__":
    folder, *specs = sys.argv[1:]
    results = {spec: run(folder, spec) for spec in specs}
    leave(folder, results)
