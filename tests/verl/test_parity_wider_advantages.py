"""The wider advantage side against verl's own estimators, under conventions=verl; where they differ, both numbers."""

import numpy as np
import pytest
import torch
from grpo_variants_verl import builtins
from omegaconf import OmegaConf
from support.parity import words
from verl.trainer.ppo import core_algos

import grpo_variants as gv
from grpo_variants.trainers.verl.limits import EXTRA_INPUTS, advantage_refusals

MASK = torch.arange(5) < torch.tensor([[3], [5], [2], [1], [4], [4], [5], [2]])
UIDS = np.array(["b", "a", "b", "a", "b", "c", "a", "a"], dtype=object)
OUTCOMES = torch.tensor([1.0, 0.25, -0.5, 0.75, 0.5, 0.7, 0.0, 0.75])
CLOSE = {"rtol": 3e-6, "atol": 3e-6}


def algorithm(**values):
    return OmegaConf.create({"gamma": 1.0, "norm_adv_by_std_in_grpo": True, **values})


def at_end(rewards, mask=MASK):
    placed = torch.zeros(mask.shape)
    placed[torch.arange(len(rewards)), mask.sum(1) - 1] = rewards
    return placed


def verls_own(name, rewards=OUTCOMES, config=None, **inputs):
    estimator = core_algos.get_adv_estimator_fn(name)
    return estimator(
        token_level_rewards=at_end(rewards),
        response_mask=MASK.long(),
        index=UIDS,
        config=config or algorithm(),
        **inputs,
    )[0]


def ours(name, config=None, rewards=OUTCOMES):
    """The estimator that equals verl's `name`, as verl calls it."""
    base, _, options = builtins.ESTIMATORS[name].partition(",")
    settings = algorithm(grpo_variants={"options": options}) if config is None else config
    estimator = core_algos.get_adv_estimator_fn(f"gv_{base}")
    return estimator(token_level_rewards=at_end(rewards), response_mask=MASK.long(), index=UIDS, config=settings)[0]


@pytest.mark.parametrize(("by_std", "options"), [(True, "scale=group_std,conventions=verl"), (False, "singleton=raw")])
def test_best_of_k_equals_the_trainer(parity, by_std, options):
    """verl takes no group of one; ours is left out of the comparison."""
    several = UIDS != "c"
    flag = {"norm_adv_by_std_in_grpo": by_std}
    wanted = core_algos.get_adv_estimator_fn("grpo_passk")(
        token_level_rewards=at_end(OUTCOMES)[several],
        response_mask=MASK[several].long(),
        index=UIDS[several],
        config=algorithm(**flag),
    )[0]
    found = ours("grpo_passk", algorithm(grpo_variants={"options": options}))
    builtin = words("estimator grpo_passk", flag)
    parity.equal(f"passk,{options}", builtin, **CLOSE, advantages=(found[several], wanted))
    assert (wanted > 0).sum() > 0


def test_best_of_k_is_divided_by_the_deviation_in_the_trainer(parity):
    """Rewards 1 and 0: a lead of 1 over a deviation of sqrt(0.5)."""
    rewards, uids = torch.tensor([[1.0], [0.0]]), np.array(["a", "a"], dtype=object)
    estimator = core_algos.get_adv_estimator_fn("grpo_passk")
    parity.differs(
        "passk",
        "estimator grpo_passk",
        "advantage of the best of two, rewards 1 and 0",
        here=(gv.advantages("passk", [1.0, 0.0], ["a", "a"])[0].item(), 1),
        there=(estimator(rewards, torch.ones(2, 1), uids, config=algorithm())[0][0].item(), 2**0.5),
        cause="norm_adv_by_std_in_grpo is on by default; the paper does not divide",
    )


@pytest.mark.parametrize(
    ("rewards", "what", "in_verl", "here"),
    [
        # Four of eight in the mixed group; every reward counts as not 0 in verl, so that nothing is raised.
        ([1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "rewards of 1 and -1", 1.0, 8 / 3),
        # Rewards of 0 and 1, where the groups without signal are all wrong: the same.
        ([1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "rewards of 1 and 0", 4.0, 8 / 3),
    ],
)
def test_gpg_raises_by_another_number(parity, rewards, what, in_verl, here):
    """The authors raise by all responses over those whose group has a signal, here the three of group b."""
    rewards = torch.tensor(rewards)
    centred = (rewards[0] - rewards[[0, 2, 4]].mean()).item()
    parity.differs(
        "gpg",
        "estimator gpg",
        f"advantage over the centred reward, {what}, three of eight in a group with a signal",
        here=(gv.advantages("gpg", rewards, UIDS.tolist())[0].item() / centred, here),
        there=(verls_own("gpg", rewards)[0, 0].item() / centred, in_verl),
        cause="it counts rewards that are not 0, the authors' code responses whose group has a signal",
    )


def test_gpg_equals_the_trainer_where_every_right_answer_is_in_a_mixed_group_that_is_all_right_but_one(parity):
    """Two prompts of three, mixed, with rewards that are all not 0: both raise by 1."""
    mask, uids = torch.ones(6, 2, dtype=torch.long), np.array(list("aaabbb"), dtype=object)
    rewards = torch.tensor([1.0, 2.0, 4.0, -1.0, 1.0, 3.0])
    placed = torch.stack([torch.zeros(6), rewards], 1)
    wanted = core_algos.get_adv_estimator_fn("gpg")(placed, mask, uids, config=algorithm())[0]
    pair = (gv.advantages("gpg", rewards, uids.tolist()).unsqueeze(1) * mask, wanted)
    parity.equal("gpg", "estimator gpg; every group mixed, no reward 0", **CLOSE, advantages=pair)


SEVERAL = torch.tensor([[1.0, 0.2], [0.0, 3.0], [0.0, 1.0], [1.0, 2.0], [1.0, 5.0], [0.5, 1.0], [0.0, 0.5], [1.0, 1.5]])


@pytest.mark.parametrize("weights", [None, [2.0, -0.5]])
def test_gdpo_equals_the_trainer(parity, weights):
    """The reward functions' values come from the batch; the second stage is over tokens in verl."""
    config = algorithm(gdpo_reward_keys=["exact", "format"], gdpo_reward_weights=weights)
    prompts = torch.ones(8, 3, dtype=torch.long)
    batch = {"prompts": prompts, "attention_mask": torch.cat([prompts, MASK.long()], 1)}
    columns = {name: SEVERAL[:, k].numpy() for k, name in enumerate(("exact", "format"))}
    wanted = verls_own("gdpo", SEVERAL.sum(1), config, non_tensor_batch=columns, batch=batch)
    found = gv.advantages(
        gv.get("gdpo,conventions=verl"), SEVERAL, UIDS.tolist(), lengths=MASK.sum(1), reward_weights=weights
    )
    pair = (found.unsqueeze(1) * MASK, wanted)
    parity.equal("gdpo,conventions=verl", words("estimator gdpo", {"weights": weights}), **CLOSE, advantages=pair)
    by_response = gv.advantages(
        gv.get("gdpo,conventions=verl,credit.over=responses"), SEVERAL, UIDS.tolist(), reward_weights=weights
    )
    assert (by_response - found).abs().max() > 0.01


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
@pytest.mark.parametrize("token_rewards", [False, True])
def test_the_optimal_token_baseline_equals_the_trainer(parity, name, token_rewards):
    """Without holes in the mask the two estimators of verl are one."""
    torch.manual_seed(0)
    rewards = torch.randn(MASK.shape) * MASK if token_rewards else at_end(OUTCOMES)
    old, squares = -torch.rand(MASK.shape) - 0.1, torch.rand(MASK.shape)
    inputs = {"old_log_probs": old, "sum_pi_squared": squares}
    given = {"token_level_rewards": rewards, "response_mask": MASK.long(), "index": UIDS}
    wanted = core_algos.get_adv_estimator_fn(name)(**given, **inputs)[0]
    config = algorithm(grpo_variants={"options": "conventions=verl"})
    found = core_algos.get_adv_estimator_fn("gv_otb")(**given, **inputs, config=config)[0]
    parity.equal("otb,conventions=verl", f"estimator {name}; no holes in the mask", **CLOSE, advantages=(found, wanted))
    assert wanted[1, 4] == wanted[1, 4:].sum() != 0, "the longest response's tail keeps its return"


def optimal_token(name, mask, **inputs):
    """Advantages of two responses with rewards 1 and 0 at their last token: ours, and those of verl's estimator.

    Every token moves the policy by 1 - 2 * 0.5 + 0.5 = 0.5.
    """
    mask = torch.tensor(mask)
    rewards = torch.zeros(mask.shape)
    rewards[0, mask[0].nonzero().max()] = 1.0
    old, squares = torch.full(mask.shape, 0.5).log(), torch.full(mask.shape, 0.5)
    given = {"token_level_rewards": rewards, "response_mask": mask, "index": np.array(["a", "a"], dtype=object)}
    theirs = core_algos.get_adv_estimator_fn(name)(**given, old_log_probs=old, sum_pi_squared=squares, **inputs)[0]
    groups, seen = ["a", "a"], {"old_logp": old, "sum_pi_squared": squares, "mask": mask.bool()}
    return gv.advantages("otb", groups=groups, token_rewards=rewards, rewards=None, **seen), theirs


# Response 1 acts at tokens 0 and 2, response 2 at 0 and 1. By position only response 1 has a token 2, and keeps its
# return there. By count both act twice: the second actions have returns 1 and 0 and one baseline, 0.5.
@pytest.mark.parametrize(
    ("name", "number", "cause"),
    [
        ("tir_optimal_token_baseline", 0.5, "it compares actions by their count, across holes"),
        (
            "optimal_token_baseline",
            0.0,
            "lengths are counts of actions, so that nothing is the longest response's tail",
        ),
    ],
)
def test_holes_in_the_mask_move_the_optimal_token_baseline(parity, name, number, cause):
    found, theirs = optimal_token(name, [[1, 0, 1], [1, 1, 0]])
    parity.differs(
        "otb",
        f"estimator {name}",
        "advantage of the last action, rewards 1 and 0, masks 1 0 1 and 1 1 0",
        here=(found[0, 2].item(), 1),
        there=(theirs[0, 2].item(), number),
        cause=cause,
    )


def test_rollout_weights_move_the_optimal_token_baseline_in_the_trainer(parity):
    """Weights 2 and 1 count 4 to 1: a baseline of 0.8 in place of 0.5."""
    weights = torch.tensor([[2.0], [1.0]])
    found, theirs = optimal_token("optimal_token_baseline", [[1], [1]], rollout_is_weights=weights)
    parity.differs(
        "otb",
        "estimator optimal_token_baseline, rollout_is set",
        "advantage of rewards 1 and 0 with rollout weights 2 and 1",
        here=(found[:, 0].tolist(), [0.5, -0.5]),
        there=(theirs[:, 0].tolist(), [0.2, -0.8]),
        cause="squared rollout weights join the baseline's weights; not done here",
    )


def test_with_extend_host_the_optimal_token_baseline_is_not_refused():
    assert list(advantage_refusals(gv.get("otb"), EXTRA_INPUTS)) == []
    (found,) = advantage_refusals(gv.get("otb"))
    assert found.fixes[0].settings["actor_rollout_ref.actor.calculate_sum_pi_squared"] is True


def test_with_extend_host_rewards_may_depend_on_old_log_probabilities():
    assert list(advantage_refusals(gv.get("unlikeliness"), ("old_logp",))) == []
    (found,) = advantage_refusals(gv.get("unlikeliness"))
    assert found.sentence(lambda key: None).endswith(
        "transform=unlikeliness needs old_logp=. Fix: ++algorithm.grpo_variants.extend_host=True trainer.use_v1=False"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("spo", "spo: it remembers the prompts of earlier steps, and verl gives every prompt a new uid in every step"),
        ("dcpo", "dcpo: it remembers the prompts of earlier steps"),
        ("gdpo", "gdpo: verl hands the values of single reward functions to its own estimator only, which is"),
        (
            "gtpo_entropy",
            "gtpo_entropy: verl does not hand this over to a plugin. credit=entropy_tokens needs entropy=",
        ),
    ],
)
def test_what_verl_cannot_give_is_refused_with_the_reason(name, reason):
    (found,) = advantage_refusals(gv.get(name))
    assert found.text.startswith(reason)
