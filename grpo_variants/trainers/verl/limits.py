"""What each end of verl 0.9.1 computes of a variant, what it cannot, and what it does otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from grpo_variants.advantage.baseline import Greedy
from grpo_variants.axes import AXES, choice_name, parts_of
from grpo_variants.objective.aggregation import Aggregation, LengthPower, PromptMean
from grpo_variants.objective.correction import GeometricMask
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.objective.kl import K3
from grpo_variants.objective.surrogate import Aspo, PpoMask
from grpo_variants.part import Part
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.spelling import spelt
from grpo_variants.trainers.verl import words
from grpo_variants.trainers.verl.findings import Finding, Fix
from grpo_variants.trainers.verl.supplies import SUPPLIES
from grpo_variants.variant import Variant


@lru_cache(maxsize=256)
def advantage_form(variant: Variant) -> Variant:
    """What an estimator computes: the trainer has already taken a KL penalty off the rewards."""
    return replace(variant, kl=None)


@lru_cache(maxsize=256)
def loss_form(variant: Variant) -> Variant:
    """What a policy loss computes: the trainer adds the KL term, hands in rollout weights and sets the anchor."""
    own = tuple(part for part in variant.correction if "rollout_logp" not in part.reads)
    ratio = replace(variant.ratio, anchor="old") if variant.ratio.anchor == "rollout" else variant.ratio  # type: ignore[type-var]
    return replace(variant, kl=None, correction=own, ratio=ratio)


def advantage_refusals(variant: Variant, extra: Collection[str] = ()) -> Iterator[Finding]:
    """Why verl cannot give an estimator what this advantage rule needs; nothing where it can.

    extra: inputs that it hands over besides, of `EXTRA_INPUTS`.
    """
    reason = _other_trainer(variant)
    if reason is not None:
        yield reason
        return
    if variant.selection.drops:
        yield Finding(
            f"{variant.name}: its selection takes responses out of the loss and its counts, and verl trains on every "
            "response.",
            (Fix(advantage={"selection": "none"}),),
        )
        return
    rule = advantage_form(variant)
    missing = rule.rollout_inputs - SUPPLIED - set(extra)
    if not missing:
        return
    extended: words.Settings = {words.EXTEND_HOST: True, words.V1: False}
    if "sum_pi_squared" in missing:
        extended[words.SUM_PI_SQUARED] = True
    fixes = () if missing - EXTRA_INPUTS else (Fix(extended),)
    yield Finding(f"{variant.name}: verl does not hand this over to a plugin. {_needs(rule, missing)}", fixes)


def _other_trainer(variant: Variant) -> Finding | None:
    """What verl does for its own estimator only, or not at all."""
    if "greedy_rewards" in variant.rollout_inputs:
        own = Fix({words.ESTIMATOR: "remax", words.V1: False})
        return Finding(
            f"{variant.name}: verl draws greedy responses for its own estimator only, in the legacy trainer.", (own,)
        )
    if variant.remembers:
        return Finding(
            f"{variant.name}: it remembers the prompts of earlier steps, and verl gives every prompt a new uid in "
            "every step, so that none would be met again. It runs in TRL, and with gv.advantages in your own trainer."
        )
    if variant.credit.per_function:
        return Finding(
            f"{variant.name}: verl hands the values of single reward functions to its own estimator only, which is "
            "this one under conventions=verl, in the legacy trainer. Name the values in "
            "+algorithm.gdpo_reward_keys=[...].",
            (Fix({words.ESTIMATOR: "gdpo", words.V1: False}),),
        )
    return None


# What an estimator gets: step ends are read from the rewards.
SUPPLIED = frozenset({"mask", "lengths", "token_rewards", "step_ends"})
# What verl hands to its own optimal_token_baseline only; `extend_host` hands it to every gv_ estimator, the sum of
# squared probabilities where verl computes it (SUM_PI_SQUARED).
EXTRA_INPUTS = frozenset({"old_logp", "sum_pi_squared"})


def _needs(rule: Variant, missing: Collection[str]) -> str:
    """Which part needs what is missing, and how verl would come by it."""
    parts = [(axis, part) for axis in AXES for part in parts_of(rule, axis) if isinstance(part, Part)]
    reads = {
        f"{axis}={choice_name(axis, part)}": [name for name in part.reads if name in missing] for axis, part in parts
    }
    needs = [f"{choice} needs {', '.join(f'{n}=' for n in names)}." for choice, names in reads.items() if names]
    return " ".join([*needs, *(SUPPLIES[name] for name in sorted(missing) if name in SUPPLIES)])


# The nearest to `minirl` that verl has: the ratio to the old policy, times the old policy's to the engine, held at 5.
_ANCHORED = {"ratio.anchor": "old", "correction": "token_truncate", "correction.cap": "5"}


def loss_refusals(variant: Variant) -> Iterator[Finding]:
    """Why verl cannot give a policy loss what this objective needs; nothing where it can."""
    if "nonempty" in variant.aggregation.counts_read:
        yield Finding(
            f"{variant.name}: aggregation.empty_rows=exclude needs the number of responses with a token, which verl "
            "does not count.",
            (Fix(objective={"aggregation.empty_rows": "count"}),),
        )
    if variant.kl_in_loss and variant.kl is not None and variant.kl.weighted != "none":
        yield Finding(
            f"{variant.name}: verl adds the KL term itself and cannot weigh it by the ratio.",
            (Fix(objective={"kl.weighted": "none"}),),
        )
    if variant.kl_in_loss and variant.kl is not None and variant.kl.exempt is not None:
        yield Finding(
            f"{variant.name}: verl adds the KL term itself, to every token.", (Fix(objective={"kl.exempt": "none"}),)
        )
    if "old_logp" in variant.surrogate.reads and variant.ratio.anchor == "rollout":
        yield Finding(
            f"{variant.name}: its surrogate reads the trainer's old policy and its ratio the engine's, and verl "
            "hands a policy loss one of the two.",
            (Fix(objective=_ANCHORED if isinstance(variant.surrogate, PpoMask) else {"ratio.anchor": "old"}),),
        )
        return
    if isinstance(variant.surrogate, Aspo) and variant.surrogate.fraction is not None:
        yield Finding(
            f"{variant.name}: surrogate.fraction={variant.surrogate.fraction:g} needs entropies, which verl does not "
            "hand to a policy loss; without it there is one range, as in the paper.",
            (Fix(objective={"surrogate.fraction": "none"}),),
        )
        return
    over = words.carried_over(variant.aggregation)
    if over is not None:
        yield _carried_refusal(variant, over)
        return
    objective = loss_form(variant)
    missing = objective.token_inputs - {"old_logp"}
    if missing:
        text = f"{variant.name}: verl does not hand this over to a plugin. {_needs(objective, missing)}"
        yield Finding(text)


def rollout_refusals(variant: Variant) -> Iterator[str]:
    """Why verl cannot follow a rollout rule while it samples; nothing where it can."""
    rule = variant.filter
    if isinstance(rule, ZeroVariance) and rule.max_rounds not in (None, ZeroVariance().max_rounds):
        yield (
            f"{variant.name}: filter.max_rounds={rule.max_rounds} bounds how often new prompts are drawn, and verl "
            f"draws until the batch is full: its V1 trainer ignores {words.ROUNDS}. Leave filter.max_rounds out, or "
            "set filter=none."
        )
    if isinstance(rule, ZeroVariance) and isinstance(variant.baseline, Greedy):
        yield (
            f"{variant.name}: greedy responses are drawn by verl's legacy trainer, groups filtered by its V1 trainer. "
            "Set filter=none, or choose another baseline."
        )
    if variant.overlong.statistics == "drop":
        yield (
            f"{variant.name}: overlong.statistics=drop needs to know which responses were truncated, and verl does not "
            "tell an estimator. Set overlong.statistics=keep."
        )


def _carried_refusal(variant: Variant, over: Aggregation) -> Finding:
    """Why a loss cannot weigh as the variant says, and the two ends that do it together."""
    own, plain = words.aggregation_options(variant.aggregation), words.aggregation_options(over)
    why = f"{variant.name}: {_reads(variant.aggregation)}, which a policy loss of verl does not see"
    if takes_kl(variant):
        return Finding(f"{variant.name}: {TAKES_KL}", (Fix(objective=plain),))
    if not homogeneous(variant):
        text = f"{why}, and its surrogate does not scale with A, so advantages cannot carry it."
        return Finding(text, (Fix(objective=plain),))
    pair = Fix(advantage=own, objective=plain, name=variant.name)
    return Finding(f"{why}; the advantages can carry it over {spelt(plain)}. Use the pair.", (pair,))


TAKES_KL = "aggregation.rows=signal takes responses out of the KL term too, which verl adds to every response."


def takes_kl(variant: Variant) -> bool:
    """Whether responses leave the loss with a KL term, which is the trainer's."""
    return variant.aggregation.drops_rows and variant.kl_in_loss


def _reads(rule: Aggregation) -> str:
    """What of the step an aggregation goes by."""
    if rule.drops_rows:
        return "aggregation.rows=signal counts the tokens of all responses that have an advantage"
    word = choice_name("aggregation", rule)
    return f"aggregation={word} weighs a response by {_LENGTHS if rule.of_step else _TOKENS}"


_LENGTHS, _TOKENS = "the lengths of all responses", "its group's tokens"


def homogeneous(variant: Variant) -> bool:
    """Whether a surrogate scales with the advantage, so that a weight may be moved into the advantages.

    One with a statistic of the batch is not: rescaled, the prompts' advantages would compare otherwise.
    """
    if variant.surrogate.whole_batch:
        return False
    logp = torch.tensor([[-1.0, -2.0, -0.5, -3.0]])
    advantage = torch.tensor([[1.5, -0.5, -2.0, 0.25]])
    old = logp + torch.tensor([[0.1, -1.4, 1.2, -0.2]])
    form, counts = loss_form(variant), Counts(tokens=4, sequences=1, nonempty=1, length=4)

    def term(scale: float) -> Tensor:
        x = Tokens(logp=logp, mask=logp < 0, advantages=scale * advantage, old_logp=old, entropy=-logp)
        return form.surrogate(form.ratio(x), x, counts).loss

    return torch.allclose(term(3.0), 3.0 * term(1.0))


def notes(variant: Variant) -> Iterator[str]:
    """What verl does otherwise than the variant says, although it runs it."""
    if variant.overlong.masks:
        yield (
            "verl does not mask truncated responses; its nearest is the soft punishment, "
            "overlong=penalty,overlong.buffer=<tokens>."
        )
    if variant.filter.drops:
        yield "verl's V1 trainer draws new prompts until the batch is full, without a bound on rounds."
        if variant.filter.metric is None and variant.overlong.punishes:
            yield (
                "verl's metric reward holds the overlong punishment, so lengths alone make a signal; filter.metric=acc "
                "(score, where your reward function returns a dict) leaves it out."
            )
    if any(isinstance(part, GeometricMask) for part in variant.correction):
        yield "verl's rejection also takes the response out of the KL term, while the step's token count still has it."
    if isinstance(variant.aggregation, PromptMean):
        yield "prompt_mean is exact where ppo_mini_batch_size equals train_batch_size, one update per batch."
    if variant.aggregation.drops_rows:
        yield (
            "aggregation.rows=signal is exact where ppo_mini_batch_size equals train_batch_size, one update per batch."
        )
    if isinstance(variant.aggregation, LengthPower):
        yield "length_power compares with every response of the rollout batch, however many updates it is split into."
    if variant.kl_in_loss and isinstance(variant.kl, K3) and variant.kl.value_bound != 10.0:
        yield "verl clamps each token's k3 at 10."
