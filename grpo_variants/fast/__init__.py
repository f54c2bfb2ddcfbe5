"""Hand-written arithmetic behind the same definitions: equal in value and gradient, cheaper in time and memory.

The loss: `gv.policy_loss` comes here by itself, row block by row block with the gradient worked out by hand where that
is known, and falls back to `grpo_variants.plain` where this does not cover something. `GRPO_VARIANTS_FAST=0` switches
it off, `GRPO_VARIANTS_FAST=compile` compiles it (see `grpo_variants.fast.switch`).

The LM head: `grpo_variants.fast.lm_head` goes from hidden states to log-probabilities, entropies and gradients in
chunks of tokens; TRL's adapter puts it in place of TRL's.
"""

from grpo_variants.fast.switch import mode

__all__ = ["mode"]
