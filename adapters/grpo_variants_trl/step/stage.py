"""The trainer's two stages of an optimizer step: its counts, and its loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from grpo_variants import Loss, Tokens
from grpo_variants.objective.compute import loss_of
from grpo_variants_trl.rollout.mismatch import filled
from grpo_variants_trl.step.log import current_metrics
from grpo_variants_trl.step.packing import pack
from grpo_variants_trl.step.step_counts import (
    SpanningStepCounts,
    StepCounts,
    count_step,
    loss_mask,
    may_be_approximate,
    needs_whole_step,
    spanning_step,
)
from grpo_variants_trl.step.step_statistics import DRAWS, step_thresholds, with_draws

# What a model's forward may read besides token ids: TRL puts these into the batch under the same names.
_MODEL_INPUTS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


class CountingStage(GRPOTrainer):
    """Knows which micro-batches make an optimizer step, and counts them at its first one."""

    def _current_step(self, inputs: dict[str, Any]) -> StepCounts:
        """The optimizer step that this micro-batch belongs to, counted at its first one."""
        limit = self.max_completion_length
        if not self.model.training:
            return self._counted([inputs])
        if self._step_counts is None or self._step_counts.left == 0:
            self._live.follow(sampling=False)
            size = self.current_gradient_accumulation_steps
            steps = self.args.steps_per_generation
            if self._is_whole(size):
                batches = [self._buffered_inputs[(self._step + i) % steps] for i in range(size)]
                self._step_counts = self._counted(batches)
            else:
                self._refuse_silent_approximation(size)
                self._step_counts = spanning_step(self.accelerator, limit, size)
            self._step_counts.on_policy = self._step % (steps * self.num_iterations) == 0
        if isinstance(self._step_counts, SpanningStepCounts):
            share = self.current_gradient_accumulation_steps / self.args.steps_per_generation
            self._step_counts.enter(self.variant, inputs, self._buffered_inputs, share, self.accelerator)
        return self._step_counts

    def _refuse_silent_approximation(self, size: int) -> None:
        """Raise RuntimeError where an optimizer step spans two generations, and nobody asked to count by TRL's rule.

        Schedules for which this is known are refused when the trainer is made.
        """
        asked = getattr(self.args, "approximate_windows", False) and may_be_approximate(self.variant)
        if asked or not needs_whole_step(self.variant, entropy_bonus=self._entropy_bonus is not None):
            return
        every = self.args.steps_per_generation * self.num_iterations
        raise RuntimeError(
            f"optimizer step {self.state.global_step + 1} begins with micro-batch {self._step} and has {size} of them, "
            f"so it spans two generations of {every}, and the lengths that {self.variant.name}'s loss needs are not "
            "known yet. Begin each optimizer step at a multiple of gradient_accumulation_steps, which the trainer does "
            "by itself: something has changed its schedule or its counter of micro-batches."
        )

    def _counted(self, batches: list[dict[str, Any]]) -> StepCounts:
        """The optimizer step (or evaluation batch) of these micro-batches: counts, statistics, packed responses."""
        batches = with_draws(self, batches)
        step = count_step(self.variant, batches, self.accelerator, self.max_completion_length)
        step.counts = replace(step.counts, thresholds=step_thresholds(self, batches))
        step.batches = batches if self.variant.surrogate.draws else None
        if self._packing is not None and self.model.training:
            pack(self._packing, self.variant, batches, step, self.accelerator)
        return step

    def _is_whole(self, size: int) -> bool:
        """Whether the buffer holds all micro-batches of an optimizer step that begins now."""
        every = self.args.steps_per_generation * self.num_iterations
        return self._step % every + size <= every


class ObjectiveStage(GRPOTrainer):
    """Scores the tokens of a micro-batch and computes the variant's loss under the optimizer step's counts."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.variant is None:
            return super()._compute_loss(model, inputs)
        self._overridden.check_advantages(inputs)
        step = self._current_step(inputs)
        inputs = step.next_batch(inputs)
        self._head.expect(inputs, step)
        logp, entropy, aux_loss = self._score_tokens(
            model,
            inputs,
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
        )
        x = self._tokens(inputs, logp, entropy, step.next_weights())
        x = replace(x, keep=self.variant.tokens(x, step.counts))
        out = loss_of(self.variant, x, step.counts)
        loss = out.loss
        if self._entropy_bonus is not None:
            loss = loss + self._entropy_bonus(entropy, x, step)
        if self.aux_loss_enabled:
            loss = loss + self._aux_term(aux_loss)
        self._loss_metrics.mismatch(inputs.get("sampling_per_token_logps"), x)
        self._close(out, step)
        return loss

    def _score_tokens(self, model: Any, inputs: dict[str, Any], **options: Any) -> Any:
        """Log-probabilities, entropies and auxiliary loss of the completions, by TRL's own forward."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        known = {name: inputs.get(name) for name in _MODEL_INPUTS}
        return self._get_per_token_logps_and_entropies(
            model,
            ids,
            attention,
            inputs["completion_ids"].size(1),
            **options,
            **known,
        )

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if self.variant is None:
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)
        with self._head.in_place():
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _tokens(self, inputs: dict[str, Any], logp: Tensor, entropy: Tensor, weights: Tensor | None) -> Tokens:
        old = inputs.get("old_per_token_logps")
        return Tokens(
            logp=logp,
            mask=loss_mask(inputs),
            advantages=inputs["advantages"],
            old_logp=old,
            ref_logp=inputs.get("ref_per_token_logps"),
            rollout_logp=filled(inputs.get("sampling_per_token_logps"), logp.detach() if old is None else old),
            entropy=entropy.detach(),
            row_weights=weights,
            draws=inputs.get(DRAWS),
        )

    def _aux_term(self, aux_loss: Tensor) -> Tensor:
        accumulated = self.current_gradient_accumulation_steps if self.model.training else 1
        current_metrics(self)["aux_loss"].append(self.accelerator.gather_for_metrics(aux_loss).mean().item())
        return self.router_aux_loss_coef * aux_loss / accumulated

    def _close(self, out: Loss, step: StepCounts) -> None:
        """Count the micro-batch as done, and add its metrics to the optimizer step's."""
        step.left -= 1
        if step.left == 0:
            self._loss_metrics.scored(step.rows, step.counts.sequences)
        self._loss_metrics.loss(out, step)
