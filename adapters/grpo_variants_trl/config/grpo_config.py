"""VariantGRPOConfig: TRL's config in which an unset flag can be told from an explicit default."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field, fields
from typing import Any

from trl import GRPOConfig

from grpo_variants.names import PREFIX, is_prefixed
from grpo_variants.registry import find, names
from grpo_variants.tensors.checks import did_you_mean
from grpo_variants_trl.checkpoint.moving_reference import check_reset
from grpo_variants_trl.config.flags import (
    CLIP_MAX_UNSET,
    FLAGS,
    TRL_DEFAULTS,
    Choice,
    changed_flags,
    choose,
    trl_values,
)

# What TRL 1.16's GRPOTrainer computes itself; it would fail on any other word, but only in its first loss.
BUILT_IN = ("bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo")
_HELP = {f.name: f.metadata.get("help", "") for f in fields(GRPOConfig)}


_LOSS_TYPES = f"{PREFIX} and a variant's name or spec string (`grpo-variants list` has them), or one of TRL's own. "


# What a config fills in where nothing was set.
_FILLED = (*FLAGS, "generation_batch_size", "steps_per_generation", "bf16")
# The value of a flag that is given by its name alone.
_BARE = object()


class _Switch(argparse.Action):
    """`--flag`, `--flag false` and `--no_flag`: TRL's forms of a boolean, for one that may also be unset."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Store the boolean; a negated name takes no value."""
        negated = str(option_string).startswith(("--no_", "--no-"))
        if negated and values is not _BARE:
            parser.error(f"{option_string} takes no value; write {option_string}, or --{self.dest} true or false.")
        setattr(namespace, self.dest, not negated if values is _BARE else values)


def _unset(name: str, default: Any = None) -> Any:
    text = f"{_HELP[name]} Unset: the variant's own value, or {TRL_DEFAULTS[name]!r} with a built-in loss type."
    return field(default=default, metadata={"help": text})


def _switch(name: str, text: str) -> Any:
    """A boolean that is unset by default and takes every form on the command line."""
    negated = [f"--no_{name}", f"--no-{name.replace('_', '-')}"]
    return field(
        default=None,
        metadata={"help": text, "aliases": negated, "nargs": "?", "const": _BARE, "action": _Switch},
    )


def _unset_switch(name: str) -> Any:
    return _switch(name, _unset(name).metadata["help"])


@dataclass
class VariantGRPOConfig(GRPOConfig):
    """TRL's `GRPOConfig` with every variant of grpo-variants as a loss type.

    `loss_type="gv_dapo"`, or a spec string: `"gv_dapo,surrogate.high=0.3,kl=k3,kl.beta=0.01"`. TRL's own flags tune
    the variant, explicit defaults included (`beta=0.0` switches a variant's KL off); one that has no effect on it, or
    that contradicts the spec string, raises ValueError here, before any model loads. With a built-in loss type nothing
    changes.

    skip_zero_gradient_rows: whether responses of advantage 0 are left out of the model's forward, which leaves the
    gradient as it is. Unset: where that is exact; True: refused where it is not; False: every response is scored, in
    TRL's own micro-batches.
    approximate_windows: count tokens by TRL's rule where an optimizer step spans two generations and an exact count is
    not known; without it such a setting is refused for the variants that need the count.
    reset_reference_every: iterative GRPO: after every so many optimizer steps the reference becomes the policy.
    health_check: warn where a step learns nothing, with the cause and what to set; on unless it is False.
    print_card: print every value of the objective at the start, in place of the few lines that name what was changed.
    as_given: written by the config itself: which values were given and which were filled in, so that a config made from
    another one's values (`dataclasses.replace`, `VariantGRPOConfig(**saved.to_dict())`) has set what that one had set.
    """

    _VALID_DICT_FIELDS = GRPOConfig._VALID_DICT_FIELDS

    loss_type: str = field(default=GRPOConfig.loss_type, metadata={"help": _LOSS_TYPES + _HELP["loss_type"]})
    skip_zero_gradient_rows: bool | None = _switch(
        "skip_zero_gradient_rows",
        "Leave responses of advantage 0 out of the forward. Unset: where the gradient stays exact.",
    )
    health_check: bool | None = _switch(
        "health_check", "Warn where a step learns nothing, with the cause and what to set. Unset: on."
    )
    print_card: bool | None = _switch("print_card", "Print every value of the objective at the start. Unset: off.")
    approximate_windows: bool = field(
        default=False,
        metadata={"help": "Count tokens by TRL's rule where an optimizer step spans two generations."},
    )
    reset_reference_every: int | None = field(
        default=None,
        metadata={"help": "Optimizer steps after which the reference becomes the policy, again and again."},
    )
    beta: float | None = _unset("beta")
    epsilon: float | None = _unset("epsilon")
    epsilon_high: float | None = _unset("epsilon_high")
    delta: float | None = _unset("delta")
    scale_rewards: str | None = _unset("scale_rewards")
    importance_sampling_level: str | None = _unset("importance_sampling_level")
    multi_objective_aggregation: str | None = _unset("multi_objective_aggregation")
    mask_truncated_completions: bool | None = _unset_switch("mask_truncated_completions")
    top_entropy_quantile: float | None = _unset("top_entropy_quantile")
    use_bias_correction_kl: bool | None = _unset_switch("use_bias_correction_kl")
    off_policy_mask_threshold: float | None = _unset("off_policy_mask_threshold")
    sapo_temperature_neg: float | None = _unset("sapo_temperature_neg")
    sapo_temperature_pos: float | None = _unset("sapo_temperature_pos")
    vespo_k_pos: float | None = _unset("vespo_k_pos")
    vespo_lambda_pos: float | None = _unset("vespo_lambda_pos")
    vespo_k_neg: float | None = _unset("vespo_k_neg")
    vespo_lambda_neg: float | None = _unset("vespo_lambda_neg")
    vllm_importance_sampling_correction: bool | None = _unset_switch("vllm_importance_sampling_correction")
    vllm_importance_sampling_mode: str | None = _unset("vllm_importance_sampling_mode")
    vllm_importance_sampling_clip_max: float | None = _unset("vllm_importance_sampling_clip_max", CLIP_MAX_UNSET)
    vllm_importance_sampling_clip_min: float | None = _unset("vllm_importance_sampling_clip_min")
    as_given: dict[str, Any] | None = field(default=None, metadata={"help": argparse.SUPPRESS})

    def __post_init__(self) -> None:
        """Resolve the variant, give TRL the values that it reads, and run TRL's own checks."""
        self._take_back()
        self._check_words()
        set_here = {name: getattr(self, name) for name in _FILLED if not _is_unset(getattr(self, name), name)}
        given = {name: value for name, value in set_here.items() if name in FLAGS}
        self.choice: Choice | None = choose(self.loss_type, given) if is_prefixed(self.loss_type) else None
        values = TRL_DEFAULTS | given if self.choice is None else trl_values(self.choice.variant)
        for name, value in values.items():
            setattr(self, name, value)
        self.resolved_loss_type = self.loss_type
        if self.approximate_windows and self.choice is None:
            raise ValueError(
                f"approximate_windows=True has no effect with the built-in loss_type={self.loss_type!r}. Remove it."
            )
        for name in ("skip_zero_gradient_rows", "health_check", "print_card"):
            if getattr(self, name) is not None and self.choice is None:
                raise ValueError(
                    f"{name}={getattr(self, name)} has no effect with the built-in loss_type={self.loss_type!r}. "
                    "Remove it."
                )
        try:
            super().__post_init__()
        except ValueError as error:
            if not self._may_do_without_group(error):
                raise
        check_reset(self, None if self.choice is None else self.choice.variant)
        self.as_given = {"given": set_here, "filled": {name: getattr(self, name) for name in _FILLED}}

    def _take_back(self) -> None:
        """Unset what another config filled in, where this one is made from its values and they were not changed."""
        record = self.as_given or {"filled": {}}
        for name, filled in record["filled"].items():
            if getattr(self, name) == filled:
                setattr(self, name, record["given"].get(name, _UNSET.get(name)))

    def _check_words(self) -> None:
        """Raise ValueError for an unknown loss type, and for a number of responses that is not whole."""
        check_loss_type(self.loss_type)
        if is_prefixed(self.loss_type) and type(self.num_generations) is not int:
            raise ValueError(
                f"num_generations={self.num_generations!r} is not a whole number; allowed: the number of responses to "
                "a prompt, at least 2, or 1 for a variant that compares no siblings."
            )

    def _may_do_without_group(self, error: ValueError) -> bool:
        """Whether TRL's refusal of one response per prompt, the last check that can fail here, does not apply."""
        if self.num_generations != 1 or self.choice is None or "at least 2 generations" not in str(error):
            return False
        return not self.choice.variant.compares_group


_UNSET = {"vllm_importance_sampling_clip_max": CLIP_MAX_UNSET}


def _is_unset(value: Any, name: str) -> bool:
    if name in _UNSET:
        return isinstance(value, float) and math.isnan(value)
    return value is None


def check_loss_type(loss_type: str) -> None:
    """Raise ValueError for a loss type that is neither a variant's nor one that TRL's trainer computes."""
    if is_prefixed(loss_type) or loss_type in BUILT_IN:
        return
    raise ValueError(
        f"loss_type={loss_type!r} is unknown.{_meant(loss_type)} Allowed: {PREFIX} and a variant's name or spec string "
        f"(see `grpo-variants list`), or TRL's own {', '.join(BUILT_IN)}."
    )


def _meant(loss_type: str) -> str:
    """The question after an unknown loss type: a variant without its prefix, or what is nearest."""
    word, comma, rest = loss_type.partition(",")
    found = find(word)
    if found is None:
        return did_you_mean(word, [*BUILT_IN, *(PREFIX + name for name in names())])
    own = f" or TRL's own {found.name!r}" if found.name in BUILT_IN and not comma else ""
    return f" Did you mean '{PREFIX}{found.name}{comma}{rest}'{own}?"


def choice_of(config: GRPOConfig) -> Choice | None:
    """The variant that a config asks for, or None with a built-in loss type.

    A plain GRPOConfig is read by what differs from TRL's defaults; its KL coefficient must be the variant's, since the
    trainer builds the reference from it.
    Raises ValueError for an unknown loss type, and for a flag that was changed after the variant was resolved:
    it would have no effect.
    """
    if not hasattr(config, "choice"):
        check_loss_type(config.loss_type)
        config.choice = _choice_of_plain(config) if is_prefixed(config.loss_type) else None
        config.resolved_loss_type = config.loss_type
    if config.loss_type != config.resolved_loss_type:
        raise ValueError(
            f"loss_type was changed from {config.resolved_loss_type!r} to {config.loss_type!r} after the config was "
            "made; make a new config with it."
        )
    if config.choice is not None:
        _check_untouched(config, config.choice)
    return config.choice


def _choice_of_plain(config: GRPOConfig) -> Choice:
    choice = choose(config.loss_type, changed_flags(config))
    wanted = trl_values(choice.variant)
    if config.beta != wanted["beta"]:
        raise ValueError(
            f"loss_type={config.loss_type!r} has kl.beta={wanted['beta']:g}, but GRPOConfig has beta={config.beta:g}, "
            f"from which the trainer builds its reference. Set beta={wanted['beta']:g}, or use VariantGRPOConfig, or "
            f"switch the KL term off with loss_type='{config.loss_type},kl=none'."
        )
    for name, value in wanted.items():
        setattr(config, name, value)
    return choice


def _check_untouched(config: GRPOConfig, choice: Choice) -> None:
    for name, value in trl_values(choice.variant).items():
        if getattr(config, name) != value:
            raise ValueError(
                f"{name} was set to {getattr(config, name)!r} after the config was made, where it cannot tune "
                f"{config.loss_type!r} any more. Give it to the config's constructor, or put it into the spec string."
            )


__all__ = ["VariantGRPOConfig", "choice_of"]
