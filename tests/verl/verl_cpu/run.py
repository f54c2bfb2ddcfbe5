"""Run `verl.trainer.main_ppo` on the CPU, and read what it logged."""

import re
import subprocess
import sys

import verl_cpu
from verl_cpu.overrides import small_run


def main_ppo(data, output, overrides, workers=1, steps=2, timeout=500):
    """The finished process; its output is one text, the workers' lines included."""
    command = [sys.executable, "-W", "ignore", "-m", "verl.trainer.main_ppo"]
    words = [*small_run(data, output, workers, steps), *overrides]
    return subprocess.run(
        [*command, *words],
        env=verl_cpu.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        cwd=data,
    )


def metrics(log):
    """What the console logger printed, one dict a step."""
    lines = re.findall(r"step:\d+ - (.*)", log)
    pair = re.compile(r"(\S+):(?:np\.\w+\()?([-+.\deE]+|nan|inf)\)?$")
    return [dict((m[1], float(m[2])) for m in map(pair.match, line.split(" - ")) if m) for line in lines]
