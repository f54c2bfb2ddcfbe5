"""Child of test_two_processes.py: a run of two ranks that stops after three steps, for one process to go on with."""

import sys
from pathlib import Path

from support import tiny_model
from support.ranks.trl_two import leave
from support.trl.resume import prompts_of

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    saving = dict(save_strategy="steps", save_steps=3, max_steps=3)
    prompts_of(folder, sys.argv[2], per_device_train_batch_size=4, rewards=[tiny_model.ones], **saving)
    leave(folder, {})
