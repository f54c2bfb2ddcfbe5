"""Which responses an optimizer step scores, and in which micro-batch: the same gradient with less arithmetic.

A response whose advantage is 0 has no gradient unless a term other than the policy's has one, so it is left out of the
model's forward. The rest are sorted by length and dealt evenly over the step's micro-batches. Each of those is trimmed
to its longest prompt and completion. Weights come from the whole step, so the loss stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from grpo_variants import Counts, Tokens, Variant, row_weights
from grpo_variants.fast_paths import OFF, VARIABLE, current
from grpo_variants.objective.compute import loss_of
from grpo_variants_trl.step.randomness import random_numbers
from grpo_variants_trl.step.step_counts import KEEP, PROMPT_SIDE, StepCounts, loss_mask

_WEIGHT = "gv_weight"
# Rotations by relative position: a prompt without its padding columns has the same attention. Other kinds depend on a
# token's absolute position or on the length of the whole batch.
_RELATIVE_ROPE = ("default", "linear", "llama3", "yarn")
_STATELESS_LAYERS = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class Packing:
    """What may be done with an optimizer step's responses without a change of its gradient.

    skip: leave out responses of advantage 0. trim_prompts: cut the padding in front of prompts too. multiple: widths
    are multiples of it.
    """

    skip: bool
    trim_prompts: bool
    multiple: int = 1

    def text(self, kept_because: str | None) -> str:
        """What it does, for the opening lines of a run."""
        if self.skip:
            return (
                "responses with advantage 0 are not scored: same gradient, less work; entropy, clip and ratio in the "
                "log are means over the scored ones (gv/scored_responses says how many)."
            )
        return f"all responses are scored: {kept_because}. They are sorted by length and trimmed."


def choose_packing(trainer: Any, asked: bool | None) -> tuple[Packing | None, str]:
    """What a run may do, and the sentence that says so.

    Raises ValueError where leaving responses out was asked for and would change the gradient.
    """
    if asked is False:
        return None, "all responses are scored, as TRL deals them (skip_zero_gradient_rows=False)."
    if current() == OFF:
        if asked:
            raise ValueError(f"skip_zero_gradient_rows=True contradicts {VARIABLE}={OFF}. Set one of them.")
        return None, f"all responses are scored, as TRL deals them ({VARIABLE}={OFF})."
    fixed = next(_against_packing(trainer), None)
    kept = fixed or next(_against_skipping(trainer), None)
    if asked and kept is not None:
        raise ValueError(
            f"skip_zero_gradient_rows=True would change the gradient: {kept}. Leave it unset, or set it to False."
        )
    if fixed is not None:
        return None, f"all responses are scored, as TRL deals them: {fixed}."
    packing = Packing(
        skip=kept is None,
        trim_prompts=_has_relative_positions(trainer.model.config),
        multiple=trainer.pad_to_multiple_of or 1,
    )
    return packing, packing.text(kept)


def _against_packing(trainer: Any) -> Iterator[str]:
    """Why responses cannot move to another micro-batch of the optimizer step."""
    if trainer.aux_loss_enabled:
        yield "the experts' load-balancing loss is one of the whole micro-batch"
    if trainer._is_vlm:
        yield "images belong to their micro-batch"
    drawn = random_numbers(trainer)
    if drawn is not None:
        yield drawn


def _against_skipping(trainer: Any) -> Iterator[str]:
    """Why a response of advantage 0 has a gradient."""
    variant = trainer.variant
    if variant.kl_in_loss:
        yield f"the KL term (kl.beta={variant.kl.beta:g}) has a gradient for every response"
    if trainer._entropy_bonus_enabled:
        yield "the entropy bonus has a gradient for every response"
    if not has_no_gradient_without_advantage(variant):
        yield f"{variant.name} has a gradient for every response"


@lru_cache(maxsize=256)
def has_no_gradient_without_advantage(variant: Variant) -> bool:
    """Whether the policy term's gradient is 0 where advantages are, tried on ratios inside and outside every bound."""
    moved = torch.tensor([[0.0, 0.1, -0.1, 0.4], [-0.4, 1.5, -1.5, 0.25], [3.0, -3.0, 0.01, -0.25]]).double()
    old = torch.linspace(-7.0, -3.1, 12, dtype=torch.float64).view(3, 4)
    logp = (old + moved).requires_grad_()
    x = Tokens(
        logp=logp,
        mask=torch.ones_like(moved, dtype=torch.bool),
        advantages=torch.zeros(3, 4) if variant.per_token else torch.zeros(3),
        old_logp=old,
        rollout_logp=old + 0.1,
        entropy=-old,
        row_weights=torch.ones(3),
        draws=torch.full_like(moved, 0.5) if variant.surrogate.draws else None,
    )
    # A statistic of the optimizer step that picks every token: a penalty on the picked ones is a gradient too.
    picked = dict.fromkeys(variant.threshold_names, 0.0)
    counts = Counts(tokens=12, sequences=3, prompts=1, length=4, thresholds=picked)
    loss_of(replace(variant, kl=None), x, counts).loss.backward()
    return bool((logp.grad == 0).all())


def _has_relative_positions(config: Any) -> bool:
    """Whether a model's attention stays the same without a padding column in front of every prompt."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    layers = getattr(text, "layer_types", None) or ()
    if getattr(text, "attention_chunk_size", None) or not set(layers) <= set(_STATELESS_LAYERS):
        return False
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    if rope is None:
        return getattr(text, "rope_theta", None) is not None
    kinds = [part for part in rope.values() if isinstance(part, dict)] or [rope]
    return all(kind.get("rope_type", kind.get("type", "default")) in _RELATIVE_ROPE for kind in kinds)


def pack(
    packing: Packing, variant: Variant, batches: Sequence[dict[str, Any]], step: StepCounts, accelerator: Any
) -> None:
    """Put this rank's responses of an optimizer step into new micro-batches, with the weights that they had."""
    rows = _joined(batches)
    lengths = loss_mask(rows).sum(1)
    scored = _has_advantage(rows) if packing.skip else lengths > 0
    weights = torch.cat(step.weights) if step.weights else row_weights(variant, lengths, step.counts)
    dealt = _dealt(rows, scored, len(batches))
    step.batches = [_taken(packing, rows | {_WEIGHT: weights}, chosen) for chosen in dealt]
    step.weights = [batch.pop(_WEIGHT) for batch in step.batches]
    step.rows = step.counts.sequences
    step.counts = _scored_counts(step.counts, lengths, scored, accelerator)


def _joined(batches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The micro-batches of a generation as one; they have one width."""
    whole: dict[str, Any] = {}
    for name, value in batches[0].items():
        if isinstance(value, Tensor) and value.dim() > 0:
            whole[name] = torch.cat([batch[name] for batch in batches])
    return whole


def _has_advantage(rows: dict[str, Any]) -> Tensor:
    """Which responses have a loss token with an advantage: [B] bool."""
    advantages, mask = rows["advantages"], loss_mask(rows)
    nonzero = advantages != 0
    return ((nonzero if nonzero.dim() == 2 else nonzero.unsqueeze(1)) & mask).any(1)


def _dealt(rows: dict[str, Any], scored: Tensor, count: int) -> list[Tensor]:
    """Responses of each micro-batch, the longest first; empty where there are fewer responses than micro-batches."""
    lengths = rows["prompt_mask"].sum(1) + _extent(rows["completion_mask"])
    chosen = scored.nonzero().flatten()
    chosen = chosen[lengths[chosen].argsort(descending=True, stable=True)]
    return list(chosen.tensor_split(count))


def _extent(mask: Tensor) -> Tensor:
    """Width up to the last column that is set: [B]."""
    return (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)


def _taken(packing: Packing, rows: dict[str, Any], chosen: Tensor) -> dict[str, Any]:
    """A micro-batch of some responses, trimmed to them; where there are none, a stand-in, since a forward needs one."""
    if len(chosen) == 0:
        return _stand_in(packing, rows)
    part = {name: value[chosen] for name, value in rows.items()}
    prompts = int(part["prompt_mask"].sum(1).amax()) if packing.trim_prompts else part["prompt_mask"].shape[1]
    return _trimmed(part, _rounded(prompts, packing), _rounded(int(_extent(part["completion_mask"]).amax()), packing))


def _stand_in(packing: Packing, rows: dict[str, Any]) -> dict[str, Any]:
    """The shortest prompt with one token, which counts in nothing."""
    shortest = rows["prompt_mask"].sum(1).argmin().unsqueeze(0)
    part = {name: value[shortest] for name, value in rows.items()}
    part[KEEP] = torch.zeros_like(shortest, dtype=torch.bool)
    prompt = int(part["prompt_mask"].sum()) if packing.trim_prompts else part["prompt_mask"].shape[1]
    return _trimmed(part, _rounded(prompt, packing), _rounded(1, packing))


def _rounded(width: int, packing: Packing) -> int:
    return -(-max(width, 1) // packing.multiple) * packing.multiple


def _trimmed(part: dict[str, Any], prompts: int, completions: int) -> dict[str, Any]:
    """Prompts lose columns in front, what belongs to completions behind."""
    full = part["completion_mask"].shape[1]

    def cut(name: str, value: Tensor) -> Tensor:
        if name in PROMPT_SIDE:
            return value[:, max(value.shape[1] - prompts, 0) :]
        return value[:, :completions] if value.dim() == 2 and value.shape[1] == full else value

    return {name: cut(name, value) for name, value in part.items()}


def _scored_counts(counts: Counts, lengths: Tensor, scored: Tensor, accelerator: Any) -> Counts:
    """Counts of the responses that are scored, over which metrics are means; weights have the whole step's already."""
    local = torch.stack([lengths[scored].sum(), scored.sum(), (scored & (lengths > 0)).sum()]).float()
    if accelerator.num_processes > 1:
        local = accelerator.reduce(local, reduction="sum")
    tokens, sequences, nonempty = local.unbind()
    return replace(counts, tokens=tokens, sequences=sequences, nonempty=nonempty)
