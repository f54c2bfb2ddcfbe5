"""Child of test_two_processes.py: rows without gradient left out on one rank, where the other has none to leave."""

import sys
from pathlib import Path

import torch.distributed as dist

from support.ranks.trl_two import everywhere, leave
from support.trl.runs import logged, make, weights


def moved(folder, skip):
    def reward(completion_ids, **kwargs):
        """Constant on rank 1, so that all of its groups are without signal; different in every group on rank 0."""
        return [1.0 if dist.get_rank() else float(i % 4 == 0) for i in range(len(completion_ids))]

    trainer = make(
        Path(folder) / str(skip),
        "gv_dr_grpo",
        rewards=[reward],
        skip_zero_gradient_rows=skip,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_iterations=2,
        max_steps=4,
        learning_rate=1e-2,
        peft_config=None,
    )
    start = weights(trainer)
    trainer.train()
    return weights(trainer) - start, trainer


if __name__ == "__main__":
    dense, _ = moved(sys.argv[1], False)
    packed, trainer = moved(sys.argv[1], None)
    result = {
        "difference": (packed - dense).abs().max().item(),
        "moved": dense.abs().max().item(),
        "ranks": max((part - packed).abs().max().item() for part in everywhere(packed)),
        "scored": logged(trainer, "gv/scored_responses"),
        "ratios": [logged(trainer, f"gv/ratio/{name}") for name in ("min", "mean", "max")],
    }
    leave(sys.argv[1], result)
