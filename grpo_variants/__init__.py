"""One exact definition of every member of the GRPO family: tensors in, tensors out."""

from grpo_variants import catalogue as _catalogue  # noqa: F401, its members register themselves
from grpo_variants import parts
from grpo_variants import trainers as _trainers  # noqa: F401, as do the trainers
from grpo_variants.advantage.inputs import Rollouts
from grpo_variants.advantage.memory import Memory
from grpo_variants.functions import advantages, correction_weights, policy_loss, row_weights, selected
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.kl import kl
from grpo_variants.objective.metrics import Loss
from grpo_variants.registry import names, register
from grpo_variants.rollout.dynamic_sampling import keep_groups
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
    "parts",
    "policy_loss",
    "register",
    "row_weights",
    "selected",
    "soft_overlong_penalty",
]
