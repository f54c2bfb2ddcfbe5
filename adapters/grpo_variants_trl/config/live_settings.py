"""What callbacks set on a trainer during a run: applied where TRL reads it live, refused by name elsewhere.

TRL reads some settings at each batch or loss, from attributes of its trainer and from its configuration. A change
holds from the next optimizer step on. A change of a rollout's setting holds from the next generation on, as in TRL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_variants.spelling import resolved_values
from grpo_variants.trainers.trl.words import FLAG_KEYS, FLAGS
from grpo_variants.variant import Variant
from grpo_variants_trl.checkpoint.reference_adapter import POLICY, REFERENCE, splits_weights
from grpo_variants_trl.config.flags import Choice, tuned
from grpo_variants_trl.config.refusals import check_supported
from grpo_variants_trl.step.packing import choose_packing, has_no_gradient_without_advantage

# Flags that TRL reads from an attribute of its trainer; `epsilon` has another name there.
_NAMES = {"epsilon": "epsilon_low"}
_READ_FROM_CONFIG = (
    *("delta", "use_bias_correction_kl", "sapo_temperature_neg", "sapo_temperature_pos"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)
_ATTRIBUTES = {
    flag: _NAMES.get(flag, flag)
    for flag in FLAGS
    if flag not in _READ_FROM_CONFIG and flag != "vllm_importance_sampling_cap"
}
# Flags that are read while responses are sampled and scored.
_OF_ROLLOUTS = (
    "scale_rewards",
    "multi_objective_aggregation",
    "mask_truncated_completions",
    *(flag for flag in _ATTRIBUTES if flag.startswith("vllm_")),
)
# What TRL reads live that does not belong to a variant, on the trainer and in its configuration.
_BESIDE = ("reward_weights", "router_aux_loss_coef", "max_completion_length", "entropy_coef")
_ENTROPY_CONTROL = ("entropy_target", "entropy_coef_delta", "entropy_coef_min", "entropy_coef_max")
# What cannot change after the trainer is made.
_FIXED = ("loss_type", "num_generations", "num_iterations")


class LiveSettings:
    """Follows the settings of one trainer, and records on its card what was changed and when."""

    def __init__(self, trainer: Any, given: Mapping[str, Any]) -> None:
        """Bind the trainer as it was made; given: what its constructor was given, by name."""
        self.trainer, self.given = trainer, given
        self._start, self._base = _flags(trainer), trainer.variant
        self._flags, self._beside = dict(self._start), _beside(trainer)
        self._fixed = {name: getattr(trainer, name) for name in _FIXED}
        self._config = {flag: getattr(trainer.args, flag) for flag in _ATTRIBUTES}

    def follow(self, *, sampling: bool) -> None:
        """Apply what has changed; call it before each generation (sampling) and before each optimizer step.

        Raises ValueError for a change that cannot be applied, with the name and the value.
        """
        self._check_fixed()
        self._follow_beside()
        now = _flags(self.trainer)
        if now == self._flags:
            return
        if not sampling:
            now |= {flag: self._flags[flag] for flag in _OF_ROLLOUTS}
            if self._flags["beta"] == 0:  # the batch has no log-probabilities of a reference
                now["beta"] = 0
        moved = {flag: value for flag, value in now.items() if value != self._flags[flag]}
        try:
            self._choose(self._variant(now), moved)
        except ValueError as error:
            shown = ", ".join(f"{_ATTRIBUTES.get(flag, flag)}={value!r}" for flag, value in moved.items())
            raise ValueError(f"{shown} was set during the run: {error}") from None
        self._flags = now

    def _variant(self, now: Mapping[str, Any]) -> Variant:
        """The variant that the run started with, tuned by what has been set since."""
        variant = self._base
        for flag in FLAGS:
            if now.get(flag) != self._start.get(flag):
                variant = tuned(variant, flag, now[flag], now)
        if variant.kl is not None and variant.kl.beta > 0 and not _has_reference(self.trainer):
            raise ValueError("TRL makes its reference at the start, and only where beta is not 0 then. Start with one.")
        if variant.remembers != self._base.remembers:
            raise ValueError(
                "the memory of earlier steps belongs to the rule that it was made for. Make a new trainer."
            )
        return variant

    def _choose(self, variant: Variant, moved: Mapping[str, Any]) -> None:
        """Let the trainer train another variant, and record what differs."""
        trainer, before = self.trainer, self.trainer.variant
        choice = Choice(variant, trainer._choice.origins)
        check_supported(choice, trainer.args, self.given)
        trainer._choice = choice
        if _what_is_scored(before) != _what_is_scored(variant):
            asked = getattr(trainer.args, "skip_zero_gradient_rows", None)
            trainer._packing, trainer._packing_text = choose_packing(trainer, asked)
        old, new = resolved_values(before), resolved_values(variant)
        named = {key for flag in moved for key in FLAG_KEYS.get(flag, ())}
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        # Fields that come and go with a part are not listed one by one.
        self._record({key: (old.get(key), new.get(key)) for key in keys if key in named or (key in old and key in new)})

    def _check_fixed(self) -> None:
        """Raise ValueError for a change that nothing would read, or that needs a new trainer."""
        for flag, value in self._config.items():
            found = getattr(self.trainer.args, flag)
            if found != value:
                raise ValueError(
                    f"args.{flag}={found!r} was set during the run, where TRL reads trainer.{_ATTRIBUTES[flag]}. Set "
                    "that."
                )
        for name, value in self._fixed.items():
            found = getattr(self.trainer, name)
            if found != value:
                raise ValueError(
                    f"trainer.{name}={found!r} was set during the run, which is built around {value!r}. Make a new "
                    "trainer with it."
                )

    def _follow_beside(self) -> None:
        """Record what TRL reads live by itself; raise ValueError for what has no effect or no meaning."""
        now, trainer = _beside(self.trainer), self.trainer
        moved = {name: (self._beside[name], value) for name, value in now.items() if value != self._beside[name]}
        enabled = {"entropy_coef": trainer._entropy_bonus_enabled, "router_aux_loss_coef": trainer.aux_loss_enabled}
        for name, (before, value) in moved.items():
            if not all(map(math.isfinite, value if isinstance(value, list) else [value])):
                raise ValueError(f"{name}={value!r} was set during the run; allowed: finite numbers.")
            if not enabled.get(name, True):
                raise ValueError(
                    f"{name}={value!r} was set during the run and has no effect: the run started with {before!r}, and "
                    "TRL decides at the start whether there is such a term. Start with another number than 0."
                )
        self._record(moved)
        self._beside = now

    def _record(self, moved: Mapping[str, tuple[Any, Any]]) -> None:
        """Put changes on the card, by the optimizer step, counted from 1, from which they hold."""
        if moved:
            trainer, step = self.trainer, self.trainer.state.global_step + 1
            entries = [{"step": step, "key": key, "old": old, "new": new} for key, (old, new) in moved.items()]
            trainer.variant_card = replace(trainer.variant_card, history=(*trainer.variant_card.history, *entries))

    def resume(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Go on from a checkpoint's history; as in TRL, settings are the configuration's again."""
        self.trainer.variant_card = replace(self.trainer.variant_card, history=tuple(history))
        now = resolved_values(self.trainer.variant) | self._beside
        last = {entry["key"]: entry["new"] for entry in history}
        self._record({key: (value, now.get(key)) for key, value in last.items() if value != now.get(key)})


def _flags(trainer: Any) -> dict[str, Any]:
    """What is set now, by TRL's flags."""
    own = {flag: getattr(trainer, name) for flag, name in _ATTRIBUTES.items()}
    configured = {flag: getattr(trainer.args, flag) for flag in _READ_FROM_CONFIG}
    return {flag: _plain(value) for flag, value in (own | configured).items()}


def _beside(trainer: Any) -> dict[str, Any]:
    own = {name: _plain(getattr(trainer, name)) for name in _BESIDE}
    if not trainer.use_adaptive_entropy:
        return own
    del own["entropy_coef"]  # the controller moves it in every optimizer step
    return own | {name: _plain(getattr(trainer.args, name)) for name in _ENTROPY_CONTROL}


def _plain(value: Any) -> Any:
    """A number or a list of them for a tensor or a NumPy number."""
    return value.tolist() if hasattr(value, "tolist") else value


def _has_reference(trainer: Any) -> bool:
    adapters = getattr(trainer.model, "peft_config", {})
    off = bool(adapters) and not splits_weights(adapters[POLICY])  # the model without its adapter
    return trainer.ref_model is not None or REFERENCE in adapters or off


def _what_is_scored(variant: Variant) -> tuple[bool, ...]:
    """What decides which responses are scored, and in which micro-batch."""
    plain = replace(variant, kl=None)
    whole = variant.surrogate.whole_batch or variant.tokens.whole_batch
    return variant.kl_in_loss, whole, has_no_gradient_without_advantage(plain)
