"""KL divergence to the reference: the estimator of the value and that of the gradient are two options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from grpo_variants.objective.block import Block
from grpo_variants.part import Part, added
from grpo_variants.tensors.bit_mask import chosen, keep, unchanged
from grpo_variants.tensors.checks import check_choice, check_number
from grpo_variants.tensors.masked import highest
from grpo_variants.tensors.values import check_tensor


class Estimator(NamedTuple):
    """A KL estimator: its value as a function of u = ref - logp, and that function's derivative by u."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


ESTIMATORS: Mapping[str, Estimator] = {
    "k1": Estimator(lambda u: -u, lambda u: torch.full_like(u, -1.0)),
    "k2": Estimator(lambda u: 0.5 * u.square(), lambda u: u),
    # exp(u) - 1 loses every digit near u = 0.
    "k3": Estimator(lambda u: torch.expm1(u) - u, torch.expm1),
    "abs": Estimator(torch.abs, torch.sign),
}


def kl(
    estimator: str,
    logp: Tensor,
    ref_logp: Tensor,
    *,
    gradient: Literal["own", "k2"] = "own",
    bound: float | None = 20.0,
    value_bound: float | None = None,
) -> Tensor:
    r"""Per-token estimate of KL(policy || reference), in nats.

    With \(u = \mathrm{ref} - \mathrm{logp}\): k1 \(= -u\), k2 \(= u^2/2\), k3 \(= e^u - u - 1\), abs \(= |u|\).
    In expectation over the policy's samples k1 and k3 equal the KL. As a loss their gradients differ: k1's is zero,
    k2's is the reverse KL's, k3's the forward KL's, KL(reference || policy); `gradient="k2"` keeps the value and
    takes the gradient of k2.

    Shapes: logp [B, T], ref_logp [B, T] -> [B, T].
    bound: u is clamped to [-bound, bound] before the exponential, or None. value_bound: the result is clamped to
    [-value_bound, value_bound], or None. A clamped token has no gradient.
    Raises ValueError for an unknown estimator, for what is no tensor and for shapes that differ.
    Reference: J. Schulman, "Approximating KL Divergence" (2020). Not done: no masking, no reduction, no coefficient.
    """
    check_choice("kl", estimator, ESTIMATORS)
    check_choice("kl.gradient", gradient, ("own", "k2"))
    check_tensor("logp", logp)
    check_tensor("ref_logp", ref_logp)
    if logp.shape != ref_logp.shape:
        raise ValueError(f"ref_logp has shape {list(ref_logp.shape)}; allowed: logp's, {list(logp.shape)}.")
    u = ref_logp - logp
    # exp(u) overflows float32 at 88; within the bound k3 and its gradient stay finite.
    u = u if bound is None else u.clamp(-bound, bound)
    value = ESTIMATORS[estimator].value(u)
    value = value if value_bound is None else value.clamp(-value_bound, value_bound)
    if gradient == "own":
        return value
    straight = ESTIMATORS["k2"].value(u)
    # Stop-gradient on the value and a zero-valued k2: the number of one estimator, the gradient of the other.
    return value.detach() + (straight - straight.detach())


class KLTerm(NamedTuple):
    """A KL estimate [b, T] with its derivatives by logp and, where it is weighted by the ratio, by the log ratio."""

    value: Tensor
    of_logp: Tensor
    of_ratio: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class KL(Part):
    """A KL term: coefficient, place, gradient, clamps. Subclasses name the estimator.

    beta: coefficient; has no default. placement: `loss` adds beta * kl to each token's loss, `reward` subtracts
    beta * kl (between the sampling policy and the reference) from its reward. gradient: `own`, or `k2` (the reverse
    KL's). weighted: `ratio` multiplies by the importance ratio and lets the gradient through it (DeepSeek-V3.2,
    arXiv 2512.02556). bound, value_bound: clamps on the log ratio and on the estimate; none switches one off.
    exempt: share of each response's tokens, those of highest entropy, that have no KL term (Archer,
    arXiv 2507.15778); the others count for them, so that a response's mean is that of the others. none for a term at
    every token.
    """

    estimator: ClassVar[str]
    beta: float
    placement: Literal["loss", "reward"] = "loss"
    gradient: Literal["own", "k2"] = "own"
    weighted: Literal["none", "ratio"] = "none"
    bound: float | None = 20.0
    value_bound: float | None = None
    exempt: float | None = added(None)
    # A penalty in the reward has no gradient for the ratio to weigh.
    resets: ClassVar[Mapping[tuple[str, object], Mapping[str, object]]] = {
        ("placement", "reward"): {"weighted": "none"}
    }

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("kl.beta", self.beta, at_least=0)
        check_choice("kl.placement", self.placement, ("loss", "reward"))
        check_choice("kl.gradient", self.gradient, ("own", "k2"))
        check_choice("kl.weighted", self.weighted, ("none", "ratio"))
        check_number("kl.bound", self.bound, above=0, optional=True)
        check_number("kl.value_bound", self.value_bound, above=0, optional=True)
        check_number("kl.exempt", self.exempt, above=0, below=1, optional=True)
        if self.placement == "reward" and self.exempt is not None:
            raise ValueError(
                f"kl.exempt={self.exempt!r} chooses tokens of the loss by their entropy, and kl.placement='reward' "
                "puts the penalty into the reward; set kl.exempt=none, or kl.placement=loss."
            )
        if self.placement == "reward" and (self.gradient != "own" or self.weighted != "none"):
            raise ValueError(
                f"kl.placement='reward' has no gradient through the penalty, so kl.gradient={self.gradient!r} and "
                f"kl.weighted={self.weighted!r} have no effect; use gradient=own and weighted=none."
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Entropies, where tokens are exempt by them; the reference's log-probabilities go without saying."""
        return () if self.exempt is None else ("entropy",)

    def estimate(self, logp: Tensor, ref_logp: Tensor) -> Tensor:
        """The estimate [B, T], without the coefficient."""
        return kl(
            self.estimator,
            logp,
            ref_logp,
            gradient=self.gradient,
            bound=self.bound,
            value_bound=self.value_bound,
        )

    def weights(self, entropy: Tensor, mask: Tensor) -> Tensor:
        """What each token's term is multiplied by: 0 where it is exempt, l over the number of the others there."""
        paying = mask if self.exempt is None else mask & ~highest(entropy, mask, self.exempt)
        tokens, kept = (which.to(entropy.dtype).sum(1, keepdim=True) for which in (mask, paying))
        return paying * (tokens / kept.clamp(min=1))

    def penalty(self, old_logp: Tensor, ref_logp: Tensor) -> Tensor:
        """What a token's reward is reduced by, beta * kl: [N, T], detached."""
        return self.beta * self.estimate(old_logp, ref_logp).detach()

    def with_derivative(self, ratio: Tensor, block: Block, wanted_by: str) -> KLTerm:
        """The loss's KL term for a block of responses, without the coefficient, with its derivatives."""
        raw = -block.difference("ref_logp", wanted_by)
        u = raw if self.bound is None else raw.clamp(-self.bound, self.bound)
        full, slope = ESTIMATORS[self.estimator].value(u), ESTIMATORS[self.estimator].slope(u)
        value = full if self.value_bound is None else full.clamp(-self.value_bound, self.value_bound)
        if self.gradient == "k2":
            slope = u
        elif value is not full:
            slope = keep(unchanged(full, value), slope)
        slope = -slope if u is raw else -keep(unchanged(raw, u), slope)
        if self.exempt is not None:
            weight = self.weights(block.need_entropy("kl.exempt"), block.given.mask.bool())
            paying = chosen(weight != 0, block.dtype)
            value, slope = keep(paying, value) * weight, keep(paying, slope) * weight
        if self.weighted == "none":
            return KLTerm(value, slope)
        return KLTerm(value * ratio, slope * ratio, value * ratio)


@dataclass(frozen=True, kw_only=True)
class K1(KL):
    """The log ratio itself, logp - ref."""

    estimator: ClassVar[str] = "k1"


@dataclass(frozen=True, kw_only=True)
class K2(KL):
    """Half the squared log ratio."""

    estimator: ClassVar[str] = "k2"


@dataclass(frozen=True, kw_only=True)
class K3(KL):
    """exp(u) - u - 1 with u = ref - logp (GRPO, arXiv 2402.03300)."""

    estimator: ClassVar[str] = "k3"


@dataclass(frozen=True, kw_only=True)
class Abs(KL):
    """The absolute log ratio."""

    estimator: ClassVar[str] = "abs"
