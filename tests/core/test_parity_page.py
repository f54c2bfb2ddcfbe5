"""docs/parity.md: as the tables of both suites have it, with something for every verdict of the catalogue."""

import re

import pytest
import torch
from support import parity

from grpo_variants.catalogue import CATALOGUE
from grpo_variants.trainers import verdicts_of
from tools.docs import pages as docs_pages
from tools.docs import parity as docs_parity

FOLDER = parity.FOLDER
ROWS = docs_parity.read(FOLDER)[1]
TEXT = (parity.ROOT / "docs" / "parity.md").read_text("utf-8")


def test_the_page_is_up_to_date():
    assert docs_parity.page(FOLDER, docs_pages.COMMAND) == TEXT, f"run `{parity.COMMAND}`"
    assert parity.ROOT / "docs" / "parity.md" in docs_pages.generated(parity.ROOT)


def compared(name, trainer):
    rows = (row for row in ROWS if (row.verdict, row.variant, row.trainer) == ("equal", name, trainer) and row.builtin)
    return {row.quantity for row in rows}


@pytest.mark.parametrize("variant", CATALOGUE, ids=[variant.name for variant in CATALOGUE])
def test_what_a_verdict_claims_has_been_compared(variant):
    """`equals ...` is a loss and its gradient, `advantages equal ...` the advantages."""
    for trainer, verdict in verdicts_of(variant).items():
        claimed = {"loss", "gradient"} if verdict.startswith("equals ") or "the loss equals" in verdict else set()
        claimed |= {"advantages"} if verdict.startswith("advantages equal ") else set()
        assert claimed <= compared(variant.name, trainer), f"{variant.name}, {trainer}: {verdict}"


def test_why_a_member_has_no_counterpart_stands_in_the_page():
    reasons = [(v.name, docs_parity._reason(verdict)) for v in CATALOGUE for verdict in verdicts_of(v).values()]
    given = [(name, reason) for name, reason in reasons if reason != docs_parity.NOTHING]
    assert len(given) > 50
    for name, reason in given:
        assert any(line.startswith(f"| {name} | ") and reason in line for line in TEXT.splitlines()), (name, reason)


def test_both_numbers_of_every_disagreement_stand_in_the_page():
    differing = [row for row in ROWS if row.verdict == "differs"]
    assert {row.trainer for row in differing} == {"trl", "verl"}
    assert len(differing) > 40
    for row in differing:
        assert row.here != row.there
        assert f"| {row.quantity} | {row.there} | {row.here} | {row.cause} |" in TEXT


def test_every_row_names_tests_that_exist():
    for trainer in docs_parity.TRAINERS_TESTED:
        for row in parity.Table(trainer, [], False, False).committed():
            for test in row["tests"]:
                path, _, function = test.partition("::")
                assert f"\ndef {function}(" in (parity.ROOT / path).read_text("utf-8"), test


# The table's own rules


ROW = {"spec": "grpo", "builtin": "loss x", "quantity": "loss", "verdict": "equal", "rtol": 1e-6, "atol": 0.0}
MEASURED = {"absolute": "1e-9", "relative": "1e-9", "tests": ["a"]}


@pytest.mark.parametrize(
    ("found", "committed", "whole", "said"),
    [
        ([ROW | MEASURED], [ROW | MEASURED | {"absolute": "1e-12", "tests": ["b"]}], True, None),
        ([ROW], [], False, "not in the table: loss of grpo against loss x"),
        ([], [ROW], True, "no test compares it any more: loss of grpo against loss x"),
        ([], [ROW], False, None),
        ([ROW | {"rtol": 1e-3}], [ROW], False, "changed: loss of grpo against loss x: .*1e-06.* now .*0.001"),
        ([ROW | {"verdict": "differs", "here": "1"}], [ROW], True, "changed: loss of grpo against loss x"),
    ],
)
def test_what_a_table_is_held_against(found, committed, whole, said):
    problems = parity.differences(found, committed, whole)
    assert len(problems) == (said is not None)
    assert all(re.match(said, problem) for problem in problems)


def test_a_stale_table_fails_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(parity, "ROOT", tmp_path)
    monkeypatch.setattr(parity, "FOLDER", tmp_path)
    with pytest.raises(AssertionError, match=r"trl.json is not what the tests found; run `make parity`:\n  not in the"):
        parity.Table("trl", [ROW | MEASURED], True, False).check()
    with pytest.raises(AssertionError, match="only where every test that compares has run and passed"):
        parity.Table("trl", [ROW | MEASURED], False, True).check()
    monkeypatch.setattr(parity, "version", lambda trainer: "1.0")
    parity.Table("trl", [ROW | MEASURED], True, True).check()
    assert parity.Table("trl", [ROW | MEASURED], True, False).check() is None


def test_the_recorder_asserts_and_keeps_the_largest_difference():
    rows = {}
    recorder = parity.Recorder(rows, "test.py::test_x")
    one = torch.ones(2)
    recorder.equal("grpo", "loss x", rtol=1e-3, atol=1e-6, loss=(one + 1e-5, one))
    recorder.equal("grpo", "loss x", rtol=1e-3, atol=1e-6, loss=(one + 2e-4, one))
    with pytest.raises(AssertionError, match="loss: "):
        recorder.equal("grpo", "loss x", rtol=1e-3, atol=1e-6, loss=(one + 0.1, one))
    (row,) = parity._listed(rows)
    assert row == {
        **ROW,
        "rtol": 1e-3,
        "atol": 1e-6,
        "absolute": "1e-3",
        "relative": "1e-3",
        "tests": ["test.py::test_x"],
    }


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [((1.0, 1.0), (2.0, 2.5), "loss"), ((1.5, 1.0), (2.0, 2.0), "loss"), ((1.0, 1.0), (1.0, 1.0), "the two agree")],
)
def test_a_disagreement_needs_two_numbers_as_expected(here, there, said):
    with pytest.raises(AssertionError, match=said):
        parity.Recorder({}, "t").differs("grpo", "loss x", "loss", here=here, there=there, cause="why")


def test_a_disagreement_keeps_both_numbers():
    rows = {}
    found = {"here": ([0.25, 1.0], [0.25, 1]), "there": ([float("nan"), 1 / 3], [float("nan"), 1 / 3])}
    parity.Recorder(rows, "t").differs("grpo", "loss x", "loss", cause="why", **found)
    (row,) = parity._listed(rows)
    assert (row["here"], row["there"], row["cause"]) == ("0.25, 1", "nan, 0.33333", "why")


def test_tables_are_a_row_a_line():
    lines = (FOLDER / "trl.json").read_text("utf-8").splitlines()
    assert len(lines) == 2 + len([row for row in ROWS if row.trainer == "trl"])
