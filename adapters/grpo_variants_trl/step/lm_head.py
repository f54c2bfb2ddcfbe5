"""The chunked LM head in place of TRL's fused one, during a call.

TRL's models have a forward that runs the backbone and hands hidden states, weight and labels to one autograd function.
That function is replaced while the trainer scores, so that everything before it (adapters, embeddings, gathering,
logit scale) stays TRL's. Only labelled positions reach it: the completion, and of it what the loss mask keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from trl.trainer import utils as trl_utils

from grpo_variants.fast_paths import OFF, VARIABLE, current
from grpo_variants.lm_head.head import LMHead, PrecomputedGradient, dtype_of_products
from grpo_variants.lm_head.token_gradient import per_token, precompute
from grpo_variants_trl.step.step_counts import StepCounts, loss_mask

# Where the chunked head was measured to win. TRL has Triton kernels of its own for the others.
DEVICES = ["cpu"]
LOG = logging.getLogger("grpo_variants_trl")


@dataclass(frozen=True, eq=False)
class Expected:
    """What is known about the next call: its positions, the scored ones among them, its precomputed gradient."""

    positions: int
    scored: Tensor | None
    gradient: PrecomputedGradient | None = None


class ChunkedHead:
    """Scores with the chunked head what it covers, and leaves the rest to TRL; the reason is logged once."""

    def __init__(self, trainer: Any) -> None:
        """Bind the trainer, and log why the chunked head is not used, if it is not."""
        self.trainer = trainer
        self._logged: set[str] = set()
        self._expected: Expected | None = None
        self._precomputed: PrecomputedGradient | None = None
        self._precomputes = True
        self.off = obstacle(trainer.args, trainer.accelerator.device)
        if self.off is not None:
            self._log_once(f"TRL's own LM head is used: {self.off}")

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The chunked head instead of TRL's, inside the block."""
        if self.off is not None:
            yield
            return
        kernel, compact = trl_utils._ChunkedLogProbFunction, trl_utils._use_triton
        # A compact call holds the labelled positions only, which TRL leaves to its Triton devices.
        trl_utils._ChunkedLogProbFunction, trl_utils._use_triton = _Replacement(self, kernel), lambda device: True
        try:
            yield
        finally:
            trl_utils._ChunkedLogProbFunction, trl_utils._use_triton = kernel, compact
            self._expected = None

    def expect(self, inputs: dict[str, Any], step: StepCounts) -> None:
        """Prepare the scoring of a micro-batch for its loss: what is scored, and a precomputed gradient if possible."""
        if self.off is not None:
            return
        # The loss mask leaves out tool output and dropped groups, which are attended to.
        mask, attended = loss_mask(inputs), inputs["completion_mask"].bool()
        scored = mask[attended]
        self._precomputed = self._precompute(inputs, step, mask)
        self._expected = Expected(len(scored), scored, self._precomputed)

    def _precompute(self, inputs: dict[str, Any], step: StepCounts, mask: Tensor) -> PrecomputedGradient | None:
        trainer = self.trainer
        if self._precomputed is not None and self._precomputed.mismatched:
            self._precomputes = False
            self._log_once("the loss's gradient was not the precomputed one, so it is no longer precomputed")
        precomputes = self._precomputes and torch.is_grad_enabled() and trainer._entropy_bonus is None
        if not precomputes or not per_token(trainer.variant, on_policy=inputs.get("old_per_token_logps") is None):
            return None
        unknown = torch.zeros(mask.shape, device=mask.device)
        x = trainer._tokens(inputs, unknown, unknown, step.next_weights())
        return precompute(trainer.variant, x, step.counts, mask)

    def score(self, kernel: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        """One call of TRL's kernel: log-probabilities, entropies, and None for what is not asked for."""
        call = _Call(*arguments)
        reason = call.obstacle()
        if reason is not None:
            self._log_once(f"TRL's own LM head is used: {reason}")
            return kernel.apply(*arguments)
        expected, self._expected = self._expected, None
        if expected is None or expected.positions != len(call.targets):
            expected = Expected(len(call.targets), None)
        # Half precision needs the loss scale before the gradient is rounded.
        gradient = None if dtype_of_products(call.hidden) == torch.float16 else expected.gradient
        out = call.head()(call.hidden, call.targets, mask=expected.scored, precomputed=gradient)
        return out.logp, out.entropy if "entropy" in call.outputs else None, None, None, None

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            LOG.info(text)


def obstacle(args: Any, device: torch.device) -> str | None:
    """Why a run keeps TRL's LM head, or None."""
    if current() == OFF:
        return f"{VARIABLE}=0"
    if device.type not in DEVICES:
        return f"the chunked one was not measured on {device.type}, where TRL has kernels of its own"
    if args.torch_compile:
        return "torch_compile=True traces the model's forward with it"
    if is_deepspeed_zero3_enabled():
        return "DeepSpeed ZeRO-3 shards the head, and TRL gathers it again in the backward pass"
    return None


@dataclass(frozen=True, eq=False)
class _Call:
    """Arguments of TRL's kernel, in its order."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    temperature: float
    chunk_size: int
    softcap: float | None = None
    scale: float = 1.0
    outputs: tuple[str, ...] = ()

    def obstacle(self) -> str | None:
        """Why the chunked head does not cover this call, or None."""
        others = [name for name in self.outputs if name not in ("log_probs", "entropy")]
        if others:
            return f"it gives {' and '.join(others)}"
        if self.weight.dim() != 2 or not self.weight.is_floating_point():
            return f"the head's weight is {self.weight.dtype} of shape {list(self.weight.shape)}, sharded or quantised"
        return None

    def head(self) -> LMHead:
        """The head with this call's options."""
        return LMHead(
            weight=self.weight,
            bias=self.bias,
            temperature=self.temperature,
            softcap=self.softcap,
            scale=self.scale,
        )


@dataclass(frozen=True)
class _Replacement:
    """Stands in for TRL's autograd function."""

    chunked: ChunkedHead
    kernel: Any

    def apply(self, *arguments: Any) -> tuple[Tensor | None, ...]:
        """Score with the chunked head."""
        return self.chunked.score(self.kernel, *arguments)
