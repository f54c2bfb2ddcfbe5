"""Child of test_two_processes.py: tokens that top_entropy keeps on this rank, and those that TRL keeps."""

import sys
from pathlib import Path

import torch.distributed as dist

from grpo_variants.tensors.masked import masked_quantile
from support.ranks.trl_two import leave
from support.trl.runs import make, recorded


def run(folder):
    def varied(completion_ids, **kwargs):
        return [len(ids) + 0.1 * i + dist.get_rank() for i, ids in enumerate(completion_ids)]

    trainer = make(
        Path(folder) / "entropy",
        "gv_forking_tokens,filter=none,overlong=keep",
        rewards=[varied],
        per_device_train_batch_size=26,
        max_steps=1,
        peft_config=None,
    )
    (micro,) = trained(trainer)
    mask, entropy = micro["inputs"]["completion_mask"].bool(), micro["entropy"]
    theirs = trainer.get_high_entropy_mask(entropy, mask, 0.8).bool()
    kept = micro["logp"].grad != 0
    own = mask & (entropy >= masked_quantile(entropy, mask, 0.8))
    return {
        "kept": int(kept.sum()),
        "different": int((kept != theirs).sum()),
        "of_one_rank": int((kept != own).sum()),
    }


def trained(trainer):
    seen = recorded(trainer)
    trainer.train()
    return seen


if __name__ == "__main__":
    leave(sys.argv[1], run(sys.argv[1]))
