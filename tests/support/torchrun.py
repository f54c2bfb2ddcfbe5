"""Two processes of a script of `ranks/` over gloo, and what they found."""

import json
import os
import subprocess
import sys
from pathlib import Path

LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
TESTS = Path(__file__).parents[1]


def ranks(script, folder, *arguments):
    """What two processes of a script wrote as their results (by `trl_two.leave`), in rank order."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = subprocess.run(
        [*LAUNCH, str(TESTS / "support" / "ranks" / script), str(folder), *arguments],
        env={**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-500:] + found.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
