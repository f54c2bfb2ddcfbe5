"""Rewards as TRL hands them over: what is not finite is missing, and a function of weight 0 scores no response."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from accelerate.utils import gather_object
from torch import Tensor

from grpo_variants.advantage.inputs import unscored
from grpo_variants.tensors.reading import infinite_entries, without_infinities

Key = TypeVar("Key", bound=Hashable)


class RewardBorder:
    """Takes infinities out of what reward functions return; the first one of a run is reported."""

    def __init__(self, trainer: Any) -> None:
        """Bind the trainer, whose reward functions have names."""
        self.trainer = trainer
        self._told = False

    def __call__(self, rewards: Tensor, prompts: Sequence[Any]) -> Tensor:
        """Rewards [N, K] of every rank's responses, NaN for what is not finite; prompts are those of this rank's."""
        found = infinite_entries(rewards)
        if found and not self._told:  # every rank has the same rewards, and gathers
            first, asked = found[0], gather_object(list(prompts))
            if self.trainer.accelerator.is_main_process:
                self._report(self.trainer.reward_func_names[first.column], first.row, first.value, asked[first.row])
            self._told = True
        return without_infinities(rewards)

    def of_steps(self, rewards: Mapping[Key, float], name: str, row: int, prompt: Any) -> dict[Key, float]:
        """A response's step rewards by one function, NaN for what is not finite."""
        for value in rewards.values():
            if math.isinf(value):
                self._report(name, row, value, prompt)
        return {key: math.nan if math.isinf(value) else value for key, value in rewards.items()}

    def _report(self, name: str, row: int, value: float, prompt: Any) -> None:
        """Warn once per run, with the function, the response and the prompt."""
        if not self._told:
            warnings.warn(_text(name, row, value, prompt), UserWarning, stacklevel=2)
        self._told = True


def _text(name: str, row: int, value: float, prompt: Any) -> str:
    return (
        f"reward function {name} gave {value} for response {row}, prompt {_short(prompt)}: what is not finite counts "
        "as missing, here and in the rest of the run, so the response is left out unless another function scored it. "
        "Return None for a missing reward, or a large finite number."
    )


def _short(prompt: Any, width: int = 120) -> str:
    text = repr(prompt)
    return text if len(text) <= width else f"{text[:width]}..."


def total_rewards(trainer: Any, rewards: Tensor) -> Tensor:
    """Weighted sums of rewards [N, K] over functions: [N], NaN where no function that counts gave one."""
    weights = trainer.reward_weights.to(rewards.device)
    total = (rewards * weights).nansum(1)
    return total.masked_fill(unscored(rewards, weights) | ~total.isfinite(), math.nan)
