"""OpenRLHF, as this package knows it: its words only."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_variants.trainers.base import Trainer
from grpo_variants.trainers.command_line import shell_lines
from grpo_variants.trainers.openrlhf.limits import notes, refusals
from grpo_variants.trainers.openrlhf.words import flags_of
from grpo_variants.variant import Variant


def openrlhf_lines(variant: Variant) -> Iterator[str]:
    """Notes as shell comments, then the flags as the words of one shell command, one per line.

    Raises ValueError where OpenRLHF cannot run the variant, with every reason.
    """
    if reasons := refusals(variant):
        raise ValueError(" ".join(reasons))
    yield from shell_lines(notes(variant), flags_of(variant))


OPENRLHF = Trainer(
    name="openrlhf",
    title="OpenRLHF",
    settings="flags for `python -m openrlhf.cli.train_ppo_ray` of OpenRLHF 0.11",
    translate=openrlhf_lines,
    refusals=refusals,
)
