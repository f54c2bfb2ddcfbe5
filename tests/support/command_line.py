"""What tests ask of a trainer that is known by its command line only."""

import grpo_variants as gv
from grpo_variants.trainers import TRAINERS


def lines(trainer, spec):
    """What `translate SPEC --to TRAINER` prints."""
    return list(TRAINERS[trainer].translate(gv.get(spec)))


def flags(trainer, spec):
    """The printed flags as one line, without the notes."""
    return " ".join(line.removesuffix(" \\") for line in lines(trainer, spec) if not line.startswith("# "))


def refused_keys(trainer, spec):
    """What each refusal of the trainer is about: `axis=choice` or `axis.field=value`."""
    variant = gv.get(spec)
    reasons = TRAINERS[trainer].refusals(variant)
    return tuple(reason.removeprefix(f"{variant.name}: ").split(": ")[0] for reason in reasons)
