"""Advantages of side-by-side groups of one size against the plain path, and how groups are made dense."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cases.variants import SPECS, compute_advantages, random_case
from torch.testing import assert_close

import grpo_variants as gv
from grpo_variants import fast_paths
from grpo_variants.advantage import fast as matrix
from grpo_variants.tensors.groups import Groups

COVERED = ("rloo", "grpo", "dr_grpo", "dapo", "opo", "gspo", "reinforce", "w_reinforce")
TABLES = [f"{b},{s}" for b in ("none", "group_mean", "leave_one_out", "length_weighted") for s in ("none", "group_std")]


def side_by_side(seed, size=3):
    """A random step whose groups lie in one piece each, with every response there."""
    case = random_case(seed)
    groups = [f"prompt {n // size}" for n in range(9)]
    return replace(case, groups=groups, rewards=np.nan_to_num(case.rewards, nan=0.25), valid=None)


def both(variant, *args, **inputs):
    found = []
    for value in ("0", "1"):
        with fast_paths.mode(value):
            found.append(compute_advantages(variant, *args, **inputs))
    return found


@pytest.fixture
def used(monkeypatch):
    """How often the matrix was used."""
    real, calls = matrix.BASELINES, []

    def counted(rule):
        return lambda *given: calls.append(1) or rule(*given)

    monkeypatch.setattr(matrix, "BASELINES", {kind: counted(rule) for kind, rule in real.items()})
    return calls


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("spec", [*gv.names(), *(s for s in SPECS if "baseline" in s or "scale" in s)])
def test_fast_equals_plain(spec, dtype):
    for seed, size in enumerate((3, 9, 1)):
        plain, found = both(spec, side_by_side(seed, size).rollouts(dtype))
        tolerance = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
        assert_close(found, plain, **tolerance)


@pytest.mark.parametrize("eps_in", ["std", "var", "floor"])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("table", TABLES)
def test_every_entry_of_the_tables_equals_the_plain_path(table, ddof, eps_in, used):
    baseline, scale = table.split(",")
    options = f",scale.ddof={ddof},scale.eps_in={eps_in},scale.eps=0.1" if scale == "group_std" else ""
    spec = f"grpo,baseline={baseline},scale={scale}{options}"
    plain, found = both(spec, side_by_side(4).rollouts(greedy_rewards=None))
    assert_close(found, plain, rtol=1e-10, atol=1e-12)
    assert found.abs().max() > 1e-2
    assert used == [1]


@pytest.mark.parametrize("name", COVERED)
def test_it_is_used_where_it_may_be_and_nowhere_else(name, used):
    """Uneven, interleaved, of one response; with a missing reward, of a token too, an invalid response, a transform."""
    case = replace(side_by_side(0), greedy_rewards=None)
    compute_advantages(name, case.rollouts())
    compute_advantages(name, replace(case, valid=np.ones(9, dtype=bool)).rollouts())
    assert len(used) == (0 if name == "w_reinforce" else 2)
    used.clear()
    for groups in (list("aabbbbbcc"), list("abcabcabc"), list("abcdefghi"), list("aaabbbaaa")):
        both(name, case.rollouts(groups=groups))
    rewards = torch.as_tensor(case.rewards).clone()
    rewards[2] = float("nan")
    plain, found = both(name, case.rollouts(rewards=rewards))
    assert_close(found, plain, rtol=0, atol=0)
    token_rewards = torch.where(torch.as_tensor(case.mask), 0.0, float("nan"))
    token_rewards[2] = float("nan")
    plain, found = both(name, case.rollouts(token_rewards=token_rewards))
    assert_close(found, plain, rtol=0, atol=0)
    valid = torch.arange(9) != 4
    plain, found = both(name, case.rollouts(valid=valid))
    assert_close(found, plain, rtol=0, atol=0)
    assert used == []


@pytest.mark.parametrize("spec", ["grpo", "rloo", "grpo,baseline=none", "opo", "grpo,scale.eps=0"])
@pytest.mark.parametrize("value", [0.7, 0.1, 1e-8, -3.3e7])
def test_a_constant_group_is_exactly_zero(spec, value, used):
    """Eight rewards of 0.7 add up to 5.6000004 in float32, and their mean is not 0.7."""
    rewards = torch.cat([torch.full((8,), value), torch.rand(8)])
    found = gv.advantages(spec, rewards, [0] * 8 + [1] * 8, lengths=torch.arange(1, 17))
    assert (found[:8] == 0).all()
    assert found[8:].abs().max() > 1e-2
    assert used == [1]


def test_numbers_by_hand():
    """Rewards 1, 0, 0, 1 and 0, 0, 0, 1: means 1/2 and 1/4, deviations sqrt(1/3) and 1/2 with Bessel's correction."""
    rewards, groups = torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 1]), list("aaaabbbb")
    third = 0.5 * 3**0.5
    expected = torch.tensor([third, -third, -third, third, -0.5, -0.5, -0.5, 1.5])
    assert_close(gv.advantages("grpo,scale.eps=0", rewards, groups), expected)
    assert_close(gv.advantages("rloo", rewards, groups), torch.tensor([2, -2, -2, 2, -1, -1, -1, 3]) / 3)


def test_a_group_without_a_token_beside_others():
    """Rewards 1 and 0 of lengths 1 and 3 have the mean 1/4; those of no length have none and stay as they are."""
    plain, found = both("opo", [1.0, 0.0, 1.0, 0.0], list("aabb"), lengths=[0, 0, 1, 3])
    assert found.tolist() == plain.tolist() == [1, 0, 0.75, -0.25]


def test_large_rewards_close_together_keep_their_digits(used):
    """1000000 + (0, 1, 2, 3) in float32: the advantages of 0, 1, 2, 3."""
    found = gv.advantages("grpo", 1e6 + torch.arange(4.0), [0] * 4)
    assert_close(found, gv.advantages("grpo", torch.arange(4.0), [0] * 4), rtol=0, atol=0)
    assert used == [1, 1]


def test_inputs_are_left_alone_and_the_result_is_a_new_tensor():
    rewards = torch.rand(8, requires_grad=True)
    before = rewards.detach().clone()
    for spec in ("grpo", "rloo", "reinforce"):
        found = gv.advantages(spec, rewards, [0] * 4 + [1] * 4)
        found += 1
        assert not found.requires_grad
        assert_close(rewards.detach(), before, rtol=0, atol=0)


# Groups


@pytest.mark.parametrize(
    ("ids", "dense", "each"),
    [
        (list("aabbcc"), [0, 0, 1, 1, 2, 2], 2),
        (list("abc"), [0, 1, 2], 1),
        (["a"] * 4, [0] * 4, 4),
        (list("aabbaa"), [0, 0, 1, 1, 0, 0], None),
        (list("aabbb"), [0, 0, 1, 1, 1], None),
        (list("aabc"), [0, 0, 1, 2], None),
        (list("aabbcd"), [0, 0, 1, 1, 2, 3], None),
        (list("abab"), [0, 1, 0, 1], None),
        (list("aabcbc"), [0, 0, 1, 2, 1, 2], None),
        ([(1, "x"), (1, "x"), (2, "x"), (2, "x")], [0, 0, 1, 1], 2),
        ([None, None, 0, 0, False, 0.0], [0, 0, 1, 1, 1, 1], None),
        (torch.tensor([7, 7, 3, 3]), [0, 0, 1, 1], 2),
        (np.array(["u", "u", "v", "v"], dtype=object), [0, 0, 1, 1], 2),
        (np.array([5, 4, 5]), [0, 1, 0], None),
        ([], [], None),
    ],
)
def test_dense_ids_in_order_of_first_appearance(ids, dense, each):
    groups = Groups.of(ids)
    assert (groups.ids.tolist(), groups.count, groups.each, len(groups)) == (dense, len(set(dense)), each, len(dense))
    listed = ids.tolist() if hasattr(ids, "tolist") else ids
    assert [groups.keys[n] for n in dense] == listed


def test_equal_ids_need_not_be_one_object():
    """Strings that a tokenizer made anew for each response."""
    ids = ["".join(["pro", "mpt ", str(n // 2)]) for n in range(6)]
    assert ids[0] is not ids[1]
    assert Groups.of(ids).each == 2


@pytest.mark.parametrize("ids", [[["a"], ["a"]], ["a", "a", ["b"], ["b"]], ["a", ["a"]]])
def test_ids_that_cannot_be_hashed_are_refused(ids):
    with pytest.raises(TypeError, match="ids must be hashable"):
        Groups.of(ids)


@pytest.mark.parametrize("spec", ["grpo", "rloo", "opo", "grpo,aggregation=prompt_mean", "spo", "gpg"])
def test_groups_that_are_dense_already_are_taken(spec):
    """In advantages, row weights, counts and tokens; keys go with them, which a memory is kept by."""
    case = side_by_side(1)
    dense = Groups.of(case.groups)
    assert Groups.of(dense) is dense
    fresh = compute_advantages(spec, case.rollouts())
    assert_close(compute_advantages(spec, case.rollouts(groups=dense)), fresh, rtol=0, atol=0)
    mask, variant = torch.as_tensor(case.mask), gv.get(spec)
    counts = [gv.Counts.of(mask, groups, length=9) for groups in (case.groups, dense)]
    assert counts[0].prompts == counts[1].prompts == 3
    weights = [gv.row_weights(variant, mask.sum(1), counts[0], groups) for groups in (case.groups, dense)]
    assert_close(weights[1], weights[0], rtol=0, atol=0)
    losses = [gv.policy_loss(variant, case.tokens(groups=g, advantages=fresh)).loss for g in (case.groups, dense)]
    assert_close(losses[1], losses[0], rtol=0, atol=0)


def test_a_wrong_number_of_dense_groups_is_refused():
    with pytest.raises(ValueError, match="groups has 4 entries for 3 responses"):
        gv.advantages("grpo", torch.rand(3), Groups.of([0, 0, 1, 1]))
