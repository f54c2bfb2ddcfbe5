"""A surrogate, a baseline and an aggregation of your own, under a name that TRL, verl and the functions know.

Needs: grpo-variants. To use it in a trainer, set GRPO_VARIANTS_MODULES=custom_parts with this folder on PYTHONPATH, and
ask for `gv_tanh`. Takes: nothing but an import.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import grpo_variants as gv
from grpo_variants import parts


@dataclass(frozen=True, kw_only=True)
class Tanh(parts.Surrogate):
    scale: float = 1.0  # a field: `gv_tanh,surrogate.scale=2`

    def __call__(self, log_ratio, x, counts):
        return parts.SurrogateOutput(-x.advantages * (self.scale * log_ratio.expm1()).tanh() / self.scale)


@dataclass(frozen=True, kw_only=True)
class Midrange(parts.Baseline):
    of_group: ClassVar[bool] = True  # the other responses to the prompt enter it

    def __call__(self, rewards, samples):
        low, high = samples.groups.low_and_high(rewards, samples.valid)
        return ((low + high) / 2)[samples.groups.ids]


@dataclass(frozen=True, kw_only=True)
class RootLength(parts.Aggregation):
    def __call__(self, lengths, counts, group_tokens):
        return lengths.clamp(min=1) ** -0.5 / counts.sequences


gv.register(
    replace(gv.get("grpo,kl=none"), name="tanh", surrogate=Tanh(), baseline=Midrange(), aggregation=RootLength())
)
