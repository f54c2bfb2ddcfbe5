"""The chunked LM head behind verl's fused kernels; importing this module puts it in place, `restore` undoes it.

With `actor_rollout_ref.model.use_fused_kernels=True` and the backend `torch`, verl's models hand hidden states, the
head's weight and the labels to one autograd function. `GRPO_VARIANTS_MODULES=grpo_variants_verl.chunked_head` imports
this in every process, Ray workers included. It is not the default, since it was measured on CPUs only. Not done: verl
scores prompts and responses alike and computes the loss later, so nothing is left out of the forward pass and no
gradient is precomputed. The backward pass leaves out what has no gradient, such as prompts.

Under FSDP2 a head that is not tied to the embedding is a shard of its own, and arrives here ungathered. This module
gathers it, and averages its gradient over the ranks, as FSDP2 would. verl's own function fails with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial
from verl.utils.experimental import torch_functional as verl_functional

from grpo_variants.lm_head.head import LMHead, dtype_of_products

VERLS_FUNCTION = verl_functional.FusedLinearForPPOFunction


class ChunkedLinearForPPO:
    """Replaces verl's autograd function, with its arguments and the dtypes of its results."""

    @staticmethod
    def apply(
        hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0, chunk_size: int = 512
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities in float32 and entropies in the dtype of the products, shaped as the targets."""
        if isinstance(weight, DTensor):
            weight = _Gathered.apply(weight, hidden.dtype)
        out = LMHead(weight=weight, temperature=float(temperature), chunk=chunk_size)(hidden, targets)
        return out.logp, out.entropy.to(dtype_of_products(hidden))


class _Gathered(torch.autograd.Function):
    """A sharded parameter as a plain tensor on every rank, in the dtype of the products."""

    @staticmethod
    def forward(ctx: Any, weight: DTensor, dtype: torch.dtype) -> Tensor:
        ctx.sharded = weight
        return weight.to(dtype).full_tensor()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[DTensor, None]:
        """Each rank has the gradient of its own responses; FSDP2 shards their mean, added up in float32."""
        weight = ctx.sharded
        mesh = weight.device_mesh
        own = DTensor.from_local(gradient.float() / mesh.size(), mesh, [Partial()] * mesh.ndim, run_check=False)
        return own.redistribute(placements=weight.placements).to(weight.dtype), None


def replace() -> None:
    """Put the chunked head in place of verl's function."""
    verl_functional.FusedLinearForPPOFunction = ChunkedLinearForPPO


def restore() -> None:
    """Put verl's function back."""
    verl_functional.FusedLinearForPPOFunction = VERLS_FUNCTION


replace()
