"""TRL's own loss types as variants: which objective runs, and how it differs from the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trl import GRPOConfig

from grpo_variants.names import PREFIX
from grpo_variants.spec import get
from grpo_variants.spelling import resolved_values
from grpo_variants.trainers.trl.words import FlagError
from grpo_variants.variant import Variant
from grpo_variants_trl.config.flags import choose

# How GRPOTrainer computes each loss type, as a change of grpo; its flags tune it further.
_COMPUTED: Mapping[str, str] = {
    "grpo": "",
    "sapo": "surrogate=sapo",
    "bnpo": "aggregation=token_mean",
    "dr_grpo": "aggregation=constant",
    "dapo": "aggregation=token_mean",
    "luspo": "aggregation=sequence_sum",
    "cispo": "surrogate=cispo,aggregation=token_mean",
    "vespo": "surrogate=vespo,ratio=sequence_product,aggregation=token_mean",
}
_EVERY_LOSS = ("beta", "scale_rewards", "mask_truncated_completions", "top_entropy_quantile")
_CLIPPED = ("epsilon", "epsilon_high", "delta", "importance_sampling_level")
_READ: Mapping[str, tuple[str, ...]] = {
    "sapo": ("sapo_temperature_neg", "sapo_temperature_pos"),
    "vespo": ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
    "cispo": ("epsilon_high",),
}


def described(config: GRPOConfig) -> Variant:
    """A built-in loss type under its flags as a variant, in TRL's numerics."""
    change = ",".join(filter(None, ("grpo,conventions=trl", _COMPUTED[config.loss_type])))
    flags = (*_EVERY_LOSS, *_READ.get(config.loss_type, _CLIPPED))
    given: dict[str, Any] = {name: value for name in flags if (value := getattr(config, name)) is not None}
    if "epsilon_high" in flags:
        given.setdefault("epsilon_high", config.epsilon)  # TRL's upper bound is the lower one where it is not set
    return choose(PREFIX + change, given).variant


def opening(config: GRPOConfig) -> str:
    """One line for the start of a run with a built-in loss type: what it is, and where the paper's differs."""
    word = config.loss_type
    default = ", which is TRL's default" if word == GRPOConfig.loss_type else ""
    whose = f"objective: TRL's own loss_type={word!r}{default}"
    if word not in _COMPUTED:
        return f"objective: loss_type={word!r} of this trainer's own."
    if word == "bnpo":
        return f"{whose}, a token mean per micro-batch; {PREFIX}bnpo is another algorithm, of arXiv:2506.02864."
    try:
        differs = _differences(described(config), get(f"{word},conventions=trl"))
    except FlagError as error:  # a flag that TRL takes and no variant does: the run is TRL's, and goes on
        return f"{whose}; the paper's is loss_type='{PREFIX}{word}', which does not take a setting of this run: {error}"
    paper = f"the paper's is loss_type='{PREFIX}{word}'"
    return f"{whose}; {paper}, which has {', '.join(differs)}." if differs else f"{whose}; {paper}, the same here."


def _differences(run: Variant, paper: Variant) -> list[str]:
    """The paper's values where the run has others; of an axis on which another part runs, the part alone."""
    own, theirs = resolved_values(run), resolved_values(paper)
    moved = {key for key in theirs if own.get(key) != theirs[key]}
    shown = [key for key in theirs if key in moved and not (_axis(key) in moved and "." in key and key not in own)]
    return [f"{key}={_word(theirs[key])} (here: {_word(own.get(key))})" for key in shown]


def _axis(key: str) -> str:
    return key.partition(".")[0]


def _word(value: Any) -> str:
    return "none" if value is None else str(value)
