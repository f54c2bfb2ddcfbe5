"""`grpo-variants trl ...`: TRL's own GRPO script, with the variant classes and TRL's usual flags and YAML."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import trl
import yaml
from trl.scripts import grpo

from grpo_variants.tensors.checks import unknown
from grpo_variants_trl.config.grpo_config import VariantGRPOConfig
from grpo_variants_trl.config.refusals import check_supported
from grpo_variants_trl.trainer import VariantGRPOTrainer

# The reward functions that TRL 1.16's script takes by their bare name.
REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run TRL's GRPO script; arguments as after `trl grpo`, those of the command line if None.

    The script looks its trainer and its config up in the `trl` module when it runs; during the run they are the
    variant classes, which leave TRL's built-in loss types as they are. A setting that cannot be honoured, a file or
    a reward function that does not exist end with a message and exit status 2, before a model or a dataset is loaded.
    """
    before = trl.GRPOTrainer, trl.GRPOConfig
    trl.GRPOTrainer, trl.GRPOConfig = VariantGRPOTrainer, VariantGRPOConfig
    try:
        grpo.main(*_parse(arguments))
    finally:
        trl.GRPOTrainer, trl.GRPOConfig = before


def _parse(arguments: Sequence[str] | None) -> tuple[Any, ...]:
    parser = grpo.make_parser(prog="grpo-variants trl")
    given = _with_separate_config(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_config_file(given)
        parsed = parser.parse_args_and_config(given)
        script, config, _, mixture = parsed
        if config.choice is not None:
            check_supported(config.choice, config, {})
        _check_reward_functions(script)
        if not script.dataset_name and not mixture.datasets:
            raise ValueError("--dataset_name is missing: the prompts to train on, a folder or a name on the hub.")
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")
    return parsed


def _with_separate_config(arguments: Sequence[str]) -> list[str]:
    """Arguments with `--config=PATH` as the two words that TRL's parser takes."""
    pairs = (word.split("=", 1) if word.startswith("--config=") else [word] for word in arguments)
    return [word for pair in pairs for word in pair]


def _check_config_file(arguments: Sequence[str]) -> None:
    """Raise ValueError for a --config that names no YAML file."""
    if "--config" not in arguments:
        return
    path = next(iter(arguments[arguments.index("--config") + 1 :]), None)
    if path is None:
        raise ValueError("--config needs the path of a YAML file.")
    try:
        with open(path, encoding="utf-8") as file:
            yaml.safe_load(file)
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}; give the path of a YAML file.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path} is not YAML: {' '.join(str(error).split())}.") from None


def _check_reward_functions(script: Any) -> None:
    """Raise ValueError for a reward function that does not exist, and where there is none at all."""
    if not script.reward_funcs and not script.reward_model_name_or_path:
        raise ValueError("--reward_funcs is missing: module.function of your own, or one of TRL's, as in its help.")
    for name in script.reward_funcs or ():
        module, dot, function = name.rpartition(".")
        if dot:
            _check_own(name, module, function)
        elif name not in REWARDS:
            raise ValueError(
                unknown(f"--reward_funcs {name} is neither module.function nor one of TRL's", name, REWARDS, "TRL's")
            )


def _check_own(name: str, module: str, function: str) -> None:
    sys.path.insert(0, os.getcwd())  # where TRL's script looks too
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that the user's own one needs
        raise ValueError(f"--reward_funcs {name}: there is no module {error.name!r} here.") from None
    if not callable(getattr(found, function, None)):
        callables = [word for word, value in vars(found).items() if callable(value) and not word.startswith("_")]
        raise ValueError(unknown(f"--reward_funcs {name}: no function {function!r}", function, callables, "it has"))
