"""Some rows of a batch, read as they are needed: padding selected away, numbers in float32 (float64 stays)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from grpo_variants.objective.inputs import Tokens
from grpo_variants.tensors.bit_mask import BitMask, chosen, keep

T = TypeVar("T")


class lazy(Generic[T]):
    """`functools.cached_property` without its lock, which a compiler does not trace."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        """Wrap a method without arguments."""
        self.compute, self.name = compute, compute.__name__

    def __get__(self, instance: Any, owner: type) -> T:
        """Compute it once and leave it on the instance, where it is found first."""
        value = self.compute(instance)
        instance.__dict__[self.name] = value
        return value


class Block:
    """Rows of a batch, [b, T]. Advantages stay as they are in the padding: what is made of them is kept by `here`."""

    def __init__(self, given: Tokens) -> None:
        """Take rows whose floating inputs are all of one precision."""
        self.given = given
        self.dtype = torch.float64 if given.logp.dtype == torch.float64 else torch.float32
        self.here = chosen(given.mask.bool(), self.dtype)
        a = given.advantages.detach().to(self.dtype)
        self.advantages = a.unsqueeze(1) if a.dim() == 1 else a

    def _clean(self, name: str) -> Tensor | None:
        value = getattr(self.given, name)
        return None if value is None else keep(self.here, value.detach().to(self.dtype))

    @lazy
    def logp(self) -> Tensor:
        """Log-probabilities, 0 in the padding."""
        return keep(self.here, self.given.logp.detach().to(self.dtype))

    @lazy
    def entropy(self) -> Tensor | None:
        """Entropies, 0 in the padding, where there are any."""
        return self._clean("entropy")

    def need_entropy(self, wanted_by: str) -> Tensor:
        """Entropies [b, T] of a part that cannot do without; raises ValueError where there are none."""
        self.given.need("entropy", wanted_by)
        return self.entropy  # type: ignore[return-value]

    def difference(self, name: str, wanted_by: str) -> Tensor:
        """logp less another policy's log-probabilities, 0 in the padding."""
        other = self.given.logp if name == "old_logp" and self.given.old_logp is None else None
        other = self.given.need(name, wanted_by) if other is None else other
        return keep(self.here, self.given.logp.detach().to(self.dtype) - other.detach().to(self.dtype))

    @lazy
    def lengths(self) -> Tensor:
        """Tokens of each row: [b, 1]."""
        return self.here.to(self.dtype).sum(1, keepdim=True).abs()

    @lazy
    def some(self) -> BitMask:
        """Rows that have a token: [b, 1]."""
        return chosen((self.lengths > 0), self.dtype)

    @lazy
    def rows(self) -> Tensor:
        """Weight of each row: [b, 1]."""
        return self.given.row_weights.detach().to(self.dtype).unsqueeze(1)  # type: ignore[union-attr]

    @lazy
    def keep(self) -> Tensor | None:
        """Tokens [b, T] or rows [b, 1] whose policy term counts, as bool."""
        kept = self.given.keep
        return None if kept is None else (kept.bool().unsqueeze(1) if kept.dim() == 1 else kept.bool())

    @lazy
    def x(self) -> Tokens:
        """The rows as the plain path's parts read them."""
        weight = self.given.correction
        if weight is not None:
            weight = weight.detach().to(self.dtype)
            weight = weight if weight.shape[1] == 1 else keep(self.here, weight)
        return replace(
            self.given,
            mask=self.given.mask.bool(),
            logp=self.logp,
            old_logp=self.logp if self.given.old_logp is None else self._clean("old_logp"),
            rollout_logp=self._clean("rollout_logp"),
            advantages=self.advantages if self.advantages.shape[1] == 1 else keep(self.here, self.advantages),
            correction=weight,
        )

    def counts(self, value: Tensor) -> BitMask:
        """Which entries of a value count: tokens of [b, T], rows of [b, 1]."""
        return self.here if value.shape[1] == self.here.shape[1] else self.some

    def unit(self, value: Tensor) -> str:
        """What a value counts: `tokens` for [b, T], `rows` for [b, 1]."""
        return "tokens" if value.shape[1] == self.here.shape[1] else "rows"

    def kept(self, value: Tensor) -> Tensor:
        """A value [b, T] or [b, 1] without what does not count."""
        return keep(self.counts(value), value)

    def per_row(self, value: Tensor) -> Tensor:
        """Sum over each row's tokens [b, 1]; a value [b, 1] stands for each of them."""
        if value.shape[1] == self.here.shape[1]:
            return self.kept(value).sum(1, keepdim=True)
        return self.kept(value) * self.lengths
