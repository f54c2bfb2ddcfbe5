"""Whether a forward pass in training draws random numbers: they would fall on other tokens if responses were moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd
from trl.models.utils import disable_gradient_checkpointing

# Fields of a model's config about heads that a causal language model does not have.
_OTHER_HEADS = ("summary", "classifier")
_TOKENS = 8


def random_numbers(trainer: Any) -> str | None:
    """What in a trainer's forward draws at random, and how to switch it off; None where nothing does.

    Settings are found by name. What has no name, such as dropout written into a model's code, is found by two forward
    passes over one response, which then differ.
    """
    found = next(_named(trainer), None)
    if found is not None:
        return f"{found[0]} draws random numbers, which would fall on other tokens ({found[1]})"
    if _is_sharded(trainer):
        if type(_base(trainer.model)).__module__.startswith("transformers."):
            return None
        return "a sharded model of unknown code may draw random numbers, which would fall on other tokens"
    if _repeats(trainer):
        return None
    return (
        "two forward passes over one response differ, so the model draws random numbers, which would fall on other "
        "tokens (disable_dropout=True switches off what is a dropout module)"
    )


def _named(trainer: Any) -> Iterator[tuple[str, str]]:
    """Settings that draw random numbers, each with how to switch it off."""
    for config in getattr(trainer.model, "peft_config", {}).values():
        yield from ((f"{name}={value!r}", f"set {name}=0") for name, value in _positive(vars(config)))
    if trainer.neftune_noise_alpha:
        yield f"neftune_noise_alpha={trainer.neftune_noise_alpha!r}", "leave it unset"
    if not trainer.args.disable_dropout:  # with it a config's number may or may not have been switched off
        values = _text_config(trainer.model.config).to_dict()
        yield from ((f"{name}={value!r}", f"set {name}=0 in the model's config") for name, value in _positive(values))
    for name, module in trainer.model.named_modules():
        if isinstance(module, _DropoutNd) and module.p > 0:
            yield f"{name} (p={module.p:g})", "set disable_dropout=True"


def _positive(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Rates of dropout or jitter among a config's values."""
    for name, value in values.items():
        named = ("drop" in name or "jitter" in name) and not name.startswith(_OTHER_HEADS)
        if named and isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            yield name, value


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _is_sharded(trainer: Any) -> bool:
    """Whether the model can run only after it has been prepared, which happens later."""
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _repeats(trainer: Any) -> bool:
    """Whether two passes over one response in training mode have the same log-probabilities, on every rank.

    The run's own random numbers stay as they are.
    """
    model, device = trainer.model, trainer.accelerator.device
    ids = torch.arange(2 * _TOKENS, device=device).remainder(_text_config(model.config).vocab_size).view(2, 1, -1)
    mask = torch.ones_like(ids[0])
    row = {"prompt_ids": ids[0], "prompt_mask": mask, "completion_ids": ids[1], "completion_mask": mask}
    training = model.training
    model.train()
    own_numbers = torch.random.fork_rng([device] if device.type == "cuda" else [])
    as_in_sampling = disable_gradient_checkpointing(model, trainer.args.gradient_checkpointing_kwargs)
    with own_numbers, torch.no_grad(), as_in_sampling:
        first, second = (trainer._score_tokens(model, row)[0] for _ in range(2))
    model.train(training)
    same = torch.tensor([torch.equal(first, second)], device=device)
    return bool(trainer.accelerator.gather(same).all())
