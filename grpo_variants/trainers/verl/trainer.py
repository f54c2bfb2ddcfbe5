"""verl, as this package knows it."""

from __future__ import annotations

from grpo_variants.trainers.base import Adapter, Trainer
from grpo_variants.trainers.verl.doctor import PROBE, verl_findings
from grpo_variants.trainers.verl.numerics import NUMERICS
from grpo_variants.trainers.verl.spec_words import WORDS
from grpo_variants.trainers.verl.supplies import SUPPLIES
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
    supplies=SUPPLIES,
    conventions=NUMERICS,
    adapter=Adapter(module="grpo_variants_verl", package="verl", tested="0.9.1", probe=PROBE, examine=verl_findings),
)
