"""A run: what its configuration trains, what verl cannot do of it, and what verl does otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo import core_algos

from grpo_variants import verl_words as words
from grpo_variants.aggregation import Constant, PromptMean, TokenMean
from grpo_variants.catalogue import find, registered
from grpo_variants.correction import OffPolicyMask
from grpo_variants.credit import Process
from grpo_variants.mismatch import misled_by_truncation
from grpo_variants.names import PREFIX, is_prefixed
from grpo_variants.options import get as variant_of
from grpo_variants.variant import Variant
from grpo_variants.verl_limits import EXTRA_INPUTS, advantage_refusals, homogeneous, loss_refusals
from grpo_variants_verl.estimator import step_rewards_needed
from grpo_variants_verl.findings import actor_reports, estimator_reports, reshaped, rollout_reports, sampling_reports
from grpo_variants_verl.settings import NODE, Chosen, base_name, check_node, estimator_choice, loss_choice, node_of

_AGENT = "actor_rollout_ref.rollout.agent"
_BUILT_IN_LOOPS = ("single_turn_agent", "tool_agent")


@dataclass(frozen=True)
class Run:
    """The ends of a configuration: a gv_ estimator, a gv_ loss, or None where verl's own is used."""

    config: DictConfig
    estimator: Chosen | None
    loss: Chosen | None

    def get(self, key: str) -> Any:
        """A value of the configuration; None where it is missing."""
        return OmegaConf.select(self.config, key)

    @property
    def own_estimator(self) -> str:
        """Name of the estimator as configured."""
        return str(self.get(words.ESTIMATOR))

    @property
    def own_loss(self) -> str:
        """Name of the policy loss as configured."""
        return str(self.get(words.LOSS_MODE))


def concerns(config: DictConfig) -> bool:
    """Whether a configuration names anything of this package, a variant without its gv_ included."""
    given = {where: str(OmegaConf.select(config, where)) for where in (words.ESTIMATOR, words.LOSS_MODE)}
    named = any(is_prefixed(word) or _lacks_prefix(where, word) for where, word in given.items())
    return named or OmegaConf.select(config, NODE) is not None


def _lacks_prefix(where: str, word: str) -> bool:
    """Whether a word that verl does not know is the name of a variant without its prefix."""
    own = core_algos.ADV_ESTIMATOR_REGISTRY if where == words.ESTIMATOR else core_algos.POLICY_LOSS_REGISTRY
    return word not in own and not is_prefixed(word) and find(word.partition(",")[0]) is not None


def _check_words(config: DictConfig) -> None:
    """Raise ValueError for a variant without its gv_, and for options that verl's own class would not take."""
    for where in (words.ESTIMATOR, words.LOSS_MODE):
        word = str(OmegaConf.select(config, where))
        if _lacks_prefix(where, word):
            name, comma, rest = word.partition(",")
            meant = f"{PREFIX}{registered(name).name}{comma}{rest}"
            raise ValueError(f"{where}={word!r} is none of verl's own; write {where}={meant}.")
    target = str(OmegaConf.select(config, words.LOSS_TARGET))
    if OmegaConf.select(config, words.LOSS_OPTIONS) is not None and target.startswith("verl."):
        raise ValueError(f"{words.LOSS_OPTIONS} is not known to {target}; add {words.LOSS_TARGET}={words.LOSS_CONFIG}")


def read_run(config: DictConfig) -> Run:
    """The run of a configuration; raises ValueError for a name or an option that does not exist."""
    _check_words(config)
    estimator, loss = None, None
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    if algorithm.get("grpo_variants") is not None:
        check_node(algorithm.grpo_variants)
    if is_prefixed(str(algorithm.adv_estimator)):
        estimator = estimator_choice(base_name(algorithm.adv_estimator, words.ESTIMATOR), algorithm)
    elif node_of(algorithm).get("options"):
        raise ValueError(f"{words.OPTIONS} has no effect on {words.ESTIMATOR}={algorithm.adv_estimator}.")
    if is_prefixed(str(actor.policy_loss.loss_mode)):
        loss = loss_choice(base_name(actor.policy_loss.loss_mode, words.LOSS_MODE), actor)
    return Run(config, estimator, loss)


def refusals(run: Run) -> Iterator[str]:
    """Why verl would not compute what a run's variants say."""
    if run.estimator is not None:
        yield from _estimator_refusals(run, run.estimator.variant)
    if run.loss is not None:
        yield from _loss_refusals(run, run.loss.variant)
    if run.estimator is not None and isinstance(run.estimator.variant.aggregation, PromptMean):
        yield from _prompt_mean_refusals(run, run.estimator.variant)


def reports(run: Run) -> Iterator[str]:
    """What verl does otherwise than a run's variants say, with the override that mends it."""
    if run.estimator is not None:
        yield from estimator_reports(run.estimator.variant, run.get)
    if run.loss is not None:
        yield from actor_reports(run.loss.variant, run.get)
    whole = rule_of_sampling(run)
    if whole is not None:
        yield from rollout_reports(whole, run.get)
    yield from sampling_reports(run.get)
    yield from _mode_reports(run)


def _estimator_refusals(run: Run, variant: Variant) -> Iterator[str]:
    yield from advantage_refusals(variant, extra_inputs(run))
    if isinstance(variant.credit, Process) and node_of(run.config.algorithm).get("step_rewards") is None:
        yield step_rewards_needed(variant.name)


def extra_inputs(run: Run) -> tuple[str, ...]:
    """What an extended host hands over: the V1 trainer does not carry the sum of squared probabilities."""
    if not node_of(run.config.algorithm).get("extend_host"):
        return ()
    return EXTRA_INPUTS[:1] if run.get("trainer.use_v1") else EXTRA_INPUTS


def _loss_refusals(run: Run, variant: Variant) -> Iterator[str]:
    yield from loss_refusals(variant)
    bypass = bool(run.get(f"{words.CORRECTION}.bypass_mode"))
    if bypass and not run.get("trainer.use_v1"):
        yield (
            f"{variant.name}: in bypass mode the legacy trainer replaces loss_mode by its own bypass_mode. "
            f"Mend: trainer.use_v1=True, or {words.CORRECTION}.bypass_mode=False"
        )
    if variant.ratio.anchor == "rollout" and not bypass:
        yield (
            f"{variant.name}: ratio.anchor=rollout needs verl's bypass mode, where the rollout engine's "
            f"log-probabilities are the old ones. Mend: {words.shell(words.correction_settings(variant))}"
        )
    yield from _correction_refusals(run, variant)
    yield from _truncation_refusals(run, variant)
    length, factor = getattr(variant.aggregation, "length", None), run.get(words.SCALE_FACTOR)
    if isinstance(variant.aggregation, Constant) and length and factor and float(factor) != float(length):
        yield f"{words.SCALE_FACTOR}={factor} and aggregation.length={length} disagree; set one of them."


def _correction_refusals(run: Run, variant: Variant) -> Iterator[str]:
    wanted = tuple(part for part in variant.correction if not isinstance(part, OffPolicyMask))
    if not wanted:
        return
    try:
        mend = words.shell(words.correction_settings(variant))
        has = words.read_correction(run.get)
    except ValueError as error:
        yield f"{variant.name}: {error}"
        return
    if has != wanted or not run.get(f"{words.ROLLOUT}.calculate_log_probs"):
        yield f"{variant.name}: verl computes the rollout correction, and it is not set to the variant's. Mend: {mend}"
    if run.get(words.BATCH_NORMALIZE):
        plain = words.shell({words.BATCH_NORMALIZE: False})
        yield f"{variant.name}: its weights are not normalised over the batch, as verl's would be. Mend: {plain}"


def _truncation_refusals(run: Run, variant: Variant) -> Iterator[str]:
    settings, readers = reshaped(run.get), misled_by_truncation(variant)
    # off_policy_mask compares with the trainer's own old log-probabilities in verl.
    readers = [reader for reader in readers if reader != "correction=off_policy_mask"]
    if settings and readers:
        drawn = ", ".join(f"{key}={run.get(key)}" for key in settings)
        yield (
            f"{variant.name}: with {drawn} the engine reports log-probabilities of a truncated distribution, and "
            f"{' and '.join(readers)} takes the difference for mismatch, more so the longer a response. "
            f"Mend: {words.shell(settings)}, or correction=token_truncate"
        )


def _prompt_mean_refusals(run: Run, variant: Variant) -> Iterator[str]:
    by_token = run.get(words.AGGREGATION) == "token-mean"
    if run.loss is not None:
        by_token = isinstance(run.loss.variant.aggregation, TokenMean)
        if not homogeneous(run.loss.variant):
            yield f"{run.loss.variant.name}: its surrogate does not scale with A, so advantages cannot carry weights."
    if not by_token:
        pair = {words.LOSS_TARGET: words.LOSS_CONFIG, words.LOSS_OPTIONS: words.TOKEN_MEAN}
        yield (
            f"{variant.name}: its advantages carry the weights of prompt_mean on top of a token mean, which the loss "
            f"does not take. Mend: {words.shell(pair)}"
        )


def _mode_reports(run: Run) -> Iterator[str]:
    if run.loss is not None and run.get(f"{words.CORRECTION}.bypass_mode"):
        yield (
            "in bypass mode the old log-probabilities are the rollout engine's: the ratio covers the mismatch too, and "
            "no rollout weight is applied."
        )
    if run.get(f"{words.CORRECTION}.rollout_rs"):
        yield "rollout_rs takes tokens out of the loss, while the step's token count still has them."
    carried = run.estimator is not None and isinstance(run.estimator.variant.aggregation, PromptMean)
    if carried and run.get(f"{words.ACTOR}.ppo_mini_batch_size") != run.get("data.train_batch_size"):
        yield (
            "prompt_mean is exact for one update a batch only. "
            f"Mend: {words.ACTOR}.ppo_mini_batch_size={run.get('data.train_batch_size')}"
        )
    if run.estimator is not None and run.get("trainer.use_v1") and not node_of(run.config.algorithm).get("extend_host"):
        yield from _loop_reports(run)


def _loop_reports(run: Run) -> Iterator[str]:
    """verl's rule that only the last output of a session is grouped holds for its own grpo only."""
    default = run.get(f"{_AGENT}.default_agent_loop")
    custom = run.get(f"{_AGENT}.agent_loop_config_path") or run.get(f"{_AGENT}.agent_loop_manager_class")
    if custom or default not in _BUILT_IN_LOOPS:
        yield (
            f"an agent loop that gives several outputs a session needs '+{words.EXTEND_HOST}=True', or every output "
            "counts as a response of its group."
        )


def rule_of_sampling(run: Run) -> Variant | None:
    """The registered variant whose rollout rule a run follows: the estimator's, else the loss's."""
    end = run.estimator or run.loss
    return None if end is None else variant_of(end.variant.name)
