"""Rules that remember earlier steps: what they remember, that it is saved, and that nothing else writes to it."""

import json

import pytest
import torch
from torch.testing import assert_close

import grpo_variants as gv

REMEMBERING = [name for name in gv.names() if gv.get(name).remembers]


def step(name, state, rewards, groups):
    return gv.advantages(name, torch.tensor(rewards, dtype=torch.float64), groups, state=state).tolist()


def test_which_members_remember():
    assert REMEMBERING == ["spo", "dcpo"]


def test_dcpo_over_three_steps_by_hand():
    """A prompt that is half right, then all right, then all wrong; another one in between does not matter.

    Step 1, rewards 1, 0: mean 1/2, deviation sqrt(1/2), and +-1/2 over it.
    Step 2, rewards 1, 1: no deviation of its own. Both steps: mean 3/4, variance (1/2 + 0 + 1/2 (1 - 1/2)^2)/2 = 5/16;
    (1 - 3/4)/sqrt(5/16) = 0.4472136, half of it 0.2236068.
    Step 3, rewards 0, 0. All: mean 1/2, variance (2 * 5/16 + 0 + 2/3 (0 - 3/4)^2)/3 = 1/3; -1/2 over its root is
    -0.8660254. One third or two thirds of it: the one nearer to 0.
    """
    state = gv.Memory()
    assert step("dcpo", state, [1, 0], ["p", "p"]) == pytest.approx([0.5**0.5, -(0.5**0.5)])
    assert step("dcpo", state, [1, 1, 3, 5], [*"pp", *"qq"]) == pytest.approx(
        [0.2236067977, 0.2236067977, -(0.5**0.5), 0.5**0.5]
    )
    assert step("dcpo", state, [0, 0], ["p", "p"]) == pytest.approx([-0.2886751346] * 2)


def test_dcpo_mixes_the_step_and_its_history():
    """Step 2 of a prompt, rewards 1, 0, 0, 0 after 1, 0.

    New: mean 1/4, variance 1/4, deviation 1/2: 1.5, -0.5. Both: mean 3/8, variance (1/2 + 1/4 + 1/2 (1/4 - 1/2)^2)/2 =
    0.390625, deviation 0.625: 1, -0.6. Half of each: 1.25, -0.55.
    """
    state = gv.Memory()
    step("dcpo", state, [1, 0], ["p", "p"])
    assert step("dcpo", state, [1, 0, 0, 0], ["p"] * 4) == pytest.approx([1.25, -0.55, -0.55, -0.55])


def test_single_stream_over_two_steps_by_hand():
    """Prompts p, right twice, and q, wrong and then right; alpha and beta start at 1/2 and keep 7/8 of themselves.

    After step 1: p has 0.4375 + 1 and 0.4375, a rate of 1.4375/1.875 = 0.7666667; q has 0.2333333.
    Step 2: 1 - rate is 0.2333333 and 0.7666667, less their mean 1/2 over their deviation 0.3771236: -+0.7071068.
    """
    state = gv.Memory()
    assert step("spo", state, [1, 0], ["p", "q"]) == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-6)
    assert step("spo,scale=none", state, [1, 1], ["p", "q"]) == pytest.approx([0.2333333, 0.7666667], rel=1e-6)


def test_several_responses_of_a_prompt_decay_once():
    """Rewards 1, 1, 0: alpha 0.4375 + 2, beta 0.4375 + 1; a reward of 1 is then 1 - 2.4375/3.875 = 0.3709677."""
    state = gv.Memory()
    step("spo", state, [1, 1, 0], ["p"] * 3)
    assert step("spo,scale=none", state, [1], ["p"]) == pytest.approx([0.3709677], rel=1e-6)


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_memory_goes_through_json_and_goes_on_as_if_nothing_had_happened(name):
    groups = [("data", 3), ("data", 3), "p", "p", 7, 7]
    first, second = [1, 0, 0, 1, 1, 1], [0, 0, 1, 0, 1, 1]
    kept = gv.Memory()
    step(name, kept, first, groups)
    loaded = gv.Memory()
    loaded.load_state_dict(json.loads(json.dumps(kept.state_dict())))
    assert loaded == kept
    assert len(loaded) == 3
    wanted = step(name, kept, second, groups)
    assert step(name, loaded, second, groups) == wanted
    assert step(name, gv.Memory(), second, groups) != wanted
    assert loaded == kept


@pytest.mark.parametrize("name", REMEMBERING)
def test_only_valid_responses_are_remembered(name):
    state = gv.Memory()
    rewards = torch.tensor([1.0, 0.0, 1.0, float("nan")])
    gv.advantages(name, rewards, ["p", "p", "q", "q"], valid=[True, True, False, True], state=state)
    assert state.state_dict()[next(iter(state.state_dict()))]["keys"] == ["p"]


@pytest.mark.parametrize("name", REMEMBERING)
def test_two_memories_know_nothing_of_each_other(name):
    first, second = gv.Memory(), gv.Memory()
    step(name, first, [1, 0], ["p", "p"])
    assert (len(first), len(second)) == (1, 0)
    assert_close(step(name, second, [1, 0], ["p", "p"]), step(name, gv.Memory(), [1, 0], ["p", "p"]))


@pytest.mark.parametrize("given", [{}, {"state": None}, {"state": {}}])
@pytest.mark.parametrize("name", REMEMBERING)
def test_without_a_memory_it_says_how_to_make_one(name, given):
    with pytest.raises(ValueError, match=rf"^{name} remembers earlier steps .* make one gv.Memory\(\) for the run"):
        gv.advantages(name, [1.0, 0.0], ["p", "p"], **given)


def test_a_rule_that_remembers_nothing_refuses_a_memory():
    with pytest.raises(ValueError, match=r"^state= has no effect: grpo remembers nothing of earlier steps"):
        gv.advantages("grpo", [1.0, 0.0], ["p", "p"], state=gv.Memory())
