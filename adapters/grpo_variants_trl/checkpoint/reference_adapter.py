"""A frozen second adapter that starts as a copy of the one in training: the reference of a KL term.

Some initialisations split the model's weights into the adapter and a rest (PiSSA, OLoRA, CorDA, LoftQ). The model
without the adapter is then not the model that training starts from, and a second adapter must not be initialised like
that again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# TRL's names: the adapter that is trained, and the frozen one that it scores the reference with where it exists.
POLICY, REFERENCE = "default", "ref"
# Initialisations of LoRA that leave the model's own weights as they are.
_PLAIN = (True, False, "gaussian", "orthogonal", "eva", "mica")


def splits_weights(config: Any) -> bool:
    """Whether an adapter's initialisation takes something out of the model's own weights."""
    return getattr(config, "init_lora_weights", True) not in _PLAIN


@contextmanager
def plain_init(model: Any) -> Iterator[None]:
    """Inside the block, adapters made from the config of a model's own adapter have a plain initialisation."""
    config = getattr(model, "peft_config", {}).get(POLICY)
    if config is None or not splits_weights(config):
        yield
        return
    own, config.init_lora_weights = config.init_lora_weights, True
    try:
        yield
    finally:
        config.init_lora_weights = own


def keep_start(trainer: Any) -> None:
    """Let a KL term's reference be the model that training starts from, where the model without adapter is not."""
    config = getattr(trainer.model, "peft_config", {})
    if trainer.beta != 0 and REFERENCE not in config and POLICY in config and splits_weights(config[POLICY]):
        add_twin(trainer.model, "the KL term")


def add_twin(model: Any, needed_by: str) -> None:
    """Give a model's adapter its frozen twin.

    Raises ValueError, with what needs it, for adapters that cannot have one.
    """
    config = model.peft_config[POLICY]
    if config.is_prompt_learning or getattr(config, "bias", "none") != "none":
        raise ValueError(_refusal(needed_by, f"{type(config).__name__}(bias={getattr(config, 'bias', 'none')!r})"))
    before = _fingerprint(model)
    with torch.random.fork_rng():  # its weights are overwritten; the run samples as it does without a twin
        try:
            with plain_init(model):
                model.add_adapter(REFERENCE, copy.copy(config))
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ValueError(_refusal(needed_by, type(config).__name__)) from error
    model.set_adapter(POLICY)
    if _fingerprint(model) != before:
        kind = f"{type(config).__name__}, which changes the model's own weights when it is made,"
        raise ValueError(_refusal(needed_by, kind))
    copy_policy(model)


def _refusal(needed_by: str, kind: str) -> str:
    return (
        f"{needed_by} needs a second adapter as the reference, which {kind} does not allow. Use an adapter of weights "
        "without biases, such as LoRA with bias='none'."
    )


def twin_pairs(model: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Each parameter of the twin with the policy's."""
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        parts = name.split(".")
        if POLICY in parts:
            yield named[".".join(REFERENCE if part == POLICY else part for part in parts)], parameter


@torch.no_grad()
def copy_policy(model: Any) -> None:
    """Let the twin be the policy as it is now."""
    for reference, policy in twin_pairs(model):
        reference.copy_(policy)


def _fingerprint(model: Any) -> list[float]:
    """A number for each of the model's parameters but the twin's, which changes with them."""
    own = [p for name, p in model.named_parameters() if REFERENCE not in name.split(".")]
    with torch.no_grad():
        sums = [torch.stack([p.double().sum(), p.double().square().sum()]).cpu() for p in own]
    return torch.cat(sums).tolist()
