"""The table of axes: which choices a variant is made of, and at which stage of training each of them acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_type_hints

from grpo_variants import numerics
from grpo_variants.advantage import baseline, credit, reward_transform, scale, selection, token_credit
from grpo_variants.objective import aggregation, correction, kl, ratio, surrogate, token_filter
from grpo_variants.rollout import dynamic_sampling, overlong

Stage = Literal["advantage", "objective", "rollout"]


@dataclass(frozen=True)
class Axis:
    """One axis: at which stages it acts, and its choices.

    A choice is a part's class, None where it is the absence of a part, or its own name where it is a plain word.
    joins: several parts may be joined by `+`. default: the word that an axis of plain words starts with. read_by: the
    property of a part that has to be true for a word other than the default to have an effect.
    """

    stages: tuple[Stage, ...]
    choices: Mapping[str, type | str | None]
    joins: bool = False
    default: str | None = None
    read_by: str | None = None


AXES: Mapping[str, Axis] = {
    "selection": Axis(
        ("advantage",),
        {
            "none": selection.Everyone,
            "shortest": selection.Shortest,
            "efficient": selection.Efficient,
            "mixed": selection.Mixed,
            "max_variance": selection.MaxVariance,
            "largest_advantage": selection.LargestAdvantage,
        },
    ),
    "transform": Axis(
        ("advantage",),
        {
            "none": reward_transform.NoTransform,
            "signed": reward_transform.Signed,
            "pass_at_k": reward_transform.PassAtK,
            "unlikeliness": reward_transform.Unlikeliness,
        },
    ),
    "baseline": Axis(
        ("advantage",),
        {
            "none": baseline.NoBaseline,
            "group_mean": baseline.GroupMean,
            "leave_one_out": baseline.LeaveOneOut,
            "greedy": baseline.Greedy,
            "batch_mean": baseline.BatchMean,
            "length_weighted": baseline.LengthWeighted,
            "second_best": baseline.SecondBest,
            "group_median": baseline.GroupMedian,
            "group_quantile": baseline.GroupQuantile,
            "partition": baseline.Partition,
            "tracked": baseline.Tracked,
            "kalman": baseline.Kalman,
        },
    ),
    "scale": Axis(
        ("advantage",),
        {
            "none": scale.NoScale,
            "group_std": scale.GroupStd,
            "batch_std": scale.BatchStd,
            "group_mean": scale.MeanReward,
            "group_mad": scale.GroupMad,
            "bernoulli": scale.Bernoulli,
            "beta_density": scale.BetaDensity,
            "signal_share": scale.SignalShare,
            "kalman_std": scale.KalmanStd,
            "smoothed_std": scale.SmoothedStd,
        },
    ),
    "credit": Axis(
        ("advantage",),
        {
            "outcome": credit.Outcome,
            "process": credit.Process,
            "reward_to_go": credit.RewardToGo,
            "decoupled": credit.Decoupled,
            "entropy_tokens": token_credit.EntropyTokens,
            "entropy_responses": token_credit.EntropyResponses,
            "optimal_token": token_credit.OptimalToken,
        },
    ),
    "singleton": Axis(("advantage",), {"zero": "zero", "raw": "raw"}, default="zero", read_by="of_group"),
    "ratio": Axis(
        ("objective",),
        {
            "none": ratio.NoRatio,
            "token": ratio.TokenRatio,
            "sequence": ratio.SequenceRatio,
            "sequence_token": ratio.SequenceTokenRatio,
            "sequence_product": ratio.SequenceProduct,
            "sequence_arithmetic": ratio.SequenceArithmetic,
        },
    ),
    "surrogate": Axis(("objective",), surrogate.CHOICES),
    "kl": Axis(
        ("advantage", "objective"),
        {"none": None, "k1": kl.K1, "k2": kl.K2, "k3": kl.K3, "abs": kl.Abs},
    ),
    "correction": Axis(
        ("objective",),
        {
            "none": None,
            "token_truncate": correction.TokenTruncate,
            "token_mask": correction.TokenMask,
            "sequence_truncate": correction.SequenceTruncate,
            "sequence_mask": correction.SequenceMask,
            "geometric_truncate": correction.GeometricTruncate,
            "geometric_mask": correction.GeometricMask,
            "off_policy_mask": correction.OffPolicyMask,
            "kpop": correction.Kpop,
        },
        joins=True,
    ),
    "aggregation": Axis(
        ("objective",),
        {
            "sequence_mean": aggregation.SequenceMean,
            "token_mean": aggregation.TokenMean,
            "prompt_mean": aggregation.PromptMean,
            "constant": aggregation.Constant,
            "length_power": aggregation.LengthPower,
            "sequence_sum": aggregation.SequenceSum,
        },
    ),
    "tokens": Axis(("objective",), {"all": token_filter.AllTokens, "top_entropy": token_filter.TopEntropy}),
    "filter": Axis(("rollout",), {"none": dynamic_sampling.NoFilter, "zero_variance": dynamic_sampling.ZeroVariance}),
    "overlong": Axis(("rollout",), {"keep": overlong.Keep, "mask": overlong.Mask, "penalty": overlong.Penalty}),
    "conventions": Axis(("advantage", "objective", "rollout"), numerics.WORDS, default="paper"),
}

# Choices that were called otherwise when they were first released: the card's hash goes by the first word.
FIRST_WORDS: Mapping[str, Mapping[str, str]] = {"transform": {"signed": "verdict"}}

# Axes whose choices are plain words and not parts.
WORD_AXES: tuple[str, ...] = tuple(axis for axis, entry in AXES.items() if entry.default is not None)


def choice_name(axis: str, part: object) -> str:
    """The word for a part on its axis; a user's own class goes by its class name."""
    for word, cls in AXES[axis].choices.items():
        if cls is (None if part is None else type(part)):
            return word
    return type(part).__name__


def parts_of(record: object, axis: str) -> tuple[Any, ...]:
    """The parts that a record has on an axis; (None,) where the choice is none."""
    part = getattr(record, axis)
    return (part or (None,)) if AXES[axis].joins else (part,)


def fields_of(part: object) -> Mapping[str, Any]:
    """The fields of a choice with their types, by name; empty for a plain word or for no part."""
    return _hints(part) if isinstance(part, type) and is_dataclass(part) else {}


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}
