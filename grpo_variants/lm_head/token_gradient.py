"""dloss/dlogp of a few tokens before the rest of the batch is scored, for the LM head."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from grpo_variants.lm_head.head import PrecomputedGradient
from grpo_variants.objective.compute import loss_of
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.rule import Objective


def precompute(objective: Objective, x: Tokens, counts: Counts, scored: Tensor) -> PrecomputedGradient | None:
    """The gradient of an objective's loss for the LM head, or None where it is not known token by token.

    x: the batch's tokens; `logp` and `entropy` are not known yet, and their values are not read.
    counts: of the whole optimizer step. scored: [B, T] bool, the positions that the head scores. Differentiates
    `policy_loss` itself, over the responses that a chunk touches, so that an objective needs nothing extra.
    """
    if x.extras is not None or not per_token(objective, on_policy=x.old_logp is None):
        return None
    positions = scored.flatten().nonzero().squeeze(1)
    return PrecomputedGradient(_Slices(objective, replace(x, groups=None), counts, positions))


@dataclass(frozen=True, eq=False)
class _Slices:
    """Gradients of a loss at some of its tokens, from the responses that hold them."""

    objective: Objective
    x: Tokens
    counts: Counts
    positions: Tensor

    def __call__(self, logp: Tensor, at: slice) -> Tensor:
        """logp [n] of the scored tokens `at` -> dloss/dlogp [n]."""
        x, positions = self.x, self.positions[at]
        width = x.logp.shape[1]
        first, last = int(positions[0]) // width, int(positions[-1]) // width + 1
        rows = _rows(x, slice(first, last))
        # The other tokens of these responses: at the old policy, or anywhere when that is the policy itself.
        around = (
            torch.zeros_like(rows.mask, dtype=logp.dtype) if rows.old_logp is None else rows.old_logp.to(logp.dtype)
        )
        inside = positions - first * width
        with torch.enable_grad():
            placed = around.flatten().scatter(0, inside, logp.detach()).view(around.shape).requires_grad_()
            loss = loss_of(self.objective, replace(rows, logp=placed), self.counts).loss
            return torch.autograd.grad(loss, placed)[0].flatten()[inside]


def _rows(x: Tokens, at: slice) -> Tokens:
    """Some of the responses."""
    named = ((f.name, getattr(x, f.name)) for f in fields(x))
    parts: dict[str, Any] = {name: value[at] for name, value in named if isinstance(value, Tensor)}
    return replace(x, **parts)


@functools.lru_cache(maxsize=256)
def per_token(objective: Objective, on_policy: bool) -> bool:
    """Whether a token's dloss/dlogp depends on no entropy and no other log-probability: tried out on a small batch.

    on_policy: the old policy is the policy itself, so that log ratios are 0. False for what spans the batch or draws.
    """
    surrogate = objective.surrogate
    if surrogate.whole_batch or surrogate.draws or objective.tokens.whole_batch:
        return False
    generator = torch.Generator().manual_seed(0)
    cases = (_case(generator, spread, on_policy) for spread in (0.02, 0.5))
    return all(_is_local(objective, x, counts) for x, counts in cases)


def _case(generator: torch.Generator, spread: float, on_policy: bool) -> tuple[Tokens, Counts]:
    def draw(scale: float = 1.0) -> Tensor:
        return torch.randn(4, 3, generator=generator, dtype=torch.float64) * scale

    logp = -draw().abs() - 0.5
    old, ref, rollout = (logp + draw(spread) for _ in range(3))
    x = Tokens(
        logp=logp,
        mask=torch.ones(4, 3, dtype=torch.bool),
        advantages=torch.tensor([1.0, -1.0, 0.7, -0.3], dtype=torch.float64),
        old_logp=None if on_policy else old,
        ref_logp=ref,
        rollout_logp=rollout,
        entropy=draw().abs(),
        row_weights=torch.full((4,), 0.25, dtype=torch.float64),
    )
    return x, Counts(tokens=12, sequences=4, prompts=1, nonempty=4, length=3)


def _is_local(objective: Objective, x: Tokens, counts: Counts) -> bool:
    """Whether moving one token of each response, or the entropies, leaves the other gradients as they were."""
    before = _gradient(objective, x, counts)
    if not torch.equal(before, _gradient(objective, replace(x, entropy=x.logp.abs()), counts)):
        return False
    for column in range(x.mask.shape[1]):
        moved = torch.arange(x.mask.shape[1]) == column
        for step in (-2.0, -0.05, 0.05, 2.0):  # far enough for a response to change sides of a clip
            after = _gradient(objective, replace(x, logp=x.logp + step * moved), counts)
            if not torch.equal(before[:, ~moved], after[:, ~moved]):
                return False
    return True


def _gradient(objective: Objective, x: Tokens, counts: Counts) -> Tensor:
    logp = x.logp.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(loss_of(objective, replace(x, logp=logp), counts).loss, logp)[0]
