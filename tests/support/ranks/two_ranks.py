"""One optimizer step over two processes: what each rank does, importable by the processes that a test starts."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist

import grpo_variants as gv
from grpo_variants.objective.inputs import read_tokens

ROWS, WIDTH, VOCABULARY = 7, 5, 4
GROUPS = torch.tensor([0, 1, 0, 1, 1, 2, 2])  # no group lies on one rank only in the first split
EMPTY = 5
SPLITS = {
    "uneven": ([[0, 1]], [[2, 3, 4], [5, 6]]),  # micro-batches of each rank
    "a rank without a token": ([[EMPTY]], [[0, 1, 2], [3], [4, 6]]),
}


def whole_batch(per_token: bool) -> tuple[gv.Tokens, torch.Tensor]:
    """Seven responses, one of them empty, off policy, and the tokens that were drawn."""
    random = torch.Generator().manual_seed(3)
    lengths = torch.tensor([5, 1, 3, 4, 2, 0, 5])
    old = -torch.rand(ROWS, WIDTH, generator=random, dtype=torch.float64) - 1
    noise = [0.4 * torch.randn(ROWS, WIDTH, generator=random, dtype=torch.float64) for _ in range(3)]
    logp, ref_logp, rollout_logp = ((old + moved).clamp(max=-0.001) for moved in noise)
    advantages = torch.randn((ROWS, WIDTH) if per_token else (ROWS,), generator=random, dtype=torch.float64)
    x = gv.Tokens(
        logp=logp,
        mask=torch.arange(WIDTH) < lengths[:, None],
        advantages=advantages,
        old_logp=old,
        ref_logp=ref_logp,
        rollout_logp=rollout_logp,
        entropy=torch.rand(ROWS, WIDTH, generator=random, dtype=torch.float64),
        draws=torch.rand(ROWS, WIDTH, generator=random, dtype=torch.float64),
        groups=GROUPS,
    )
    return x, torch.randint(VOCABULARY, (ROWS, WIDTH), generator=random)


def with_policy(x: gv.Tokens, drawn: torch.Tensor, parameter: torch.Tensor) -> gv.Tokens:
    """Log-probabilities that depend on a parameter [T, V] which every response shares, as a model's weights are."""
    shift = parameter.log_softmax(-1).expand(len(drawn), -1, -1).gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
    return replace(x, logp=x.logp + shift)


def take(x: gv.Tokens, rows: list[int]) -> gv.Tokens:
    """Some responses of a batch."""
    given = {f.name: getattr(x, f.name) for f in fields(x)}
    return replace(x, **{name: value[rows] for name, value in given.items() if isinstance(value, torch.Tensor)})


def prepared(spec: str) -> tuple[gv.Variant, gv.Tokens, torch.Tensor, torch.Tensor]:
    """Variant, whole batch, drawn tokens and the parameter, equal in every process."""
    variant = gv.get(spec)
    x, drawn = whole_batch(variant.per_token)
    parameter = torch.linspace(-0.5, 0.5, WIDTH * VOCABULARY, dtype=torch.float64).sin().view(WIDTH, VOCABULARY)
    return variant, x, drawn, parameter.clone().requires_grad_()


def one_process(spec: str) -> tuple[gv.Loss, torch.Tensor]:
    """The step as one batch in one process: the loss and the parameter's gradient."""
    variant, x, drawn, parameter = prepared(spec)
    # prompt_mean refuses counts without row weights; without counts the batch is the step.
    counts = None if variant.aggregation.of_group else gv.Counts.of(x.mask, GROUPS, length=6)
    out = gv.policy_loss(variant, with_policy(x, drawn, parameter), counts)
    out.loss.backward()
    return out, parameter.grad


def rows_of(micro_batches: list[list[int]]) -> list[int]:
    """Every response of a rank."""
    return list(chain.from_iterable(micro_batches))


def step_counts(mask: torch.Tensor) -> gv.Counts:
    """Counts of the step from what the ranks hold: a reduction, and the lengths gathered, as a trainer does it."""
    local = gv.Counts.of(mask)
    total = torch.tensor([float(local.tokens), float(local.sequences), float(local.nonempty)])
    dist.all_reduce(total)
    tokens, sequences, nonempty = total
    prompts = len(GROUPS.unique())
    shares: list = [None] * dist.get_world_size()
    dist.all_gather_object(shares, local.lengths)
    return gv.Counts(
        tokens=tokens,
        sequences=sequences,
        nonempty=nonempty,
        prompts=prompts,
        length=6,
        grad_average=dist.get_world_size(),
        lengths=torch.cat(shares),
    )


def thresholds(variant: gv.Variant, x: gv.Tokens) -> dict[str, torch.Tensor]:
    """Statistics that span the step, of every rank's tokens: a trainer gathers those."""
    read = read_tokens(x)
    found = {}
    if variant.surrogate.whole_batch:
        found |= variant.surrogate.thresholds(variant.ratio(read).detach(), read)
    if variant.tokens.whole_batch:
        found["entropy"] = torch.quantile(x.entropy[x.mask], 1 - variant.tokens.fraction)
    return found


def one_rank(spec: str, micro_batches: list[list[int]]) -> dict[str, torch.Tensor]:
    """This rank's part of the step, reduced over the ranks as a trainer reduces: gradients averaged, metrics added."""
    variant, x, drawn, parameter = prepared(spec)
    counts = step_counts(x.mask[rows_of(micro_batches)])
    spanning = thresholds(variant, with_policy(x, drawn, parameter.detach()))
    counts = replace(counts, thresholds=spanning) if spanning else counts
    if variant.aggregation.of_group:
        weights = gv.row_weights(variant, x.mask.sum(1).double(), counts, GROUPS)
        x = replace(x, row_weights=weights)
    results: dict[str, torch.Tensor] = {}
    for rows in micro_batches:
        out = gv.policy_loss(variant, with_policy(take(x, rows), drawn[rows], parameter), counts)
        out.loss.backward()
        for name, value in {"loss": out.loss.detach() / dist.get_world_size(), **out.metrics}.items():
            results[name] = results.get(name, torch.zeros((), dtype=torch.float64)) + value.double()
    for value in results.values():
        dist.all_reduce(value)
    dist.all_reduce(parameter.grad)
    return results | {"gradient": parameter.grad / dist.get_world_size()}


def main(rank: int, specs: list[str], folder: str) -> None:
    """Run every spec and split on one of two ranks; rank 0 writes what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {
        (spec, name): one_rank(spec, micro_batches[rank]) for spec in specs for name, micro_batches in SPLITS.items()
    }
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    dist.barrier()
    dist.destroy_process_group()
