"""An explicit, reversible patch of verl: gv_ estimators get inputs that verl passes to its own estimators only.

It replaces the two functions that choose those inputs: `compute_advantage` (log-probabilities, the sum of squared
probabilities) and `compute_advantage_for_multi_trajectories` (only the last output of a session counts).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from grpo_variants.names import PREFIX
from grpo_variants.trainers.verl.findings import Finding, Fix
from grpo_variants.trainers.verl.words import OPTIONS
from grpo_variants_verl.estimator import Estimator
from grpo_variants_verl.settings import node_of

_EXTRA = ("reward_baselines", "old_log_probs", "sum_pi_squared")
_replaced: list[tuple[Any, str, Callable[..., Any]]] = []


def extend_host() -> None:
    """Replace verl's two functions in this process; doing it again changes nothing.

    `+algorithm.grpo_variants.extend_host=True` does it in the process that computes advantages.
    """
    if _replaced:
        return
    from verl.trainer.ppo import ray_trainer
    from verl.trainer.ppo.v1 import trainer_base, utils  # noqa: F401

    _replace("compute_advantage", _with_inputs(ray_trainer.compute_advantage))
    _replace(
        "compute_advantage_for_multi_trajectories", _with_last_outputs(utils.compute_advantage_for_multi_trajectories)
    )


def restore_host() -> None:
    """Undo `extend_host`."""
    while _replaced:
        module, name, original = _replaced.pop()
        setattr(module, name, original)


def _replace(name: str, extended: Any) -> None:
    """Replace a function in every module of verl that has imported it by name."""
    original = extended.__wrapped__
    for module in [m for key, m in sys.modules.items() if key.startswith("verl.")]:
        if getattr(module, name, None) is original:
            _replaced.append((module, name, original))
            setattr(module, name, extended)


def _with_inputs(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def compute_advantage(data: Any, adv_estimator: str, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        if not str(adv_estimator).startswith(PREFIX):
            return original(data, adv_estimator, *args, config=config, **kwargs)
        found = get_adv_estimator_fn(adv_estimator)(**_inputs(data, config))
        data.batch["advantages"], data.batch["returns"] = found
        return data

    return compute_advantage


def _inputs(data: Any, config: Any) -> dict[str, Any]:
    """What an estimator reads of a batch."""
    batch = data.batch
    if "response_mask" not in batch:
        from verl.trainer.ppo.ray_trainer import compute_response_mask

        batch["response_mask"] = compute_response_mask(data)
    names = ("token_level_rewards", "response_mask", *_EXTRA)
    given = {name: batch[name] for name in names if name in batch}
    return {**given, "index": data.non_tensor_batch.get("uid"), "config": config}


def _with_last_outputs(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @wraps(original)
    def compute_advantage_for_multi_trajectories(
        data: Any, batch_keys: Sequence[str], adv_estimator: str, *args: Any, **kwargs: Any
    ) -> Any:
        last = last_outputs(batch_keys)
        if not str(adv_estimator).startswith(PREFIX) or last == list(range(len(last))):
            return original(data, batch_keys, adv_estimator, *args, **kwargs)
        config = signature.bind(data, batch_keys, adv_estimator, *args, **kwargs).arguments.get("config")
        estimator = get_adv_estimator_fn(adv_estimator)
        _check_credit(estimator, config)
        rows = sorted(set(last))
        values = estimator.values(**_inputs(data.select_idxs(rows), config))
        # Each output has its session's advantage; weights of a mean over prompts count the tokens of all outputs.
        values = values[torch.tensor([rows.index(row) for row in last])]
        mask, uids = data.batch["response_mask"].bool(), data.non_tensor_batch["uid"]
        spread = estimator.spread(values, mask, config, uids)
        data.batch["advantages"], data.batch["returns"] = spread, spread
        return data

    return compute_advantage_for_multi_trajectories


def _check_credit(estimator: Estimator, config: Any) -> None:
    """Raise ValueError for a rule with one advantage per token, where sessions have several outputs."""
    if not estimator.rule(config).per_token:
        return
    finding = Finding(
        f"{estimator.__name__} gives each token its own advantage, but these sessions have several outputs and only "
        "the last one carries a reward.",
        (Fix(advantage={"credit": "outcome"}),),
    )
    raise ValueError(finding.sentence({OPTIONS: node_of(config).get("options")}.get))


def last_outputs(batch_keys: Sequence[str]) -> list[int]:
    """Row of the last output of each row's session; verl's keys are `{uid}_{session}_{index}`."""
    sessions = [key.rsplit("_", 1) for key in batch_keys]
    last: dict[str, tuple[int, int]] = {}
    for row, (session, index) in enumerate(sessions):
        last[session] = max(last.get(session, (-1, -1)), (int(index), row))
    return [last[session][1] for session, _ in sessions]
