"""The LM head: hidden states to log-probabilities, entropies, loss and gradients, against the heads of TRL and verl.

Heads of 576 numbers a word in float32 on random hidden states: that of SmolLM2 with its 49152 words, and one of 4096
for a quick run. Peaks are in sizes of the weight. The loss is GRPO's with an old policy's ratio, for every contender.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

import grpo_variants as gv
from benchmarks.case import Case, Setup
from grpo_variants.lm_head.head import LMHead
from grpo_variants.lm_head.token_gradient import precompute

WIDTH = 576
VARIANT = gv.get("grpo,kl=none")
Score = Callable[["Batch"], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Batch:
    """Hidden states [B, T, H], the head's weight [V, H], and what the loss reads."""

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    old_logp: Tensor
    advantages: Tensor

    def tokens(self, logp: Tensor, entropy: Tensor) -> gv.Tokens:
        mask = torch.ones_like(self.targets, dtype=torch.bool)
        return gv.Tokens(
            logp=logp, mask=mask, advantages=self.advantages, old_logp=self.old_logp, entropy=entropy.detach()
        )

    @property
    def counts(self) -> gv.Counts:
        return gv.Counts(tokens=self.targets.numel(), sequences=len(self.targets))


def batch(words: int, rows: int, width: int) -> Batch:
    torch.manual_seed(0)
    weight = torch.randn(words, WIDTH) * 0.05
    hidden, targets = torch.randn(rows, width, WIDTH), torch.randint(words, (rows, width))
    with torch.no_grad():
        logp = LMHead(weight=weight)(hidden, targets).logp
    old = logp + 0.1 * torch.randn(rows, width)
    return Batch(hidden.requires_grad_(), weight, targets, old, torch.randn(rows))


def written_out(b: Batch) -> tuple[Tensor, Tensor]:
    logp = torch.log_softmax(b.hidden @ b.weight.t(), -1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, b.targets.unsqueeze(-1)).squeeze(-1), entropy


def recompute(b: Batch) -> tuple[Tensor, Tensor]:
    out = LMHead(weight=b.weight)(b.hidden, b.targets)
    return out.logp, out.entropy


def precomputed(b: Batch) -> tuple[Tensor, Tensor]:
    blank = torch.zeros_like(b.old_logp)
    x = b.tokens(blank, blank)
    out = LMHead(weight=b.weight)(b.hidden, b.targets, precomputed=precompute(VARIANT, x, b.counts, x.mask))
    return out.logp, out.entropy


def trl(b: Batch) -> tuple[Tensor, Tensor]:
    from trl.kernels import ChunkedLogProbFunction
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    flat = b.hidden.reshape(-1, WIDTH), b.weight, None, b.targets.reshape(-1)
    logp, entropy, *_ = ChunkedLogProbFunction.apply(
        *flat, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ("log_probs", "entropy")
    )
    return logp.view(b.targets.shape), entropy.view(b.targets.shape)


def verl(b: Batch) -> tuple[Tensor, Tensor]:
    from verl.utils.experimental.torch_functional import FusedLinearForPPO

    return FusedLinearForPPO()(b.hidden, b.weight, b.targets)


def step(score: Score, b: Batch, frozen: bool) -> Callable[[], tuple[Tensor, ...]]:
    """Scores, loss and gradients: (log-probabilities, entropies, gradient of the hidden states, and of the weight)."""
    wanted = (b.hidden,) if frozen else (b.hidden, b.weight)

    def run() -> tuple[Tensor, ...]:
        b.weight.requires_grad_(not frozen)
        logp, entropy = score(b)
        loss = gv.policy_loss(VARIANT, b.tokens(logp, entropy), b.counts).loss
        return logp.detach(), entropy.detach(), *torch.autograd.grad(loss, wanted)

    return run


def three_products(b: Batch) -> Callable[[], Any]:
    """What no head can do without: logits, and two products of their gradient, each in one piece."""
    hidden = b.hidden.detach().reshape(-1, WIDTH)
    weight, total = b.weight.detach(), torch.empty_like(b.weight)
    logits = torch.empty(len(hidden), len(weight))

    def run() -> Any:
        torch.mm(hidden, weight.t(), out=logits)
        return logits @ weight, torch.mm(logits.t(), hidden, out=total)

    return run


def build(score: Score, name: str, words: int, rows: int, width: int) -> Setup:
    """A trainer's head and the written-out one against ours, with a trained and with a frozen head."""
    b = batch(words, rows, width)
    scores = {name: score, "written out": written_out, "recompute": recompute, "precomputed": precomputed}
    runs = {title: step(score, b, frozen=False) for title, score in scores.items()}
    runs |= {f"{title}, frozen": step(score, b, frozen=True) for title, score in scores.items()}

    def check() -> None:
        true = runs["written out"]()
        for run in runs.values():
            for found, wanted in zip(run(), true, strict=False):
                assert_close(found, wanted, rtol=1e-3, atol=2e-5 * wanted.abs().max().item())

    return Setup({**runs, "floor: three products": three_products(b)}, check, 4 * words * WIDTH, unit_name="weights")


def cases(score: Score, name: str) -> tuple[Case, ...]:
    """The head of SmolLM2, and a small one for a quick run."""
    large, small = (partial(build, score, name, words) for words in (49152, 4096))
    needs = (name.lower(),)
    return (
        Case(f"LM head, {name}", large, quick=(), full=((8, 128), (16, 128)), needs=needs),
        Case(f"small LM head, {name}", small, quick=((8, 64),), full=(), needs=needs),
    )


CASES = (*cases(trl, "TRL"), *cases(verl, "verl"))
