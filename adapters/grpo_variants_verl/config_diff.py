"""Where a configuration differs from its variants, with the overrides that fix it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from grpo_variants.advantage.scale import NoScale
from grpo_variants.axes import choice_name
from grpo_variants.numerics import numerics
from grpo_variants.objective.aggregation import TokenMean
from grpo_variants.objective.kl import KL
from grpo_variants.options import read_options
from grpo_variants.rollout.overlong import Penalty
from grpo_variants.spec import configure
from grpo_variants.trainers.verl import words
from grpo_variants.trainers.verl.findings import Finding, Fix
from grpo_variants.variant import Variant
from grpo_variants_verl.settings import GAMMA_DEFAULT

# DAPO's buffer is a fifth of its maximum length (4096 of 20480).
_BUFFER_SHARE = 5
# Responses per prompt in most of the papers' runs.
_SIBLINGS = 8
_BY_STD = "algorithm.norm_adv_by_std_in_grpo"


def actor_reports(variant: Variant, get: words.Get) -> Iterator[Finding]:
    """verl's actor section against the objective of its gv_ loss."""
    yield from _aggregation(variant, get)
    wanted = variant.kl if variant.kl_in_loss else None
    yield from _kl(variant, wanted, words.read_kl_in_loss(get), words.kl_in_loss_settings(wanted), "in its loss")
    yield from _loss_fields(variant, get)


def estimator_reports(variant: Variant, get: words.Get) -> Iterator[Finding]:
    """verl's algorithm section against the advantage rule of its gv_ estimator."""
    wanted = variant.kl if variant.kl_in_reward else None
    yield from _kl(variant, wanted, words.read_kl_in_reward(get), words.kl_in_reward_settings(wanted), "in its rewards")
    gamma = float(get(words.GAMMA) or GAMMA_DEFAULT)
    if gamma != GAMMA_DEFAULT and not hasattr(variant.credit, "gamma"):
        yield Finding(
            f"{words.GAMMA}={gamma} has no effect on {variant.name}, which does not discount.",
            (Fix({words.GAMMA: GAMMA_DEFAULT}),),
        )
    if get(_BY_STD) is False and not isinstance(variant.scale, NoScale):
        yield Finding(
            f"norm_adv_by_std_in_grpo=False is read by verl's own grpo only, and {variant.name} divides.",
            (*_without_scale(variant), Fix({_BY_STD: True})),
        )
    if get(words.RESPONSES) == 1 and variant.needs_siblings:
        yield Finding(
            f"{words.RESPONSES}=1: {variant.name} compares the responses of a prompt with each other, and of a prompt "
            "with one response every advantage is 0.",
            (Fix({words.RESPONSES: _SIBLINGS}),),
        )
    else:
        for doubt in variant.doubts(int(get(words.RESPONSES) or 1)):
            yield Finding(f"{variant.name}: {doubt.text}", (Fix({words.RESPONSES: doubt.draw}),))


def _without_scale(variant: Variant) -> Iterator[Fix]:
    """The option in place of the flag, where the variant is defined without its scale."""
    try:
        configure(variant, {"scale": "none"})
    except ValueError:
        return
    yield Fix({_BY_STD: True}, advantage={"scale": "none"})


def rollout_reports(variant: Variant, get: words.Get) -> Iterator[Finding]:
    """verl's sampling against the rollout rule of a variant."""
    enabled = bool(get(f"{words.FILTER}.enable"))
    if variant.filter.drops and not enabled:
        yield Finding(
            f"{variant.name} draws new groups for those without signal, but verl's filter is off.",
            (Fix({**words.filter_settings(variant), words.V1: True}),),
        )
    if not variant.filter.drops and enabled:
        yield Finding(
            f"{variant.name} trains on every group, but verl's filter draws new ones for those without signal.",
            (Fix(words.filter_settings(variant)),),
        )
    if enabled:
        yield from _filter(get)
    yield from _overlong(variant, get)


def _overlong(variant: Variant, get: words.Get) -> Iterator[Finding]:
    has = words.read_overlong(get)
    if variant.overlong.punishes and has != variant.overlong:
        yield Finding(
            f"{variant.name} punishes overlong responses, but verl's reward manager does not do it so.",
            (Fix(words.overlong_settings(variant)),),
        )
    if not variant.overlong.masks and not variant.overlong.punishes and has.punishes:
        yield Finding(
            f"{variant.name} does not punish overlong responses, but verl's reward manager does.",
            (Fix({f"{words.OVERLONG}.enable": False}),),
        )
    if variant.overlong.masks and not has.punishes:
        buffer = max(1, int(get(words.MAX_LENGTH) or 0) // _BUFFER_SHARE)
        punished = replace(variant, overlong=Penalty(buffer=buffer))
        yield Finding(
            f"{variant.name} masks truncated responses, verl trains on them.",
            (Fix(words.overlong_settings(punished)),),
            lead="Nearest, the soft punishment",
        )


def _filter(get: words.Get) -> Iterator[Finding]:
    if not get(words.V1):
        yield Finding("verl's legacy trainer filters no groups.", (Fix({words.V1: True}),))
    rounds = get(words.ROUNDS)
    if rounds and int(rounds) > 0:
        yield Finding(
            f"{words.ROUNDS}={rounds} has no effect in verl 0.9.1: new prompts are drawn until the batch is full.",
            (Fix({words.ROUNDS: 0}),),
        )
    punished = isinstance(words.read_overlong(get), Penalty)
    if punished and get(f"{words.FILTER}.metric") == "reward":
        yield Finding(
            "the filter's metric reward holds the overlong punishment, so lengths alone make a signal.",
            (Fix({f"{words.FILTER}.metric": "acc"}),),
        )


def sampling_reports(get: words.Get) -> Iterator[Finding]:
    """Where responses come from another distribution than the one whose log-probabilities are trained."""
    settings = reshaped(get)
    if settings:
        drawn = ", ".join(f"{key}={get(key)}" for key in settings)
        yield Finding(f"{drawn}: verl trains the log-probabilities of the whole distribution.", (Fix(settings),))


def reshaped(get: words.Get) -> words.Settings:
    """Sampling params that leave tokens out, and their values that do not."""
    neutral = {f"{words.ROLLOUT}.top_p": 1, f"{words.ROLLOUT}.top_k": -1}
    return {key: value for key, value in neutral.items() if get(key) not in (None, value)}


def correction_reports(variant: Variant | None, get: words.Get) -> Iterator[Finding]:
    """A rollout correction without effect, or one that a gv_ loss (None for verl's own) does not have."""
    parts = ("rollout_is", "rollout_rs", "rollout_is_batch_normalize")
    set_to = {key: get(f"{words.CORRECTION}.{key}") for key in parts}
    if get(words.BYPASS) or not (set_to["rollout_is"] or set_to["rollout_rs"]):
        return
    named = ", ".join(f"{key}={value}" for key, value in set_to.items() if value)
    if not get(words.ENGINE_LOGP):
        yield Finding(
            f"{named} has no effect: verl computes no weight without the rollout engine's log-probabilities.",
            (Fix({words.ENGINE_LOGP: True}), Fix(words.NO_CORRECTION)),
        )
    elif variant is not None and all("rollout_logp" not in part.reads for part in variant.correction):
        yield Finding(
            f"{named}: {variant.name} has no rollout correction, verl applies one.",
            (Fix(words.NO_CORRECTION), *_as_option(variant, get)),
        )
    if set_to["rollout_rs"] and get(words.ENGINE_LOGP):
        yield Finding("rollout_rs takes tokens out of the loss, while the step's token count still has them.")


def _as_option(variant: Variant, get: words.Get) -> Iterator[Fix]:
    """The correction of a configuration as options of the loss, so that it is the variant's own."""
    if get(words.BATCH_NORMALIZE):
        return
    try:
        parts = words.read_correction(get)
    except ValueError:
        return
    whole = replace(variant, correction=(*parts, *variant.correction))
    yield Fix(objective=read_options(words.options_of(whole, ("correction",))))


def mode_reports(variant: Variant | None, get: words.Get) -> Iterator[Finding]:
    """Modes of verl that change what a KL or a ratio is; variant: that of a gv_ loss, None for verl's own."""
    if variant is not None and get(words.BYPASS):
        yield Finding(
            "in bypass mode the old log-probabilities are the rollout engine's: the ratio covers the mismatch too, and "
            "no rollout weight is applied.",
            () if variant.ratio.anchor == "rollout" else (Fix({words.BYPASS: False}),),
        )
    control = words.kl_control(get)
    if control is not None:
        yield Finding(
            f"the coefficient of the KL penalty is {control}: it changes during the run, and a variant's does not.",
            (Fix({f"{words.KL_CONTROL}.type": "fixed"}),),
        )
    if words.reference_lacks_adapter(get):
        yield Finding(
            f"{words.ADAPTER}: verl's reference is the base model without that adapter, so the KL is not 0 at the "
            "start and pulls back to the base model. For a reference that is the starting policy, merge the adapter "
            "into the model and start from that."
        )


def batch_reports(carried: str | None, variant: Variant | None, get: words.Get) -> Iterator[Finding]:
    """Updates that do not see a whole batch, or that verl pads.

    carried: the aggregation that the advantages carry for one update only. variant: that of a gv_ loss, None for
        verl's own.
    """
    prompts, mini = words.prompts_of_step(get), int(get(words.MINI_BATCH))
    if carried and mini < prompts:
        yield Finding(f"{carried} is exact for one update per batch only.", (Fix({words.MINI_BATCH: prompts}),))
    counts_rows = variant is not None and not isinstance(variant.aggregation, TokenMean)
    if counts_rows and get(words.V1) and prompts % mini:
        yield Finding(
            f"{words.MINI_BATCH}={mini} does not divide a step's {prompts} prompts: verl fills up the last update with "
            f"empty rows, which {variant.name}'s aggregation counts as responses.",
            tuple(Fix({words.MINI_BATCH: size}) for size in _dividing(prompts, mini, get)[:1]),
        )


def _dividing(prompts: int, mini: int, get: words.Get) -> list[int]:
    """Mini-batches that divide a batch and that ranks and micro-batches divide, the nearest one below first."""
    rows, ranks = int(get(words.RESPONSES)), int(get("trainer.nnodes")) * int(get("trainer.n_gpus_per_node"))
    micro = 1 if get(f"{words.ACTOR}.use_dynamic_bsz") else int(get(f"{words.ACTOR}.ppo_micro_batch_size_per_gpu") or 1)
    sizes = [size for size in range(1, prompts + 1) if prompts % size == 0 and size * rows % (ranks * micro) == 0]
    return [size for size in reversed(sizes) if size < mini] + [size for size in sizes if size > mini]


def _aggregation(variant: Variant, get: words.Get) -> Iterator[Finding]:
    settings = words.aggregation_settings(variant)
    wanted, configured = settings.get(words.AGGREGATION), get(words.AGGREGATION)
    if wanted is not None and wanted != configured:
        yield Finding(
            f"loss_agg_mode={configured} is not {variant.name}'s aggregation: its policy term is aggregated as the "
            "variant says, verl's own KL and entropy terms as loss_agg_mode says.",
            (Fix(settings),),
        )


def _kl(variant: Variant, wanted: KL | None, has: KL | None, settings: words.Settings, place: str) -> Iterator[Finding]:
    if not words.same_kl(wanted, has):
        yield Finding(
            f"{variant.name} has {_kl_text(wanted)} {place}, this configuration has {_kl_text(has)}.",
            (Fix(settings),),
        )


def _kl_text(kl: KL | None) -> str:
    if kl is None:
        return "no KL term"
    gradient = " (gradient of k2)" if kl.gradient == "k2" else ""
    return f"{kl.estimator}{gradient} with beta {kl.beta:g}"


def _loss_fields(variant: Variant, get: words.Get) -> Iterator[Finding]:
    """verl's fields of the policy loss that a variant does not read, and the dual clip that it does not have."""
    known = {key for keys in words.loss_fields(type(variant.surrogate)).values() for key in keys}
    moved = words.moved_fields(get)
    for key, value in moved.items():
        if key not in known:
            yield Finding(
                f"{key.rpartition('.')[2]}={value} has no effect on {variant.name}, whose surrogate has no such field.",
                (Fix({f"{words.ACTOR}.{key}": words.LOSS_DEFAULTS[key]}),),
            )
    dual = get(f"{words.ACTOR}.clip_ratio_c")
    if _lacks_dual(variant) and dual is not None and "clip_ratio_c" not in moved:
        yield Finding(
            f"clip_ratio_c={dual}, the dual clip that verl's own loss always applies, is not part of {variant.name} "
            "and is left out.",
            (Fix(objective={"surrogate.dual": str(dual)}),),
            lead="To have it",
        )


def _lacks_dual(variant: Variant) -> bool:
    """Whether verl's own loss has a dual clip where the variant has none."""
    names = (choice_name("surrogate", variant.surrogate), choice_name("ratio", variant.ratio))
    in_verl = numerics("verl", "surrogate", *names).get("dual")
    return in_verl is not None and getattr(variant.surrogate, "dual", in_verl) is None


def length_setting(variant: Variant, get: words.Get) -> words.Settings:
    """The constant that aggregation=constant divides by, where neither variant nor verl has set it."""
    if variant.aggregation.lacks_length and get(words.SCALE_FACTOR) is None:
        return {words.SCALE_FACTOR: get(words.MAX_LENGTH)}
    return {}
