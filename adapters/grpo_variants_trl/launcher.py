"""`grpo-variants trl ...`: TRL's own GRPO script, with the variant classes and TRL's usual flags and YAML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trl
from trl.scripts import grpo

from grpo_variants_trl.config import VariantGRPOConfig
from grpo_variants_trl.refusals import check_host
from grpo_variants_trl.trainer import VariantGRPOTrainer


def main(arguments: Sequence[str] | None = None) -> None:
    """Run TRL's GRPO script; arguments as after `trl grpo`, those of the command line if None.

    The script looks its trainer and its config up in the `trl` module when it runs; for the time of the run they are
    the variant classes, which leave TRL's built-in loss types as they are. A setting that cannot be honoured ends with
    its message and exit status 2, before a model or a dataset is loaded.
    """
    before = trl.GRPOTrainer, trl.GRPOConfig
    trl.GRPOTrainer, trl.GRPOConfig = VariantGRPOTrainer, VariantGRPOConfig
    try:
        grpo.main(*_parse(arguments))
    finally:
        trl.GRPOTrainer, trl.GRPOConfig = before


def _parse(arguments: Sequence[str] | None) -> tuple[Any, ...]:
    parser = grpo.make_parser(prog="grpo-variants trl")
    try:
        parsed = parser.parse_args_and_config(None if arguments is None else list(arguments))
        config = next(part for part in parsed if isinstance(part, VariantGRPOConfig))
        if config.choice is not None:
            check_host(config.choice, config, {})
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")
    return parsed
