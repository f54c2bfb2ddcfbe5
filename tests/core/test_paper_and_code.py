"""The table of what papers and authors' code have differently: its places, its spec strings and its numbers."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cases.variants import Case
from support.oracle import step as oracle

import grpo_variants as gv
from grpo_variants.catalogue.differences import DIFFERENCES
from grpo_variants.spelling import resolved_values
from tools.docs import pages as docs_pages
from tools.docs import paper_and_code

TABLE = (Path(__file__).parents[2] / "docs" / "paper-and-code.md").read_text("utf-8")
PLACE = re.compile(r"[\w-]+/[\w.-]+, (?:[\w.-]+/)*[\w.-]+\.(?:py|sh|yaml|md)(?: \d+(?:(?: to |, | and )\d+)*)?\b")
every_difference = pytest.mark.parametrize("row", DIFFERENCES, ids=[f"{d.member}: {d.about}" for d in DIFFERENCES])


def oracles(spec):
    """Loss and gradient of a variant on the small batch, from nested lists and in another style."""
    x, values = paper_and_code.batch(), resolved_values(gv.get(spec))
    given = {name: value.numpy() for name, value in x.items()}
    nothing = np.zeros(given["mask"].shape)
    case = Case(
        groups=list(paper_and_code.GROUPS),
        rewards=np.array(paper_and_code.REWARDS, dtype=float)[:, None],
        greedy_rewards=np.array(paper_and_code.GREEDY, dtype=float)[:, None],
        draws=nothing,
        **given,
    )
    case = replace(case, advantages=np.array(oracle.advantages(values, case.plain())))
    plain = case.plain()
    counts = oracle.count(plain, oracle.valid_cells(plain)) | {"length": paper_and_code.WIDTH}
    found = oracle.loss_and_gradient(values, plain, counts)
    return found.loss, np.array(found.gradient)


@every_difference
def test_the_numbers_are_the_oracles(row):
    """Both losses, and the distance of the gradients in per cent, computed by the oracle from its own advantages."""
    if paper_and_code.acts_on_rollouts(row):
        assert paper_and_code.effect(row) == "other rollouts, the same loss of one batch"
        assert oracles(row.member)[0] == oracles(row.spec)[0]
        return
    (loss, gradient), (other, moved) = oracles(row.member), oracles(row.spec)
    far = 100 * np.linalg.norm(moved - gradient) / np.linalg.norm(gradient)
    told = re.fullmatch(r"loss (\S+), the other (\S+); gradient off by (\S+) %", paper_and_code.effect(row))
    assert [float(number) for number in told.groups()] == pytest.approx([loss, other, far], abs=0.0501)
    assert [float(told[1]), float(told[2])] == pytest.approx([loss, other], abs=5.1e-5)


@every_difference
def test_the_other_one_is_another_objective(row):
    assert row.member in gv.names()
    _, gradient = paper_and_code.loss_and_gradient(row.member)
    _, moved = paper_and_code.loss_and_gradient(row.spec)
    assert paper_and_code.acts_on_rollouts(row) or (moved - gradient).norm() > 1e-3 * gradient.norm()


@every_difference
def test_it_says_where_both_were_read(row):
    assert PLACE.match(row.file), row.file
    assert re.search(r"\d|abstract|readme|appendix|algorithm|formula", row.section), row.section
    assert row.taken in ("paper", "code")


@every_difference
def test_it_is_in_the_table_and_on_the_members_page(row):
    page = docs_pages.page(gv.get(row.member))
    for text in (TABLE, page):
        assert f"`{row.spec}` | {paper_and_code.effect(row)} |" in text
        assert f"{row.paper} ({row.section}) | {row.code} ({row.file}) | the {row.taken}'s" in text


def test_rows_are_unlike_each_other():
    assert len({row.spec for row in DIFFERENCES}) == len(DIFFERENCES)
    assert [row.member for row in DIFFERENCES] == sorted((row.member for row in DIFFERENCES), key=gv.names().index)


def test_the_small_batch_leaves_every_usual_range():
    x = paper_and_code.batch()
    ratio = (x["logp"] - x["old_logp"]).exp()[x["mask"]]
    assert ratio.min().item() == pytest.approx(0.4066, abs=1e-3)
    assert ratio.sort().values[-2:].tolist() == pytest.approx([2.459, 12], abs=1e-3)
    assert x["logp"].max() < 0
    assert (ratio < 0.8).sum() > 10
    assert (ratio > 1.28).sum() > 10
