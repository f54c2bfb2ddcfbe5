"""Members whose defaults changed after version 0.1.0, with the options that give each one as that version had it.

CHANGELOG.md has the old and the new values with their sources; a card that was written before is told by its values.
"""

from __future__ import annotations

from collections.abc import Mapping

FORMER: Mapping[str, str] = {
    "reinforce_pp": "scale.ddof=1,scale.eps_in=var,kl.bound=20,kl.value_bound=none",
    "reinforce_pp_baseline": "scale.ddof=1,scale.eps_in=var,kl.beta=1e-3,kl.bound=20,kl.value_bound=none",
    "mc_grpo": "baseline.even=mean,scale.even=mean,kl=none",
    "psr": "aggregation.rows=all",
    "nsr": "aggregation.rows=all",
    "grpo_s": "credit.over=side",
    "seq_mis": (
        "scale=group_std,aggregation=token_mean,surrogate.high=0.28,filter=zero_variance,overlong=mask,correction.high=3"
    ),
    "spo": "surrogate.high=0.2,surrogate.dual=none",
    "aspo": "surrogate.fraction=none,kl=none,aggregation=token_mean",
    "bapo": "surrogate.first=floor,surrogate.target=0.5,surrogate.dual=3",
    "m2po": "surrogate.low=0.3,surrogate.high=0.5",
}
