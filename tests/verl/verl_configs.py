"""verl's whole configuration, composed by Hydra as its command line does it."""

from copy import deepcopy
from functools import cache
from pathlib import Path

import verl
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from verl.utils import config as verl_config

FOLDER = str(Path(verl.__file__).parent / "trainer" / "config")
NEEDED = (
    "actor_rollout_ref.rollout.name=transformers",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "data.train_batch_size=4",
    "trainer.n_gpus_per_node=1",
)


def from_command_line(*overrides):
    """The configuration of a command line, by Hydra alone."""
    with initialize_config_dir(FOLDER, version_base=None):
        return compose("ppo_trainer", overrides=[*NEEDED, *overrides])


@cache
def _base():
    return from_command_line()


def composed(*overrides):
    """The same as `from_command_line`, by Hydra's parser on a copy: composing anew takes half a second."""
    config = deepcopy(_base())
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=override.is_add())
    return config


def validated(*overrides):
    """The configuration after verl's own check, which the plugin watches."""
    config = composed(*overrides)
    verl_config.validate_config(config, use_reference_policy=False, use_critic=False)
    return config
