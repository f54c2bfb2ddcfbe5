"""Objective: how log-probabilities and advantages become a loss."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import lru_cache

import torch
from torch import Tensor

from grpo_variants.objective.aggregation import Aggregation, SequenceSum, trained
from grpo_variants.objective.correction import Correction
from grpo_variants.objective.inputs import Tokens, check_tokens, check_values, read_tokens
from grpo_variants.objective.kl import KL
from grpo_variants.objective.ratio import NoRatio, Ratio
from grpo_variants.objective.surrogate import Reinforce, Surrogate
from grpo_variants.objective.token_filter import AllTokens, TokenFilter


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What runs where the loss is computed: ratio, surrogate, KL in the loss, correction, aggregation, tokens.

    name is for messages only: two objectives that differ in it are equal, and share a compiled graph. A `Variant`
    checks that its parts go together.
    """

    name: str = field(default="this objective", compare=False)
    ratio: Ratio = NoRatio()
    surrogate: Surrogate = Reinforce()
    kl: KL | None = None
    correction: tuple[Correction, ...] = ()
    aggregation: Aggregation = SequenceSum()
    tokens: TokenFilter = AllTokens()

    @property
    def kl_in_loss(self) -> bool:
        """Whether the loss has a KL term that is not zero."""
        return self.kl is not None and self.kl.beta > 0 and self.kl.placement == "loss"

    @property
    def whole_batch(self) -> bool:
        """Whether a statistic of it spans the batch: the surrogate's, or that of the choice of tokens."""
        return self.surrogate.whole_batch or self.tokens.whole_batch

    @property
    def threshold_names(self) -> tuple[str, ...]:
        """Names of these statistics, as `Counts.thresholds` takes them."""
        return (*self.surrogate.names, *self.tokens.names)

    def thresholds(self, step: Tokens) -> dict[str, Tensor]:
        """Statistics of a whole step, for `Counts.thresholds`, so that micro-batches do not take their own; detached.

        Returns 0-d tensors by name; empty where nothing spans the batch. Nothing waits for the device.
        Raises ValueError for a missing input.
        """
        check_tokens(step)
        check_values(step)
        with torch.no_grad():
            x = read_tokens(trained(self.aggregation, step))
            return {**self.surrogate.thresholds(self.ratio(x), x), **self.tokens.thresholds(x)}

    @property
    def token_inputs(self) -> frozenset[str]:
        """The fields of `Tokens` that it cannot do without, beside logp, mask and advantages."""
        of_kl: tuple[str, ...] = ()
        if self.kl is not None and self.kl_in_loss:
            of_kl = ("ref_logp", *self.kl.reads)
        parts = (self.ratio, self.surrogate, self.aggregation, self.tokens, *self.correction)
        return frozenset(of_kl).union(*(part.reads for part in parts))

    @property
    def needs_rollout_logp(self) -> bool:
        """Whether it reads what the rollout engine reported."""
        return "rollout_logp" in self.token_inputs


@lru_cache(maxsize=1024)
def objective_of(rule: Objective) -> Objective:
    """The objective alone, of a `Variant` too: what a compiled graph is kept by."""
    return Objective(**{f.name: getattr(rule, f.name) for f in fields(Objective)})
