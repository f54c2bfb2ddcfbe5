"""The clipped loss with its gradient and metrics against verl's vanilla and TRL's dapo, as each trainer calls it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

import grpo_variants as gv
from benchmarks.case import Case, Setup
from grpo_variants import fast_paths
from grpo_variants.objective.compute import loss_of
from grpo_variants.objective.fast import compiled

SPEC = "dapo,conventions={}"
FLOOR = "floor: the same memory"
QUICK = ((256, 8192),)
FULL = ((16, 8192), (64, 512), (64, 2048), (64, 8192), (256, 512), (256, 2048), (256, 8192), (64, 32768))


def _tokens(rows: int, width: int) -> dict[str, Tensor]:
    """Ragged responses, off policy, so that both sides of the clip bind."""
    g = torch.Generator().manual_seed(0)
    logp = -1 - torch.rand(rows, width, generator=g) * 3
    lengths = torch.randint(width // 2, width + 1, (rows, 1), generator=g)
    return {
        "logp": logp,
        "old_logp": logp + 0.15 * torch.randn(rows, width, generator=g),
        "advantages": torch.randn(rows, generator=g),
        "mask": torch.arange(width) < lengths,
    }


Run = Callable[[], tuple[Tensor, Tensor]]


def _step(logp: Tensor, loss: Callable[[Tensor], Tensor]) -> Run:
    """Forward and backward, down to the gradient with respect to the log-probabilities."""

    def run() -> tuple[Tensor, Tensor]:
        leaf = logp.detach().requires_grad_()
        value = loss(leaf)
        value.backward()
        return value.detach(), leaf.grad  # type: ignore[return-value]

    return run


def _ours(spec: str, given: dict[str, Tensor], counts: gv.Counts, mode: str) -> Run:
    variant = gv.get(spec)
    inputs = {name: value for name, value in given.items() if name != "logp"}

    def loss(leaf: Tensor) -> Tensor:
        with fast_paths.mode(mode):
            # What both adapters call: gv.policy_loss looks at its inputs' numbers first.
            return loss_of(variant, gv.Tokens(logp=leaf, **inputs), counts).loss

    return _step(given["logp"], loss)


def _setup(trainer_name: str, trainer: Run, spec: str, given: dict[str, Tensor], counts: gv.Counts) -> Setup:
    modes = {"plain": "0", "eager": "1", "compiled": "compile"}
    runs = {trainer_name: trainer} | {name: _ours(spec, given, counts, mode) for name, mode in modes.items()}
    runs["compiled"]()
    if compiled.is_broken():  # the eager kernels ran in its place
        del runs["compiled"]

    def check() -> None:
        wanted = trainer()
        for name, run in runs.items():
            loss, gradient = run()
            assert_close(loss, wanted[0], rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
            assert_close(gradient, wanted[1], rtol=1e-4, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")

    floor = {} if compiled.is_broken() else {FLOOR: _same_memory(given)}
    return Setup({**runs, **floor}, check, 4 * given["logp"].numel(), opaque=("compiled", FLOOR))


def _same_memory(given: dict[str, Tensor]) -> Callable[[], Tensor]:
    """What no loss with a gradient can do without: to read the trainer's inputs, write the gradient and scale it."""
    old, a, mask = given["old_logp"], given["advantages"], given["mask"]
    a = a if a.dim() == 2 else a.unsqueeze(1)

    @torch.compile(dynamic=True)
    def moved(logp: Tensor, old: Tensor, a: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask.bool(), logp - old, 0.0) * a

    return lambda: moved(given["logp"], old, a, mask).mul_(0.5)


def against_verl(rows: int, width: int) -> Setup:
    """verl's vanilla with clip-higher and token-mean: advantages and mask come as [B, T]."""
    from verl.trainer.ppo import core_algos
    from verl.workers.config import FSDPActorConfig

    given = _tokens(rows, width)
    given["advantages"] = given["advantages"].unsqueeze(1) * given["mask"]
    config = FSDPActorConfig(rollout_n=2, ppo_micro_batch_size_per_gpu=2, clip_ratio_low=0.2, clip_ratio_high=0.28)
    vanilla = core_algos.get_policy_loss_fn("vanilla")
    given["mask"] = given["mask"].long()  # as verl's trainer has it, a part of the attention mask

    def loss(leaf: Tensor) -> Tensor:
        return vanilla(given["old_logp"], leaf, given["advantages"], given["mask"], "token-mean", config)[0]

    counts = gv.Counts.of(given["mask"])
    return _setup("verl vanilla", _step(given["logp"], loss), SPEC.format("verl"), given, counts)


class _OneProcess:
    """An accelerator of one process: what it gathers is what it was given."""

    num_processes = 1
    sync_gradients = True

    def gather(self, value: Any) -> Any:
        return value

    gather_for_metrics = gather

    def reduce(self, value: Any, reduction: str = "sum") -> Any:
        return value


def _trl_stub() -> Any:
    """The attributes that TRL's `_compute_loss` reads, for loss type dapo."""
    args = SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=False)
    return SimpleNamespace(
        args=args,
        accelerator=_OneProcess(),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        beta=0.0,
        current_gradient_accumulation_steps=1,
        epsilon_high=0.28,
        epsilon_low=0.2,
        importance_sampling_level="token",
        loss_type="dapo",
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
    )


def against_trl(rows: int, width: int) -> Setup:
    """TRL's own dapo with its metrics, called on a stub whose model answers with given log-probabilities."""
    from trl import GRPOTrainer

    given = _tokens(rows, width)
    mask = given["mask"].long()
    given["mask"], given["entropy"] = mask, torch.rand(rows, width)
    ids = torch.zeros(rows, 1, dtype=torch.long)
    inputs = {
        "prompt_ids": ids,
        "prompt_mask": ids + 1,
        "completion_ids": mask,
        "completion_mask": mask,
        "advantages": given["advantages"],
        "num_items_in_batch": mask.sum(),
        "old_per_token_logps": given["old_logp"],
    }

    def loss(leaf: Tensor) -> Tensor:
        trainer = _trl_stub()
        trainer._get_per_token_logps_and_entropies = lambda *_, **__: (leaf, given["entropy"], None)
        return GRPOTrainer._compute_loss(trainer, None, inputs)

    counts = gv.Counts.of(mask)
    return _setup("TRL dapo", _step(given["logp"], loss), SPEC.format("trl"), given, counts)


CASES = (
    Case("loss, verl", against_verl, QUICK, FULL, needs=("verl",)),
    Case("loss, TRL", against_trl, QUICK, FULL, needs=("trl",)),
)
