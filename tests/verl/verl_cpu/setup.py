"""`python -m verl_cpu.setup DATA`: make model and data in a folder, and print the environment for a shell."""

import shlex
import sys

from verl_cpu import SETTINGS, tiny

if __name__ == "__main__":
    tiny.make(sys.argv[1])
    print("export", shlex.join(f"{name}={value}" for name, value in SETTINGS.items()))
