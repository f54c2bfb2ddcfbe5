"""What verl 0.9.1 calls the parts of a variant: which of its settings express which axis, and how to read them back.

Data and small functions on it; nothing of verl is imported. `grpo-variants translate` prints these settings, and the
adapter holds a run's configuration against them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from grpo_variants.axes import AXES, Stage, choice_name
from grpo_variants.objective import aggregation, correction, surrogate
from grpo_variants.objective import kl as divergence
from grpo_variants.rollout import dynamic_sampling, overlong
from grpo_variants.spelling import written
from grpo_variants.variant import Variant

ACTOR = "actor_rollout_ref.actor"
POLICY_LOSS = f"{ACTOR}.policy_loss"
ESTIMATOR = "algorithm.adv_estimator"
GAMMA = "algorithm.gamma"
LOSS_MODE = f"{POLICY_LOSS}.loss_mode"
BYPASS_LOSS = f"{POLICY_LOSS}.rollout_correction.loss_type"
OPTIONS = "algorithm.grpo_variants.options"
STEP_REWARDS = "algorithm.grpo_variants.step_rewards"
EXTEND_HOST = "algorithm.grpo_variants.extend_host"
LOSS_TARGET = f"{POLICY_LOSS}._target_"
LOSS_CONFIG = "grpo_variants_verl.VariantPolicyLossConfig"
LOSS_OPTIONS = f"{POLICY_LOSS}.options"
AGGREGATION = f"{ACTOR}.loss_agg_mode"
SCALE_FACTOR = f"{ACTOR}.loss_scale_factor"
MAX_LENGTH = "data.max_response_length"
CORRECTION = "algorithm.rollout_correction"
BATCH_NORMALIZE = f"{CORRECTION}.rollout_is_batch_normalize"
BYPASS = f"{CORRECTION}.bypass_mode"
KL_CONTROL = "algorithm.kl_ctrl"
FILTER = "algorithm.filter_groups"
ROUNDS = f"{FILTER}.max_num_gen_batches"
V1 = "trainer.use_v1"
ROLLOUT = "actor_rollout_ref.rollout"
ENGINE_LOGP = f"{ROLLOUT}.calculate_log_probs"
SUM_PI_SQUARED = f"{ACTOR}.calculate_sum_pi_squared"
RESPONSES = f"{ROLLOUT}.n"
PROMPTS = "data.train_batch_size"
ADAPTER = "actor_rollout_ref.model.lora_adapter_path"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
REWARD_MANAGER = "reward.reward_manager.name"
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"
LONGEST = "reward.reward_kwargs.max_resp_len"
# Keys that verl's own configuration does not have: Hydra adds them with a leading plus sign.
ADDED = ("algorithm.grpo_variants", LOSS_OPTIONS, "reward.reward_kwargs")

Settings = dict[str, Any]
Get = Callable[[str], Any]


@dataclass(frozen=True)
class Interpolation:
    """A value that Hydra takes from another key of the configuration."""

    key: str

    def __str__(self) -> str:
        """Hydra's notation."""
        return f"${{{self.key}}}"


def axes_of(stage: Stage) -> tuple[str, ...]:
    """Axes that act at one stage."""
    return tuple(axis for axis, about in AXES.items() if stage in about.stages)


# ---- aggregation

AGGREGATIONS: Mapping[type, str] = {
    aggregation.TokenMean: "token-mean",
    aggregation.PromptMean: "token-mean",
    aggregation.SequenceMean: "seq-mean-token-mean",
    aggregation.SequenceSum: "seq-mean-token-sum",
    aggregation.Constant: "seq-mean-token-sum-norm",
    aggregation.LengthPower: "seq-mean-token-sum-norm",
}


def carried_over(rule: aggregation.Aggregation) -> aggregation.Aggregation | None:
    """What the loss aggregates by where the advantages carry a rule's weights; None for a rule that needs no carrying.

    A policy loss sees a micro-batch, without groups; an estimator sees the whole batch.
    """
    if isinstance(rule, aggregation.PromptMean) or rule.drops_rows:
        return aggregation.TokenMean()
    return aggregation.Constant(length=rule.length) if isinstance(rule, aggregation.LengthPower) else None


def aggregation_options(rule: aggregation.Aggregation) -> dict[str, str]:
    """The options that choose an aggregation, by the keys of a spec string."""
    options = {"aggregation": choice_name("aggregation", rule)}
    for field in fields(rule):  # type: ignore[arg-type]
        if (value := getattr(rule, field.name)) != field.default:
            options[f"aggregation.{field.name}"] = written(value)
    return options


def aggregation_settings(variant: Variant) -> Settings:
    """How the trainer aggregates what it adds itself: the KL term and the entropy bonus."""
    rule = variant.aggregation
    word = AGGREGATIONS.get(type(rule))
    if word is None:
        return {}
    settings: Settings = {AGGREGATION: word}
    if isinstance(rule, (aggregation.Constant, aggregation.LengthPower)):
        length = rule.length
        if length is not None and float(length).is_integer():
            length = int(length)
        settings[SCALE_FACTOR] = Interpolation(MAX_LENGTH) if length is None else length
    return settings


def read_aggregation(get: Get) -> aggregation.Aggregation | None:
    """The aggregation of verl's own losses under a configuration; None for one that has no counterpart here."""
    word = get(AGGREGATION)
    cls = next((cls for cls, word_of in AGGREGATIONS.items() if word_of == word), None)
    if cls is aggregation.Constant:
        return aggregation.Constant(length=get(SCALE_FACTOR))
    return None if cls is None else cls()


# ---- KL

_ESTIMATORS: Mapping[str, type[divergence.KL]] = {
    "kl": divergence.K1,
    "k1": divergence.K1,
    "mse": divergence.K2,
    "k2": divergence.K2,
    "low_var_kl": divergence.K3,
    "k3": divergence.K3,
    "abs": divergence.Abs,
}


def kl_in_loss_settings(kl: divergence.KL | None) -> Settings:
    """The KL term that the trainer adds to the policy loss."""
    if kl is None or kl.placement != "loss" or kl.beta == 0:
        return {f"{ACTOR}.use_kl_loss": False}
    word = kl.estimator + ("+" if kl.gradient == "k2" and kl.estimator != "k2" else "")
    return {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": word, f"{ACTOR}.kl_loss_coef": kl.beta}


def kl_in_reward_settings(kl: divergence.KL | None) -> Settings:
    """The KL penalty that the trainer takes off the rewards."""
    if kl is None or kl.placement != "reward" or kl.beta == 0:
        return {"algorithm.use_kl_in_reward": False}
    return {
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_penalty": kl.estimator,
        f"{KL_CONTROL}.type": "fixed",
        f"{KL_CONTROL}.kl_coef": kl.beta,
    }


def read_kl_in_loss(get: Get) -> divergence.KL | None:
    """The KL term that a configuration makes verl add to the loss, with verl's bounds; None for none."""
    if not get(f"{ACTOR}.use_kl_loss"):
        return None
    return _kl(str(get(f"{ACTOR}.kl_loss_type")), float(get(f"{ACTOR}.kl_loss_coef")), "loss")


def read_kl_in_reward(get: Get) -> divergence.KL | None:
    """The KL penalty that a configuration makes verl take off the rewards; None for none."""
    if not get("algorithm.use_kl_in_reward"):
        return None
    return _kl(str(get("algorithm.kl_penalty")), float(get(f"{KL_CONTROL}.kl_coef")), "reward")


def kl_control(get: Get) -> str | None:
    """How verl changes the coefficient of the KL penalty during a run; None for a fixed one or for no penalty."""
    if not get("algorithm.use_kl_in_reward") or get(f"{KL_CONTROL}.type") != "adaptive":
        return None
    target, horizon = (get(f"{KL_CONTROL}.{field}") for field in ("target_kl", "horizon"))
    return f"adaptive, towards a KL of {target} over a horizon of {horizon}"


def reference_lacks_adapter(get: Get) -> bool:
    """Whether a KL is taken to the base model while a run starts from an adapter: verl switches adapters off for it."""
    return bool(get(ADAPTER)) and bool(get("algorithm.use_kl_in_reward") or get(f"{ACTOR}.use_kl_loss"))


def _kl(word: str, beta: float, placement: Any) -> divergence.KL | None:
    cls = _ESTIMATORS.get(word.removesuffix("+"))
    if cls is None:
        return None
    straight = placement == "loss" and word.endswith("+") and cls is not divergence.K2
    bounds = {"bound": 20.0, "value_bound": 10.0} if cls is divergence.K3 else {"bound": None, "value_bound": None}
    return cls(beta=beta, placement=placement, gradient="k2" if straight else "own", **bounds)


def same_kl(a: divergence.KL | None, b: divergence.KL | None) -> bool:
    """Whether two KL terms agree in all that the trainer lets a user set: estimator, coefficient, place, gradient."""
    return _kl_words(a) == _kl_words(b)


def _kl_words(kl: divergence.KL | None) -> tuple[Any, ...] | None:
    if kl is None or kl.beta == 0:
        return None
    gradient = "own" if kl.estimator == "k2" else kl.gradient
    return kl.estimator, kl.beta, kl.placement, gradient


# ---- fields of the policy loss

# verl's defaults, below the actor: a field that still has its default was not moved by the user.
LOSS_DEFAULTS: Mapping[str, float | None] = {
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_c": 3.0,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "policy_loss.clip_cov_ratio": 2e-4,
    "policy_loss.clip_cov_lb": 1.0,
    "policy_loss.clip_cov_ub": 5.0,
    "policy_loss.kl_cov_ratio": 2e-4,
    "policy_loss.ppo_kl_coef": 0.1,
    "policy_loss.dro_beta": None,
}

# Field of a surrogate -> verl's fields that say the same, the more specific one first.
Fields = Mapping[str, tuple[str, ...]]
CLIP: Fields = {"low": ("clip_ratio_low", "clip_ratio"), "high": ("clip_ratio_high", "clip_ratio")}
DUAL_CLIP: Fields = {**CLIP, "dual": ("clip_ratio_c",)}
CAPPED_CLIP: Fields = {**CLIP, "cap": ("clip_ratio_c",)}
TAUS: Fields = {"tau_pos": ("tau_pos",), "tau_neg": ("tau_neg",)}
CLIP_COV: Fields = {
    **CLIP,
    "fraction": ("policy_loss.clip_cov_ratio",),
    "cov_low": ("policy_loss.clip_cov_lb",),
    "cov_high": ("policy_loss.clip_cov_ub",),
}
KL_COV: Fields = {"fraction": ("policy_loss.kl_cov_ratio",), "coef": ("policy_loss.ppo_kl_coef",)}
DRO: Fields = {"tau": ("policy_loss.dro_beta",)}

_OF_SURROGATE: Mapping[type, Fields] = {
    surrogate.DppoTv: CAPPED_CLIP,
    surrogate.DppoKl: CAPPED_CLIP,
    surrogate.Sapo: TAUS,
    surrogate.ClipCov: CLIP_COV,
    surrogate.KlCov: KL_COV,
    surrogate.Dro: DRO,
}


def loss_fields(cls: type) -> Fields:
    """What verl calls the fields of a surrogate: those of its own loss of that kind, else those of the clip by name."""
    own = {field.name for field in fields(cls)}
    return _OF_SURROGATE.get(cls) or {field: keys for field, keys in DUAL_CLIP.items() if field in own}


def moved_fields(get: Get) -> dict[str, float]:
    """verl's fields of the policy loss that no longer have their default, with their values."""
    values = {key: get(f"{ACTOR}.{key}") for key in LOSS_DEFAULTS}
    return {k: float(v) for k, v in values.items() if v is not None and v != LOSS_DEFAULTS[k]}


def clip_settings(variant: Variant) -> Settings:
    """The trainer's clip fields where the surrogate has a clip range."""
    low, high = getattr(variant.surrogate, "low", None), getattr(variant.surrogate, "high", None)
    if low is None or high is None:
        return {}
    return {f"{ACTOR}.clip_ratio_low": low, f"{ACTOR}.clip_ratio_high": high}


# ---- correction of the rollout mismatch

# Log weights are clamped to [-20, 20] in both packages, so that these bounds never bind.
_NO_LOW, _NO_HIGH = 1e-9, 1e9


def correction_settings(variant: Variant) -> Settings:
    """The trainer's rollout correction for the parts that need the rollout engine's log-probabilities.

    Raises ValueError for a part without counterpart.
    """
    settings: Settings = {}
    for part in variant.correction:
        found = _CORRECTIONS.get(type(part), _no_correction)(part)
        if set(found) & set(settings):
            raise ValueError(
                f"{variant.name}: verl applies one rollout weight and one rejection at a time; "
                f"correction={'+'.join(choice_name('correction', p) for p in variant.correction)} has two of a kind."
            )
        settings |= found
    if settings or variant.ratio.anchor == "rollout":
        settings[ENGINE_LOGP] = True
    if variant.ratio.anchor == "rollout":
        settings[BYPASS] = True
    return settings


# Neither a rollout weight nor a rejection.
NO_CORRECTION: Settings = {f"{CORRECTION}.rollout_is": None, f"{CORRECTION}.rollout_rs": None}


def _weight(level: str, threshold: Any) -> Settings:
    return {f"{CORRECTION}.rollout_is": level, f"{CORRECTION}.rollout_is_threshold": threshold}


def _truncate(level: str) -> Callable[[Any], Settings]:
    def settings(part: Any) -> Settings:
        if part.floor > 0:
            raise ValueError(
                f"correction.floor={part.floor!r}: verl truncates from above only; set correction.floor=0."
            )
        return _weight(level, part.cap)

    return settings


def _band(level: str) -> Callable[[Any], Settings]:
    return lambda part: _weight(level, f"{part.low or _NO_LOW}_{part.high or _NO_HIGH}")


def _reject(part: Any) -> Settings:
    # verl bounds -log w, so its interval is the inverse of the one that the weights keep.
    low, high = 1 / (part.high or _NO_HIGH), 1 / (part.low or _NO_LOW)
    return {f"{CORRECTION}.rollout_rs": "seq_mean_k1", f"{CORRECTION}.rollout_rs_threshold": f"{low!r}_{high!r}"}


def _no_correction(part: Any) -> Settings:
    word = choice_name("correction", part)
    raise ValueError(f"correction={word}: verl has no such rollout correction; use token_truncate or geometric_mask.")


_CORRECTIONS: Mapping[type, Callable[[Any], Settings]] = {
    correction.TokenTruncate: _truncate("token"),
    correction.SequenceTruncate: _truncate("sequence"),
    correction.TokenMask: _band("token"),
    correction.SequenceMask: _band("sequence"),
    correction.GeometricMask: _reject,
    correction.OffPolicyMask: lambda part: {},  # the loss computes it itself
}


def weighs(get: Get) -> bool:
    """Whether verl computes rollout weights at all: not in bypass mode, nor without the engine's log-probabilities."""
    return not get(BYPASS) and bool(get(ENGINE_LOGP))


def normalises_weights(get: Get) -> bool:
    """Whether verl divides the rollout weights by their mean over the batch."""
    return weighs(get) and bool(get(f"{CORRECTION}.rollout_is") and get(BATCH_NORMALIZE))


def read_correction(get: Get) -> tuple[correction.Correction, ...]:
    """The corrections that a configuration makes verl apply to a gv_ loss.

    Raises ValueError for a rejection that has no part here.
    """
    if not weighs(get):
        return ()
    parts = list(read_weights(get))
    rejection = get(f"{CORRECTION}.rollout_rs")
    if rejection == "seq_mean_k1":
        low, high = (float(x) for x in str(get(f"{CORRECTION}.rollout_rs_threshold")).split("_"))
        parts.append(correction.GeometricMask(low=_open(1 / high), high=_open(1 / low)))
    elif rejection:
        raise ValueError(f"rollout_rs={rejection} has no counterpart among the corrections here.")
    return tuple(parts)


def read_weights(get: Get) -> tuple[correction.Correction, ...]:
    """The rollout weights among them, without a rejection."""
    level, threshold = get(f"{CORRECTION}.rollout_is"), get(f"{CORRECTION}.rollout_is_threshold")
    return (_read_weight(str(level), str(threshold)),) if level and weighs(get) else ()


def _read_weight(level: str, threshold: str) -> correction.Correction:
    low, band, high = threshold.rpartition("_")
    if not band:
        truncate = {"token": correction.TokenTruncate, "sequence": correction.SequenceTruncate}[level]
        return truncate(cap=float(high))
    mask = {"token": correction.TokenMask, "sequence": correction.SequenceMask}[level]
    return mask(low=_open(float(low)), high=_open(float(high)))


def _open(bound: float) -> float | None:
    """None for a bound that stands for none."""
    rounded = float(f"{bound:.12g}")  # 1 / (1 / x) may differ from x in the last digit
    return None if rounded <= _NO_LOW or rounded >= _NO_HIGH else rounded


# ---- rollout rule


def prompts_of_step(get: Get) -> int:
    """Prompts that a step computes advantages for: a share of the batch where weights are synchronised less often."""
    mode = get("trainer.v1.trainer_mode") if get(V1) else None
    return int(get(PROMPTS)) // int(get(f"trainer.v1.{mode}.parameter_sync_step") or 1)


def filter_settings(variant: Variant) -> Settings:
    """The trainer's group filter."""
    rule = variant.filter
    if not isinstance(rule, dynamic_sampling.ZeroVariance):
        return {f"{FILTER}.enable": False}
    return {f"{FILTER}.enable": True, f"{FILTER}.metric": rule.metric or "reward"}


def read_filter(get: Get) -> dynamic_sampling.NoFilter | dynamic_sampling.ZeroVariance:
    """The group filter of a configuration: drawn without a bound by the V1 trainer, none by the legacy one."""
    if not get(f"{FILTER}.enable") or not get(V1):
        return dynamic_sampling.NoFilter()
    metric = get(f"{FILTER}.metric")
    return dynamic_sampling.ZeroVariance(metric=None if metric in (None, "reward") else str(metric), max_rounds=None)


def overlong_settings(variant: Variant) -> Settings:
    """The trainer's soft overlong punishment; nothing for the other choices, which it does not have."""
    rule = variant.overlong
    if not isinstance(rule, overlong.Penalty):
        return {}
    return {
        REWARD_MANAGER: "dapo",
        f"{OVERLONG}.enable": True,
        f"{OVERLONG}.len": rule.buffer,
        f"{OVERLONG}.penalty_factor": rule.factor,
        f"{OVERLONG}.log": False,
        LONGEST: Interpolation(MAX_LENGTH),
    }


def read_overlong(get: Get) -> overlong.Keep | overlong.Penalty:
    """The overlong rule of a configuration."""
    if get(REWARD_MANAGER) != "dapo" or not get(f"{OVERLONG}.enable"):
        return overlong.Keep()
    return overlong.Penalty(buffer=int(get(f"{OVERLONG}.len")), factor=float(get(f"{OVERLONG}.penalty_factor")))


def options_of(variant: Variant, axes: tuple[str, ...]) -> str:
    """The part of a variant's spec string that speaks about some axes."""
    pieces = str(variant).split(",")[1:]
    return ",".join(piece for piece in pieces if piece.partition("=")[0].partition(".")[0] in axes)


# ---- overrides


def overrides(settings: Mapping[str, Any], adding: str = "+") -> list[str]:
    """Settings as Hydra overrides; keys that verl's own configuration lacks start with `adding`.

    That is +, or ++ where the configuration may have them already.
    """
    return [f"{adding if key.startswith(ADDED) else ''}{key}={_hydra(value)}" for key, value in settings.items()]


def shell(settings: Mapping[str, Any], adding: str = "+") -> str:
    """Settings as words for a shell."""
    return " ".join(shlex.quote(override) for override in overrides(settings, adding))


def _hydra(value: Any) -> str:
    """A value in Hydra's notation; text is quoted unless it is a plain word."""
    if isinstance(value, str) and not value.replace("-", "_").replace(".", "_").isidentifier():
        return f'"{value}"'
    return "null" if value is None else str(value)
