"""The trainer's checkpoint stage: start, resume, save, and the model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trl import GRPOTrainer

from grpo_variants.card import differences, read_card
from grpo_variants.files import FileError
from grpo_variants_trl.checkpoint.model_card import name_base_model, paper, write_objective
from grpo_variants_trl.checkpoint.state import load_state, save_state


class CheckpointStage(GRPOTrainer):
    """Starts a run with whole optimizer steps, and writes the variant's state and card beside TRL's checkpoint."""

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train as TRL does; an optimizer step that an interruption left unfinished starts anew."""
        if self.variant is not None:
            self._step_counts, self._buffered_inputs, self._step = None, None, 0
            self._loss_metrics.forget()
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
        """Report what differs from the checkpoint's objective; a damaged card is only a warning."""
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
