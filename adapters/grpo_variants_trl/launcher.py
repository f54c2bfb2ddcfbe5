"""`grpo-variants trl ...`: TRL's own GRPO script, with the variant classes and TRL's usual flags and YAML."""

from __future__ import annotations

from collections.abc import Sequence

import trl
from trl.scripts import grpo

from grpo_variants_trl.config import VariantGRPOConfig
from grpo_variants_trl.trainer import VariantGRPOTrainer


def main(arguments: Sequence[str] | None = None) -> None:
    """Run TRL's GRPO script; arguments as after `trl grpo`, those of the command line if None.

    The script looks its trainer and its config up in the `trl` module when it runs; for the time of the run they are
    the variant classes, which leave TRL's built-in loss types as they are.
    """
    before = trl.GRPOTrainer, trl.GRPOConfig
    trl.GRPOTrainer, trl.GRPOConfig = VariantGRPOTrainer, VariantGRPOConfig
    try:
        parser = grpo.make_parser(prog="grpo-variants trl")
        parsed = parser.parse_args_and_config(None if arguments is None else list(arguments))
        grpo.main(*parsed)
    finally:
        trl.GRPOTrainer, trl.GRPOConfig = before
