"""The table of changed defaults says what version 0.1.0 had, what holds now, and how to have the former."""

import re
from pathlib import Path

import pytest
from support.hashes import HASHES_OF_0_1

import grpo_variants as gv
from grpo_variants.catalogue.former import FORMER
from grpo_variants.spelling import resolved_values

TEXT = (Path(__file__).parents[2] / "CHANGELOG.md").read_text("utf-8")
ROWS = [
    tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))
    for line in re.search(r"### Changed defaults.*?\n\| --- .*?\n(.*?)\n\n", TEXT, re.DOTALL)[1].splitlines()
]


def word(value):
    return "none" if value is None else str(value)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
def test_a_row_holds(row):
    member, key, before, now, source, spec = row
    assert spec.startswith(f"{member},")
    assert word(resolved_values(gv.get(member))[key]) == now
    assert word(resolved_values(gv.get(spec))[key]) == before
    assert source


@pytest.mark.parametrize("spec", sorted({row[5] for row in ROWS}))
def test_the_former_objective_is_version_0_1_0s_to_its_hash(spec):
    assert spec in HASHES_OF_0_1


def test_the_table_is_complete():
    changed = {spec for spec in HASHES_OF_0_1 if "," in spec}
    assert {row[5] for row in ROWS} == changed == {f"{name},{options}" for name, options in FORMER.items()}
    for spec in {row[5] for row in ROWS}:
        now, before = resolved_values(gv.get(spec.partition(",")[0])), resolved_values(gv.get(spec))
        moved = {key for key in before if key in now and before[key] != now[key]}
        assert {row[1] for row in ROWS if row[5] == spec} == moved
