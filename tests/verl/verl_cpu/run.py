"""Run `verl.trainer.main_ppo` on the CPU by the example's script, and read what it logged."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "verl_lora.sh"
# Seconds. On two cores a run takes about one minute alone and three beside two other loads.
LIMIT = 1800


@dataclass(frozen=True)
class Finished:
    """A script that has ended: its exit status (None where it was stopped after `limit` seconds) and its output."""

    returncode: int | None
    stdout: str
    limit: float

    @property
    def trouble(self):
        """What went wrong, in a line for a slow machine; None for nothing."""
        if self.returncode is None:
            return f"main_ppo did not end within {self.limit:g} s: the machine is too slow or too busy"
        return None if self.returncode == 0 else self.stdout[-4000:]


def script(*words, command=("bash", str(SCRIPT)), limit=LIMIT, cwd=None, **environment):
    """The example's script with its output as one text, the workers' lines included."""
    # Not a pipe: what the script leaves behind would keep it open.
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [*command, *words],
            env={**os.environ, "PYTHON": sys.executable, **environment},
            cwd=cwd,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        out.seek(0)
        return Finished(code, out.read(), limit)


@dataclass
class Runs:
    """Runs that several tests read. Where one has failed, the first of the tests fails and the others are left out."""

    finished: dict
    told: bool = False

    def logs(self):
        """Output of each run."""
        trouble = next(filter(None, (run.trouble for run in self.finished.values())), None)
        if trouble and self.told:
            pytest.skip("a run that it reads has failed")
        if trouble:
            self.told = True
            pytest.fail(trouble, pytrace=False)
        return {key: run.stdout for key, run in self.finished.items()}


def metrics(log):
    """What the console logger printed, one dict a step."""
    lines = re.findall(r"step:\d+ - (.*)", log)
    pair = re.compile(r"(\S+):(?:np\.\w+\()?([-+.\deE]+|nan|inf)\)?$")
    return [dict((m[1], float(m[2])) for m in map(pair.match, line.split(" - ")) if m) for line in lines]
