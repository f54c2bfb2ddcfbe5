"""The health check in verl: what its own logger is handed, what is warned of, and the counters beside its metrics."""

import logging
import math

import pytest
import torch
from grpo_variants_verl.health import identical_groups
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo import metric_utils
from verl.utils.tracking import Tracking
from verl_configs import composed

# What verl logs of a step that goes well.
STEP = {
    "training/global_step": 1,
    "critic/advantages/max": 1.2,
    "critic/advantages/min": -0.7,
    "actor/grad_norm": 0.4,
    "actor/gv_clip/region": 0.0,
    "actor/gv_ratio/mean": 1.0,
}
GRPO = ("algorithm.adv_estimator=gv_grpo", "actor_rollout_ref.actor.policy_loss.loss_mode=gv_grpo")
DR_GRPO = ("algorithm.adv_estimator=gv_dr_grpo", "actor_rollout_ref.actor.policy_loss.loss_mode=gv_dr_grpo")


class Sink:
    """A logger of verl that keeps what it is handed."""

    def __init__(self):
        self.rows = []

    def log(self, data, step):
        self.rows.append(dict(data))


@pytest.fixture
def logger(caplog):
    """Make verl's own logger for a configuration, as its trainers do; returns it, its rows and the warnings."""

    def make(*overrides):
        config = OmegaConf.to_container(composed(*overrides), resolve=True)
        tracking, sink = Tracking("project", "run", default_backend="console", config=config), Sink()
        tracking.logger = {"sink": sink}
        return tracking, sink.rows

    with caplog.at_level(logging.WARNING, logger="grpo_variants_verl"):
        make.warnings = lambda: [record.getMessage() for record in caplog.records]
        yield make


CASES = [
    (
        {"critic/advantages/max": 0.0, "critic/advantages/min": 0.0, "actor/grad_norm": 0.0},
        "no_signal",
        "the reward is the same for all responses of a group, so every advantage is 0; look at the reward function and "
        "at a few responses, or choose prompts of another difficulty.",
    ),
    (
        {"gv/groups/identical": 1.0, "critic/advantages/max": 0.0, "critic/advantages/min": 0.0},
        "identical_responses",
        "all responses of each group are identical, so there is nothing to compare; set "
        "actor_rollout_ref.rollout.do_sample=True and raise actor_rollout_ref.rollout.temperature (now 1.0).",
    ),
    (
        {"critic/advantages/max": math.nan, "critic/advantages/min": math.nan, "actor/grad_norm": 0.0},
        "nothing_scored",
        "no token counts in the loss, so nothing is trained; look at the response masks and at what the agent loop "
        "returns.",
    ),
    (
        {"actor/grad_norm": math.nan},
        "nonfinite_gradient",
        "the gradient is not finite (norm nan); lower actor_rollout_ref.actor.optim.lr (now 1e-06), or look for "
        "infinite rewards and log-probabilities.",
    ),
    (
        {"actor/grad_norm": 0.0},
        "zero_gradient",
        "the gradient is exactly 0 although tokens count in the loss; look whether the trained parameters require "
        "gradients and whether the advantages reach them.",
    ),
    (
        {"actor/gv_ratio/mean": 1.3, "actor/gv_clip/region": 0.4},
        "off_on_policy",
        "the tokens' importance ratios are not 1 before the first update (mean ratio 1.3) and 40.0% of them are "
        "clipped; look for dropout, and for dtypes or kernels that differ between its two forwards.",
    ),
    (
        {"rollout_corr/rollout_is_ratio_fraction_high": 0.75},
        "correction_cuts_most",
        "the correction cuts 75% of its weights: trainer and engine disagree; compare dtypes and sampling "
        "settings of trainer and engine, or raise the threshold.",
    ),
]


@pytest.mark.parametrize(("seen", "name", "sentence"), CASES)
def test_each_cause_is_warned_of_at_the_first_step_and_counted(logger, seen, name, sentence):
    tracking, rows = logger(*DR_GRPO)
    tracking.log(data={**STEP, **seen}, step=1)
    assert logger.warnings() == [f"step 1: {sentence}"]
    assert {key: value for key, value in rows[0].items() if key.startswith("gv/health/")} == {
        "gv/health/findings": 1.0,
        f"gv/health/{name}": 1.0,
    }


def test_every_token_clipped_is_named_where_ratios_may_differ_from_1(logger):
    tracking, rows = logger(*DR_GRPO, "actor_rollout_ref.actor.ppo_epochs=2")
    tracking.log(data={**STEP, "actor/gv_ratio/mean": 1.4, "actor/gv_clip/region": 1.0}, step=1)
    assert logger.warnings() == [
        "step 1: 100% of the tokens are clipped and have no gradient from the policy term; lower "
        "actor_rollout_ref.actor.optim.lr (now 1e-06), or widen the clip bounds."
    ]
    assert rows[0]["gv/health/every_token_clipped"] == 1.0


def test_a_kl_on_a_member_without_one_is_named_once(logger):
    tracking, rows = logger(*DR_GRPO, "actor_rollout_ref.actor.use_kl_loss=True")
    tracking.log(data=dict(STEP), step=1)
    tracking.log(data=dict(STEP), step=2)
    assert logger.warnings() == [
        "step 1: kl.beta=0.001 adds a KL term and a reference that this member is defined without; set "
        "actor_rollout_ref.actor.use_kl_loss=False to train it as it is defined."
    ]
    assert [row["gv/health/findings"] for row in rows] == [0.0, 0.0]
    logger(*GRPO, "actor_rollout_ref.actor.use_kl_loss=True")[0].log(data=dict(STEP), step=1)
    assert len(logger.warnings()) == 1, "grpo has a KL"


def test_it_is_named_again_when_it_lasts_and_summed_up_at_the_end(logger, capsys):
    tracking, _ = logger(*DR_GRPO)
    for step in (1, 2, 3, 4):
        tracking.log(data={**STEP, "actor/grad_norm": 0.0 if step < 4 else 0.5}, step=step)
    assert [line.split(":")[0] for line in logger.warnings()] == ["step 1", "step 3, 3 steps in a row"]
    tracking.finish()
    summary = capsys.readouterr().out
    assert summary.startswith("health: zero_gradient in 3 of 4 steps; look whether the trained parameters")
    tracking.finish()
    assert capsys.readouterr().out == "", "a second finish says nothing again"


def test_a_validation_is_not_a_step(logger):
    tracking, rows = logger(*DR_GRPO)
    tracking.log(data={"val-core/acc": 0.0}, step=0)
    assert rows == [{"val-core/acc": 0.0}]
    assert tracking.grpo_variants_watch.check.steps == 0


OFF = [
    (*DR_GRPO, "+algorithm.grpo_variants.health=False"),
    ("algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"),
]


@pytest.mark.parametrize("overrides", OFF)
def test_switched_off_or_without_a_variant_nothing_is_added(logger, overrides):
    tracking, rows = logger(*overrides)
    tracking.log(data={**STEP, "actor/grad_norm": 0.0}, step=1)
    assert logger.warnings() == []
    assert rows == [{**STEP, "actor/grad_norm": 0.0}]


def test_an_odd_switch_is_refused():
    from grpo_variants_verl.run_config import read_run_config

    with pytest.raises(ValueError, match=r"algorithm.grpo_variants.health='maybe' is no switch; allowed: True, False"):
        read_run_config(composed(*DR_GRPO, "+algorithm.grpo_variants.health=maybe"))


def batch(responses, mask=None):
    """Two prompts of two responses each, as verl's metrics take them."""
    ids = torch.tensor(responses)
    mask = torch.ones_like(ids) if mask is None else torch.tensor(mask)
    prompts = torch.tensor([[0, 7], [0, 7], [5, 6], [5, 6]])
    rewards = torch.zeros(ids.shape)
    tensors = {
        "prompts": prompts,
        "responses": ids,
        "response_mask": mask,
        "attention_mask": torch.cat([torch.ones_like(prompts), mask], dim=1),
        **dict.fromkeys(("token_level_scores", "token_level_rewards", "advantages", "returns"), rewards),
    }
    return DataProto.from_dict(tensors)


SAME = [
    ([[1, 2], [1, 2], [3, 4], [3, 4]], None, 1.0),
    ([[1, 2], [2, 1], [3, 4], [3, 4]], None, 0.5),
    ([[1, 2], [2, 1], [3, 4], [4, 3]], None, 0.0),
    # What is padded is no difference.
    ([[1, 2], [1, 9], [3, 4], [3, 4]], [[1, 0], [1, 0], [1, 1], [1, 1]], 1.0),
]


@pytest.mark.parametrize(("responses", "mask", "share"), SAME)
def test_verls_metrics_of_a_batch_say_how_many_groups_have_one_response_only(logger, responses, mask, share):
    logger(*DR_GRPO)
    assert metric_utils.compute_data_metrics(batch(responses, mask), use_critic=False)["gv/groups/identical"] == share


def test_a_group_of_one_is_not_identical():
    ids = torch.tensor([[1, 2], [1, 2]])
    assert identical_groups(torch.tensor([[1], [2]]), ids, torch.ones_like(ids)) == 0.0
