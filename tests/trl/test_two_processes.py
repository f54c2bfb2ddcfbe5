"""Two real processes over gloo have, together, the advantages, loss and gradient of one batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SPECS = [
    "grpo,kl=none",
    "dapo,overlong=keep",
    "dr_grpo",
    "dapo,aggregation=prompt_mean,overlong=keep,filter=none",
    "reinforce_pp,kl=none",
]


@pytest.mark.slow
def test_two_processes_equal_one_batch(tmp_path):
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    found = subprocess.run(
        [*command, str(tests / "trl_two_ranks.py"), str(tmp_path), *SPECS],
        env={**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tests)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-500:] + found.stderr
    ranks = [json.loads(line.split(" ", 2)[2]) for line in found.stdout.splitlines() if line.startswith("RESULT")]
    assert len(ranks) == 2
    for results in ranks:
        for spec, steps in results.items():
            for step in steps:
                assert step["size"] > 1e-3, spec
                assert step["loss"] < 1e-5, spec
                assert step["gradient"] < 1e-6, spec
                assert step["advantages"] < 1e-5, spec
            assert steps[0]["parameters"] == 0, spec
