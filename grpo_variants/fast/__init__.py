"""Hand-written arithmetic behind the same definitions: equal in value and gradient, cheaper in time and memory.

The loss: `gv.policy_loss` comes here by itself, row block by row block with the gradient worked out by hand where that
is known, and falls back to `grpo_variants.plain` where this does not cover something. `GRPO_VARIANTS_FAST=0` switches
it off, `GRPO_VARIANTS_FAST=compile` compiles it (see `grpo_variants.fast.switch`).
"""

from grpo_variants.fast.switch import mode

__all__ = ["mode"]
