"""Aggregation: one weight per response. Each maps (lengths [N], counts, group tokens [N] or None) -> [N].

The loss is the weighted sum over responses of their masked token sums, so a rule is nothing but its weights, and these
are made of counts of the whole optimizer step: no split into micro-batches or over ranks changes the loss.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.part import Part, added
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.groups import Groups
from grpo_variants.tensors.precision import Number, at_least_one


class Aggregation(Part):
    """One weight per response.

    of_group: it needs the tokens of each response's group. of_length: it reads the lengths, and not only how many they
    are. of_step: it reads the length of every response of the step, `Counts.lengths`. of_tokens: it divides by the
    tokens of other responses too, which a micro-batch does not show.
    """

    of_group: ClassVar[bool] = False
    of_length: ClassVar[bool] = True
    of_step: ClassVar[bool] = False
    of_tokens: ClassVar[bool] = False

    @property
    def drops_rows(self) -> bool:
        """Whether responses without an advantage leave the loss and its counts."""
        return False

    @property
    def counts_read(self) -> tuple[str, ...]:
        """The optional fields of `Counts` that it cannot do without."""
        return ()

    @property
    def lacks_length(self) -> bool:
        """Whether it divides by a constant length that the trainer has to give, the largest completion length."""
        return "length" in self.counts_read

    def __call__(self, lengths: Tensor, counts: Counts, group_tokens: Tensor | None) -> Tensor:
        """Weight of each response."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TokenMean(Aggregation):
    r"""\(w_i = 1/\sum_j l_j\) over the whole step (DAPO as its authors ran it, arXiv 2503.14476).

    rows: `all` responses, or those with a `signal`: a response whose advantage is 0 at every token then leaves the loss
        mask, with its KL term (`Counts` that are given have to leave it out as well).
    """

    rows: Literal["all", "signal"] = added("all")
    of_tokens: ClassVar[bool] = True
    of_length: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the fields."""
        check_choice("aggregation.rows", self.rows, ("all", "signal"))

    @property
    def drops_rows(self) -> bool:
        """Whether responses without an advantage leave the loss and its counts."""
        return self.rows == "signal"

    def __call__(self, lengths: Tensor, counts: Counts, group_tokens: Tensor | None) -> Tensor:
        """Weights [N]."""
        return _ones(lengths) / at_least_one(counts.tokens)


@dataclass(frozen=True, kw_only=True)
class PromptMean(Aggregation):
    r"""\(w_i = 1/(P \sum_{j \in g} l_j)\): token mean in each group, mean over P prompts (DAPO as printed)."""

    of_group: ClassVar[bool] = True
    of_tokens: ClassVar[bool] = True
    reads: ClassVar[tuple[str, ...]] = ("groups",)
    counts_read: ClassVar[tuple[str, ...]] = ("prompts",)

    def __call__(self, lengths: Tensor, counts: Counts, group_tokens: Tensor | None) -> Tensor:
        """Weights [N]."""
        if counts.prompts is None or group_tokens is None:
            raise ValueError("aggregation=prompt_mean needs groups= and counts.prompts, the step's number of prompts.")
        return _ones(lengths) / group_tokens.clamp(min=1) / at_least_one(counts.prompts)


@dataclass(frozen=True, kw_only=True)
class _PerSequence(Aggregation):
    """Rules that divide by the number of responses; `empty_rows` says whether those without a token count."""

    empty_rows: Literal["count", "exclude"] = "count"
    of_length: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the fields."""
        check_choice("aggregation.empty_rows", self.empty_rows, ("count", "exclude"))

    @property
    def counts_read(self) -> tuple[str, ...]:
        """The number of responses with a token, where it divides by that."""
        return ("nonempty",) if self.empty_rows == "exclude" else ()

    def sequences(self, counts: Counts) -> Number:
        """Number of responses that the loss is divided by."""
        if self.empty_rows == "count":
            return at_least_one(counts.sequences)
        if counts.nonempty is None:
            raise ValueError("aggregation.empty_rows=exclude needs counts.nonempty, the step's responses with a token.")
        return at_least_one(counts.nonempty)


@dataclass(frozen=True, kw_only=True)
class SequenceMean(_PerSequence):
    r"""\(w_i = 1/(N l_i)\): mean over a response's tokens, then over responses (GRPO, arXiv 2402.03300)."""

    of_length: ClassVar[bool] = True

    def __call__(self, lengths: Tensor, counts: Counts, group_tokens: Tensor | None) -> Tensor:
        """Weights [N]."""
        # An empty response has no token for its weight to reach; 1 keeps the weight finite.
        return _ones(lengths) / lengths.clamp(min=1) / self.sequences(counts)


@dataclass(frozen=True, kw_only=True)
class SequenceSum(_PerSequence):
    r"""\(w_i = 1/N\): sum over a response's tokens, mean over responses (REINFORCE, RLOO)."""

    def __call__(self, lengths: Tensor, counts: Counts, group_tokens: Tensor | None) -> Tensor:
        """Weights [N]."""
        return _ones(lengths) / self.sequences(counts)


@dataclass(frozen=True, kw_only=True)
class Constant(_PerSequence):
    r"""\(w_i = 1/(N L)\) with a constant L (Dr. GRPO, arXiv 2503.20783).

    length: L; none takes `counts.length`, the trainer's maximum completion length.
    """

    length: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        check_number("aggregation.length", self.length, above=0, optional=True)

    @property
    def counts_read(self) -> tuple[str, ...]:
        """The constant as well, where it has none of its own."""
        return (*super().counts_read, *(("length",) if self.length is None else ()))

    def __call__(self, lengths: Tensor, counts: Counts, group_tokens: Tensor | None) -> Tensor:
        """Weights [N]."""
        return _ones(lengths) / _constant("constant", self.length, counts) / self.sequences(counts)


@dataclass(frozen=True, kw_only=True)
class LengthPower(Aggregation):
    r"""\(w_i = l_i^{-\alpha} / (L \sum_j l_j^{-\alpha})\) over the whole step (Delta L, arXiv 2509.07558).

    The weights of the lengths add up to 1/L, so that the gradient is Dr. GRPO's in expectation, with less variance.
    alpha: 1 for the least variance, 0 for Dr. GRPO. length: L; none takes `counts.length`, as `constant` does. A
    response without a token has no weight.
    """

    alpha: float = 0.75
    length: float | None = None
    of_step: ClassVar[bool] = True
    of_tokens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("aggregation.alpha", self.alpha, at_least=0)
        check_number("aggregation.length", self.length, above=0, optional=True)

    @property
    def counts_read(self) -> tuple[str, ...]:
        """The step's lengths, and the constant where it has none of its own."""
        return ("lengths", *(("length",) if self.length is None else ()))

    def __call__(self, lengths: Tensor, counts: Counts, group_tokens: Tensor | None) -> Tensor:
        """Weights [N]."""
        if counts.lengths is None:
            raise ValueError(
                "aggregation=length_power needs counts.lengths, the length of every response of the step; "
                "gv.Counts.of(mask) of the whole step has them."
            )
        total = self._power(counts.lengths.to(lengths)).sum()
        share = self._power(lengths) / torch.where(total == 0, torch.ones_like(total), total)
        return share / _constant("length_power", self.length, counts)

    def _power(self, lengths: Tensor) -> Tensor:
        """Length to the power of minus alpha; 0 without a token."""
        return torch.where(lengths > 0, (_ones(lengths) * lengths.clamp(min=1)) ** -self.alpha, 0.0)


def _constant(choice: str, length: Number | None, counts: Counts) -> Number:
    """The length that token sums are divided by: a rule's own, or the trainer's."""
    length = counts.length if length is None else length
    if length is None:
        raise ValueError(
            f"aggregation={choice} needs its length: set aggregation.length, or counts.length to the maximum "
            "completion length."
        )
    return length


def with_signal(advantages: Tensor, mask: Tensor) -> Tensor:
    """Which responses have an advantage other than 0, [B] or [B, T], at some token of the mask [B, T]: [B] bool."""
    wide = advantages if advantages.dim() == 2 else advantages.unsqueeze(1)
    return ((wide != 0) & mask.bool()).any(1)


def trained(rule: Aggregation, x: Tokens) -> Tokens:
    """The batch with the responses that a rule leaves out taken from its mask."""
    if not rule.drops_rows:
        return x
    return replace(x, mask=x.mask.bool() & with_signal(x.advantages, x.mask).unsqueeze(1))


def weights_of_rows(
    rule: Aggregation,
    lengths: Tensor,
    counts: Counts,
    groups: Groups | Sequence[Hashable] | Tensor | None = None,
) -> Tensor:
    """A rule's weights [N] for the responses of `lengths`, which hold whole groups where it asks for them."""
    group_tokens = None
    if rule.of_group and groups is not None:
        dense = Groups.of(groups, lengths.device)
        group_tokens = dense.sum(lengths, torch.ones_like(dense.ids, dtype=torch.bool))[dense.ids]
    return rule(lengths, counts, group_tokens)


def _ones(lengths: Tensor) -> Tensor:
    dtype = lengths.dtype if lengths.dtype == torch.float64 else torch.float32
    return torch.ones(lengths.shape, dtype=dtype, device=lengths.device)
