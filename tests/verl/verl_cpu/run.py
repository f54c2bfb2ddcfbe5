"""Run `verl.trainer.main_ppo` on the CPU by the example's script, and read what it logged."""

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "examples" / "verl_lora.sh"


def script(*words, **environment):
    """The finished script; its output is one text, the workers' lines included."""
    return subprocess.run(
        ["bash", str(SCRIPT), *words],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )


def metrics(log):
    """What the console logger printed, one dict a step."""
    lines = re.findall(r"step:\d+ - (.*)", log)
    pair = re.compile(r"(\S+):(?:np\.\w+\()?([-+.\deE]+|nan|inf)\)?$")
    return [dict((m[1], float(m[2])) for m in map(pair.match, line.split(" - ")) if m) for line in lines]
