"""The recorded batch through verl's own functions: compute_advantage, apply_kl_penalty and ppo_loss.

The numbers equal the core's and, where TRL's suite has run on the same sources, TRL's.
"""

from functools import cache

import numpy as np
import pytest
import torch
from grpo_variants_verl import VariantPolicyLossConfig
from omegaconf import OmegaConf
from support import recorded
from verl import DataProto
from verl.trainer.ppo.core_algos import FixedKLController
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

import grpo_variants as gv
from grpo_variants.spelling import spelt
from grpo_variants.trainers.verl.words import (
    ACTOR,
    aggregation_options,
    aggregation_settings,
    carried_over,
    kl_in_loss_settings,
)

PROMPT = 2  # tokens before each response; what they are does not matter
MICRO = 5  # responses per micro-batch: 5, 5 and 2


def advantages(name):
    """By verl's compute_advantage, after verl's own KL penalty where the variant has one in the rewards."""
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage

    x = recorded.batch()
    scores = torch.zeros_like(x["logp"])
    scores[torch.arange(recorded.ROWS), x["written"].sum(1) - 1] = x["rewards"]
    tensors = {
        "token_level_scores": scores,
        "token_level_rewards": scores,
        "response_mask": x["mask"].long(),
        "old_log_probs": x["old_logp"],
        "ref_log_prob": x["ref_logp"],
        "reward_baselines": x["greedy_rewards"],
    }
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(x["groups"], dtype=object)})
    variant = gv.get(name)
    if variant.kl_in_reward:
        data, _ = apply_kl_penalty(data, FixedKLController(variant.kl.beta), kl_penalty=variant.kl.estimator)
    return compute_advantage(data, adv_estimator=f"gv_{name}", config=OmegaConf.create({"gamma": 1.0})).batch[
        "advantages"
    ]


def actor_config(name):
    variant = gv.get(name)
    settings = {**aggregation_settings(variant), **kl_in_loss_settings(variant.kl)}
    fields = {key.removeprefix(f"{ACTOR}."): value for key, value in settings.items()}
    if "loss_scale_factor" in fields:
        fields["loss_scale_factor"] = recorded.MAX_LENGTH
    over = carried_over(variant.aggregation)
    options = "" if over is None else spelt(aggregation_options(over))
    loss = VariantPolicyLossConfig(loss_mode=f"gv_{name}", options=options)
    return FSDPActorConfig(rollout_n=4, ppo_micro_batch_size_per_gpu=MICRO, policy_loss=loss, **fields)


def micro_batch(rows, rule):
    """verl's nested mini-batch of some rows, with the counts of the whole step."""
    x = recorded.batch()
    lengths = x["written"].sum(1).tolist()

    def nested(value):
        return torch.nested.as_nested_tensor([value[i, : lengths[i]] for i in rows], layout=torch.jagged)

    ids = torch.ones(recorded.ROWS, PROMPT + recorded.WIDTH, dtype=torch.long)
    whole = [ids[i, : PROMPT + lengths[i]] for i in rows]
    tensors = {
        "prompts": torch.nested.as_nested_tensor([row[:PROMPT] for row in whole], layout=torch.jagged),
        "input_ids": torch.nested.as_nested_tensor(whole, layout=torch.jagged),
        "responses": nested(ids),
        "response_mask": nested(x["mask"].long()),
        "old_log_probs": nested(x["old_logp"]),
        "ref_log_prob": nested(x["ref_logp"]),
        "advantages": nested(rule),
    }
    step = {"dp_size": 1, "batch_num_tokens": int(x["mask"].sum()), "global_batch_size": recorded.ROWS}
    return tu.get_tensordict(tensors, step)


def model_output(rows, logp):
    """What verl's engine gives: log-probabilities of the next token at every position of prompt and response."""
    lengths = recorded.batch()["written"].sum(1).tolist()
    # Position p predicts token p + 1, so the response's first token is predicted by the prompt's last position.
    shifted = [torch.cat([logp.new_zeros(PROMPT - 1), logp[i, : lengths[i]], logp.new_zeros(1)]) for i in rows]
    return {"log_probs": torch.nested.as_nested_tensor(shifted, layout=torch.jagged)}


@cache
def through_verl(name):
    rule = advantages(name)
    logp = recorded.batch()["logp"].clone().requires_grad_()
    config, total = actor_config(name), 0.0
    for start in range(0, recorded.ROWS, MICRO):
        rows = range(start, min(start + MICRO, recorded.ROWS))
        loss, _ = ppo_loss(config, model_output(rows, logp), micro_batch(rows, rule))
        loss.backward()
        total += loss.item()
    return recorded.result(rule, total, logp.grad)


@pytest.mark.parametrize("name", recorded.runnable())
def test_verls_path_equals_the_core(parity, name):
    found, wanted = through_verl(name), recorded.core(name)
    parity.equal(name, None, rtol=recorded.TOLERANCE, atol=recorded.TOLERANCE, **recorded.pairs(found, wanted))
    assert abs(wanted["loss"]) > 1e-4
    assert np.abs(wanted["gradient"]).max() > 1e-3


@pytest.mark.parametrize("name", ["delta_l", "psr", "nsr"])
def test_weights_in_the_advantages_give_the_core_s_loss(parity, name):
    found, wanted = through_verl(name), recorded.core(name)
    pairs = recorded.pairs(found, wanted)
    pairs.pop("advantages")
    parity.equal(name, None, rtol=recorded.TOLERANCE, atol=recorded.TOLERANCE, **pairs)
    assert np.abs(wanted["gradient"]).max() > 1e-3


def test_verl_leaves_its_numbers_for_trl():
    recorded.write("verl", {name: through_verl(name) for name in recorded.runnable()})
    assert recorded.read("verl").keys() == set(recorded.runnable())


def test_verl_equals_trl():
    theirs = recorded.read("trl")
    if theirs is None:
        pytest.skip("TRL's suite has not run on these sources yet; it compares when it does")
    common = [name for name in recorded.runnable() if name in theirs]
    assert len(common) >= 8
    for name in common:
        recorded.assert_same(through_verl(name), theirs[name])
