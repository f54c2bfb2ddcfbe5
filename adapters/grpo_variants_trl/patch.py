"""Patch the stock `trl.GRPOTrainer`, which then takes the `gv_*` loss types: explicit and reversible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from trl import GRPOTrainer

from grpo_variants.names import is_prefixed
from grpo_variants_trl.trainer import VariantGRPOTrainer

_STOCK_INIT = GRPOTrainer.__init__


def register() -> None:
    """Let `trl.GRPOTrainer`, and trainers derived from it, take a variant as loss type; calling it twice is harmless.

    A trainer whose config has a `gv_*` loss type gets the hooks of `VariantGRPOTrainer`; any other is untouched. A
    plain GRPOConfig cannot tell an explicit default from an unset flag, so a variant's KL coefficient must be given as
    `beta=` there.
    """
    GRPOTrainer.__init__ = _init


def unregister() -> None:
    """Undo `register`; trainers that were made in between stay as they are."""
    GRPOTrainer.__init__ = _STOCK_INIT


@contextmanager
def registered() -> Iterator[None]:
    """Run a block with `register` in force, and put back what was there before."""
    before = GRPOTrainer.__init__
    register()
    try:
        yield
    finally:
        GRPOTrainer.__init__ = before


@wraps(_STOCK_INIT)
def _init(self: GRPOTrainer, *args: Any, **kwargs: Any) -> None:
    config = kwargs.get("args") or (args[2] if len(args) > 2 else None)
    if config is None or isinstance(self, VariantGRPOTrainer) or not is_prefixed(config.loss_type):
        _STOCK_INIT(self, *args, **kwargs)
        return
    self.__class__ = _with_hooks(type(self))
    VariantGRPOTrainer.__init__(self, *args, **kwargs)


@cache
def _with_hooks(trainer: type[GRPOTrainer]) -> type[GRPOTrainer]:
    """The same trainer class over VariantGRPOTrainer in place of GRPOTrainer; what it overrides stays in front."""
    bases = (VariantGRPOTrainer,) if trainer is GRPOTrainer else (trainer, VariantGRPOTrainer)
    return type(trainer.__name__, bases, {"__module__": trainer.__module__})
