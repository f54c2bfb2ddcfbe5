"""Child of test_two_processes.py: optimizer steps over two generations on two ranks, counted by TRL's rule."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from support.ranks.trl_two import everywhere, leave
from support.trl.runs import logged, make, recorded

ACCUMULATION, STEPS = 4, 3


def run(folder):
    """Gradients against TRL's divisor, and the entropy against the mean over every token of the step."""
    trainer = make(
        Path(folder),
        "gv_dapo,filter=none,overlong=keep",
        rewards=[lambda completions, **kwargs: [i % 4 + dist.get_rank() / 2 for i in range(len(completions))]],
        per_device_train_batch_size=4,
        gradient_accumulation_steps=ACCUMULATION,
        steps_per_generation=STEPS,
        approximate_windows=True,
        learning_rate=1e-7,  # off policy, and yet every ratio is 1
        max_steps=3,
    )
    seen = recorded(trainer)
    trainer.train()
    off, size, sums = [], [], torch.zeros(3, 2)
    for m in seen:
        mask = m["inputs"]["completion_mask"].bool()
        divisor = m["inputs"]["num_items_in_batch"] / dist.get_world_size() * ACCUMULATION / STEPS
        expected = (-m["inputs"]["advantages"] / divisor).unsqueeze(1).expand_as(mask)
        off.append((m["logp"].grad - expected)[mask].abs().max().item())
        size.append(expected.abs().max().item())
        sums[m["step"]] += torch.tensor([m["entropy"][mask].sum(), mask.sum()])
    total = sum(everywhere(sums))
    entropies = (total[:, 0] / total[:, 1]).tolist()
    items = {int(m["inputs"]["num_items_in_batch"]) for m in seen}
    return {
        "off": max(off),
        "size": max(size),
        "generations": len(items),
        "entropy": max(abs(a - b) for a, b in zip(logged(trainer, "entropy"), entropies, strict=True)),
    }


if __name__ == "__main__":
    leave(sys.argv[1], run(sys.argv[1]))
