"""verl's words in a spec string, read by the readers of `words` from the words that the string has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from grpo_variants.axes import choice_name
from grpo_variants.foreign_words import Tune, Word, word_in
from grpo_variants.objective.aggregation import Constant
from grpo_variants.spec import configure
from grpo_variants.tensors.checks import check_choice
from grpo_variants.trainers.base import name_comes_first
from grpo_variants.trainers.verl import words
from grpo_variants.variant import Variant

# verl's defaults, for the KL that a word switches on.
_KL_DEFAULTS = {"kl_loss_type": "low_var_kl", "kl_loss_coef": 0.001, "kl_penalty": "kl", "kl_coef": 0.001}


def _loss_field(key: str) -> Tune:
    """A field of verl's policy loss, on a surrogate that has it."""

    def tune(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
        own = words.loss_fields(type(variant.surrogate))
        # The more specific of two fields counts.
        said = [f for f, keys in own.items() if key in keys and not set(keys[: keys.index(key)]) & set(given)]
        if not said:
            raise ValueError(f"surrogate={choice_name('surrogate', variant.surrogate)} has nothing that it sets")
        return configure(variant, {f"surrogate.{field}": value for field in said})

    return tune


def _loss_keys(key: str) -> tuple[str, ...]:
    """The keys of a spec string that a field of verl's policy loss stands for, on any surrogate."""
    tables = (words.DUAL_CLIP, words.TAUS, words.CLIP_COV, words.KL_COV, words.DRO)
    return tuple(dict.fromkeys(f"surrogate.{f}" for table in tables for f, keys in table.items() if key in keys))


def _reader(given: Mapping[str, Any], **implied: Any) -> words.Get:
    """verl's configuration as far as a spec string says it, with what its words imply."""

    def get(key: str) -> Any:
        word = word_in(key) or key.rpartition(".")[2]
        return given.get(word, implied.get(word.rpartition(".")[2]))

    return get


def _aggregation(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    word = given.get("loss_agg_mode", words.AGGREGATIONS[Constant])
    check_choice("loss_agg_mode", word, dict.fromkeys(words.AGGREGATIONS.values()))
    rule: Any = words.read_aggregation(_reader(given, loss_agg_mode=word))
    return replace(variant, aggregation=rule)


def _kl(placement: str) -> Tune:
    """verl's KL term in the loss, or its penalty in the rewards."""
    read = words.read_kl_in_loss if placement == "loss" else words.read_kl_in_reward

    def tune(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
        has = variant.kl
        own = {**words.kl_in_loss_settings(has), **words.kl_in_reward_settings(has)}
        implied = _KL_DEFAULTS | {key.rpartition(".")[2]: value for key, value in own.items()}
        part = read(_reader(given, **implied | {"use_kl_loss": True, "use_kl_in_reward": True}))
        off = given.get("use_kl_loss") is False or given.get("use_kl_in_reward") is False
        if part is None and not off:
            raise ValueError("verl has no such estimator of the KL")
        if part is None or part.beta == 0:
            return configure(variant, {"kl": "none"})
        said = {"kl.beta": part.beta, "kl.placement": placement, "kl.gradient": part.gradient}
        same = has is not None and has.estimator == part.estimator
        return configure(variant, said if same else {"kl": part.estimator, **said})

    return tune


def _correction(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    weighs = bool({"rollout_is", "rollout_is_threshold"} & set(given))
    level = given.get("rollout_is", "sequence" if weighs else None)
    check_choice("rollout_is", level, ("token", "sequence", None))
    if given.get("rollout_rs") and not given.get("rollout_rs_threshold"):
        raise ValueError("rollout_rs needs rollout_rs_threshold, two numbers with an underscore between them")
    implied = {"rollout_is": level, "rollout_is_threshold": 2.0, "calculate_log_probs": True}
    own = tuple(part for part in variant.correction if "rollout_logp" not in part.reads)
    return replace(variant, correction=(*words.read_correction(_reader(given, **implied)), *own))


def _bypass(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    return configure(variant, {"ratio.anchor": "rollout" if value else "old"})


def _scaled(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    if bool(value) == (choice_name("scale", variant.scale) != "none"):
        return variant
    return configure(variant, {"scale": "group_std" if value else "none"})


def _filter(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    rule = words.read_filter(_reader(given, enable=True, use_v1=True))
    choice = choice_name("filter", rule)
    metric = getattr(rule, "metric", None)
    same = choice == choice_name("filter", variant.filter)
    chosen = {} if same else {"filter": choice}
    return configure(variant, chosen if choice == "none" else {**chosen, "filter.metric": metric})


def _overlong(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    implied = {"name": "dapo", "enable": True, "len": 4096, "penalty_factor": 1.0}
    return replace(variant, overlong=words.read_overlong(_reader(given, **implied)))


def _of_the_trainer(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    raise ValueError("it is a setting of the trainer and says nothing of a variant; give it to the trainer")


_KL_LOSS, _KL_REWARD = _kl("loss"), _kl("reward")
_TUNES: Mapping[str, Callable[..., Variant]] = {
    "loss_agg_mode": _aggregation,
    "loss_scale_factor": _aggregation,
    "use_kl_loss": _KL_LOSS,
    "kl_loss_type": _KL_LOSS,
    "kl_loss_coef": _KL_LOSS,
    "use_kl_in_reward": _KL_REWARD,
    "kl_penalty": _KL_REWARD,
    "kl_coef": _KL_REWARD,
    "rollout_is": _correction,
    "rollout_is_threshold": _correction,
    "rollout_rs": _correction,
    "rollout_rs_threshold": _correction,
    "bypass_mode": _bypass,
    "norm_adv_by_std_in_grpo": _scaled,
    "filter_groups.enable": _filter,
    "filter_groups.metric": _filter,
    "overlong_buffer_cfg.enable": _overlong,
    "overlong_buffer_cfg.len": _overlong,
    "overlong_buffer_cfg.penalty_factor": _overlong,
    "adv_estimator": name_comes_first,
    "loss_mode": name_comes_first,
    **dict.fromkeys(
        (
            "calculate_log_probs",
            "use_v1",
            "max_response_length",
            "max_resp_len",
            "max_num_gen_batches",
            "rollout_is_batch_normalize",
            "kl_ctrl.type",
            "reward_manager.name",
            "overlong_buffer_cfg.log",
        ),
        _of_the_trainer,
    ),
}

WORDS: Mapping[str, Word] = {
    **{key.rpartition(".")[2]: Word("verl", _loss_field(key), _loss_keys(key)) for key in words.LOSS_DEFAULTS},
    **{key: Word("verl", tune) for key, tune in _TUNES.items()},
}
