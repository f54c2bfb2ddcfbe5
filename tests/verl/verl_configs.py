"""verl's whole configuration, composed by Hydra as its command line does it."""

import pickle
from functools import cache
from pathlib import Path

import verl
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from verl.utils import config as verl_config

FOLDER = str(Path(verl.__file__).parent / "trainer" / "config")
NEEDED = (
    "actor_rollout_ref.rollout.name=transformers",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "trainer.n_gpus_per_node=1",
)


def from_command_line(*overrides):
    """The configuration of a command line, by Hydra alone."""
    with initialize_config_dir(FOLDER, version_base=None):
        return compose("ppo_trainer", overrides=[*NEEDED, *overrides])


@cache
def _base():
    return pickle.dumps(from_command_line())  # copied tenfold faster than by deepcopy


def composed(*overrides):
    """The same as `from_command_line`, by Hydra's own rules on a copy: composing anew takes half a second."""
    config = pickle.loads(_base())
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(list(overrides)), config)
    return config


def validated(*overrides):
    """The configuration after verl's own check, which the plugin watches."""
    config = composed(*overrides)
    verl_config.validate_config(config, use_reference_policy=False, use_critic=False)
    return config
