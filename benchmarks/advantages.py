"""Advantages against verl's estimators: loops, vectorised ones, and cached groups against the memory's speed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

import grpo_variants as gv
from benchmarks.case import Case, Setup
from grpo_variants.tensors.groups import Groups

GROUP = 16
# verl's estimator, and the member of the family that it is.
PAIRS = {
    "grpo": "grpo,conventions=verl",
    "rloo": "rloo,conventions=verl",
    "opo": "opo,conventions=verl",
    "gpg": "gpg,conventions=verl",
    "grpo_vectorized": "grpo,conventions=verl",
    "rloo_vectorized": "rloo,conventions=verl,singleton=zero",
}


def _rollouts(count: int, width: int) -> dict[str, Any]:
    """What verl hands an estimator: a reward at each row's last token, a mask, a uuid a row."""
    torch.manual_seed(0)
    lengths = torch.randint(1, width + 1, (count,))
    mask = (torch.arange(width) < lengths.unsqueeze(1)).float()
    rewards = torch.zeros(count, width)
    rewards[torch.arange(count), lengths - 1] = torch.rand(count)
    uids = [str(uuid.uuid4()) for _ in range(count // GROUP)]
    return {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "index": np.array([uid for uid in uids for _ in range(GROUP)], dtype=object),
    }


def _ours(spec: str, given: dict[str, Any], groups: Any = None, out: Tensor | None = None) -> Callable[[], Tensor]:
    """The package on the trainer's inputs, spread over the tokens as there; into `out` where that is given."""
    variant, groups = gv.get(spec), given["index"] if groups is None else groups
    rewards, mask = given["token_level_rewards"], given["response_mask"]

    def run() -> Tensor:
        lengths = mask.sum(-1) if variant.name == "opo" else None
        values = gv.advantages(variant, rewards.sum(-1), groups, lengths=lengths)
        return torch.mul(values.unsqueeze(-1), mask, out=out)

    return run


def _builtin(name: str, given: dict[str, Any]) -> Callable[[], Tensor]:
    from verl.trainer.ppo import core_algos

    estimator = core_algos.get_adv_estimator_fn(name)
    return lambda: estimator(**given)[0]


def against_verl(count: int, width: int) -> Setup:
    """Each of verl's group estimators against its counterpart, and verl's adapter as a user runs it."""
    from grpo_variants_verl.estimator import Estimator
    from omegaconf import OmegaConf

    given = _rollouts(count, width)
    trainer = {f"verl {name}": _builtin(name, given) for name in PAIRS}
    ours = {name: _ours(spec, given) for name, spec in PAIRS.items() if "vectorized" not in name}
    config = OmegaConf.create({"gamma": 1.0, "grpo_variants": {"options": "conventions=verl"}})
    ours["grpo, verl adapter"] = lambda: Estimator("grpo")(**given, config=config)[0]

    def check() -> None:
        for name, run in trainer.items():
            counterpart = name.removeprefix("verl ").removesuffix("_vectorized")
            assert_close(ours[counterpart](), run(), rtol=1e-4, atol=2e-5)
        assert_close(ours["grpo, verl adapter"](), ours["grpo"](), rtol=1e-5, atol=1e-6)

    return Setup({**trainer, **ours}, check, 4 * count * width)


def cached(count: int, width: int) -> Setup:
    """Groups that were made dense before, against the sum over tokens and the product with the mask alone.

    Everybody writes the product into the same tensor: a fresh one of this size costs more in page faults than the
    whole rule, and how much depends on what the allocator did before.
    """
    given = _rollouts(count, width)
    groups = Groups.of(given["index"])
    rewards, mask = given["token_level_rewards"], given["response_mask"]
    out, row = torch.empty_like(rewards), rewards.sum(-1)
    runs = {name: _ours(PAIRS[name], given, groups, out) for name in ("grpo", "rloo")}
    fresh = {f"{name}, uuids": _ours(PAIRS[name], given, out=out) for name in runs}

    def check() -> None:
        for name, run in runs.items():
            assert_close(run().clone(), fresh[f"{name}, uuids"](), rtol=0, atol=0)

    def floor() -> Tensor:
        rewards.sum(-1)
        return torch.mul(row.unsqueeze(-1), mask, out=out)

    return Setup({**runs, **fresh, "floor: one sum, one product": floor}, check, 4 * count * width)


CASES = (
    Case(
        "advantages",
        against_verl,
        quick=((8192, 1),),
        full=((512, 1), (8192, 1), (65536, 1)),
        needs=("verl",),
    ),
    Case("cached groups", cached, quick=((65536, 16),), full=((8192, 16), (65536, 16))),
)
