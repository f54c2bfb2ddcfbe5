"""Masked reductions over the token axis: select first, then do arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor


def select(mask: Tensor, value: Tensor, fill: float = 0.0) -> Tensor:
    """Take `value` [B, T] (or [B, 1]) where `mask` [B, T] holds and `fill` elsewhere.

    Selection and not multiplication: NaN or inf under the mask must reach neither value nor gradient.
    """
    return torch.where(mask, value, torch.full((), fill, dtype=value.dtype, device=value.device))


def masked_sum(value: Tensor, mask: Tensor) -> Tensor:
    """Sum over tokens: [B, T] -> [B, 1]."""
    return select(mask, value).sum(-1, keepdim=True)


def masked_mean(value: Tensor, mask: Tensor) -> Tensor:
    """Mean over a row's valid tokens: [B, T] -> [B, 1]; an empty row gives 0."""
    return masked_sum(value, mask) / mask.sum(-1, keepdim=True).clamp(min=1)


def low_and_high(value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest valid value, two 0-d; +inf and -inf for an empty mask, or a tensor without elements."""
    low, high = select(mask, value, float("inf")), select(mask, value, float("-inf"))
    if low.numel() == 0:
        return low.new_full((), float("inf")), high.new_full((), float("-inf"))
    return low.amin(), high.amax()


def masked_quantile(value: Tensor, mask: Tensor, q: float) -> Tensor:
    """Linear-interpolation quantile over every valid token, 0-d; without waiting for the device.

    An empty mask gives +inf, so that a threshold keeps nothing.
    """
    beyond = value.new_full((1,), float("inf"))
    ordered = torch.cat([select(mask, value, float("inf")).flatten(), beyond]).sort().values
    position = (mask.sum() - 1).clamp(min=0) * q
    # Gathered, since an index that is a 0-d tensor is read back from the device.
    below, above = ordered.gather(0, torch.stack([position.floor(), position.ceil()]).long()).unbind()
    return torch.where(below == above, below, below + (above - below) * (position - position.floor()))


def highest(value: Tensor, mask: Tensor, fraction: float) -> Tensor:
    """Valid tokens above their own row's (1 - fraction) quantile, the share of highest values: [B, T] bool.

    The quantile interpolates between two neighbours in the row's order; nothing lies between these, so that above it
    is above the lower of the two.
    """
    beyond = value.new_full((len(value), 1), float("inf"))
    ordered = torch.cat([select(mask, value, float("inf")), beyond], 1).sort(1).values
    # A position that is whole must not fall below itself by rounding: 0.9 * 10 may be less than 9.
    place = ((mask.sum(1, keepdim=True) - 1).clamp(min=0).double() * (1 - fraction) + 1e-9).floor().long()
    return mask & (value > ordered.gather(1, place))


def reverse_cumsum(value: Tensor) -> Tensor:
    """Sum from each token to the end of its row: [N, T] -> [N, T]."""
    return value.flip(-1).cumsum(-1).flip(-1)


def discounted_sum_to_go(value: Tensor, mask: Tensor, gamma: float) -> Tensor:
    r"""Discounted return from each token on, \(R_t = x_t + \gamma_t R_{t+1}\): [N, T] -> [N, T].

    \(\gamma_t = \gamma\) at a valid token and 1 in a hole of the mask, since tokens that a tool wrote are no
    actions. Computed in \(\log_2 T\) doubling steps instead of a loop over tokens.
    """
    if gamma == 1.0:
        return reverse_cumsum(value)
    total, factor = value, torch.ones_like(value).masked_fill(mask, gamma)
    shift, width = 1, value.shape[-1]
    while shift < width:
        pad = (0, shift)
        later_total = torch.nn.functional.pad(total[:, shift:], pad)
        later_factor = torch.nn.functional.pad(factor[:, shift:], pad)
        total, factor = total + factor * later_total, factor * later_factor
        shift *= 2
    return total
