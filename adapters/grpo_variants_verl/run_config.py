"""The configuration of a run: which variants it trains, what verl cannot do for them, and what it does differently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo import core_algos

from grpo_variants.axes import choice_name
from grpo_variants.names import PREFIX, is_prefixed
from grpo_variants.objective.aggregation import Aggregation, Constant, TokenMean
from grpo_variants.registry import find
from grpo_variants.spec import configure
from grpo_variants.spec import get as variant_of
from grpo_variants.spelling import spelt
from grpo_variants.trainers.sampling import misled_by_truncation
from grpo_variants.trainers.verl import words
from grpo_variants.trainers.verl.findings import Finding, Fix, Refused
from grpo_variants.trainers.verl.limits import EXTRA_INPUTS, TAKES_KL, advantage_refusals, homogeneous, loss_refusals
from grpo_variants.variant import Variant
from grpo_variants_verl.config_diff import (
    actor_reports,
    batch_reports,
    correction_reports,
    estimator_reports,
    mode_reports,
    reshaped,
    rollout_reports,
    sampling_reports,
)
from grpo_variants_verl.estimator import step_rewards_needed
from grpo_variants_verl.settings import (
    NODE,
    Chosen,
    base_name,
    check_node,
    estimator_choice,
    loss_choice,
    node_of,
)

_AGENT = "actor_rollout_ref.rollout.agent"
_BUILT_IN_LOOPS = ("single_turn_agent", "tool_agent")


@dataclass(frozen=True)
class RunConfig:
    """The two stages of a configuration: a gv_ estimator and a gv_ loss, or None where verl's own is used."""

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
    """Raise Refused for a variant without its gv_, and for options that verl's own class does not have."""
    for where in (words.ESTIMATOR, words.LOSS_MODE):
        word = str(OmegaConf.select(config, where))
        if _lacks_prefix(where, word):
            name = base_name(word, where)  # refuses a name with options
            raise Refused(Finding(f"{where}={word!r} is none of verl's own.", (Fix({where: PREFIX + name}),)))
    target = str(OmegaConf.select(config, words.LOSS_TARGET))
    if OmegaConf.select(config, words.LOSS_OPTIONS) is not None and target.startswith("verl."):
        text = f"{words.LOSS_OPTIONS} is not known to {target}."
        raise Refused(Finding(text, (Fix({words.LOSS_TARGET: words.LOSS_CONFIG}),)))


def read_run_config(config: DictConfig) -> RunConfig:
    """Read the variants of a configuration; raises ValueError for a name or an option that does not exist."""
    try:
        return _read(config)
    except Refused as refused:
        raise ValueError(refused.finding.sentence(lambda key: OmegaConf.select(config, key))) from None


def _read(config: DictConfig) -> RunConfig:
    _check_words(config)
    estimator, loss = None, None
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    if algorithm.get("grpo_variants") is not None:
        check_node(algorithm.grpo_variants)
    if is_prefixed(str(algorithm.adv_estimator)):
        estimator = estimator_choice(base_name(algorithm.adv_estimator, words.ESTIMATOR), algorithm)
    elif node_of(algorithm).get("options"):
        text = f"{words.OPTIONS} has no effect on {words.ESTIMATOR}={algorithm.adv_estimator}: use a gv_ estimator, or "
        raise Refused(Finding(text + "leave it out.", (Fix({words.OPTIONS: ""}),)))
    if is_prefixed(str(actor.policy_loss.loss_mode)):
        loss = loss_choice(base_name(actor.policy_loss.loss_mode, words.LOSS_MODE), actor)
    elif str(actor.policy_loss.get("options") or ""):
        text = (
            f"{words.LOSS_OPTIONS} has no effect on {words.LOSS_MODE}={actor.policy_loss.loss_mode}: use a gv_ loss, "
        )
        raise Refused(Finding(text + "or leave it out.", (Fix({words.LOSS_OPTIONS: ""}),)))
    return RunConfig(config, estimator, loss)


def refusals(run: RunConfig) -> Iterator[str]:
    """Why verl would not compute what a run's variants define, with the overrides that fix it."""
    return (finding.sentence(run.get) for finding in _refusals(run))


def reports(run: RunConfig) -> Iterator[str]:
    """What verl does differently from what a run's variants define, with the overrides that fix it."""
    return (finding.sentence(run.get) for finding in _reports(run))


def _refusals(run: RunConfig) -> Iterator[Finding]:
    if run.estimator is not None:
        yield from _estimator_refusals(run, run.estimator.variant)
    if run.loss is not None:
        yield from _loss_refusals(run, run.loss.variant)
    over = None if run.estimator is None else words.carried_over(run.estimator.variant.aggregation)
    if run.estimator is not None and over is not None:
        yield from _carried_refusals(run, run.estimator.variant, over)


def _reports(run: RunConfig) -> Iterator[Finding]:
    if run.estimator is not None:
        yield from estimator_reports(run.estimator.variant, run.get)
    if run.loss is not None:
        yield from actor_reports(run.loss.variant, run.get)
    whole = rule_of_sampling(run)
    if whole is not None:
        yield from rollout_reports(whole, run.get)
    yield from sampling_reports(run.get)
    objective = None if run.loss is None else run.loss.variant
    yield from correction_reports(objective, run.get)
    yield from mode_reports(objective, run.get)
    yield from batch_reports(_exact_in_one_update(run), objective, run.get)
    if run.get(words.V1) and _own_loop(run):
        yield from _loop_reports(run)


def _estimator_refusals(run: RunConfig, variant: Variant) -> Iterator[Finding]:
    yield from advantage_refusals(variant, extra_inputs(run))
    if "step_ends" in variant.rollout_inputs and node_of(run.config.algorithm).get("step_rewards") is None:
        yield step_rewards_needed(variant.name)


def extra_inputs(run: RunConfig) -> frozenset[str]:
    """Inputs that a patched verl passes on: the V1 trainer does not carry the sum of squared probabilities."""
    if not node_of(run.config.algorithm).get("extend_host"):
        return frozenset()
    computed = run.get(words.SUM_PI_SQUARED) and not run.get(words.V1)
    return EXTRA_INPUTS if computed else EXTRA_INPUTS - {"sum_pi_squared"}


def _loss_refusals(run: RunConfig, variant: Variant) -> Iterator[Finding]:
    yield from loss_refusals(variant)
    bypass = bool(run.get(words.BYPASS))
    if bypass and not run.get(words.V1):
        yield Finding(
            f"{variant.name}: in bypass mode the legacy trainer replaces loss_mode by its own bypass_mode.",
            (Fix({words.V1: True}), Fix({words.BYPASS: False})),
        )
    if variant.ratio.anchor == "rollout" and not bypass:
        yield Finding(
            f"{variant.name}: ratio.anchor=rollout needs verl's bypass mode, where the rollout engine's "
            "log-probabilities are the old ones.",
            (Fix({words.ENGINE_LOGP: True, words.BYPASS: True, words.V1: True}),),
        )
    if bypass and not run.get(words.ENGINE_LOGP):
        text = f"{variant.name}: bypass mode needs the rollout engine's log-probabilities, and they are not kept."
        yield Finding(text, (Fix({words.ENGINE_LOGP: True}),))
    yield from _correction_refusals(run, variant)
    yield from _truncation_refusals(run, variant)
    length, factor = getattr(variant.aggregation, "length", None), run.get(words.SCALE_FACTOR)
    if isinstance(variant.aggregation, Constant) and length and factor and float(factor) != float(length):
        text = f"{words.SCALE_FACTOR}={factor} and aggregation.length={length} disagree."
        yield Finding(text, (Fix({words.SCALE_FACTOR: None}),))


def _correction_refusals(run: RunConfig, variant: Variant) -> Iterator[Finding]:
    wanted = tuple(part for part in variant.correction if "rollout_logp" in part.reads)
    if not wanted:
        return
    try:
        settings = words.correction_settings(variant)
        has = words.read_correction(run.get)
    except ValueError as error:
        yield Finding(f"{variant.name}: {error}")
        return
    if variant.ratio.anchor == "rollout":
        text = f"{variant.name}: verl applies no rollout weight in bypass mode, which ratio.anchor=rollout needs."
        yield Finding(text, (Fix(objective={"correction": "none"}),))
    elif has != wanted:
        text = f"{variant.name}: verl computes the rollout correction, and it is not set to the variant's."
        yield Finding(text, (Fix({words.BYPASS: False, **words.NO_CORRECTION, **settings}),))
    elif run.get(words.BATCH_NORMALIZE):
        text = f"{variant.name}: its weights are not normalised over the batch, as verl's would be."
        yield Finding(text, (Fix({words.BATCH_NORMALIZE: False}),))


def _truncation_refusals(run: RunConfig, variant: Variant) -> Iterator[Finding]:
    settings, readers = reshaped(run.get), misled_by_truncation(variant)
    # off_policy_mask compares with the trainer's own old log-probabilities in verl.
    readers = [reader for reader in readers if reader != "correction=off_policy_mask"]
    if settings and readers:
        drawn = ", ".join(f"{key}={run.get(key)}" for key in settings)
        yield Finding(
            f"{variant.name}: with {drawn} the engine reports log-probabilities of a truncated distribution, and "
            f"{' and '.join(readers)} takes the difference for mismatch, and more so for longer responses.",
            (Fix(settings), *_by_token(variant)),
        )


def _by_token(variant: Variant) -> Iterator[Fix]:
    """The same correction with a weight per token, which is right for a truncated distribution."""
    own = [choice_name("correction", part) for part in variant.correction if "rollout_logp" not in part.reads]
    changes = {"correction": "+".join(["token_truncate", *own])}
    weighed = configure(variant, changes)
    if not misled_by_truncation(weighed):
        yield Fix({**words.NO_CORRECTION, **words.correction_settings(weighed)}, objective=changes)


def _carried_refusals(run: RunConfig, variant: Variant, over: Aggregation) -> Iterator[Finding]:
    """Where the loss does not aggregate as the weights in the advantages need, or cannot take weights from them."""
    plain = words.aggregation_options(over)
    if run.loss is None:
        settings = words.aggregation_settings(replace(variant, aggregation=over))
        fits, fix = run.get(words.AGGREGATION) == settings[words.AGGREGATION], Fix(settings)
    else:
        fits, fix = isinstance(run.loss.variant.aggregation, type(over)), Fix(objective=plain)
        if not homogeneous(run.loss.variant):
            text = f"{run.loss.variant.name}: its surrogate does not scale with A, so advantages cannot carry weights."
            yield Finding(text, _without_weights(variant, over))
        if variant.aggregation.drops_rows and run.loss.variant.kl_in_loss:
            yield Finding(f"{variant.name}: {TAKES_KL}", _without_weights(variant, over))
    if not fits:
        word = _word(variant.aggregation)
        yield Finding(
            f"{variant.name}: its advantages carry the weights of {word} on top of {spelt(plain)}, which the loss does "
            "not have.",
            (fix,),
        )


def _without_weights(variant: Variant, over: Aggregation) -> tuple[Fix, ...]:
    """The estimator without the weights: without the options that ask for them, or with the loss's aggregation."""
    own = words.carried_over(variant_of(variant.name).aggregation)
    options = words.aggregation_options(variant.aggregation)
    return (Fix(advantage=words.aggregation_options(over) if own else dict.fromkeys(options)),)


def _word(rule: Aggregation) -> str:
    """What an aggregation is called where the advantages carry its weights."""
    return "aggregation.rows=signal" if rule.drops_rows else choice_name("aggregation", rule)


def _exact_in_one_update(run: RunConfig) -> str | None:
    """The aggregation that the advantages carry for one update per batch only; None where there is none."""
    rule = _carried(run)
    return _word(rule) if rule is not None and not rule.of_step else None


def _carried(run: RunConfig) -> Aggregation | None:
    """The aggregation whose weights the advantages carry."""
    rule = None if run.estimator is None else run.estimator.variant.aggregation
    return rule if rule is not None and words.carried_over(rule) else None


def _own_loop(run: RunConfig) -> bool:
    """Whether the agent loop is the user's own; verl's give one output per session."""
    named = run.get(f"{_AGENT}.agent_loop_config_path") or run.get(f"{_AGENT}.agent_loop_manager_class")
    return bool(named) or run.get(f"{_AGENT}.default_agent_loop") not in _BUILT_IN_LOOPS


def _loop_reports(run: RunConfig) -> Iterator[Finding]:
    """verl's rule that only the last output of a session counts in a group holds for its own grpo only."""
    several = "an agent loop of your own may give several outputs per session"
    if run.estimator is not None and not node_of(run.config.algorithm).get("extend_host"):
        yield Finding(
            f"{several}, each of which counts as a response of its group.",
            (Fix({words.EXTEND_HOST: True}),),
            lead="So that only the last one counts",
        )
    splits = f"{several}, so that verl splits a batch into more updates and fills up the last one with empty rows"
    if (word := _exact_in_one_update(run)) is not None:
        yield Finding(f"{splits}: {word} is exact for one update per batch only.")
    elif run.loss is not None and not isinstance(run.loss.variant.aggregation, TokenMean):
        yield Finding(f"{splits}, which {run.loss.variant.name}'s aggregation counts as responses.")


def rule_of_sampling(run: RunConfig) -> Variant | None:
    """The registered variant whose rollout rule a run follows: the estimator's, else the loss's."""
    chosen = run.estimator or run.loss
    return None if chosen is None else variant_of(chosen.variant.name)
