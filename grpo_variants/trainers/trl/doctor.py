"""What `grpo-variants doctor` says about TRL."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_variants.trainers.base import Facts, Finding


def trl_findings(facts: Facts) -> Iterator[Finding]:
    """What TRL has of the variants."""
    if facts["error"]:
        yield Finding("missing", f"trl does not import: {facts['error']}")
    elif facts["adapter"]:
        yield Finding("missing", f"trl: the variant trainer does not import: {facts['adapter']}")
    else:
        yield Finding("ok", "trl: VariantGRPOTrainer takes every variant as loss_type gv_<name>")
