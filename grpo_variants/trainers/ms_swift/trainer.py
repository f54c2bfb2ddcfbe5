"""ms-swift, as this package knows it: its words only."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_variants.trainers.base import Trainer
from grpo_variants.trainers.command_line import shell_lines
from grpo_variants.trainers.ms_swift.limits import notes, refusals
from grpo_variants.trainers.ms_swift.words import flags_of
from grpo_variants.variant import Variant


def ms_swift_lines(variant: Variant) -> Iterator[str]:
    """Notes as shell comments, then the flags as the words of one shell command, one per line.

    Raises ValueError where ms-swift cannot run the variant, with every reason.
    """
    if reasons := refusals(variant):
        raise ValueError(" ".join(reasons))
    yield from shell_lines(notes(variant), flags_of(variant))


MS_SWIFT = Trainer(
    name="ms-swift",
    title="ms-swift",
    settings="flags for `swift rlhf` of ms-swift 4.6",
    translate=ms_swift_lines,
    refusals=refusals,
)
