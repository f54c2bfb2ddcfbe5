"""VariantGRPOTrainer: TRL's trainer with the advantages and the loss of a variant."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl import GRPOTrainer

from grpo_variants import Memory, Variant
from grpo_variants.card import FILE_NAME
from grpo_variants_trl.checkpoint.cards import CardWriter, Opening, make_card
from grpo_variants_trl.checkpoint.moving_reference import MovingReference
from grpo_variants_trl.checkpoint.reference_adapter import keep_start, plain_init
from grpo_variants_trl.checkpoint.stage import CheckpointStage
from grpo_variants_trl.checkpoint.state import MicroBatchCounter
from grpo_variants_trl.config.builtins import opening
from grpo_variants_trl.config.grpo_config import choice_of
from grpo_variants_trl.config.live_settings import LiveSettings
from grpo_variants_trl.config.overridden_methods import OverriddenMethods
from grpo_variants_trl.config.refusals import check_filter_metric, check_supported
from grpo_variants_trl.rollout.dynamic_sampling import DynamicSampling, draws_again
from grpo_variants_trl.rollout.eos import stop_tokens, turn_ends
from grpo_variants_trl.rollout.greedy import GreedyBaseline
from grpo_variants_trl.rollout.metrics import RolloutMetrics
from grpo_variants_trl.rollout.process_rewards import ScoredSteps
from grpo_variants_trl.rollout.rewards import RewardBorder
from grpo_variants_trl.rollout.stage import RolloutStage
from grpo_variants_trl.step.entropy_bonus import EntropyBonus
from grpo_variants_trl.step.health import HealthWatch
from grpo_variants_trl.step.lm_head import ChunkedHead
from grpo_variants_trl.step.log import LogStage
from grpo_variants_trl.step.metrics import LossMetrics
from grpo_variants_trl.step.packing import choose_packing
from grpo_variants_trl.step.stage import CountingStage, ObjectiveStage
from grpo_variants_trl.step.step_counts import StepCounts

_SIGNATURE = inspect.signature(GRPOTrainer.__init__)


class VariantGRPOTrainer(RolloutStage, CountingStage, ObjectiveStage, LogStage, CheckpointStage):
    """TRL's `GRPOTrainer` with every variant of grpo-variants as a loss type.

    Takes what GRPOTrainer takes; give it a `VariantGRPOConfig(loss_type="gv_dapo", ...)`. Rewards become advantages
    after TRL has generated and scored, the loss replaces TRL's `_compute_loss`, and everything else (generation,
    buffering, reference, logging, checkpoints) stays with TRL. Each stage overrides methods of GRPOTrainer; with a
    built-in loss type all of them are TRL's.
    Raises ValueError where TRL cannot do what the variant asks for, before any training.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Resolve the variant, refuse what TRL cannot do for it, and let TRL build itself."""
        given = _SIGNATURE.bind_partial(self, *args, **kwargs).arguments
        config = given.get("args")
        self._choice = None if config is None else choice_of(config)
        self.memory: Memory | None = None
        if self._choice is None:
            super().__init__(*args, **kwargs)
            self.add_callback(Opening(opening(self.args)))
            return
        check_supported(self._choice, config, given)
        with plain_init(given.get("model")):  # TRL makes a second adapter of a model that comes with one
            super().__init__(*args, **kwargs)
        check_filter_metric(self.variant, self.reward_func_names)
        self._make_parts(given)
        self._add_callbacks()

    def _make_parts(self, given: Mapping[str, Any]) -> None:
        """Make what the stages work with; given: the constructor's arguments by name."""
        self._stop_tokens = stop_tokens(self)
        self.eos_token_ids = list(dict.fromkeys([*self._stop_tokens, *turn_ends(self)]))
        self._step_counts: StepCounts | None = None
        self.scored: ScoredSteps | None = None
        moves = getattr(self.args, "reset_reference_every", None) is not None
        self._reference = MovingReference(self) if moves else None
        keep_start(self)
        self._reward_border = RewardBorder(self)
        self.health = HealthWatch(self) if getattr(self.args, "health_check", None) is not False else None
        self._rollout_metrics, self._loss_metrics = RolloutMetrics(self, self.health), LossMetrics(self, self.health)
        self._dynamic_sampling = DynamicSampling(self) if draws_again(self.variant) else None
        self._head = ChunkedHead(self)
        self._packing, self._packing_text = choose_packing(self, getattr(self.args, "skip_zero_gradient_rows", None))
        self._greedy = GreedyBaseline(self) if "greedy_rewards" in self.variant.rollout_inputs else None
        self._entropy_bonus = EntropyBonus(self) if self._entropy_bonus_enabled else None
        self.memory = Memory() if self.variant.remembers else None
        self.variant_card = make_card(self._choice, self.args, len(self.reward_funcs), engine=self.rollout_func is None)
        self._live = LiveSettings(self, {name: value for name, value in given.items() if value is not self})
        self._overridden = OverriddenMethods(self, VariantGRPOTrainer)

    def _add_callbacks(self) -> None:
        self.add_callback(self._overridden)
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
        """The lines that are printed at the start of a run."""
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
