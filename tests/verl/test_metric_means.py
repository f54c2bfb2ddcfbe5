"""Means of a policy loss, joined over micro-batches and ranks as verl joins its metrics."""

import numpy as np
import pytest
import torch
from grpo_variants_verl.metric_means import Mean, keep_means
from test_losses import actor, batch
from verl.trainer.ppo import core_algos
from verl.utils.metric import AggregationType, Metric, reduce_metrics
from verl.utils.py_functional import append_to_dict

import grpo_variants as gv


def joined(*ranks):
    """What verl makes of the micro-batches' metrics of some ranks, by its own functions."""
    parts = []
    for reported in ranks:
        metrics = {}
        for one in reported:  # as ppo_loss and the engine do it
            append_to_dict(metrics, Metric.from_dict(one, aggregation=AggregationType.MEAN))
        parts.append(metrics)
    return {key: Metric.aggregate_dp([metrics[key] for metrics in parts]) for key in parts[0]}


def reported(name, tensors, rows):
    part = {key: value.detach()[rows] for key, value in tensors.items()}
    return core_algos.get_policy_loss_fn(f"gv_{name}")(**part, config=actor(f"gv_{name}"))[1]


@pytest.mark.parametrize("name", ["grpo", "gspo", "luspo", "reinforce"])
def test_a_split_into_micro_batches_and_ranks_changes_no_mean(name):
    """Row 2 of the batch has no token: a micro-batch of it alone counted as a mean of 0."""
    tensors = batch(drift=0.4)
    assert tensors["response_mask"].sum(1).tolist() != [tensors["response_mask"].sum(1)[0].item()] * 6
    assert not tensors["response_mask"][2].any()
    (whole,) = [{key: float(value) for key, value in reported(name, tensors, slice(0, 6)).items()}]
    micro = [[slice(0, 1), slice(2, 3)], [slice(1, 2), slice(3, 6)]]
    found = joined(*([reported(name, tensors, rows) for rows in rank] for rank in micro))
    assert found.keys() == whole.keys()
    for key, value in whole.items():
        assert found[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key
    x = gv.Tokens(
        logp=tensors["log_prob"].detach(),
        mask=tensors["response_mask"],
        advantages=tensors["advantages"],
        old_logp=tensors["old_log_prob"],
    )
    wanted = gv.policy_loss(f"{name},kl=none", x, gv.Counts.of(x.mask, length=9)).metrics["ratio/mean"]
    assert found["actor/gv_ratio/mean"] == pytest.approx(wanted.item(), rel=1e-6)


def test_a_mean_over_nothing_is_0_and_weighs_nothing():
    """Padding of verl's beside a full micro-batch: the mean of 0.975 over 8 tokens stays, where it was halved."""
    assert joined([{"ratio": Mean(0.975, 8)}, {"ratio": Mean(0.0, 0)}])["ratio"] == 0.975
    assert joined([{"ratio": Mean()}])["ratio"] == 0.0
    assert float(Mean(3.0, 2)) == 3.0


def test_updates_count_alike():
    """verl averages the updates of a step; a worker without data parallelism joins them by their tokens."""
    assert reduce_metrics({"ratio": [float(Mean(1.0, 3)), float(Mean(2.0, 1))]})["ratio"] == 1.5
    alone = {}
    for update in (Mean(1.0, 3), Mean(2.0, 1)):
        append_to_dict(alone, {"ratio": update})
    assert reduce_metrics(alone)["ratio"] == 1.25


def test_verls_own_metrics_are_joined_as_before():
    keep_means()
    plain = Metric.from_dict({"a": 1.0, "b": torch.tensor(3.0)}, aggregation="sum")
    assert (plain["a"].aggregate(), plain["b"].aggregate()) == (1.0, 3.0)
    two = [Metric("mean"), Metric("mean")]
    for metric, values in zip(two, ([1.0, 2.0], [3.0, 6.0]), strict=True):
        metric.extend(values)
    assert Metric.aggregate_dp(two) == np.mean([2.0, 4.0])
    with pytest.raises(ValueError, match="empty list"):
        Metric.aggregate_dp([])
