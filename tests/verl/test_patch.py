"""extend_host: inputs that verl passes to its own estimators only, and the last output per session; and undone."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from grpo_variants_verl import VariantCallback, extend_host, restore_host
from grpo_variants_verl.estimator import Estimator
from grpo_variants_verl.run_config import extra_inputs, read_run_config
from grpo_variants_verl.settings import Chosen
from omegaconf import OmegaConf
from torch.testing import assert_close
from verl import DataProto
from verl_configs import composed

import grpo_variants as gv
from grpo_variants.advantage.baseline import GroupMean
from grpo_variants.trainers.verl.findings import unset
from grpo_variants.trainers.verl.limits import advantage_refusals

CONFIG = OmegaConf.create({"gamma": 1.0, "adv_estimator": "gv_grpo"})


@pytest.fixture
def patched():
    """The modules of verl that choose an estimator's inputs, extended."""
    from verl.trainer.ppo import ray_trainer
    from verl.trainer.ppo.v1 import trainer_base, utils

    originals = (ray_trainer.compute_advantage, utils.compute_advantage_for_multi_trajectories)
    extend_host()
    extend_host()
    yield ray_trainer, utils, trainer_base
    restore_host()
    assert (ray_trainer.compute_advantage, utils.compute_advantage_for_multi_trajectories) == originals
    assert trainer_base.compute_advantage_for_multi_trajectories is originals[1]


def data(rewards, uids, **extra):
    mask = torch.ones(len(rewards), 2, dtype=torch.long)
    placed = torch.zeros(len(rewards), 2)
    placed[:, -1] = torch.tensor(rewards)
    tensors = {"token_level_rewards": placed, "response_mask": mask, **extra}
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(uids, dtype=object)})


def test_only_the_last_output_of_a_session_is_a_response(patched):
    """Prompt a: session 0 has outputs of 2 turns, session 1 one. Rewards 1 and 0: +-0.7071, on every row of a session.

    Counted row by row, as without the extension, the group would be 1, 1, 0.
    """
    _, utils, trainer_base = patched
    keys = ["a_0_0", "a_0_1", "a_1_0"]
    found = trainer_base.compute_advantage_for_multi_trajectories(
        data([1.0, 1.0, 0.0], ["a", "a", "a"]), keys, adv_estimator="gv_grpo", config=CONFIG
    )
    half = 0.5**0.5
    wanted = torch.tensor([[half, half], [half, half], [-half, -half]])
    assert_close(found.batch["advantages"], wanted, atol=2e-6, rtol=0)
    own = utils.compute_advantage_for_multi_trajectories(
        data([1.0, 1.0, 0.0], ["a", "a", "a"]), keys, adv_estimator="grpo", config=CONFIG
    )
    assert_close(own.batch["advantages"], wanted, atol=2e-6, rtol=0)


def test_without_the_extension_every_output_counts():
    from verl.trainer.ppo.v1 import utils

    found = utils.compute_advantage_for_multi_trajectories(
        data([1.0, 1.0, 0.0], ["a", "a", "a"]), ["a_0_0", "a_0_1", "a_1_0"], adv_estimator="gv_grpo", config=CONFIG
    )
    wanted = gv.advantages("grpo", [1.0, 1.0, 0.0], ["a", "a", "a"])
    assert_close(found.batch["advantages"], wanted.unsqueeze(1).expand(3, 2))


def with_options(text, estimator):
    """verl's algorithm section with options for an estimator."""
    return OmegaConf.create({"gamma": 1.0, "adv_estimator": estimator, "grpo_variants": {"options": text}})


@pytest.mark.parametrize(
    ("estimator", "options", "fixed"),
    [
        ("gv_reinforce_pp", "singleton=zero", "singleton=zero,credit=outcome"),
        ("gv_reinforce", "credit=reward_to_go,credit.gamma=0.9", "credit=outcome"),
    ],
)
def test_a_token_credit_with_several_outputs_is_refused_with_a_way_out_that_works(patched, estimator, options, fixed):
    """The rule of the run decides, not the one that is registered: reinforce alone has one advantage per response."""
    _, utils, _ = patched
    keys = ["a_0_0", "a_0_1", "a_1_0"]

    def advantages(text):
        rows = data([1.0, 1.0, 0.0], ["a"] * 3)
        config = with_options(text, estimator)
        return utils.compute_advantage_for_multi_trajectories(rows, keys, estimator, 1.0, 1.0, 1, True, config)

    with pytest.raises(ValueError, match=f"{estimator} gives each token its own advantage, but these") as refused:
        advantages(options)
    assert str(refused.value).endswith(f" Fix: '++algorithm.grpo_variants.options=\"{fixed}\"'")
    found = advantages(fixed).batch["advantages"]
    assert_close(found, found[:, :1].expand(3, 2))
    assert_close(found[0], found[1])
    assert found[0, 0] > found[2, 0]


def test_a_mean_over_prompts_weighs_every_output_of_a_session(patched):
    """Prompt a has sessions of 3 + 1 and of 2 tokens, prompt b of 2 and of 2: together each weighs a half.

    Session 0 of a has its output of 3 tokens first and one of 1 token last. 10 tokens in all, two prompts: the scale of
    a token mean to prompt_mean is 10 / (2 * 6) for a and 10 / (2 * 4) for b. By the last outputs alone it would be
    7 / (2 * 3) and 7 / (2 * 4), so that a weighed two thirds.
    """
    _, utils, _ = patched
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0]])
    rewards = torch.zeros(5, 3)
    rewards[torch.arange(5), mask.sum(1) - 1] = torch.tensor([9.0, 1.0, 0.0, 1.0, 0.0])
    rows = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": mask},
        non_tensors={"uid": np.array(list("aaabb"), dtype=object)},
    )
    keys = ["a_0_0", "a_0_1", "a_1_0", "b_0_0", "b_1_0"]
    config = with_options("scale=none,aggregation=prompt_mean", "gv_grpo")
    found = utils.compute_advantage_for_multi_trajectories(rows, keys, adv_estimator="gv_grpo", config=config)
    advantages = found.batch["advantages"]
    assert_close(advantages[:, 0], torch.tensor([5 / 12, 5 / 12, -5 / 12, 5 / 8, -5 / 8]))
    by_prompt = advantages.abs().sum(1) / mask.sum()
    assert by_prompt[:3].sum().item() == pytest.approx(by_prompt[3:].sum().item())


def test_what_verl_keeps_for_its_own_estimators_is_passed_on(patched, monkeypatch):
    ray_trainer, _, _ = patched
    seen = {}

    def spy(self, token_level_rewards, response_mask, **inputs):
        seen.update(inputs)
        return token_level_rewards, token_level_rewards

    monkeypatch.setattr(Estimator, "__call__", spy)
    extra = {"sum_pi_squared": torch.rand(2, 2), "old_log_probs": -torch.rand(2, 2)}
    ray_trainer.compute_advantage(data([1.0, 0.0], ["a", "a"], **extra), adv_estimator="gv_grpo", config=CONFIG)
    assert_close(seen["sum_pi_squared"], extra["sum_pi_squared"])
    assert_close(seen["old_log_probs"], extra["old_log_probs"])
    assert seen["index"].tolist() == ["a", "a"]


def test_verls_own_estimators_are_computed_as_before(patched):
    ray_trainer, _, _ = patched
    before = ray_trainer.compute_advantage.__wrapped__(
        data([1.0, 0.0, 0.5], ["a", "a", "b"]), adv_estimator="rloo", config=CONFIG
    )
    after = ray_trainer.compute_advantage(data([1.0, 0.0, 0.5], ["a", "a", "b"]), adv_estimator="rloo", config=CONFIG)
    assert_close(after.batch["advantages"], before.batch["advantages"])


def test_a_run_patches_verl_where_its_configuration_says_so(tmp_path):
    from verl.trainer.ppo.v1 import utils
    from verl_configs import composed

    words = ["algorithm.adv_estimator=gv_grpo", f"trainer.default_local_dir={tmp_path}"]
    VariantCallback(config=composed(*words))
    assert not hasattr(utils.compute_advantage_for_multi_trajectories, "__wrapped__")
    VariantCallback(config=composed(*words, "+algorithm.grpo_variants.extend_host=True"))
    assert hasattr(utils.compute_advantage_for_multi_trajectories, "__wrapped__")
    restore_host()


@dataclass(frozen=True, kw_only=True)
class SquaredMass(GroupMean):
    """A baseline of a user's own, of what verl passes to its optimal token baseline only."""

    reads: ClassVar[tuple[str, ...]] = ("sum_pi_squared",)

    def __call__(self, rewards, samples):
        return samples.need("sum_pi_squared", "baseline=SquaredMass").mean(1) + super().__call__(rewards, samples)


def test_an_input_for_verls_own_names_is_refused_with_the_line_that_fixes_it():
    variant = replace(gv.get("rloo"), name="squared_mass", baseline=SquaredMass())
    (found,) = advantage_refusals(variant)
    assert "verl does not hand this over to a plugin. baseline=SquaredMass needs sum_pi_squared=" in found.text
    assert found.sentence(unset).endswith(
        "Fix: ++algorithm.grpo_variants.extend_host=True trainer.use_v1=False "
        "actor_rollout_ref.actor.calculate_sum_pi_squared=True"
    )
    assert list(advantage_refusals(variant, ("old_logp", "sum_pi_squared"))) == []


def test_a_patched_verl_runs_such_an_estimator(patched, monkeypatch):
    """Rewards 1 and 0, masses 0.5 and 0.25 per token: 1 - (0.5 + 0.5) and 0 - (0.5 + 0.25)."""
    ray_trainer, _, _ = patched
    variant = replace(gv.get("rloo"), name="squared_mass", baseline=SquaredMass())
    monkeypatch.setattr("grpo_variants_verl.estimator.estimator_choice", lambda name, config: Chosen(variant, {}))
    extra = {"sum_pi_squared": torch.tensor([[0.5, 0.5], [0.25, 0.25]])}
    found = ray_trainer.compute_advantage(data([1.0, 0.0], ["a", "a"], **extra), adv_estimator="gv_rloo", config=CONFIG)
    assert_close(found.batch["advantages"], torch.tensor([[0.0, 0.0], [-0.75, -0.75]]))


@pytest.mark.parametrize(("v1", "extra"), [(True, {"old_logp"}), (False, {"old_logp", "sum_pi_squared"})])
def test_what_a_patched_verl_passes_on(v1, extra):
    """The V1 trainer does not put the sum of squared probabilities where advantages are computed."""
    computed = "actor_rollout_ref.actor.calculate_sum_pi_squared=True"
    words = ["algorithm.adv_estimator=gv_rloo", f"trainer.use_v1={v1}", computed]
    assert extra_inputs(read_run_config(composed(*words))) == set()
    assert extra_inputs(read_run_config(composed(*words, "+algorithm.grpo_variants.extend_host=True"))) == extra
