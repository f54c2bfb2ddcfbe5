"""One exact definition of every member of the GRPO family: tensors in, tensors out."""

from grpo_variants.advantage import advantages, selected
from grpo_variants.catalogue import names, register
from grpo_variants.divergence import kl
from grpo_variants.filters import keep_groups
from grpo_variants.inputs import Counts, Rollouts, Tokens
from grpo_variants.memory import Memory
from grpo_variants.objective import Loss, correction_weights, policy_loss, row_weights
from grpo_variants.options import get
from grpo_variants.shaping import soft_overlong_penalty
from grpo_variants.signal import GroupSignal, group_signal
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
