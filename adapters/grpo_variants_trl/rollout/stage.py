"""The trainer's rollout stage: what it samples, and what rewards are worth."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from grpo_variants_trl.rollout.capture import capture
from grpo_variants_trl.rollout.dynamic_sampling import FilledBatch
from grpo_variants_trl.rollout.eos import stopping_at
from grpo_variants_trl.rollout.generation_batch import (
    Gathered,
    drop_responses,
    filter_groups,
    mark_groups,
    prompt_keys,
    variant_advantages,
)
from grpo_variants_trl.rollout.mismatch import check_reported
from grpo_variants_trl.rollout.process_rewards import score_steps


class RolloutStage(GRPOTrainer):
    """Generates by TRL, with the variant's dynamic sampling and greedy responses; turns rewards into advantages."""

    def _generate(self, prompts: list[Any]) -> Any:
        generated = super()._generate(prompts)
        if self.variant is not None:
            _, completion_ids, _, _, logprobs, *_ = generated
            check_reported(self.variant, completion_ids, logprobs)
        return generated

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: int, **options: Any
    ) -> Any:
        given = (prompt_ids, images, multimodal_fields, num_generations)
        if self.variant is None:
            return super()._generate_single_turn(*given, **options)
        trl_generate, training = partial(super()._generate_single_turn, **options), self.model.training
        with stopping_at(self, self._stop_tokens):
            generated = trl_generate(*given) if self._greedy is None else self._greedy.generate(trl_generate, *given)
        if self.model.training != training:  # TRL's continuous batching leaves evaluation in training mode
            self.model.train(training)
        return generated

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if self.variant is None:
            return super()._generate_and_score_completions(inputs)
        training = self.model.training
        self._live.follow(sampling=training)
        if self._reference is not None and training:
            self._reference.follow()
        group_size = self.num_generations if training else self.num_generations_eval
        sampled = self._sampled(inputs)
        inputs, out = sampled.batch.inputs, sampled.batch.out
        greedy = None if self._greedy is None else self._greedy(inputs, group_size)
        if self.variant.reads_old_logp:
            self._add_old_logps(out)
        if "entropy" in self.variant.rollout_inputs:
            self._add_entropy(out)
        seen = Gathered(self, sampled.batch, group_size)
        value = variant_advantages(self, out, seen, greedy, **self._remembered(inputs, out, training))
        out.pop("entropy", None)
        out["advantages"] = seen.own(value)
        mark_groups(out, seen)
        kept = filter_groups(self, sampled.batch, seen)
        drop_responses(self, out)
        self._rollout_metrics.responses(seen, value, greedy)
        self._rollout_metrics.groups(sampled, kept, group_size)
        return out

    def _sampled(self, inputs: list[dict[str, Any]]) -> FilledBatch:
        """Responses of a batch by TRL's own generation, with dynamic sampling where the variant has it."""
        generate = partial(capture, self, super()._generate_and_score_completions)
        if self._dynamic_sampling is not None and self.model.training:
            return self._dynamic_sampling(generate, inputs)
        batch = generate(inputs)
        return FilledBatch(batch, [batch], 0)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        calculate = partial(super()._calculate_rewards, inputs, prompts, completions, completion_ids_list)
        if self.variant is None or "step_ends" not in self.variant.rollout_inputs:
            return calculate()
        rewards, self.scored = score_steps(self, calculate, prompts, completion_ids_list)
        return rewards

    def _remembered(self, inputs: list[dict[str, Any]], out: dict[str, Any], training: bool) -> dict[str, Any]:
        """The memory and the prompts that are its keys, for a variant that remembers; evaluation does not change it."""
        if self.memory is None:
            return {}
        state = self.memory if training else copy.deepcopy(self.memory)
        return {"state": state, "groups": prompt_keys(self, inputs, out)}

    def _add_entropy(self, out: dict[str, Any]) -> None:
        """Entropies of the policy that sampled, which TRL computes in the loss only."""
        size = self.args.per_device_train_batch_size if self.model.training else self.args.per_device_eval_batch_size
        with torch.no_grad():
            _, out["entropy"], _ = self._score_tokens(self.model, out, batch_size=size, compute_entropy=True)

    def _add_old_logps(self, out: dict[str, Any]) -> None:
        """The advantage rule reads the sampling policy's log-probabilities, which TRL skips on policy."""
        if "old_per_token_logps" not in out:
            training = self.model.training
            size = self.args.per_device_train_batch_size if training else self.args.per_device_eval_batch_size
            with torch.no_grad():
                out["old_per_token_logps"], _, _ = self._score_tokens(self.model, out, batch_size=size)
