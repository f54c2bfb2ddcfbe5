"""The variant card of a verl run: what is trained, as one variant, with verl's own parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from grpo_variants.axes import AXES
from grpo_variants.card import Card
from grpo_variants.fences import Meaningless
from grpo_variants.names import PREFIX
from grpo_variants.objective.correction import Correction
from grpo_variants.objective.kl import KL
from grpo_variants.spec import configure, get
from grpo_variants.spelling import resolved_values
from grpo_variants.trainers.verl import words
from grpo_variants.trainers.verl.findings import between_ends
from grpo_variants.variant import Variant
from grpo_variants_verl import builtins
from grpo_variants_verl.patch import extend_host
from grpo_variants_verl.resume import install
from grpo_variants_verl.run_config import RunConfig, read_run_config
from grpo_variants_verl.settings import Chosen, node_of

_MICRO_BATCH = f"{words.ACTOR}.ppo_micro_batch_size_per_gpu"
_VERL_AXES = ("kl", "correction", "filter", "overlong")
_RULE = tuple(axis for axis in words.axes_of("advantage") if axis not in (*_VERL_AXES, "conventions"))


def make_card(run: RunConfig) -> Card:
    """The card of a run; raises ValueError where estimator and loss do not go together."""
    rule, objective = _rule(run), _objective(run)
    parts = {axis: getattr(rule if axis in _RULE else objective, axis) for axis in AXES}
    if words.carried_over(rule.aggregation) and run.estimator is not None:
        parts["aggregation"] = rule.aggregation
    named = (run.loss or run.estimator or Chosen(objective, {})).variant.name
    try:
        variant = replace(get(named), **parts | _verl_parts(run, objective))
    except Meaningless as error:
        stages = [name for name, own in (("advantage", run.estimator), ("objective", run.loss)) if own is not None]
        raise ValueError(between_ends(error, stages).sentence(run.get)) from None
    return Card(
        variant=variant,
        trainer="verl",
        origins=_origins(run, variant),
        effective=dict(_effective(run, variant)),
        notes=tuple(_notes(run)),
    )


class VariantCallback(CheckpointCallback):
    """Writes the card into the checkpoint folder, at the start and with every checkpoint.

    Used where `trainer.checkpoint_callback_class` is not set; derive from it to have your own as well.
    """

    def __init__(self, config: Any = None) -> None:
        """Write the card into the folder of the checkpoints; patch verl where the configuration says so."""
        super().__init__(config)
        self.card = make_card(read_run_config(config))
        install(self.card, config.trainer)
        if node_of(config.algorithm).get("extend_host"):
            extend_host()

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **kwargs: Any) -> None:
        """Put the card into the checkpoint that was just written."""
        self.card.write(Path(checkpoint_dir))


def _rule(run: RunConfig) -> Variant:
    if run.estimator is not None:
        return run.estimator.variant
    variant = get(builtins.ESTIMATORS.get(run.own_estimator, "reinforce"))
    if run.own_estimator in builtins.SCALED_BY_FLAG and run.get("algorithm.norm_adv_by_std_in_grpo") is False:
        return configure(variant, {"scale": "none"})
    return variant


def _objective(run: RunConfig) -> Variant:
    if run.loss is not None:
        return run.loss.variant
    described = builtins.loss(run.own_loss, run.get)
    return get("reinforce") if described is None else builtins.objective(described, run.get)


def _verl_parts(run: RunConfig, objective: Variant) -> dict[str, Any]:
    """Parts that verl itself applies, as its configuration says."""
    return {
        "kl": _kl(run),
        "correction": _correction(run, objective),
        "filter": words.read_filter(run.get),
        "overlong": words.read_overlong(run.get),
    }


def _kl(run: RunConfig) -> KL | None:
    return words.read_kl_in_loss(run.get) or words.read_kl_in_reward(run.get)


def _correction(run: RunConfig, objective: Variant) -> tuple[Correction, ...]:
    own = tuple(part for part in objective.correction if "rollout_logp" not in part.reads)
    try:
        return (*words.read_correction(run.get), *own)
    except ValueError:  # a rejection that only verl has is named in the notes
        return (*words.read_weights(run.get), *own)


def _origins(run: RunConfig, variant: Variant) -> dict[str, str]:
    origins: dict[str, str] = {}
    for key in resolved_values(variant):
        axis = key.partition(".")[0]
        if axis in _VERL_AXES:
            origins[key] = "verl's configuration"
        elif axis in _RULE and run.own_estimator != PREFIX + variant.name:
            origins[key] = f"estimator {run.own_estimator}"
        elif axis not in _RULE and run.own_loss != PREFIX + variant.name:
            origins[key] = f"loss {run.own_loss}"
    for own in (run.estimator, run.loss):
        origins |= {} if own is None else {k: v for k, v in own.origins.items() if k in resolved_values(variant)}
    return _without_what_paper_says(origins, variant)


def _without_what_paper_says(origins: Mapping[str, str], variant: Variant) -> dict[str, str]:
    """Values of verl's configuration that equal the paper's keep the paper as their origin."""
    paper = resolved_values(get(variant.name))
    values = resolved_values(variant)
    confirmed = {key for key in origins if key.partition(".")[0] in _VERL_AXES and paper.get(key) == values[key]}
    return {key: origin for key, origin in origins.items() if key not in confirmed}


def _effective(run: RunConfig, variant: Variant) -> Iterator[tuple[str, Any]]:
    """What verl adds to the objective, under the TRL adapter's names, so that equal objectives have equal hashes."""
    rule = variant.aggregation
    if rule.lacks_length:
        yield "max_completion_length", run.get(words.SCALE_FACTOR) or run.get(words.MAX_LENGTH)
    entropy = run.get(f"{words.ACTOR}.entropy_coeff")
    if entropy:
        yield "entropy_coef", float(entropy)
    control = words.kl_control(run.get)
    if control is not None:
        yield "kl_control", control
    if words.normalises_weights(run.get):
        yield "rollout_is_batch_normalize", True


def _builtin_notes(run: RunConfig) -> Iterator[str]:
    described = builtins.loss(run.own_loss, run.get)
    if described is None:
        yield f"The policy loss is verl's own {run.own_loss}, which this card does not describe."
        return
    if described.note is not None:
        yield described.note
    if described.aggregation is None and words.read_aggregation(run.get) is None:
        yield f"verl aggregates by {run.get(words.AGGREGATION)}, which this card does not describe."


def _notes(run: RunConfig) -> Iterator[str]:
    if run.estimator is None and run.own_estimator not in builtins.ESTIMATORS:
        yield f"Advantages are verl's own {run.own_estimator}, which this card does not describe."
    if run.loss is None:
        yield from _builtin_notes(run)
    if run.estimator is not None and run.loss is not None and run.own_estimator != run.own_loss:
        yield f"Advantages are those of {run.own_estimator}."
    if words.read_kl_in_loss(run.get) and words.read_kl_in_reward(run.get):
        yield "verl applies a second KL penalty, in the rewards."
    yield from _correction_notes(run)
    if run.loss is not None and run.loss.variant.surrogate.whole_batch and not _one_micro_batch(run):
        names = " and ".join(run.loss.variant.surrogate.names)
        yield (
            f"{names} of {run.loss.variant.name} are those of each micro-batch of each worker, since a policy loss in "
            f"verl sees no more. They are the step's on one worker, with {_MICRO_BATCH} as large as {words.MINI_BATCH} "
            f"times {words.RESPONSES}."
        )
    if words.kl_control(run.get) is not None:
        yield "verl changes the coefficient of the KL penalty during the run; kl.beta is what it starts from."
    if words.reference_lacks_adapter(run.get):
        yield "The KL's reference is the base model without the adapter that the run starts from."


def _one_micro_batch(run: RunConfig) -> bool:
    """Whether a policy loss sees an optimizer step as a whole."""
    workers = (run.get("trainer.nnodes") or 1) * (run.get("trainer.n_gpus_per_node") or 1)
    rows = (run.get(words.MINI_BATCH) or 0) * (run.get(words.RESPONSES) or 1)
    dynamic = run.get(f"{words.ACTOR}.use_dynamic_bsz")
    return workers == 1 and not dynamic and (run.get(_MICRO_BATCH) or 0) >= rows > 0


def _correction_notes(run: RunConfig) -> Iterator[str]:
    weights, rejection = (run.get(f"{words.CORRECTION}.{key}") for key in ("rollout_is", "rollout_rs"))
    if run.get(words.BYPASS):
        yield "Bypass mode: the old log-probabilities are the rollout engine's."
    elif (weights or rejection) and not words.weighs(run.get):
        yield "verl computes no rollout correction, since the rollout engine's log-probabilities are not kept."
    elif rejection:
        yield f"verl rejects by rollout_rs={rejection}."
    if words.normalises_weights(run.get):
        yield "verl divides the rollout weights by their mean over the batch."
