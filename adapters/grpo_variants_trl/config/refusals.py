"""What TRL cannot do for a variant: refused by name when the trainer is made, before its first optimizer step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from trl import GRPOConfig

from grpo_variants.axes import choice_name
from grpo_variants.rollout.steps import check_columns
from grpo_variants.tensors.checks import unknown
from grpo_variants.trainers.trl.limits import trl_refusals
from grpo_variants.variant import Variant
from grpo_variants_trl.config.flags import Choice
from grpo_variants_trl.rollout.eos import eos_refusals
from grpo_variants_trl.rollout.sampling_params import sampling_refusals
from grpo_variants_trl.step.step_counts import (
    has_entropy_bonus,
    may_be_approximate,
    needs_whole_step,
    spans_generations,
)


def check_supported(choice: Choice, args: GRPOConfig, given: Mapping[str, Any]) -> None:
    """Raise ValueError for what TRL cannot do for a variant, with what to set instead.

    given: the trainer's other arguments by name, as far as they are known.
    """
    for reason in _reasons(choice, args, given):
        raise ValueError(f"loss_type={args.loss_type!r} cannot be honoured by TRL: {reason}")


def check_filter_metric(variant: Variant, reward_functions: Sequence[str]) -> None:
    """Raise ValueError for a group filter by a reward function that does not exist; TRL names them when it is made."""
    metric = variant.filter.metric
    if metric is not None and metric not in reward_functions:
        known = [*reward_functions, "none"]
        raise ValueError(unknown(f"filter.metric={metric!r} is no reward function", metric, known))


def _reasons(choice: Choice, args: GRPOConfig, given: Mapping[str, Any]) -> Iterator[str]:
    """Every reason; those that follow from the config alone come first."""
    variant = choice.variant
    yield from _inputs(variant, args, given)
    yield from _columns(variant, given)
    yield from sampling_refusals(variant, args, given)
    yield from eos_refusals(variant, args, given)
    yield from _lengths(variant, args)
    yield from _spanning_step(variant, args)
    yield from _dynamic_sampling(variant, args, given)
    yield from _reference(variant, given)


def _inputs(variant: Variant, args: GRPOConfig, given: Mapping[str, Any]) -> list[str]:
    reasons = [*_reward_models(variant, given), *trl_refusals(variant)]
    if args.num_generations == 1 and variant.compares_group:
        reasons.append("it compares the responses of a prompt, and num_generations=1 leaves none. Set it to 2.")
    if variant.needs_rollout_logp and not args.use_vllm and given.get("rollout_func") is None:
        reasons.append(
            "its correction or anchor reads the rollout engine's log-probabilities, which transformers' generation "
            "does not report. Set use_vllm=True, or remove it (correction=none, ratio.anchor=old)."
        )
    if not all(map(math.isfinite, args.reward_weights or ())):
        reasons.append(f"reward_weights={args.reward_weights} holds a weight that is not finite. Give finite numbers.")
    if variant.remembers and given.get("environment_factory") and given.get("train_dataset") is None:
        reasons.append(
            "its memory goes by prompts, and without a data set all tasks of an environment look the same. Give a "
            "train_dataset whose rows tell the tasks apart, or choose a variant without memory."
        )
    others = [name for name in ("rollout_func", "tools", "environment_factory") if given.get(name)]
    if "greedy_rewards" in variant.rollout_inputs and others:
        reasons.append(
            "baseline=greedy draws a greedy response of one turn by TRL's own generation, which is not combined with "
            f"{' and '.join(others)}. Remove it, or choose another baseline."
        )
    return reasons


def _dynamic_sampling(variant: Variant, args: GRPOConfig, given: Mapping[str, Any]) -> Iterator[str]:
    """Dynamic sampling needs groups, text prompts, and more prompts than one batch has."""
    if not variant.filter.drops:
        return
    if args.num_generations == 1:
        yield "filter=zero_variance compares the responses of a prompt, and num_generations=1 leaves none. Set it to 2."
    rows = given.get("train_dataset")
    if not variant.filter.draws_again or rows is None:
        return
    names = _IMAGES & set(getattr(rows, "column_names", None) or ())
    if names:
        yield (
            f"filter=zero_variance draws new groups for text prompts only, and the data set has {min(names)!r}. Set "
            "filter.max_rounds=0, which drops groups without signal and draws no new ones."
        )
    prompts = args.generation_batch_size // args.num_generations
    if hasattr(rows, "__len__") and len(rows) < prompts:
        yield f"a batch has {prompts} prompts and the data set only {len(rows)}. Give at least as many."


# Names under which TRL hands its own values to reward functions, beside the columns of the data set.
_ARGUMENTS = ("prompts", "completions")
_IMAGES = {"image", "images"}


def _columns(variant: Variant, given: Mapping[str, Any]) -> Iterator[str]:
    """Columns that a memory by prompts or a call of the reward functions cannot have."""
    columns = getattr(given.get("train_dataset"), "column_names", None) or ()
    images = sorted(_IMAGES & {*columns})
    if variant.remembers and images:
        yield (
            f"its memory goes by the text of a prompt, and the data set has {images[0]!r}, so that all images of a "
            "text would look the same. Choose a variant without memory, or a data set without images."
        )
    for name in sorted({*_ARGUMENTS} & {*columns}):
        yield (
            f"the data set has a column {name!r}, the name under which reward functions get the batch's {name}. Rename "
            f"the column, for example with dataset.rename_column({name!r}, 'known_{name}')."
        )
    for function in _reward_functions(given):
        if getattr(function, "takes_steps", False):
            check_columns(function.__name__, columns)


def _reward_functions(given: Mapping[str, Any]) -> list[Any]:
    functions = given.get("reward_funcs")
    return list(functions) if isinstance(functions, (list, tuple)) else [functions]


def _reward_models(variant: Variant, given: Mapping[str, Any]) -> list[str]:
    """Reward models give TRL one number per response; from a model that scores tokens it would be the first of them."""
    if "step_ends" not in variant.rollout_inputs or given.get("reward_funcs") is None:
        return []
    functions = _reward_functions(given)
    fix = "Call the model in a function under @gvt.step_rewards that returns its scores at the steps' ends."
    scorers = [name for name in (type(f).__name__ for f in functions) if name.endswith("ForTokenClassification")]
    if scorers:
        return [f"{scorers[0]} scores tokens, and TRL takes its first score for the response's reward. {fix}"]
    others = [f for f in functions if callable(f) and not isinstance(f, nn.Module)]
    if not others and not given.get("environment_factory"):
        return [f"credit=process needs step rewards, and a reward model gives one number per response. {fix}"]
    return []


def _reference(variant: Variant, given: Mapping[str, Any]) -> list[str]:
    model = given.get("model")
    config = getattr(model, "config", None)
    has_source = config is None or getattr(config, "_name_or_path", "")
    has_adapter = given.get("peft_config") or hasattr(model, "peft_config")
    if variant.kl is None or variant.kl.beta == 0 or has_source or has_adapter:
        return []
    return [
        "its KL term needs a reference, which TRL loads from where the model came from, and this model was made in "
        "memory. Save it and give its path, or train with LoRA (peft_config=...), or switch the KL term off (beta=0.0)."
    ]


def _lengths(variant: Variant, args: GRPOConfig) -> list[str]:
    limit = args.max_completion_length
    if limit is None and variant.aggregation.lacks_length:
        word = choice_name("aggregation", variant.aggregation)
        return [f"aggregation={word} needs max_completion_length, or aggregation.length in the spec string."]
    if variant.overlong.punishes and (limit is None or variant.overlong.buffer > limit):
        return [
            f"overlong.buffer={variant.overlong.buffer} does not fit into max_completion_length={limit}; allowed: at "
            "most that length."
        ]
    return []


def _spanning_step(variant: Variant, args: GRPOConfig) -> list[str]:
    """An optimizer step over two generations, for a loss that needs its counts at its first micro-batch."""
    accumulation, steps, iterations = args.gradient_accumulation_steps, args.steps_per_generation, args.num_iterations
    bonus = has_entropy_bonus(args)
    if not spans_generations(accumulation, steps, iterations) or not needs_whole_step(variant, entropy_bonus=bonus):
        return []
    if getattr(args, "approximate_windows", False) and may_be_approximate(variant):
        return []
    missing = "the lengths that its weights and statistics need are not known at its first micro-batch"
    if not needs_whole_step(variant):
        missing = "the tokens that the entropy bonus is a mean over are not known at its first micro-batch"
    nearest = " or ".join(f"steps_per_generation={s}" for s in _nearest(accumulation, steps, iterations))
    switch = "" if not may_be_approximate(variant) else ", or approximate_windows=True to count by TRL's rule"
    return [
        f"an optimizer step of {accumulation} micro-batches spans two generations of {steps} x {iterations}, so "
        f"{missing}. Set {nearest}{switch}."
    ]


def _nearest(accumulation: int, steps: int, iterations: int) -> list[int]:
    """The nearest values of steps_per_generation with which generations hold whole optimizer steps."""
    fits = [s for s in range(1, steps + accumulation + 1) if (s * iterations) % accumulation == 0]
    below, above = [s for s in fits if s < steps], [s for s in fits if s > steps]
    return below[-1:] + above[:1]
