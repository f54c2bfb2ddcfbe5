"""Child of test_process_rewards_two_processes.py: one rank of TRL runs with step rewards and a moving reference."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from support.ranks.trl_two import leave
from support.trl.runs import logged, make, weights


def everywhere(value):
    """A value of every rank, in rank order."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def steps_of(ids, row, rank):
    """A step a token, of a reward that depends on rank, response and place: more steps than the other rank has."""
    return [(t, 0.1 * row + rank + 0.5 * (token == 2) - 0.05 * t) for t, token in enumerate(ids)][: 2 + 4 * rank]


def process(folder):
    """Advantages of this rank's responses, and the same of every rank's steps by hand; one group lies on both ranks."""
    given = []

    def varied(completion_ids, **kwargs):
        given.append([steps_of(ids, row, dist.get_rank()) for row, ids in enumerate(completion_ids)])
        return given[-1]

    trainer = make(
        Path(folder) / "process",
        "gv_grpo_process,kl=none",
        rewards=[varied],
        per_device_train_batch_size=10,
        peft_config=None,
        max_steps=2,
    )
    generated, generate = [], trainer._generate_and_score_completions

    def keep(inputs):
        generated.append(generate(inputs))
        return generated[-1]

    trainer._generate_and_score_completions = keep
    before = weights(trainer)
    trainer.train()
    deviations = [compare(own, out) for own, out in zip(given, generated, strict=True)]
    vectors = everywhere(weights(trainer))
    return {
        "advantages": [difference for difference, _ in deviations],
        "size": [size for _, size in deviations],
        "moved": (vectors[0] - before).abs().max().item(),
        "apart": (vectors[0] - vectors[1]).abs().max().item(),
    }


def compare(own, out):
    """Largest deviation of this rank's advantages from those by hand, and their size."""
    every = [row for part in everywhere(own) for row in part]
    rank, size = dist.get_rank(), len(own)
    worst = largest = 0.0
    for i, steps in enumerate(own):
        group = (rank * size + i) // 4
        pool = [r for row in every[4 * group : 4 * group + 4] for _, r in row]
        mean = sum(pool) / len(pool)
        deviation = (sum((r - mean) ** 2 for r in pool) / (len(pool) - 1)) ** 0.5
        for t in range(int(out["completion_mask"][i].sum())):
            wanted = sum((r - mean) / (deviation + 1e-6) for end, r in steps if end >= t)
            worst = max(worst, abs(out["advantages"][i, t].item() - wanted))
            largest = max(largest, abs(wanted))
    return worst, largest


def reference(folder, **more):
    """Where reference and policy stand after five steps with a reset every second, on both ranks."""
    trainer = make(
        Path(folder), "gv_grpo,kl.beta=0.1", reset_reference_every=2, max_steps=5, learning_rate=0.02, **more
    )
    trainer.train()
    pairs = list(trainer._reference.pairs())
    reference, policy = (torch.cat([p.detach().flatten() for p in side]) for side in zip(*pairs, strict=True))
    vectors = everywhere(reference)
    return {
        "kl": logged(trainer, "kl"),
        "resets": trainer._reference.resets,
        "apart": (vectors[0] - vectors[1]).abs().max().item(),
        "behind": (policy - reference).abs().max().item(),
    }


def saved_model(folder):
    from support import tiny_model

    path = Path(folder) / "tiny"
    if dist.get_rank() == 0:
        tiny_model.model().save_pretrained(path)
    dist.barrier()
    return str(path)


if __name__ == "__main__":
    folder = sys.argv[1]
    found = {"process": process(folder)}
    found["adapter"] = reference(Path(folder) / "adapter")
    found["full"] = reference(Path(folder) / "full", model=saved_model(folder), peft_config=None)
    leave(folder, found)
