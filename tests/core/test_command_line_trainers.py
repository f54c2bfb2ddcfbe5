"""Trainers that are known by their command line only: every value of a variant is printed, or refused by name."""

import argparse
import shlex
from dataclasses import MISSING, fields, replace

import pytest
from support.cases.variants import FIELD_VALUES

import grpo_variants as gv
from grpo_variants.axes import AXES
from grpo_variants.trainers import TRAINERS

BASES = {"openrlhf": gv.get("grpo,aggregation=token_mean"), "ms-swift": gv.get("grpo")}
# Parts that a trainer expresses, and fields that have no flag: rounding, and bounds that a trainer does not have.
EXPRESSED = {"surrogate", "kl", "overlong", "ratio", "scale"}
WITHOUT_A_FLAG = {
    ("scale", "eps"),
    ("kl", "bound"),
    ("kl", "value_bound"),
    ("ratio", "bound_low"),
    ("ratio", "bound_high"),
}


def outcome(trainer, variant):
    """The refusals, or the lines without the name."""
    return TRAINERS[trainer].refusals(variant) or list(TRAINERS[trainer].translate(variant))


@pytest.mark.parametrize("trainer", BASES)
@pytest.mark.parametrize("name", gv.names())
def test_the_lines_are_one_shell_command_that_argparse_reads(trainer, name):
    if TRAINERS[trainer].refusals(gv.get(name)):
        with pytest.raises(ValueError, match=name):
            list(TRAINERS[trainer].translate(gv.get(name)))
        return
    printed = [line for line in TRAINERS[trainer].translate(gv.get(name)) if not line.startswith("#")]
    assert all(line.endswith(" \\") for line in printed[:-1])
    assert not printed[-1].endswith("\\")
    parser = argparse.ArgumentParser(exit_on_error=False)
    for line in printed:
        flag, *values = line.removesuffix(" \\").split()
        parser.add_argument(flag, **({"nargs": len(values), "type": str} if values else {"action": "store_true"}))
    parser.parse_args(shlex.split("\n".join(printed).replace("\\\n", " ")))


@pytest.mark.parametrize("trainer", BASES)
def test_every_choice_of_every_axis_is_printed_or_refused(trainer):
    """On a base that runs: each choice leads to other lines, or is named by a refusal."""
    base = BASES[trainer]
    seen = 0
    for axis, entry in AXES.items():
        for word, part in entry.choices.items():
            if not isinstance(part, type) or axis in ("conventions", "singleton"):
                continue
            needed = {"beta": 0.1, "low": 0.5, "high": 2.0, "threshold": 0.1, "buffer": 16}
            made = part(**{f.name: needed[f.name] for f in fields(part) if f.default is MISSING})
            try:
                variant = replace(base, **{axis: (made,) if axis == "correction" else made})
            except ValueError:
                continue  # means nothing on this base
            if getattr(variant, axis) != getattr(base, axis):
                seen += 1
                assert outcome(trainer, variant) != outcome(trainer, base), f"{axis}={word}"
    assert seen > 50


@pytest.mark.parametrize("trainer", BASES)
@pytest.mark.parametrize("axis", sorted(EXPRESSED))
def test_no_field_of_an_expressed_part_is_dropped(trainer, axis):
    """Every value of a field is printed or refused, but for rounding."""
    base = replace(BASES[trainer], overlong=gv.get("grpo,overlong=penalty,overlong.buffer=64").overlong)
    part = getattr(base, axis)
    for field in fields(part):
        for value in FIELD_VALUES[f"{axis}.{field.name}"]:
            if value == getattr(part, field.name) or (axis, field.name) in WITHOUT_A_FLAG:
                continue
            try:
                variant = replace(base, **{axis: replace(part, **{field.name: value})})
            except ValueError:
                continue
            assert outcome(trainer, variant) != outcome(trainer, base), (field.name, value)
