"""Registration: one estimator and one policy loss per variant, under `gv_<name>`."""

from __future__ import annotations

from verl.trainer.ppo import core_algos

from grpo_variants.names import PREFIX
from grpo_variants.registry import names
from grpo_variants_verl.estimator import Estimator
from grpo_variants_verl.loss import PolicyLoss


def register() -> tuple[str, ...]:
    """Register every variant with verl, and return the names; doing it again changes nothing.

    A user's own variants come from the modules that GRPO_VARIANTS_MODULES names; one that is registered later needs
    another call. Raises ValueError where another package has taken a name.
    """
    known = tuple(PREFIX + name for name in names())
    for word, name in zip(known, names(), strict=True):
        core_algos.register_adv_est(word)(Estimator(name))
        loss = PolicyLoss(name)
        # verl would silently overwrite another package's loss.
        if core_algos.POLICY_LOSS_REGISTRY.setdefault(word, loss) != loss:
            raise ValueError(f"verl already has a policy loss {word!r}, of another package; rename that one.")
    return known
