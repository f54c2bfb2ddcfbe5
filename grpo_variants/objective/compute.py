"""The loss of an objective: the fast path where it applies, autograd's otherwise."""

from __future__ import annotations

import torch

from grpo_variants.objective.aggregation import trained
from grpo_variants.objective.autograd import plain_loss
from grpo_variants.objective.fast.loss import fast_loss
from grpo_variants.objective.inputs import Counts, Tokens, check_tokens
from grpo_variants.objective.metrics import Loss
from grpo_variants.objective.rule import Objective


def loss_of(objective: Objective, x: Tokens, counts: Counts | None) -> Loss:
    """`gv.policy_loss` of tensors that a trainer has computed itself: their numbers are not looked at."""
    check_tokens(x)
    return computed(objective, x, counts)


def computed(objective: Objective, x: Tokens, counts: Counts | None, generator: torch.Generator | None = None) -> Loss:
    """The loss of inputs that have been checked."""
    x = trained(objective.aggregation, x)
    return fast_loss(objective, x, counts) or plain_loss(objective, x, counts, generator)
