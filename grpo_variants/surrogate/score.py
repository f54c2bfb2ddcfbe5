"""Score functions: minus a detached weight times the advantage times the log-probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from grpo_variants.inputs import Counts, Tokens
from grpo_variants.surrogate.base import Surrogate, Term


@dataclass(frozen=True, kw_only=True)
class Reinforce(Surrogate):
    r"""Score function, \(-\mathrm{sg}[e^{d}]\, A\, \mathrm{logp}\); without a ratio \(-A\, \mathrm{logp}\).

    Reference: R. Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement
    learning" (1992). With a ratio it is the importance-weighted score function, which is not clipped.
    """

    needs_ratio: ClassVar[bool] = False

    def __call__(self, log_ratio: Tensor, x: Tokens, counts: Counts) -> Term:
        """Loss [B, T]."""
        return Term(-log_ratio.detach().exp() * x.advantages * x.logp)
