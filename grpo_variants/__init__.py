"""One exact definition of every member of the GRPO family: tensors in, tensors out."""

from grpo_variants.advantage.compute import advantages, selected
from grpo_variants.advantage.memory import Memory
from grpo_variants.catalogue import names, register
from grpo_variants.filters import keep_groups
from grpo_variants.inputs import Counts, Rollouts, Tokens
from grpo_variants.objective.compute import Loss, correction_weights, policy_loss, row_weights
from grpo_variants.objective.kl import kl
from grpo_variants.rollout.overlong import soft_overlong_penalty
from grpo_variants.rollout.signal import GroupSignal, group_signal
from grpo_variants.spec import get
from grpo_variants.variant import Reference, Variant

__version__ = "0.1.0"

__all__ = [
    "Counts",
    "GroupSignal",
    "Loss",
    "Memory",
    "Reference",
    "Rollouts",
    "Tokens",
    "Variant",
    "advantages",
    "correction_weights",
    "get",
    "group_signal",
    "keep_groups",
    "kl",
    "names",
    "policy_loss",
    "register",
    "row_weights",
    "selected",
    "soft_overlong_penalty",
]
