"""An explicit, reversible extension of verl: gv_ estimators get what verl hands to its own names only.

It replaces the two functions that choose those inputs: `compute_advantage` (log-probabilities, the sum of squared
probabilities) and `compute_advantage_for_multi_trajectories` (only the last output of a session counts).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from grpo_variants.names import PREFIX
from grpo_variants.options import get

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

    _replace("compute_advantage", _with_inputs(ray_trainer.compute_advantage, ray_trainer.compute_response_mask))
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


def _with_inputs(original: Callable[..., Any], response_mask_of: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def compute_advantage(data: Any, adv_estimator: str, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        if not str(adv_estimator).startswith(PREFIX):
            return original(data, adv_estimator, *args, config=config, **kwargs)
        from verl.trainer.ppo.core_algos import get_adv_estimator_fn

        batch = data.batch
        if "response_mask" not in batch:
            batch["response_mask"] = response_mask_of(data)
        batch["advantages"], batch["returns"] = get_adv_estimator_fn(adv_estimator)(
            token_level_rewards=batch["token_level_rewards"],
            response_mask=batch["response_mask"],
            index=data.non_tensor_batch.get("uid"),
            config=config,
            **{name: batch[name] for name in _EXTRA if name in batch},
        )
        return data

    return compute_advantage


def _with_last_outputs(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def compute_advantage_for_multi_trajectories(
        data: Any, batch_keys: Sequence[str], adv_estimator: str, *args: Any, **kwargs: Any
    ) -> Any:
        last = last_outputs(batch_keys)
        if not str(adv_estimator).startswith(PREFIX) or last == list(range(len(last))):
            return original(data, batch_keys, adv_estimator, *args, **kwargs)
        if get(str(adv_estimator)).per_token:
            raise ValueError(
                f"{adv_estimator} gives each token its own advantage, but these sessions have several outputs and only "
                "the last one carries a reward; use an estimator with credit=outcome."
            )
        rows = sorted(set(last))
        final = original(data.select_idxs(rows), [batch_keys[i] for i in rows], adv_estimator, *args, **kwargs)
        value = final.batch["advantages"].gather(1, final.batch["response_mask"].argmax(1, keepdim=True))
        spread = value[torch.tensor([rows.index(i) for i in last])] * data.batch["response_mask"]
        data.batch["advantages"], data.batch["returns"] = spread, spread
        return data

    return compute_advantage_for_multi_trajectories


def last_outputs(batch_keys: Sequence[str]) -> list[int]:
    """Row of the last output of each row's session; verl's keys are `{uid}_{session}_{index}`."""
    sessions = [key.rsplit("_", 1) for key in batch_keys]
    last: dict[str, tuple[int, int]] = {}
    for row, (session, index) in enumerate(sessions):
        last[session] = max(last.get(session, (-1, -1)), (int(index), row))
    return [last[session][1] for session, _ in sessions]
