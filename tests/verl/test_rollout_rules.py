"""What verl itself makes of the settings for the rollout side: its own code reads the printed lines."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.trainer.ppo.v1 import replay_buffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl_configs import composed

import grpo_variants as gv
from grpo_variants.trainers.verl import words
from grpo_variants.trainers.verl.translate import run_settings

LONGEST = 8


def settled(spec, *more):
    return composed(f"data.max_response_length={LONGEST}", *words.overrides(run_settings(gv.get(spec))), *more)


def punished(manager, length):
    """What verl's manager gives a response of some length whose score is 0.25."""
    mask = torch.tensor([[1] * 2 + [1] * length + [0] * (LONGEST - length)])
    tensors = {"prompts": torch.ones(1, 2).long(), "responses": torch.ones(1, LONGEST).long(), "attention_mask": mask}
    told = {
        "data_source": np.array(["x"], dtype=object),
        "reward_model": np.array([{"ground_truth": ""}], dtype=object),
    }
    data = DataProto.from_dict(tensors=tensors, non_tensors=told)
    return manager.loop.run_until_complete(manager.run_single(data))


@pytest.mark.parametrize(("buffer", "factor"), [(4, 1.0), (3, 0.5), (8, 1.0)])
def test_verls_reward_manager_punishes_as_the_variant_says(monkeypatch, buffer, factor):
    """Every length from one token to the limit; the two functions share no code."""
    loop = asyncio.new_event_loop()
    monkeypatch.setattr("verl.experimental.reward_loop.reward_manager.base.get_event_loop", lambda: loop)
    config = settled(f"grpo,overlong=penalty,overlong.buffer={buffer},overlong.factor={factor}")
    assert config.reward.reward_manager.name == "dapo"
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: "")
    manager = DAPORewardManager(config, tokenizer, lambda **_: 0.25)
    found = [punished(manager, length) for length in range(1, LONGEST + 1)]
    loop.close()
    expected = gv.soft_overlong_penalty(range(1, LONGEST + 1), LONGEST, buffer, factor)
    assert [float(one["reward_score"]) - 0.25 for one in found] == pytest.approx(expected.tolist())
    assert expected[-1] == -factor
    # What filter.metric=acc goes by is the score without the punishment.
    assert {one["reward_extra_info"]["acc"] for one in found} == {0.25}


@pytest.mark.parametrize(
    ("spec", "metric"), [("dapo", "reward"), ("dapo,filter.metric=acc", "acc"), ("dapo,filter=none", None)]
)
def test_verls_trainer_filters_by_the_variants_metric(spec, metric):
    assert PPOTrainer._resolve_filter_groups_metric(SimpleNamespace(config=settled(spec))) == metric


def test_verl_ignores_a_bound_on_rounds(caplog):
    """Why filter.max_rounds is refused: verl says itself that the field has no effect."""
    config = settled("dapo", "algorithm.filter_groups.max_num_gen_batches=3")
    PPOTrainer._resolve_filter_groups_metric(SimpleNamespace(config=config))
    assert "max_num_gen_batches=3 is ignored by the built-in V1 ReplayBuffer" in caplog.text


@pytest.mark.parametrize(
    "correction",
    [
        "token_truncate,correction.cap=1.5",
        "token_mask,correction.low=0.5,correction.high=2",
        "sequence_truncate,correction.cap=1.2",
        "sequence_mask,correction.low=0.7,correction.high=1.5",
        "geometric_mask,correction.low=0.9,correction.high=1.3",
        "token_truncate+geometric_mask,correction.cap=1.5,correction.low=0.9,correction.high=1.3",
    ],
)
def test_verls_rollout_correction_gives_the_variants_weights(correction):
    random = torch.Generator().manual_seed(0)
    old, engine = -torch.rand(2, 6, 5, generator=random) - 0.1
    mask = torch.arange(5) < torch.tensor([5, 4, 3, 2, 1, 5])[:, None]
    variant = gv.get(f"rloo,correction={correction}")
    asked = settled(str(variant)).algorithm.rollout_correction
    names = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
    weights, left, _ = compute_rollout_correction_and_rejection_mask(
        old_log_prob=old, rollout_log_prob=engine, response_mask=mask.float(), **{n: getattr(asked, n) for n in names}
    )
    theirs = left if weights is None else weights.batch["rollout_is_weights"] * left
    x = gv.Tokens(logp=old, mask=mask, advantages=torch.ones(6), old_logp=old, rollout_logp=engine)
    own = gv.correction_weights(variant, x)
    torch.testing.assert_close(theirs, own, rtol=1e-4, atol=1e-6)
    assert len(own[mask].unique()) > 1


def filtered(monkeypatch, values):
    """The groups that verl's buffer throws away: one prompt whose responses have these values of the metric acc."""
    told = [{"reward_extra_info": {"acc": value}} for value in values]
    monkeypatch.setattr(replay_buffer.tq, "kv_batch_get", lambda **_: {"extra_fields": told})
    buffer = SimpleNamespace(
        filter_groups_metric="acc",
        finished_keys={"train": {"uid"}},
        partitions={"train": {f"uid_{i}": {} for i in range(len(values))}},
        _dapo_classification_cache={"train": {}},
    )
    return replay_buffer.ReplayBuffer._dapo_filtered_keys(buffer, "train")[0]


@pytest.mark.parametrize(("values", "theirs"), [([1, 1, 1], {"uid"}), ([0, 1, 1], set()), ([0.1] * 3, set())])
def test_verl_keeps_a_group_whose_equal_values_round(monkeypatch, values, theirs):
    """Three values of 0.1 deviate by 1.4e-17 in NumPy, so verl trains on the group; here equal is equal."""
    assert filtered(monkeypatch, values) == theirs
    assert gv.keep_groups(values, ["a"] * 3).any() == (len(set(values)) > 1)
