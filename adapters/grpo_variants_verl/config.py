"""The policy-loss section of verl's actor config, with a variant's options."""

from __future__ import annotations

from dataclasses import dataclass

from verl.workers.config import PolicyLossConfig

from grpo_variants.names import PREFIX, is_prefixed
from grpo_variants.trainers.verl.findings import Finding, Fix, Refused
from grpo_variants.trainers.verl.words import LOSS_MODE, LOSS_OPTIONS
from grpo_variants_verl.settings import base_name, check_loss_options


@dataclass
class VariantPolicyLossConfig(PolicyLossConfig):
    """verl's PolicyLossConfig and `options`, in spec-string notation: `surrogate.high=0.28`.

    Chosen by `actor_rollout_ref.actor.policy_loss._target_=grpo_variants_verl.VariantPolicyLossConfig`. Checked when
    verl reads its configuration, before a model is loaded.
    """

    options: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for an option that does not exist, and for options on a loss of verl's own."""
        if not is_prefixed(self.loss_mode):
            if self.options:
                text = f"{LOSS_OPTIONS} has no effect on {LOSS_MODE}={self.loss_mode}: use a gv_ loss, or leave it out."
                raise Refused(Finding(text, (Fix({LOSS_OPTIONS: ""}),)))
            return
        name = base_name(self.loss_mode, LOSS_MODE)
        check_loss_options(name, self.options)
        object.__setattr__(self, "loss_mode", PREFIX + name)  # as it is registered; the class is frozen
