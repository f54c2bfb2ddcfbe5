"""Child of test_two_processes.py: an infinite reward on the second rank, and a KL term that a callback turns on."""

import math
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from support.ranks.trl_two import everywhere, leave
from support.trl.runs import logged, make, weights


class TurnsOn(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.beta = 0.5


def varied(completion_ids, **kwargs):
    rewards = [len(ids) + 0.1 * i for i, ids in enumerate(completion_ids)]
    return [math.inf, *rewards[1:]] if dist.get_rank() == 1 else rewards


def run(folder):
    callback = TurnsOn()
    flags = dict(rewards=[varied], callbacks=[callback], per_device_train_batch_size=8, max_steps=2, learning_rate=0.02)
    callback.trainer = trainer = make(Path(folder), "gv_grpo,kl=none", **flags)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    every = everywhere(weights(trainer))
    return {
        "warnings": [str(w.message) for w in caught if "what is not finite counts as missing" in str(w.message)],
        "finite": bool(torch.isfinite(every[0]).all()),
        "ranks": (every[0] - every[1]).abs().max().item(),
        "scored": logged(trainer, "gv/scored_responses"),
        "history": [entry["key"] for entry in trainer.variant_card.history],
    }


if __name__ == "__main__":
    leave(sys.argv[1], run(sys.argv[1]))
