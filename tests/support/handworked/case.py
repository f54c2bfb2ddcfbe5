"""What a variant worked by hand consists of, and the probabilities that several of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import grpo_variants as gv

_ = None
Table = Sequence[Sequence[float | None]]


def present(table: Table) -> Tensor:
    """Loss mask of a table: True where it holds a number."""
    return torch.tensor([[value is not None for value in row] for row in table])


def numbers(table: Table, fill: float) -> Tensor:
    """A table in float64 with `fill` where it holds nothing."""
    return torch.tensor([[fill if v is None else v for v in row] for row in table], dtype=torch.float64)


def logs(table: Table) -> Tensor:
    """Log-probabilities of a table of probabilities, NaN where it holds nothing."""
    return numbers(table, float("nan")).log()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One variant worked by hand.

    rollouts: inputs of `gv.advantages`; advantages: what they give, [N] or [N, T].
    policy, old, ref, rollout: probabilities [B, T]; given: advantages of the loss, [B] or [B, T]; counts: fields
    of `gv.Counts` beside what the mask shows; extras: other inputs of `gv.Tokens`.
    loss, gradient: what these give; gradient is [B, T] with None outside the mask.
    """

    rollouts: Mapping[str, Any]
    advantages: Sequence[Any]
    policy: Table
    given: Sequence[Any]
    loss: float
    gradient: Table
    old: Table | None = None
    ref: Table | None = None
    rollout: Table | None = None
    counts: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)

    def tokens(self) -> gv.Tokens:
        """The loss's inputs in float64; `logp` is a leaf that requires a gradient."""
        given = numbers(self.given, 0.0) if isinstance(self.given[0], Sequence) else torch.tensor(self.given).double()
        return gv.Tokens(
            logp=logs(self.policy).requires_grad_(),
            mask=present(self.policy),
            advantages=given,
            old_logp=None if self.old is None else logs(self.old),
            ref_logp=None if self.ref is None else logs(self.ref),
            rollout_logp=None if self.rollout is None else logs(self.rollout),
            **self.extras,
        )


# Two responses that most cases share.
# rho: 0.4/0.2 = 2, 0.55/0.5 = 1.1, 0.1/0.2 = 0.5 | 0.1/0.2 = 0.5, 0.6/0.3 = 2
# e^u: 0.8/0.4 = 2, 0.275/0.55 = 0.5, 0.1/0.1 = 1 | 0.05/0.1 = 0.5, 0.9/0.6 = 1.5
# l = 3 | 2; the second response has a hole in its mask.
PAIR: dict[str, Table] = {
    "policy": [[0.4, 0.55, 0.1], [0.1, _, 0.6]],
    "old": [[0.2, 0.5, 0.2], [0.2, _, 0.3]],
    "ref": [[0.8, 0.275, 0.1], [0.05, _, 0.9]],
}

# k3 = e^u - u - 1: 2 - ln 2 - 1 = 1 - ln 2, 0.5 + ln 2 - 1 = ln 2 - 0.5, 0
#                 | 0.5 + ln 2 - 1 = ln 2 - 0.5, 1.5 - ln 1.5 - 1 = 0.5 - ln 1.5
# Summed over a response: 0.5 | ln 2 - ln 1.5 = ln(4/3).
# Their sequence mean: (0.5/3 + 0.287682072452/2) / 2 = 0.155253851446, times beta 0.04: 0.006210154058.
# Gradient of k3 is 1 - e^u: -1, 0.5, 0 | 0.5, -0.5.
PAIR_KL = 0.006210154058

# Sequence ratios s = (product of rho)^(1/l) of four responses that the two GSPO cases share.
# 1: (2 * 1.1 * 0.5)^(1/3) = 1.1^(1/3) = 1.032280115456, above 1 + 4e-4
# 2: (0.5 * 4)^(1/2)      = sqrt 2     = 1.414213562373, above
# 3: (0.3 / 0.6)          = 0.5, below 1 - 3e-4
# 4: (0.25 * 1)^(1/2)     = 0.5, below
FOUR: dict[str, Table] = {
    "policy": [[0.4, 0.55, 0.1], [0.1, _, 0.6], [0.3, _, _], [0.1, 0.5, _]],
    "old": [[0.2, 0.5, 0.2], [0.2, _, 0.15], [0.6, _, _], [0.4, 0.5, _]],
}
