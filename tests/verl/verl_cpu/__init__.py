"""verl on a machine without accelerator, for tests: a platform named cpu and a rollout engine named transformers.

`environment` makes every process of a run load them. Ray is told of GPUs that do not exist, since verl places its
workers by them.
"""

import os
from pathlib import Path

# Not tests/ itself: its folder trl would look like an installed TRL, with which verl's FSDP engine does not load.
ROOT = Path(__file__).parents[1]
# One a family: score function, token clip with KL, token mean, constant, both sequence ratios, whitening with k2.
VARIANTS = ("rloo", "grpo", "dapo", "dr_grpo", "gspo", "gspo_token", "reinforce_pp_baseline")
SETTINGS = {
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu.plugin",
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # the FSDP engines are registered for cuda and run on any device
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
}


def environment(**extra):
    """Environment of a process that runs verl on the CPU."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **SETTINGS, **extra}
