"""Checks of tensors: what they are, where they are and, where looking costs nothing, what they hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# What rounding may lift a log-probability above 0: a logit of 1000 less its logsumexp is off by 1e-4 in float32, one of
# 32 by 0.2 in bfloat16.
_ROUNDING = {torch.bfloat16: 0.25, torch.float16: 0.25}
_ROUNDING_ELSEWHERE = 1e-3
# Numbers looked at in one go: what is computed of them stays in the processor's cache, and takes no memory to speak of.
_BLOCK = 65536


def readable(value: Tensor) -> bool:
    """Whether a tensor's numbers can be looked at without waiting for a device, and outside of every tracer."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    plain = type(value) in (Tensor, torch.nn.Parameter) and value.device.type == "cpu"
    return plain and not torch._C._are_functorch_transforms_active()


def check_tensor(name: str, value: object) -> None:
    """Raise ValueError for what is no tensor."""
    if not isinstance(value, Tensor):
        given = "missing" if value is None else f"of type {type(value).__name__}"
        raise ValueError(f"{name} is {given}; allowed: a tensor, as in {name}=torch.tensor(...).")


def check_devices(named: Mapping[str, Tensor]) -> None:
    """Raise ValueError where tensors lie on several devices, and where they lie on none."""
    first = next(iter(named), None)
    for name, value in named.items():
        if value.device != named[first].device:  # type: ignore[index]
            raise ValueError(
                f"{first} is on {named[first].device} and {name} on {value.device}; "  # type: ignore[index]
                f"move them to one device, as in {name}.to({first}.device)."
            )


def check_flags(name: str, value: Tensor, hint: str = "") -> None:
    """Raise ValueError for a mask that holds anything but 0 and 1, where it can be read."""
    if value.dtype == torch.bool or not readable(value) or not value.numel():
        return
    if not all(_is_binary(block) for block in torch.split(value.detach().reshape(-1), _BLOCK)):
        place, number = _first(value, (value != 0) & (value != 1))
        raise ValueError(f"{name} holds {number:g} at {place}; allowed: 0 and 1, or True and False.{hint}")


def _is_binary(value: Tensor) -> bool:
    # x^2 - x is 0 for 0 and 1 alone, and NaN for NaN; a comparison would take twice as long.
    floating = value.is_floating_point()
    low, high = (extreme.item() for extreme in (value * value - value if floating else value).aminmax())
    return bool(low >= 0 and high <= (0 if floating else 1))


def check_lengths(name: str, value: Tensor) -> None:
    """Raise ValueError for lengths that are no whole numbers from 0, where they can be read."""
    if not readable(value) or not value.numel():
        return
    wrong = ~(value >= 0) if not value.is_floating_point() else ~((value >= 0) & (value - value.floor() == 0))
    if wrong.any():
        place, number = _first(value, wrong)
        raise ValueError(f"{name} holds {number:g} at {place}; allowed: a number of tokens, 0, 1, 2 and so on.")


def check_log_probabilities(name: str, value: Tensor, mask: Tensor | None) -> None:
    """Raise ValueError for a log-probability above 0 at a token that counts, where it can be read."""
    most = _ROUNDING.get(value.dtype, _ROUNDING_ELSEWHERE)
    if not readable(value) or not value.numel() or value.detach().amax().item() <= most:
        return
    above = value > most if mask is None else (value > most) & mask.bool()
    if above.any():
        place, number = _first(value, above)
        raise ValueError(
            f"{name} holds {number:g} at {place}; allowed: log-probabilities, which are at most 0. For probabilities "
            "take the logarithm, for logits log_softmax; negative log-likelihoods change their sign."
        )


def _first(value: Tensor, where: Tensor) -> tuple[list[int], float]:
    """Place and value of the first entry that is chosen."""
    place = where.nonzero()[0].tolist()
    return place, value[tuple(place)].item()
