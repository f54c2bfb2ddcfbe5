"""The variant card of a TRL run: printed at start, written beside every checkpoint."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback
from trl import GRPOConfig

from grpo_variants.card import Card
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.variant import Variant
from grpo_variants_trl.config.flags import Choice
from grpo_variants_trl.rollout.sampling_params import sampling_note
from grpo_variants_trl.step.step_counts import has_entropy_bonus, needs_whole_step, spans_generations

_ADAPTIVE_ENTROPY = (
    "use_adaptive_entropy",
    "entropy_target",
    "entropy_coef_delta",
    "entropy_coef_min",
    "entropy_coef_max",
)


def make_card(choice: Choice, args: GRPOConfig, functions: int, *, engine: bool = True) -> Card:
    """The card of a variant under a TRL config with some reward functions.

    engine: False where a rollout_func does the sampling.
    """
    return Card(
        variant=choice.variant,
        trainer="trl",
        origins=choice.origins,
        effective=_effective(choice, args),
        notes=(*_doubts(choice.variant, args.num_generations, functions), *_notes(choice, args, engine)),
    )


def _effective(choice: Choice, args: GRPOConfig) -> dict[str, Any]:
    """What TRL adds to the objective."""
    flags = [name for name in ("entropy_coef", "router_aux_loss_coef", "reward_weights") if getattr(args, name)]
    if _reads_length(choice.variant):
        flags.insert(0, "max_completion_length")
    if args.use_adaptive_entropy:
        flags += _ADAPTIVE_ENTROPY
    if getattr(args, "reset_reference_every", None):
        flags.append("reset_reference_every")
    values = {name: getattr(args, name) for name in flags}
    return values | ({"approximate_windows": True} if _is_approximate(choice, args) else {})


def _reads_length(variant: Variant) -> bool:
    return variant.aggregation.lacks_length or variant.overlong.punishes


def _is_approximate(choice: Choice, args: GRPOConfig) -> bool:
    spans = spans_generations(args.gradient_accumulation_steps, args.steps_per_generation, args.num_iterations)
    return spans and needs_whole_step(choice.variant, entropy_bonus=has_entropy_bonus(args))


def _doubts(variant: Variant, size: int, functions: int) -> list[str]:
    """Doubts about a variant with groups of this size and this number of reward functions."""
    notes = [f"{doubt.text} Set num_generations={doubt.draw}." for doubt in variant.doubts(size)]
    alone = variant.credit.doubt_of(functions)
    return notes if alone is None else [*notes, alone]


def _notes(choice: Choice, args: GRPOConfig, engine: bool) -> list[str]:
    notes = []
    if choice.variant.filter.drops:
        notes.append(_filter_note(choice.variant.filter))
    if _is_approximate(choice, args):
        notes.append("Token counts of an optimizer step that spans two generations follow TRL's rule, not exactly.")
    drawn = sampling_note(choice.variant, args) if engine else None
    if drawn is not None:
        notes.append(drawn)
    return notes


def _filter_note(rule: ZeroVariance) -> str:
    if rule.max_rounds == 0:
        return (
            "Groups without signal leave the loss and its counts; no new prompts are drawn for them, so a step may "
            "train on fewer responses than the batch size says."
        )
    return (
        f"Groups without signal are replaced by new prompts', in at most {rule.max_rounds} rounds; those still without "
        "it then leave the loss and its counts."
    )


class Opening(TrainerCallback):
    """Prints what is about to be trained, when training starts."""

    def __init__(self, *lines: str) -> None:
        """Keep the lines to print."""
        self.lines = lines

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print them on the main process."""
        if state.is_world_process_zero:
            print(*self.lines, sep="\n", flush=True)


class CardWriter(TrainerCallback):
    """Writes the card beside the output when training starts, and again at its end with what was changed."""

    def __init__(self, trainer: Any) -> None:
        """Bind the trainer whose card it is."""
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the card beside the output."""
        if state.is_world_process_zero:
            self.trainer.variant_card.write(args.output_dir)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the card with its history in place of the first one."""
        if state.is_world_process_zero and self.trainer.variant_card.history:
            self.trainer.variant_card.write(args.output_dir)
