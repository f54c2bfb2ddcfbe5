"""What a result depends on beside the code: the machine and the versions of what is installed."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from grpo_variants.versions import versions

PACKAGES = ("torch", "trl", "verl", "transformers")
_CPU = Path("/proc/cpuinfo")
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


def environment() -> dict[str, str]:
    """Names and values, of those packages only that are installed."""
    cache = f" with {_CACHE.read_text().strip()} of cache" if _CACHE.exists() else ""
    found = {"CPU": _name() + cache, "vectors": torch.backends.cpu.get_cpu_capability(), "cores": str(os.cpu_count())}
    found |= {"threads": str(torch.get_num_threads()), "python": platform.python_version()}
    return found | versions(PACKAGES)


def _name() -> str:
    lines = _CPU.read_text().splitlines() if _CPU.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
