"""How verl comes by inputs that not every variant reads."""

from __future__ import annotations

from collections.abc import Mapping

SUPPLIES: Mapping[str, str] = {
    "entropy": "verl gives an estimator no entropies, nor a policy loss.",
    "sum_pi_squared": (
        "verl computes it with actor_rollout_ref.actor.calculate_sum_pi_squared=True, and hands it to its own "
        "optimal_token_baseline."
    ),
    "greedy_rewards": "verl draws a greedy response for its own remax.",
    "step_ends": "In verl a reward manager has to write them.",
}
