"""VariantGRPOTrainer: TRL's trainer with the advantages and the loss of a variant."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from grpo_variants import Loss, Memory, Tokens, Variant
from grpo_variants.card import FILE_NAME, differences, read_card
from grpo_variants.files import FileError
from grpo_variants.objective.compute import loss_of
from grpo_variants.tensors.checks import unknown
from grpo_variants_trl.checkpoint.cards import CardWriter, Opening, make_card
from grpo_variants_trl.checkpoint.model_card import name_base_model, paper, write_objective
from grpo_variants_trl.checkpoint.moving_reference import MovingReference
from grpo_variants_trl.checkpoint.reference_adapter import keep_start, plain_init
from grpo_variants_trl.checkpoint.state import MicroBatchCounter, load_state, save_state
from grpo_variants_trl.config.builtins import opening
from grpo_variants_trl.config.grpo_config import choice_of
from grpo_variants_trl.config.live_settings import LiveSettings
from grpo_variants_trl.config.overridden_methods import LossReached, without_advantages
from grpo_variants_trl.config.refusals import check_host
from grpo_variants_trl.rollout.capture import Sampled, sample
from grpo_variants_trl.rollout.dynamic_sampling import Filled, Refill, refills
from grpo_variants_trl.rollout.eos import stop_tokens, stopping_at, turn_ends
from grpo_variants_trl.rollout.generation_batch import (
    Gathered,
    drop_responses,
    filter_groups,
    mark_groups,
    prompt_keys,
    variant_advantages,
)
from grpo_variants_trl.rollout.greedy import GreedyBaseline
from grpo_variants_trl.rollout.mismatch import check_reported, filled
from grpo_variants_trl.rollout.process_rewards import Scored, score_steps
from grpo_variants_trl.rollout.rewards import RewardBorder
from grpo_variants_trl.step.entropy_bonus import EntropyBonus
from grpo_variants_trl.step.finite import is_nonfinite, take_nonfinite
from grpo_variants_trl.step.health import HealthWatch
from grpo_variants_trl.step.lm_head import ChunkedHead
from grpo_variants_trl.step.metrics import WindowMetrics
from grpo_variants_trl.step.packing import choose_packing, pack
from grpo_variants_trl.step.step_counts import (
    GROUP,
    SpanningWindow,
    Window,
    loss_mask,
    may_be_approximate,
    needs_whole_window,
    open_window,
    spanning_window,
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

_SIGNATURE = inspect.signature(GRPOTrainer.__init__)


class VariantGRPOTrainer(GRPOTrainer):
    """TRL's `GRPOTrainer` with every variant of grpo-variants as a loss type.

    Takes what GRPOTrainer takes; give it a `VariantGRPOConfig(loss_type="gv_dapo", ...)`. Rewards become advantages
    after TRL has generated and scored, the loss replaces TRL's `_compute_loss`, and everything else (generation,
    buffering, reference, logging, checkpoints) stays with TRL. With a built-in loss type it is GRPOTrainer.
    Raises ValueError where TRL cannot do what the variant asks for, before any training.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Resolve the variant and refuse what cannot be honoured, then let TRL build itself."""
        given = _SIGNATURE.bind_partial(self, *args, **kwargs).arguments
        config = given.get("args")
        self._choice = None if config is None else choice_of(config)
        self.memory: Memory | None = None
        if self._choice is None:
            super().__init__(*args, **kwargs)
            self.add_callback(Opening(opening(self.args)))
            return
        check_host(self._choice, config, given)
        with plain_init(given.get("model")):  # TRL makes a second adapter of a model that comes with one
            super().__init__(*args, **kwargs)
        self._check_reward_names()
        self._stop_tokens = stop_tokens(self)
        self.eos_token_ids = list(dict.fromkeys([*self._stop_tokens, *turn_ends(self)]))
        self._window: Window | None = None
        self.scored: Scored | None = None
        moves = getattr(self.args, "reset_reference_every", None) is not None
        self._reference = MovingReference(self) if moves else None
        keep_start(self)
        self._reward_border = RewardBorder(self)
        self.health = HealthWatch(self) if getattr(self.args, "health_check", None) is not False else None
        self._measured = WindowMetrics(self, self.health)
        self._refill = Refill(self) if refills(self.variant) else None
        self._head = ChunkedHead(self)
        self._packing, self._packing_text = choose_packing(self, getattr(config, "skip_zero_gradient_rows", None))
        self._greedy = GreedyBaseline(self) if "greedy_rewards" in self.variant.rollout_inputs else None
        self._entropy_bonus = EntropyBonus(self) if self._entropy_bonus_enabled else None
        self.memory = Memory() if self.variant.remembers else None
        self.variant_card = make_card(self._choice, self.args, len(self.reward_funcs), engine=self.rollout_func is None)
        self._live = LiveSettings(self, {name: value for name, value in given.items() if value is not self})
        self.add_callback(LossReached(self, VariantGRPOTrainer))
        self.add_callback(CardWriter(self))
        self.add_callback(Opening(*self._opening()))
        self.add_callback(MicroBatchCounter(self))
        if self.health is not None:
            self.add_callback(self.health)

    @property
    def variant(self) -> Variant | None:
        """The variant that is trained, or None with a built-in loss type."""
        return None if self._choice is None else self._choice.variant

    def _opening(self) -> list[str]:
        """What is said at the start of a run."""
        if getattr(self.args, "print_card", None):
            return [self.variant_card.text(), f"  {self._packing_text}"]
        lines = self.variant_card.opening()
        batches, ranks = self.args.gradient_accumulation_steps, self.accelerator.num_processes
        if batches * ranks > 1:
            lines.append(
                f"an optimizer step of {batches} x {ranks} micro-batches (per process x processes) is one batch."
            )
        checked = "not checked." if self.health is None else "checked in every step (gv/health/* in the log)."
        card = Path(self.args.output_dir) / FILE_NAME
        lines += [self._packing_text, f"health: {checked}"]
        lines.append(f"card: {card}, with every value and where it comes from; print_card=True prints it.")
        return [lines[0], *(f"  {line}" for line in lines[1:])]

    def _check_reward_names(self) -> None:
        metric = self.variant.filter.metric
        if metric is not None and metric not in self.reward_func_names:
            known = [*self.reward_func_names, "none"]
            raise ValueError(unknown(f"filter.metric={metric!r} is no reward function", metric, known))

    # Rollouts

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
        host, training = partial(super()._generate_single_turn, **options), self.model.training
        with stopping_at(self, self._stop_tokens):
            generated = host(*given) if self._greedy is None else self._greedy.generate(host, *given)
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
        self._measured.rollout(seen, value, greedy)
        self._measured.sampling(sampled, kept, group_size)
        return out

    def _sampled(self, inputs: list[dict[str, Any]]) -> Filled:
        """Responses of a batch by TRL's own generation, groups without signal drawn again where the variant asks."""
        host = super()._generate_and_score_completions

        def generate(rows: list[dict[str, Any]]) -> Sampled:
            return sample(self, host, rows)

        if self._refill is not None and self.model.training:
            return self._refill(generate, inputs)
        batch = generate(inputs)
        return Filled(batch, [batch], 0)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        calculate = partial(super()._calculate_rewards, inputs, prompts, completions, completion_ids_list)
        if self.variant is None or "step_ends" not in self.variant.rollout_inputs:
            return calculate()
        rewards, self.scored = score_steps(self, calculate, prompts, completion_ids_list)
        return rewards

    def _remembered(self, inputs: list[dict[str, Any]], out: dict[str, Any], training: bool) -> dict[str, Any]:
        """The memory and the prompts it goes by, for a variant that remembers; evaluation leaves no trace in it."""
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

    # Loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.variant is None:
            return super()._compute_loss(model, inputs)
        if GROUP not in inputs:
            raise RuntimeError(without_advantages(self, VariantGRPOTrainer))
        window = self._current_window(inputs)
        inputs = window.next_batch(inputs)
        self._head.expect(inputs, window)
        logp, entropy, aux_loss = self._score_tokens(
            model,
            inputs,
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
        )
        x = self._tokens(inputs, logp, entropy, window.next_weights())
        x = replace(x, keep=self.variant.tokens(x, window.counts))
        out = loss_of(self.variant, x, window.counts)
        loss = out.loss
        if self._entropy_bonus is not None:
            loss = loss + self._entropy_bonus(entropy, x, window)
        if self.aux_loss_enabled:
            loss = loss + self._aux_term(aux_loss)
        self._measured.mismatch(inputs.get("sampling_per_token_logps"), x)
        self._close(out, window)
        return loss

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

    def _current_window(self, inputs: dict[str, Any]) -> Window:
        """The optimizer step that this micro-batch belongs to; opened at its first one."""
        limit = self.max_completion_length
        if not self.model.training:
            return self._opened([inputs])
        if self._window is None or self._window.left == 0:
            self._live.follow(sampling=False)
            size = self.current_gradient_accumulation_steps
            steps = self.args.steps_per_generation
            if self._is_whole(size):
                batches = [self._buffered_inputs[(self._step + i) % steps] for i in range(size)]
                self._window = self._opened(batches)
            else:
                self._refuse_silent_approximation(size)
                self._window = spanning_window(self.accelerator, limit, size)
            self._window.on_policy = self._step % (steps * self.num_iterations) == 0
        if isinstance(self._window, SpanningWindow):
            share = self.current_gradient_accumulation_steps / self.args.steps_per_generation
            self._window.enter(self.variant, inputs, self._buffered_inputs, share, self.accelerator)
        return self._window

    def _refuse_silent_approximation(self, size: int) -> None:
        """Raise RuntimeError where an optimizer step that spans two generations would be counted by TRL's rule unasked.

        Schedules of which this is known are refused when the trainer is made.
        """
        asked = getattr(self.args, "approximate_windows", False) and may_be_approximate(self.variant)
        if asked or not needs_whole_window(self.variant, entropy_bonus=self._entropy_bonus is not None):
            return
        every = self.args.steps_per_generation * self.num_iterations
        raise RuntimeError(
            f"optimizer step {self.state.global_step + 1} begins with micro-batch {self._step} and has {size} of them, "
            f"so it spans two generations of {every}, and the lengths that {self.variant.name}'s loss needs are not "
            "known yet. Begin each optimizer step at a multiple of gradient_accumulation_steps, which the trainer does "
            "by itself: something has changed its schedule or its counter of micro-batches."
        )

    def _opened(self, batches: list[dict[str, Any]]) -> Window:
        """The optimizer step (or evaluation batch) of these micro-batches, its statistics taken and its rows packed."""
        batches = with_draws(self, batches)
        window = open_window(self.variant, batches, self.accelerator, self.max_completion_length)
        window.counts = replace(window.counts, thresholds=step_thresholds(self, batches))
        window.batches = batches if self.variant.surrogate.draws else None
        if self._packing is not None and self.model.training:
            pack(self._packing, self.variant, batches, window, self.accelerator)
        return window

    def _is_whole(self, size: int) -> bool:
        """Whether the window's micro-batches are all in the buffer."""
        every = self.args.steps_per_generation * self.num_iterations
        return self._step % every + size <= every

    def _aux_term(self, aux_loss: Tensor) -> Tensor:
        accumulated = self.current_gradient_accumulation_steps if self.model.training else 1
        mode = "train" if self.model.training else "eval"
        self._metrics[mode]["aux_loss"].append(self.accelerator.gather_for_metrics(aux_loss).mean().item())
        return self.router_aux_loss_coef * aux_loss / accumulated

    def _close(self, out: Loss, window: Window) -> None:
        """Count the micro-batch off its window and hand its metrics in."""
        window.left -= 1
        if window.left == 0:
            self._measured.scored(window.rows, window.counts.sequences)
        self._measured.loss(out, window)

    # Logs

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, grad_norm: Any, *args: Any, **kwargs: Any) -> None:
        """TRL's log of an optimizer step, with the health of the step in it."""
        if self.variant is not None and self.health is not None:
            self.health.close(grad_norm)
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's log without numbers that are not finite, which JSON does not have; the caller keeps them in `logs`."""
        if self.variant is None:
            super().log(logs, start_time)
            return
        left_out = take_nonfinite(logs, self._metrics, "train" if self.model.training else "eval")
        super().log(logs, start_time)
        logs.update(left_out)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Whether an evaluation is the best so far; one whose metric is not finite is not, nor is it kept as such."""
        name = self.args.metric_for_best_model or ""
        value = metrics.get(name if name.startswith("eval_") else f"eval_{name}")
        if self.variant is not None and is_nonfinite(value):
            return False
        return super()._determine_best_metric(metrics=metrics, trial=trial)

    # Checkpoints

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train as TRL does; what an interruption left half done is forgotten, so that steps are whole again."""
        if self.variant is not None:
            self._window, self._buffered_inputs, self._step = None, None, 0
            self._measured.forget()
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.variant is not None and self.args.should_save:
            save_state(self, Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}")
        super()._save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.variant is not None and checkpoint is not None:
            self._report_other_card(checkpoint)
            load_state(self, Path(checkpoint))

    def _report_other_card(self, checkpoint: str) -> None:
        """Say what differs from the checkpoint's objective; a damaged card, which is only compared, stops nothing."""
        try:
            before = read_card(checkpoint)
        except FileError as error:
            self.accelerator.print(f"warning: {error}", flush=True)
            return
        if before is None:
            return
        self._live.resume(before.get("history", ()))
        changed = differences(before, self.variant_card.as_dict())
        if changed:
            lines = "\n  ".join(changed)
            self.accelerator.print(f"warning: {checkpoint} was trained with another objective:\n  {lines}", flush=True)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """TRL's model card with the variant's paper and the objective's paragraph."""
        if self.variant is None:
            super().create_model_card(*args, **kwargs)
            return
        self._name, self._paper = self.variant.name, paper(self.variant_card)
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            write_objective(self.args.output_dir, self.variant_card, getattr(self.model.config, "_name_or_path", None))

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.variant is not None:
            name_base_model(output_dir or self.args.output_dir)
