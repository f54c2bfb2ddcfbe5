"""Variant: one exact member of the family, as frozen data; and the table of axes that it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grpo_variants import filters
from grpo_variants.advantage import baseline, credit, scale, selection, token_credit
from grpo_variants.advantage import reward_transform as transform
from grpo_variants.inputs import Tokens, check_tokens, check_values, read_tokens
from grpo_variants.objective import aggregation, correction, ratio, surrogate
from grpo_variants.objective import kl as divergence
from grpo_variants.rollout import overlong
from grpo_variants.tensors.checks import check_choice

# Why a catalogue entry is in `contrib`.
UNCONFIRMED = "a value of it was found in neither the paper nor its authors' code"

End = Literal["advantage", "objective", "rollout"]


@dataclass(frozen=True)
class Axis:
    """One axis: at which ends of a trainer it acts, and its choices.

    A choice is a part's class, None where it is the absence of a part, or its own name where it is a plain word.
    """

    ends: tuple[End, ...]
    choices: Mapping[str, type | str | None]
    joins: bool = False


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
            "none": transform.NoTransform,
            "verdict": transform.Verdict,
            "pass_at_k": transform.PassAtK,
            "unlikeliness": transform.Unlikeliness,
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
    "singleton": Axis(("advantage",), {"zero": "zero", "raw": "raw"}),
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
    "surrogate": Axis(
        ("objective",),
        {
            "reinforce": surrogate.Reinforce,
            "clip": surrogate.Clip,
            "entropy_clip": surrogate.EntropyClip,
            "cispo": surrogate.Cispo,
            "sapo": surrogate.Sapo,
            "gmpo": surrogate.Gmpo,
            "vespo": surrogate.Vespo,
            "topr": surrogate.Topr,
            "dppo_tv": surrogate.DppoTv,
            "dppo_kl": surrogate.DppoKl,
            "ppo_mask": surrogate.PpoMask,
            "band": surrogate.Band,
            "quadratic": surrogate.Quadratic,
            "dro": surrogate.Dro,
            "aspo": surrogate.Aspo,
            "ce_gppo": surrogate.CeGppo,
            "dcpo": surrogate.Dcpo,
            "fipo": surrogate.Fipo,
            "clip_cov": surrogate.ClipCov,
            "kl_cov": surrogate.KlCov,
            "bapo": surrogate.Bapo,
            "m2po": surrogate.M2po,
        },
    ),
    "kl": Axis(
        ("advantage", "objective"),
        {"none": None, "k1": divergence.K1, "k2": divergence.K2, "k3": divergence.K3, "abs": divergence.Abs},
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
    "tokens": Axis(("objective",), {"all": filters.AllTokens, "top_entropy": filters.TopEntropy}),
    "filter": Axis(("rollout",), {"none": filters.NoFilter, "zero_variance": filters.ZeroVariance}),
    "overlong": Axis(("rollout",), {"keep": overlong.Keep, "mask": overlong.Mask, "penalty": overlong.Penalty}),
    "conventions": Axis(("advantage", "objective", "rollout"), {"paper": "paper", "trl": "trl", "verl": "verl"}),
}


@dataclass(frozen=True)
class Reference:
    """Where a variant is defined."""

    title: str
    year: int
    arxiv: str | None = None

    def __str__(self) -> str:
        """Title, year and arXiv id."""
        return f"{self.title} ({self.year})" + (f", arXiv:{self.arxiv}" if self.arxiv else "")

    def bibtex(self, key: str) -> str:
        """BibTeX entry under a key, without authors."""
        found = {"title": f"{{{self.title}}}", "year": str(self.year)}
        if self.arxiv:
            found |= {"eprint": self.arxiv, "archivePrefix": "arXiv", "url": f"https://arxiv.org/abs/{self.arxiv}"}
        lines = [f"  {field:<13} = {{{value}}}," for field, value in found.items()]
        return "\n".join([f"@misc{{{key},", *lines, "}"])


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One member of the family: advantage rule, objective and rollout rule, with its references.

    The advantage rule (selection, transform, baseline, scale, credit, singleton) runs where rewards are grouped, the
    objective (ratio, surrogate, kl, correction, aggregation, tokens) where the loss is computed, the rollout rule
    (filter, overlong) where responses are sampled; `AXES` says which end an axis acts at. A KL with placement=reward
    acts in the advantage rule.
    note: where papers and code disagree, and which of them was taken. confirmed: where its values were read, in the
    paper and in its authors' code. unconfirmed: the values that were found in neither, and where they are from; a
    catalogue entry that has such values is in `contrib`.

    Frozen, hashable and picklable; a combination that means nothing raises ValueError with the reason.
    """

    name: str
    selection: selection.Selection = selection.Everyone()
    transform: transform.Transform = transform.NoTransform()
    baseline: baseline.Baseline = baseline.NoBaseline()
    scale: scale.Scale = scale.NoScale()
    credit: credit.Credit = credit.Outcome()
    singleton: str = "zero"
    ratio: ratio.Ratio = ratio.NoRatio()
    surrogate: surrogate.Surrogate = surrogate.Reinforce()
    kl: divergence.KL | None = None
    correction: tuple[correction.Correction, ...] = ()
    aggregation: aggregation.Aggregation = aggregation.SequenceSum()
    tokens: filters.TokenFilter = filters.AllTokens()
    filter: filters.NoFilter | filters.ZeroVariance = filters.NoFilter()
    overlong: overlong.Keep | overlong.Mask | overlong.Penalty = overlong.Keep()
    conventions: str = "paper"
    summary: str = ""
    formula: str = ""
    note: str = ""
    confirmed: str = ""
    unconfirmed: str = ""
    references: tuple[Reference, ...] = ()
    hosts: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Check the words and refuse combinations that mean nothing."""
        from grpo_variants.fences import check_fences

        if not self.name.isidentifier():
            raise ValueError(f"name={self.name!r} is not a plain word; allowed: letters, digits and underscores.")
        check_choice("singleton", self.singleton, AXES["singleton"].choices)
        check_choice("conventions", self.conventions, AXES["conventions"].choices)
        for axis, entry in AXES.items():
            part = getattr(self, axis)
            if isinstance(part, str) and part not in entry.choices.values():
                raise ValueError(
                    f"{self.name}: {axis}={part!r} is a word where a part belongs; choose it by a spec string, "
                    f"gv.get('{self.name},{axis}={part}'), and register the result under another name if you like."
                )
        check_fences(self)

    def __str__(self) -> str:
        """Canonical spec string; `get` turns it back into an equal variant."""
        from grpo_variants.spec import spec_string

        return spec_string(self)

    @property
    def contrib(self) -> bool:
        """Whether a value of it was found in neither the paper nor its authors' code."""
        return bool(self.unconfirmed)

    @property
    def kl_in_loss(self) -> bool:
        """Whether the loss has a KL term that is not zero."""
        return self.kl is not None and self.kl.beta > 0 and self.kl.placement == "loss"

    @property
    def kl_in_reward(self) -> bool:
        """Whether rewards are reduced by a KL penalty that is not zero."""
        return self.kl is not None and self.kl.beta > 0 and self.kl.placement == "reward"

    @property
    def per_token(self) -> bool:
        """Whether the advantage rule gives one advantage per token."""
        return self.credit.per_token

    @property
    def reads_old_logp(self) -> bool:
        """Whether the advantage rule reads log-probabilities of the policy that sampled, whatever its credit."""
        return self.kl_in_reward or getattr(self.transform, "reads_old_logp", False)

    @property
    def remembers(self) -> bool:
        """Whether the advantage rule remembers earlier steps, in a `Memory`."""
        return any(getattr(part, "remembers", False) for part in (self.baseline, self.scale))

    @property
    def whole_batch(self) -> bool:
        """Whether a statistic of the objective spans the batch: the surrogate's, or that of the choice of tokens."""
        return self.surrogate.whole_batch or self.tokens.whole_batch

    @property
    def threshold_names(self) -> tuple[str, ...]:
        """Names of these statistics, as `Counts.thresholds` takes them."""
        return (*self.surrogate.names, *self.tokens.names)

    def thresholds(self, step: Tokens) -> dict[str, Tensor]:
        """Statistics of a whole step, for `Counts.thresholds`, so that micro-batches do not take their own; detached.

        Returns 0-d tensors by name; empty where nothing spans the batch. Nothing waits for the host.
        Raises ValueError for a missing input.
        """
        check_tokens(step)
        check_values(step)
        with torch.no_grad():
            x = read_tokens(aggregation.trained(self.aggregation, step))
            return {**self.surrogate.thresholds(self.ratio(x), x), **self.tokens.thresholds(x)}

    @property
    def needs_rollout_logp(self) -> bool:
        """Whether the objective reads what the rollout engine reported."""
        optional = all(isinstance(part, correction.OffPolicyMask) for part in self.correction)
        return self.ratio.anchor == "rollout" or not optional
