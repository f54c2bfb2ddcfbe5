"""At the start of a run: check its configuration before any model loads, print the variant, and inform the workers."""

from __future__ import annotations

import os
from functools import wraps
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from verl.utils import config as verl_config
from verl.utils.import_utils import load_class_from_fqn

from grpo_variants import __version__
from grpo_variants.card import FILE_NAME
from grpo_variants.names import PREFIX, is_prefixed
from grpo_variants.registry import MODULES_VARIABLE, find
from grpo_variants.trainers.verl.words import ESTIMATOR, LOSS_MODE
from grpo_variants_verl.cards import VariantCallback, make_card
from grpo_variants_verl.config_diff import length_setting
from grpo_variants_verl.patch import extend_host
from grpo_variants_verl.resume import install
from grpo_variants_verl.run_config import RunConfig, concerns, read_run_config, refusals, reports
from grpo_variants_verl.settings import NODE, node_of
from grpo_variants_verl.worker_check import DRIVER_VARIABLE, LOG

CALLBACK = f"grpo_variants_verl.{VariantCallback.__name__}"
_CALLBACK_KEY = "trainer.checkpoint_callback_class"
_ENVIRONMENT = "ray_kwargs.ray_init.runtime_env.env_vars"


def watch_config() -> None:
    """Check every configuration that verl's own `validate_config` sees; doing it again changes nothing.

    Without it an unknown estimator fails only after the first rollout, and an unknown loss at the first update.
    """
    original = verl_config.validate_config
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def validate_config(config: DictConfig, *args: Any, **kwargs: Any) -> None:
        if concerns(config):
            prepare(config)
        original(config, *args, **kwargs)

    verl_config.validate_config = validate_config


def remove_checks() -> None:
    """Undo `watch_config`."""
    verl_config.validate_config = getattr(verl_config.validate_config, "__wrapped__", verl_config.validate_config)


def prepare(config: DictConfig) -> None:
    """Refuse what would give wrong numbers, report what verl does differently, fill in what is left open.

    Raises ValueError with every reason. Filled in: the constant of aggregation=constant, the callback that writes the
    card, and the environment of the workers.
    """
    if OmegaConf.select(config, f"{_ENVIRONMENT}.{DRIVER_VARIABLE}") is not None:
        _again(config)
        return
    _write_registered_names(config)
    run = read_run_config(config)
    reasons = list(refusals(run))
    if reasons:
        raise ValueError("verl cannot run this configuration:\n" + "\n".join(f"- {reason}" for reason in reasons))
    print(_opening(run), flush=True)
    for report in reports(run):
        LOG.warning(report)
    with open_dict(config):
        for key, value in {**_length(run), **_environment()}.items():
            OmegaConf.update(config, key, value, force_add=True)
        _install_card(run)


def _opening(run: RunConfig) -> str:
    """The lines at the start of a run: its objective in brief, or every value of it with print_card."""
    card, node = make_card(run), node_of(run.config.algorithm)
    if node.get("print_card"):
        return card.text()
    first, *lines = card.opening()
    switched = node.get("health") is False
    lines.append("health: not checked." if switched else "health: checked in every step (gv/health/* in the log).")
    where = Path(str(run.get("trainer.default_local_dir"))) / FILE_NAME
    lines.append(f"card: {where}, with every value and where it comes from; +{NODE}.print_card=True prints it.")
    return "\n  ".join([first, *lines])


def _write_registered_names(config: DictConfig) -> None:
    """Write names as they are registered with verl, which needs the exact spelling: `gv_dr_grpo` for `gv_Dr-GRPO`."""
    for where in (ESTIMATOR, LOSS_MODE):
        word = str(OmegaConf.select(config, where))
        found = find(word) if is_prefixed(word) else None
        if found is not None:
            OmegaConf.update(config, where, PREFIX + found.name)


def _again(config: DictConfig) -> None:
    """The legacy trainer checks a second time, in the process that computes advantages."""
    if node_of(config.algorithm).get("extend_host"):
        extend_host()


def _length(run: RunConfig) -> dict[str, Any]:
    return {} if run.loss is None else length_setting(run.loss.variant, run.get)


def _environment() -> dict[str, str]:
    """Variables that Ray sets for every worker: the driver's version, and the modules of a user's own variants."""
    modules = os.environ.get(MODULES_VARIABLE)
    told = {DRIVER_VARIABLE: __version__} | ({MODULES_VARIABLE: modules} if modules else {})
    return {f"{_ENVIRONMENT}.{name}": value for name, value in told.items()}


def _install_card(run: RunConfig) -> None:
    """Let verl's checkpoint callback write the card; the legacy trainer has none, so it is written here."""
    if not run.get("trainer.use_v1"):
        if run.get("trainer.default_local_dir") is not None:
            install(make_card(run), run.config.trainer)
        return
    given = run.get(_CALLBACK_KEY)
    if given is None:
        OmegaConf.update(run.config, _CALLBACK_KEY, CALLBACK)
    elif not issubclass(load_class_from_fqn(given), VariantCallback):
        LOG.warning("%s writes no variant card: derive it from %s to have one.", given, CALLBACK)
