r"""From hidden states to log-probabilities and entropies, without the logits of the whole batch.

With \(z = \mathrm{cap}(\mathrm{scale}\,(h W^\top + b)) / \mathrm{temperature}\) and p = softmax(z), a token y has
\(\mathrm{logp} = \log p_y\) and the position has the entropy \(H = -\sum_v p_v \log p_v\). Two ways to the gradient:

* recompute, for any loss: the backward computes a chunk's logits again, four matrix products in all;
* a precomputed gradient: a loss whose dloss/dlogp is known while the logits are at hand needs three, and two with a
  frozen head. The backward compares the gradient it gets with this one, and computes again where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from grpo_variants.tensors.checks import check_number

# Bytes of a chunk's logits: the products are at full speed from here on, measured on CPU and assumed elsewhere.
_CHUNK_BYTES = 48 * 2**20
_CHUNK_BYTES_ELSEWHERE = 2**30
# The elementwise passes run over a fraction of a chunk: for its memory, and on a CPU to find it in the cache.
_BLOCKS = 32
_BLOCKS_ELSEWHERE = 4
# Rows of a low-precision weight that are upcast at a time, where the device has no product with an exact result.
_UPCAST = 8192


class TokenGradient(Protocol):
    """dloss/dlogp of some scored tokens, from their log-probabilities."""

    def __call__(self, logp: Tensor, at: slice) -> Tensor:
        """logp [n] of the scored tokens `at`, counted over the batch in row-major order -> [n]."""
        ...


@dataclass
class PrecomputedGradient:
    """What the gradient of the log-probabilities will be, and whether that turned out wrong.

    gradient: exact up to one positive or negative factor for the whole batch. mismatched: set when a backward pass got
    another gradient; that pass computed the products again.
    """

    gradient: TokenGradient
    mismatched: bool = False


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of the targets and entropies in nats, shaped as the targets; 0 outside the mask."""

    logp: Tensor
    entropy: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class LMHead:
    """The last projection of a language model and what it does to its logits.

    weight: [V, H]; tied to the embeddings or not. bias: [V]. temperature: logits are divided by it.
    softcap: c in c tanh(z / c), or none. scale: factor on the logits before the cap. dtype: of the matrix products
    (default: autocast's where that is on, else the hidden states'); softmax and sums are in float32, or float64.
    chunk: tokens at a time (default: by memory).
    """

    weight: Tensor
    bias: Tensor | None = None
    temperature: float = 1.0
    softcap: float | None = None
    scale: float = 1.0
    dtype: torch.dtype | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_number("temperature", self.temperature, above=0)
        check_number("softcap", self.softcap, above=0, optional=True)
        check_number("chunk", self.chunk, at_least=1, optional=True)
        _check_parameters(self.weight, self.bias)

    @classmethod
    def of(cls, module: torch.nn.Module, **options: Any) -> LMHead:
        """The head of a model's output embeddings; a LoRA adapter on it is added to the weight, with its gradient.

        Raises ValueError for a module without a floating [V, H] weight, and for an adapter that is no plain LoRA.
        """
        base = getattr(module, "base_layer", module)
        weight = _weight_of(base)
        if base is not module:
            weight = weight + _adapter_delta(module)
        return cls(weight=weight, bias=getattr(base, "bias", None), **options)

    def __call__(
        self,
        hidden: Tensor,
        targets: Tensor,
        *,
        mask: Tensor | None = None,
        precomputed: PrecomputedGradient | None = None,
    ) -> Scores:
        """Scores of `targets` [...] under `hidden` [..., H]; positions outside `mask` [...] are not computed.

        precomputed: the gradient, where it is known in advance; refused with float16 products, whose range needs the
        loss scale.
        Raises ValueError for shapes that do not fit. Not done: no shift by one, and no second derivative.
        """
        _check_call(self, hidden, targets, mask)
        head = replace(self, dtype=self.dtype or dtype_of_products(hidden))
        if precomputed is not None and head.dtype == torch.float16:
            raise ValueError(
                "a precomputed gradient is not for float16, whose gradients vanish before the loss scale: leave it out."
            )
        if mask is None:
            flat = _apply(head, hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1), precomputed)
            return Scores(*(value.view(targets.shape) for value in flat))
        flat = _apply(head, hidden[mask], targets[mask], precomputed)
        # Scattered, and not assigned: the result hangs on the model even where nothing is scored.
        return Scores(*(value.new_zeros(mask.shape).masked_scatter(mask, value) for value in flat))


def dtype_of_products(hidden: Tensor) -> torch.dtype:
    """What a linear layer would compute in: autocast's dtype where that is on, else the hidden states'."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def _apply(
    head: LMHead, hidden: Tensor, targets: Tensor, precomputed: PrecomputedGradient | None
) -> tuple[Tensor, Tensor]:
    precomputed = precomputed if torch.is_grad_enabled() else None
    return _Score.apply(hidden, head.weight, head.bias, targets, head, precomputed)  # type: ignore


class _Score(torch.autograd.Function):
    """hidden [N, H], weight, bias, targets [N] -> logp [N], entropy [N]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        head: LMHead,
        precomputed: PrecomputedGradient | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, targets)
        ctx.head, ctx.precomputed, ctx.products = head, precomputed, None
        with torch.autocast(hidden.device.type, enabled=False):
            work = _Work.of(head, hidden, weight, bias)
            if precomputed is None or not any(ctx.needs_input_grad):
                return _scores(work, hidden, targets)
            sums = _Sums.zeros(ctx.needs_input_grad, work, hidden)
            logp, entropy, slope = _scores_and_sums(work, sums, hidden, targets, precomputed)
            ctx.products = (slope, sums)
            return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlogp: Tensor | None, dentropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets = ctx.saved_tensors
        products, ctx.products = ctx.products, None  # used once, since the sums are scaled in place
        if products is not None:
            slope, sums = products
            factor = None if dlogp is None or dentropy is not None else _factor(dlogp, slope)
            if factor is not None:
                return (*sums.times(factor).like(hidden, weight, bias), None, None, None)
            ctx.precomputed.mismatched = True
        with torch.autocast(hidden.device.type, enabled=False):
            work = _Work.of(ctx.head, hidden, weight, bias)
            sums = _Sums.zeros(ctx.needs_input_grad, work, hidden)
            _recompute(work, sums, hidden, targets, (dlogp, dentropy))
            return (*sums.like(hidden, weight, bias), None, None, None)


@dataclass
class _Work:
    """The head in the dtype of the products, and a chunk's buffers in the exact dtype."""

    head: LMHead
    weight: Tensor
    bias: Tensor | None
    logits: Tensor
    block: Tensor

    @classmethod
    def of(cls, head: LMHead, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> _Work:
        dtype = head.dtype or hidden.dtype  # set by LMHead's call
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        size = max(min(head.chunk or _default_chunk(weight, exact), len(hidden)), 1)
        parts = _BLOCKS if weight.device.type == "cpu" else _BLOCKS_ELSEWHERE
        buffers = (weight.new_empty((n, len(weight)), dtype=exact) for n in (size, -(-size // parts)))
        return cls(head, weight.to(dtype), None if bias is None else bias.to(exact), *buffers)

    @property
    def exact(self) -> torch.dtype:
        return self.logits.dtype

    @property
    def factor(self) -> float:
        """What the logits of the product are multiplied by, apart from the cap."""
        return self.head.scale / self.head.temperature

    def chunks(self, count: int) -> Iterator[slice]:
        size = len(self.logits)
        return (slice(i, min(i + size, count)) for i in range(0, count, size))

    def blocks(self, *rows: Tensor | None) -> Iterator[tuple[Any, ...]]:
        """A few rows of everything at a time, and a buffer of their size."""
        step, count = len(self.block), len(rows[0])  # type: ignore[arg-type]
        for i in range(0, count, step):
            part = (None if value is None else value[i : i + step] for value in rows)
            yield (*part, self.block[: min(step, count - i)])

    def project(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of hidden states in the products' dtype; overwritten by the next call."""
        z = _product(hidden, self.weight.t(), self.logits[: len(hidden)])
        if self.bias is not None:
            z.add_(self.bias)
        cap = self.head.softcap
        if cap is None:
            return z if self.factor == 1 else z.mul_(self.factor)
        z.mul_(self.head.scale / cap)
        return torch.tanh(z, out=z).mul_(cap / self.head.temperature)

    def gathered(self, z: Tensor, rows: Tensor) -> Tensor:
        """Some rows of logits, in rising order, moved to the front: none lands on one that is still to be read."""
        front = z[: len(rows)]
        for place, index, buffer in self.blocks(front, rows):
            place.copy_(torch.index_select(z, 0, index, out=buffer))
        return front

    def statistics(self, z: Tensor, targets: Tensor, logp: Tensor, entropy: Tensor) -> None:
        """Fill in log-probabilities and entropies [n] of logits [n, V], which stay as they are."""
        for part, y, its_logp, its_entropy, buffer in self.blocks(z, targets, logp, entropy):
            p = torch.softmax(part, -1, out=buffer)
            # The largest probability is at least 1/V, so its logarithm is good for any logits.
            log_sum = part.amax(-1) - p.amax(-1).log()
            its_logp.copy_(part.gather(1, y.unsqueeze(1)).squeeze(1) - log_sum)
            its_entropy.copy_(log_sum - p.mul_(part).sum(-1))

    def differentiate(self, z: Tensor, targets: Tensor, dlogp: Tensor, dentropy: Tensor | None) -> Tensor:
        """Overwrite logits [n, V] by the loss's gradient with respect to the product h W + b."""
        for part, y, g, h, buffer in self.blocks(z, targets, dlogp, dentropy):
            g = g.unsqueeze(1) * self.factor
            slope = None if self.head.softcap is None else 1 - (part * (self.head.temperature / self.head.softcap)) ** 2
            weight = g if h is None else g + h.unsqueeze(1) * self.factor * _surprise(part)
            torch.mul(torch.softmax(part, -1, out=buffer), -weight, out=part)
            # The one and the probability meet before a low precision rounds: near certainty only the difference counts.
            part.scatter_add_(1, y.unsqueeze(1), g)
            if slope is not None:
                part.mul_(slope)
        return z


def _surprise(z: Tensor) -> Tensor:
    """log p_v + H [n, V]: minus the gradient of the entropy for the logits, over p."""
    logp = torch.log_softmax(z, -1)
    return logp - (logp.exp() * logp).sum(-1, keepdim=True)


@dataclass
class _Sums:
    """Gradients of hidden states, weight and bias, those that are wanted, in the exact dtype."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def zeros(cls, wanted: tuple[bool, ...], work: _Work, hidden: Tensor) -> _Sums:
        parts = zip((hidden, work.weight, work.bias), wanted, strict=False)
        return cls(*(torch.zeros_like(x, dtype=work.exact) if x is not None and w else None for x, w in parts))

    def add(self, work: _Work, dlogits: Tensor, hidden: Tensor, at: slice | Tensor) -> None:
        """Take in rows `at`: their gradient [n, V] and their hidden states [n, H]."""
        if self.hidden is not None:
            self.hidden[at] = _sum_of_products(dlogits, work.weight)
        if self.weight is not None:
            _add_product(self.weight, dlogits, hidden)
        if self.bias is not None:
            self.bias.add_(dlogits.sum(0))

    def times(self, factor: Tensor) -> _Sums:
        """Everything times a number, in place."""
        for value in (self.hidden, self.weight, self.bias):
            if value is not None:
                value.mul_(factor)
        return self

    def like(self, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        """In the dtypes of the inputs."""
        parts = zip((self.hidden, self.weight, self.bias), inputs, strict=True)
        return tuple(None if g is None or x is None else g.to(x.dtype) for g, x in parts)


def _scores(work: _Work, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logp, entropy = (work.logits.new_empty(len(targets)) for _ in range(2))
    for at in work.chunks(len(targets)):
        z = work.project(hidden[at].to(work.weight.dtype))
        work.statistics(z, targets[at], logp[at], entropy[at])
    return logp, entropy


def _scores_and_sums(
    work: _Work, sums: _Sums, hidden: Tensor, targets: Tensor, precomputed: PrecomputedGradient
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores [N], and with the logits still at hand the products of the precomputed dloss/dlogp [N]."""
    logp, entropy, slope = (work.logits.new_empty(len(targets)) for _ in range(3))
    for at in work.chunks(len(targets)):
        low, y = hidden[at].to(work.weight.dtype), targets[at]
        z = work.project(low)
        work.statistics(z, y, logp[at], entropy[at])
        slope[at] = g = precomputed.gradient(logp[at], at).to(work.exact)
        rows = g.nonzero().squeeze(1)
        if len(rows) == len(g):
            sums.add(work, work.differentiate(z, y, g, None), low, at)
        elif len(rows) > 0:
            z = work.differentiate(work.gathered(z, rows), y[rows], g[rows], None)
            sums.add(work, z, low[rows], rows + at.start)
    return logp, entropy, slope


def _recompute(
    work: _Work, sums: _Sums, hidden: Tensor, targets: Tensor, gradient: tuple[Tensor | None, Tensor | None]
) -> None:
    """The products of dloss/dlogp and dloss/dentropy [N]; where both are 0 nothing is computed."""
    given = [None if g is None else g.to(work.exact) for g in gradient]
    touched = torch.zeros_like(targets, dtype=torch.bool)
    for g in given:
        touched |= False if g is None else g != 0
    rows = touched.nonzero().squeeze(1)
    every = len(rows) == len(targets)
    for chunk in work.chunks(len(rows)):
        at = chunk if every else rows[chunk]
        low, y = hidden[at].to(work.weight.dtype), targets[at]
        dlogp, dentropy = (None if g is None else g[at] for g in given)
        dlogp = torch.zeros_like(dentropy) if dlogp is None else dlogp  # type: ignore[arg-type]
        sums.add(work, work.differentiate(work.project(low), y, dlogp, dentropy), low, at)


def _factor(got: Tensor, precomputed: Tensor) -> Tensor | None:
    """Ratio of actual to precomputed gradient: 0-d, or None where they are not proportional."""
    if len(precomputed) == 0:
        return got.new_ones(())
    largest = precomputed.abs().argmax()
    peak, tolerance = precomputed[largest], 64 * torch.finfo(precomputed.dtype).eps
    factor = torch.where(peak == 0, torch.ones_like(peak), got[largest] / peak)
    expected = factor * precomputed
    close = (got - expected).abs() <= tolerance * (expected.abs() + expected[largest].abs())
    return factor if bool(close.all()) else None


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a b in the exact dtype of `out`, not rounded on the way where the device can do that."""
    if a.dtype == out.dtype:
        return torch.mm(a, b, out=out)
    if out.is_cuda:
        return torch.mm(a, b, out_dtype=out.dtype, out=out)
    return out.copy_(torch.mm(a, b))


def _sum_of_products(dlogits: Tensor, weight: Tensor) -> Tensor:
    """dlogits [n, V] times weight [V, H], in the exact dtype of dlogits."""
    if dlogits.dtype == weight.dtype:
        return torch.mm(dlogits, weight)
    if dlogits.is_cuda:
        return torch.mm(dlogits.to(weight.dtype), weight, out_dtype=dlogits.dtype)
    total = dlogits.new_zeros(len(dlogits), weight.shape[1])
    for i in range(0, len(weight), _UPCAST):
        total.addmm_(dlogits[:, i : i + _UPCAST], weight[i : i + _UPCAST].to(total.dtype))
    return total


def _add_product(total: Tensor, dlogits: Tensor, hidden: Tensor) -> None:
    """total [V, H] += dlogits^T hidden, added up in the exact dtype: rounded partial sums would drift."""
    if total.is_cuda and hidden.dtype != total.dtype:
        torch.addmm(total, dlogits.to(hidden.dtype).t(), hidden, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(dlogits.t(), hidden.to(total.dtype))


def _default_chunk(weight: Tensor, exact: torch.dtype) -> int:
    memory = _CHUNK_BYTES if weight.device.type == "cpu" else _CHUNK_BYTES_ELSEWHERE
    return max(memory // (len(weight) * exact.itemsize), 64)


def _weight_of(module: Any) -> Tensor:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"{type(module).__name__} has no weight; the head is a linear layer with a weight [V, H].")
    return weight


def _check_parameters(weight: Tensor, bias: Tensor | None) -> None:
    if weight.dim() != 2 or not weight.is_floating_point():
        raise ValueError(
            f"the head's weight is {weight.dtype} of shape {list(weight.shape)}; allowed: floating [V, H], gathered "
            "and not quantised."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"the head's bias has shape {list(bias.shape)}; allowed: [V] = {list(weight.shape[:1])}.")


def _adapter_delta(module: Any) -> Tensor | float:
    """What the active LoRA adapters add to the weight: [V, H] with its gradient, or 0.

    Raises ValueError for what is no weight plus a product of two factors.
    """
    if module.disable_adapters or module.merged:
        return 0.0
    active = [name for name in module.active_adapters if name in getattr(module, "lora_A", {})]
    if len(active) != len(module.active_adapters) or any(name in module.lora_variant for name in active):
        raise ValueError(f"the head carries an adapter of type {type(module).__name__}; allowed: none, or plain LoRA.")
    rate = max((getattr(module.lora_dropout[name], "p", 0.0) for name in active), default=0.0)
    if module.training and rate:
        raise ValueError(f"the head's LoRA has dropout {rate}, which no weight can express; allowed: 0.0.")
    delta: Tensor | float = sum(module.get_delta_weight(name) for name in active)
    return delta


def _check_call(head: LMHead, hidden: Tensor, targets: Tensor, mask: Tensor | None) -> None:
    if hidden.shape != (*targets.shape, head.weight.shape[1]):
        raise ValueError(
            f"hidden has shape {list(hidden.shape)}; allowed with targets {list(targets.shape)} and a head of "
            f"{head.weight.shape[1]} inputs: {[*targets.shape, head.weight.shape[1]]}."
        )
    if mask is not None and (mask.dtype != torch.bool or mask.shape != targets.shape):
        raise ValueError(f"mask is {mask.dtype} of shape {list(mask.shape)}; allowed: bool {list(targets.shape)}.")
