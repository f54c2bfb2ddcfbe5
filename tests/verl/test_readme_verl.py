"""README.md's verl overrides as Hydra reads them: the estimator, the loss and its options."""

import shlex
from pathlib import Path

import verl
from grpo_variants_verl.settings import estimator_choice, loss_choice
from hydra import compose, initialize_config_dir
from support import readme

import grpo_variants as gv


def test_the_overrides_run_the_variant_that_they_name():
    (block,) = [block for block in readme.blocks("sh") if "main_ppo" in block]
    overrides = shlex.split(block.replace("\\\n", " "))[3:]
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    actor = config.actor_rollout_ref.actor
    assert config.algorithm.adv_estimator == actor.policy_loss.loss_mode == "gv_dapo"
    assert actor.policy_loss._target_ == "grpo_variants_verl.VariantPolicyLossConfig"
    assert estimator_choice("dapo", config.algorithm).variant.scale == gv.get("dapo").scale
    loss = loss_choice("dapo", actor)
    assert (loss.variant.surrogate.low, loss.variant.surrogate.high) == (0.2, 0.3)
    assert loss.origins["surrogate.high"] == "actor_rollout_ref.actor.policy_loss.options"
