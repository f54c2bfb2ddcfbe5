"""Only finite numbers reach a log: JSON and most readers of a log know no others."""

from __future__ import annotations

import math
from typing import Any

COUNTER = "gv/health/nonfinite_values"


def take_nonfinite(logs: dict[str, Any], metrics: dict[str, dict[str, list[float]]], mode: str) -> dict[str, float]:
    """Take NaN and infinities out of a log entry and of the trainer's metrics of a mode, whose means join the entry.

    Returns what was taken out, by the names that it would have had. How many values were taken out is logged
    under `COUNTER`, where there are any; NaN for a reward that no response got, as TRL logs it, is not counted.
    """
    left_out = {name: value for name, value in logs.items() if is_nonfinite(value)}
    for name in left_out:
        del logs[name]
    found, count = metrics[mode], len(left_out)
    for name, values in list(found.items()):
        finite = [value for value in values if not is_nonfinite(value)]
        count += len(values) - len(finite) - sum(_is_missing_reward(name, value) for value in values)
        if finite:
            found[name] = finite
        elif values:
            left_out[name if mode == "train" else f"eval_{name}"] = values[-1]
            del found[name]
    if count:
        found[COUNTER] = [float(count)]
    return left_out


def _is_missing_reward(name: str, value: float) -> bool:
    """Of whole responses, of reasoning steps and of greedy responses alike."""
    return name.removeprefix("gv/").startswith(("reward", "step_reward", "greedy_reward")) and math.isnan(value)


def is_nonfinite(value: Any) -> bool:
    """Whether a value is NaN or an infinity."""
    return isinstance(value, float) and not math.isfinite(value)
