"""Groups of a size at which a member is another one: said by name, with how many responses to draw."""

import warnings

import pytest
import torch

import grpo_variants as gv

LENGTHS = torch.tensor([3, 1, 2] * 4)


def advantages(spec, ids):
    rewards = torch.arange(float(len(ids)))
    return gv.advantages(spec, rewards, ids, lengths=LENGTHS[: len(ids)])


def test_a_selection_that_keeps_everything_says_so():
    with pytest.warns(UserWarning, match="keeps every") as caught:
        found = advantages("gfpo", ["a"] * 8)
    assert [str(w.message) for w in caught] == [
        "gfpo: selection.keep=8 keeps every response of a group of 8, so that nothing is selected. Draw 16 responses "
        "per prompt."
    ]
    assert caught[0].filename == __file__
    torch.testing.assert_close(found, gv.advantages("grpo,scale.ddof=0", torch.arange(8.0), ["a"] * 8))


@pytest.mark.parametrize(("spec", "ids"), [("gfpo", ["a"] * 9), ("gfpo,selection.keep=2", [*"abbb"]), ("grpo", ["a"])])
def test_it_is_silent_where_a_group_is_larger_or_nothing_selects(spec, ids):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        advantages(spec, ids)


def test_what_is_said_is_the_parts_own():
    assert gv.get("gfpo,selection.keep=3").doubts(4) == []
    (doubt,) = gv.get("grpo,selection=efficient,selection.keep=4").doubts(4)
    assert doubt.text == "selection.keep=4 keeps every response of a group of 4, so that nothing is selected."
    assert doubt.draw == 8


@pytest.mark.parametrize("size", [3, 4])
def test_a_transform_that_draws_everything_says_so(size):
    with pytest.warns(UserWarning, match="draws every response") as caught:
        found = advantages("passk_analytic", ["a"] * size)
    assert [str(w.message) for w in caught] == [
        f"passk_analytic: transform.k=4 draws every response of a group of {size}, so that all of them count the same. "
        "Draw 8 responses per prompt."
    ]
    assert found.eq(0).all()
    assert gv.get("passk_analytic").doubts(5) == gv.get("passk_analytic,transform.k=1").doubts(1) == []


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        ("mc_grpo", "the lower of the middle two"),
        ("grpo,scale=group_mad,scale.even=mean", "the mean of the middle two"),
    ],
)
def test_an_even_group_has_no_median_response(spec, taken):
    with pytest.warns(UserWarning, match="no response in the middle") as caught:
        advantages(spec, ["a"] * 8)
    name = spec.partition(",")[0]
    assert [str(w.message) for w in caught] == [
        f"{name}: a group of 8 has no response in the middle, and its median is {taken}. Draw 9 responses per prompt."
    ]
    assert gv.get(spec).doubts(9) == []
