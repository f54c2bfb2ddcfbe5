"""verl, as this package knows it."""

from __future__ import annotations

from grpo_variants.trainers.base import Adapter, Trainer
from grpo_variants.trainers.verl.doctor import PROBE, verl_findings
from grpo_variants.trainers.verl.numerics import NUMERICS
from grpo_variants.trainers.verl.spec_words import WORDS
from grpo_variants.trainers.verl.translate import refusals, verl_lines
from grpo_variants.trainers.verl.verdicts import VERDICTS

VERL = Trainer(
    name="verl",
    title="verl",
    settings="overrides for `python -m verl.trainer.main_ppo`",
    translate=verl_lines,
    refusals=refusals,
    words=WORDS,
    verdicts=VERDICTS,
    supplies={
        "entropy": "verl gives an estimator no entropies.",
        "sum_pi_squared": (
            "verl computes it with actor_rollout_ref.actor.calculate_sum_pi_squared=True, and hands it to its own "
            "optimal_token_baseline."
        ),
        "greedy_rewards": "verl draws a greedy response for its own remax.",
        "step_ends": "In verl a reward manager has to write them.",
    },
    conventions=NUMERICS,
    adapter=Adapter(module="grpo_variants_verl", package="verl", tested="0.9.1", probe=PROBE, examine=verl_findings),
)
