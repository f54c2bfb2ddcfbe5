"""TRL, as this package knows it."""

from __future__ import annotations

from grpo_variants.trainers.base import Adapter, Trainer
from grpo_variants.trainers.trl.doctor import trl_findings
from grpo_variants.trainers.trl.limits import trl_refusals
from grpo_variants.trainers.trl.numerics import NUMERICS
from grpo_variants.trainers.trl.spec_words import WORDS
from grpo_variants.trainers.trl.translate import trl_lines
from grpo_variants.trainers.trl.verdicts import VERDICTS

TRL = Trainer(
    name="trl",
    title="TRL",
    settings="YAML for `grpo-variants trl --config`",
    translate=trl_lines,
    refusals=lambda variant: list(trl_refusals(variant)),
    words=WORDS,
    verdicts=VERDICTS,
    supplies={
        "entropy": "TRL's adapter computes it for the variants that read it.",
        "sum_pi_squared": "TRL does not compute it.",
        "greedy_rewards": "TRL's adapter draws a greedy response.",
        "step_ends": "TRL's adapter takes them from reward functions.",
    },
    conventions=NUMERICS,
    adapter=Adapter(
        module="grpo_variants_trl",
        package="trl",
        tested="1.16",
        launcher="grpo_variants_trl.launcher",
        launches="Run TRL's GRPO script with a variant: TRL's usual flags and YAML, and --loss_type gv_<spec>.",
        examine=trl_findings,
    ),
)
