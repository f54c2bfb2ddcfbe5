r"""How far the rollout engine's probabilities are from the trainer's, from additive sums over any split of a step.

With \(d_{it} = \mathrm{old}_{it} - \mathrm{mu}_{it}\) and \(w_{it} = e^{d_{it}}\), before any correction.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from grpo_variants.tensors.masked import low_and_high, masked_sum, select

# The bound of the corrections: exp(20) is finite in float32, and so are sums of its square over a batch.
_LOG_BOUND = 20.0


def mismatch_sums(old_logp: Tensor, rollout_logp: Tensor, mask: Tensor) -> dict[str, Tensor]:
    r"""What `mismatch_report` needs, 0-d each and additive over micro-batches and ranks.

    old_logp, rollout_logp: [B, T] log-probabilities by the trainer when sampled, and as the engine reported them; NaN
    for a token that the engine could not score, which is left out here. mask: [B, T] loss mask.
    Nothing waits for the device, nothing carries a gradient.
    """
    scored, d = _scored(old_logp, rollout_logp, mask)
    w = select(scored, d.exp())
    product = masked_sum(d, scored).clamp(-_LOG_BOUND, _LOG_BOUND).exp()
    product = select(scored.any(1, keepdim=True), product)
    return {
        "tokens": scored.sum().float(),
        "responses": scored.any(1).sum().float(),
        "weight": w.sum(),
        "weight_squared": w.square().sum(),
        "product": product.sum(),
        "product_squared": product.square().sum(),
        "distance": d.abs().sum(),
        "k1": -d.sum(),
        "k3": select(scored, d.expm1() - d).sum(),
    }


def mismatch_extrema(old_logp: Tensor, rollout_logp: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Smallest and largest token weight, 0-d, to be combined by minimum and maximum; infinite for an empty mask."""
    scored, d = _scored(old_logp, rollout_logp, mask)
    low, high = low_and_high(d.exp(), scored)
    return {"mismatch/ratio/min": low, "mismatch/ratio/max": high}


def mismatch_report(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    r"""The diagnostics of a whole step from its sums, 0-d each; NaN for a step without a scored token.

    ratio/mean: mean token weight, 1 in expectation where the engine samples what it reports. ess: effective sample
    size as a share, \((\sum w)^2 / (n \sum w^2)\), over tokens; ess/sequence the same of the products over responses.
    distance: mean of \(|d|\). kl/k1, kl/k3: estimates of KL(engine || trainer), means of \(-d\) and of
    \(e^d - 1 - d\).
    """
    tokens, responses = sums["tokens"], sums["responses"]
    return {
        "mismatch/ratio/mean": sums["weight"] / tokens,
        "mismatch/ess": sums["weight"].square() / (tokens * sums["weight_squared"]),
        "mismatch/ess/sequence": sums["product"].square() / (responses * sums["product_squared"]),
        "mismatch/distance": sums["distance"] / tokens,
        "mismatch/kl/k1": sums["k1"] / tokens,
        "mismatch/kl/k3": sums["k3"] / tokens,
    }


def _scored(old_logp: Tensor, rollout_logp: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens that the engine scored, and their bounded log weights, 0 elsewhere: both [B, T]."""
    scored = mask.bool() & ~rollout_logp.isnan()
    with torch.no_grad():
        d = select(scored, (old_logp - rollout_logp).float())
        return scored, d.clamp(-_LOG_BOUND, _LOG_BOUND)
