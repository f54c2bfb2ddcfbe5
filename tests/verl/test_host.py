"""extend_host: inputs that verl hands to its own names only, and the last output of a session; and back again."""

import numpy as np
import pytest
import torch
from grpo_variants_verl import extend_host, restore_host
from grpo_variants_verl.estimator import Estimator
from omegaconf import OmegaConf
from torch.testing import assert_close
from verl import DataProto

import grpo_variants as gv

CONFIG = OmegaConf.create({"gamma": 1.0, "adv_estimator": "gv_grpo"})


@pytest.fixture
def host():
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


def test_only_the_last_output_of_a_session_is_a_response(host):
    """Prompt a: session 0 has outputs of 2 turns, session 1 one. Rewards 1 and 0: +-0.7071, on every row of a session.

    Counted row by row, as without the extension, the group would be 1, 1, 0.
    """
    _, utils, trainer_base = host
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


def test_a_token_credit_with_several_outputs_is_refused(host):
    _, utils, _ = host
    with pytest.raises(ValueError, match="gv_reinforce_pp gives each token its own advantage, but these sessions"):
        utils.compute_advantage_for_multi_trajectories(
            data([1.0, 1.0, 0.0], ["a"] * 3),
            ["a_0_0", "a_0_1", "a_1_0"],
            adv_estimator="gv_reinforce_pp",
            config=CONFIG,
        )


def test_what_verl_keeps_for_its_own_names_is_handed_over(host, monkeypatch):
    ray_trainer, _, _ = host
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


def test_verls_own_estimators_are_computed_as_before(host):
    ray_trainer, _, _ = host
    before = ray_trainer.compute_advantage.__wrapped__(
        data([1.0, 0.0, 0.5], ["a", "a", "b"]), adv_estimator="rloo", config=CONFIG
    )
    after = ray_trainer.compute_advantage(data([1.0, 0.0, 0.5], ["a", "a", "b"]), adv_estimator="rloo", config=CONFIG)
    assert_close(after.batch["advantages"], before.batch["advantages"])


def test_a_run_extends_its_host_where_its_configuration_says_so(tmp_path):
    from grpo_variants_verl import VariantCallback
    from verl.trainer.ppo.v1 import utils
    from verl_configs import composed

    words = ["algorithm.adv_estimator=gv_grpo", f"trainer.default_local_dir={tmp_path}"]
    VariantCallback(config=composed(*words))
    assert not hasattr(utils.compute_advantage_for_multi_trajectories, "__wrapped__")
    VariantCallback(config=composed(*words, "+algorithm.grpo_variants.extend_host=True"))
    assert hasattr(utils.compute_advantage_for_multi_trajectories, "__wrapped__")
    restore_host()
