"""The objective stage: from verl's inputs of a policy loss to `gv.policy_loss`, with the counts of the whole step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_variants.functions import correction_weights, row_weights
from grpo_variants.names import PREFIX
from grpo_variants.objective.compute import loss_of
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.metrics import Loss
from grpo_variants.objective.ratio import TokenRatio
from grpo_variants.tensors.masked import masked_sum, select
from grpo_variants.trainers.verl.limits import loss_form
from grpo_variants.trainers.verl.words import MAX_LENGTH, SCALE_FACTOR
from grpo_variants.variant import Variant
from grpo_variants_verl.metric_means import Mean
from grpo_variants_verl.settings import loss_choice
from grpo_variants_verl.worker_check import first_use


@dataclass(frozen=True)
class PolicyLoss:
    """verl's policy loss for one variant; equal for equal names."""

    name: str

    @property
    def __name__(self) -> str:
        """Name as verl shows it."""
        return PREFIX + self.name

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, Mean]]:
        """Loss of a micro-batch under the step's counts, and its metrics as means; no KL, no entropy bonus.

        All tensors [B, T]. config: verl's ActorConfig; its `global_batch_info` holds the step's counts, and without
        them the micro-batch is the step. loss_agg_mode: how verl aggregates its own terms; the variant's
        aggregation is used here. rollout_is_weights: verl's rollout correction.
        """
        if config is None:
            raise ValueError(f"{self.__name__} reads its options from verl's actor config: pass config=.")
        chosen = loss_choice(self.name, config)
        first_use(chosen, config)
        variant = loss_form(chosen.variant)
        mask = response_mask.bool()
        x = Tokens(logp=log_prob, mask=mask, advantages=advantages, old_logp=old_log_prob)
        step = step_counts(variant, mask, config.global_batch_info)
        x = replace(
            x, row_weights=_row_weights(variant, x, step), correction=_correction(variant, x, rollout_is_weights)
        )
        # The weights count the step; the metrics are means of the micro-batch, which verl joins.
        out = loss_of(variant, x, Counts.of(mask, grad_average=step.grad_average))
        return out.loss, _metrics(out, variant, x)


def step_counts(variant: Variant, mask: Tensor, info: Mapping[str, Any]) -> Counts:
    """Counts of the optimizer step from verl's `global_batch_info`; of the micro-batch where it has none."""
    local = Counts.of(mask)
    ranks = info.get("dp_size") or 1
    tokens, sequences = info.get("batch_num_tokens"), info.get("global_batch_size")
    if ranks > 1 and (tokens is None or sequences is None):
        raise ValueError(
            f"{PREFIX}{variant.name}: {ranks} ranks but no batch_num_tokens or global_batch_size in "
            "config.global_batch_info, so the step's counts are unknown."
        )
    length = info.get("loss_scale_factor")
    if variant.aggregation.lacks_length and length is None:
        raise ValueError(
            f"{PREFIX}{variant.name}: aggregation=constant needs its length: set {SCALE_FACTOR}='${{{MAX_LENGTH}}}'."
        )
    return replace(
        local,
        tokens=local.tokens if tokens is None else tokens,
        sequences=local.sequences if sequences is None else sequences,
        length=length,
        grad_average=ranks,
    )


def _row_weights(variant: Variant, x: Tokens, step: Counts) -> Tensor:
    lengths = x.mask.sum(1)
    return row_weights(variant, lengths.double() if x.logp.dtype == torch.float64 else lengths, step)


def _correction(variant: Variant, x: Tokens, weights: Tensor | None) -> Tensor | None:
    """verl's rollout weights times the variant's parts that do not read the engine's log-probabilities."""
    if weights is None or not variant.correction:
        return weights
    return weights * correction_weights(variant, x)


_CLIPPED = "actor/pg_clipfrac"


@torch.no_grad()
def _metrics(out: Loss, variant: Variant, x: Tokens) -> dict[str, Mean]:
    """verl's names first, then the variant's; one transfer from the device for all of them."""
    zero = torch.zeros((), device=x.logp.device)
    dual = getattr(variant.surrogate, "dual", None)
    named = {
        _CLIPPED: out.metrics.get("clip/region", zero),
        "actor/ppo_kl": _mean(_drift(variant, x), x.mask),
        "actor/pg_clipfrac_lower": zero if dual is None else _dual_share(variant, x, dual),
    }
    # policy_loss is what verl reports as actor/pg_loss.
    named |= {f"actor/{PREFIX}{key}": value for key, value in out.metrics.items() if key != "policy_loss"}
    counts = (x.mask.sum(), x.mask.any(1).sum())
    *values, tokens, responses = torch.stack([value.float() for value in (*named.values(), *counts)]).tolist()
    per_response = {f"actor/{PREFIX}{key}" for key in out.per_response}
    per_response |= {_CLIPPED} if "clip/region" in out.per_response else set()
    return {
        name: Mean(value, responses if name in per_response else tokens)
        for name, value in zip(named, values, strict=True)
    }


def _drift(variant: Variant, x: Tokens) -> Tensor:
    """old - logp, inside the bounds of a token ratio, as verl's own losses report it: [B, T]."""
    if isinstance(variant.ratio, TokenRatio):
        return -variant.ratio(x)
    return x.old_logp - x.logp  # type: ignore[operator]


def _dual_share(variant: Variant, x: Tokens, dual: float) -> Tensor:
    """Share of tokens whose loss the dual clip bounds."""
    held = (variant.ratio(x).exp() > dual) & (x.advantages < 0)
    return _mean(held.float(), x.mask)


def _mean(value: Tensor, mask: Tensor) -> Tensor:
    """Mean over the micro-batch's tokens: 0-d."""
    return masked_sum(select(mask, value), mask).sum() / mask.sum().clamp(min=1)
