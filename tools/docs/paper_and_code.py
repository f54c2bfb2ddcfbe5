"""What the differences between papers and their authors' code come to, on a small batch that never changes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grpo_variants.advantage.compute import advantages_of
from grpo_variants.advantage.inputs import Rollouts
from grpo_variants.advantage.memory import Memory
from grpo_variants.axes import AXES
from grpo_variants.catalogue.differences import DIFFERENCES, Difference
from grpo_variants.functions import policy_loss
from grpo_variants.objective.inputs import Counts, Tokens
from grpo_variants.spec import resolve
from grpo_variants.spelling import resolved_values
from tools.docs.markdown import table

# Two prompts with eight and four responses: lengths, which are right, and which of the greedy responses are.
REWARDS = (1, 0, 0, 1, 0, 1, 1, 1, 1, 0, 0, 0)
GROUPS = (0,) * 8 + (1,) * 4
LENGTHS = (5, 3, 7, 2, 6, 4, 7, 1, 3, 6, 2, 5)
GREEDY = (0,) * 8 + (1,) * 4
WIDTH = max(LENGTHS)

_HEAD = ("about", "paper", "authors' code", "taken here", "the other", "on the small batch")


def batch() -> dict[str, Any]:
    """The token inputs of the small batch, [12, 7] in float64: ratios from 0.4 to 2.5, and 12 at a wrong response."""
    old, moved = _wave(1.7, -3.0, -1.6), _wave(2.3, -0.9, 0.9)
    old[1, 0], moved[1, 0] = -4.0, math.log(12)
    return {
        "mask": torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None],
        "logp": old + moved,
        "old_logp": old,
        "ref_logp": old + _wave(0.9, -0.5, 0.5),
        "rollout_logp": old + _wave(3.1, -0.3, 0.3),
        "entropy": _wave(4.3, 0.0, 3.0),
    }


def loss_and_gradient(spec: str) -> tuple[float, Tensor]:
    """Loss of a variant on the small batch, with its own advantages, and the gradient [12, 7]."""
    variant, x = resolve(spec), batch()
    state: dict[str, Any] = {"state": Memory()} if variant.remembers else {}
    given: dict[str, Any] = {name: x[name] for name in ("mask", "old_logp", "ref_logp", "entropy")}
    greedy, rewards = (torch.tensor(values, dtype=torch.float64) for values in (GREEDY, REWARDS))
    rollouts = Rollouts(rewards=rewards, groups=GROUPS, greedy_rewards=greedy, **given)
    logp = x.pop("logp").requires_grad_()
    tokens = Tokens(logp=logp, advantages=advantages_of(variant, rollouts, **state), groups=GROUPS, **x)
    loss = policy_loss(variant, tokens, Counts.of(x["mask"], GROUPS, length=WIDTH)).loss
    loss.backward()  # type: ignore[no-untyped-call]
    assert logp.grad is not None
    return loss.item(), logp.grad


def effect(difference: Difference) -> str:
    """What the other one changes: the loss, and how far its gradient is from the one taken, of the length of that."""
    if acts_on_rollouts(difference):
        return "other rollouts, the same loss of one batch"
    (loss, gradient), (other, moved) = loss_and_gradient(difference.member), loss_and_gradient(difference.spec)
    far = ((moved - gradient).norm() / gradient.norm()).item()
    return f"loss {loss:.4f}, the other {other:.4f}; gradient off by {far:.1%}".replace("%", " %")


def acts_on_rollouts(difference: Difference) -> bool:
    """Whether the two differ only in what is sampled, or in which rewards responses get."""
    taken, other = (resolved_values(resolve(spec)) for spec in (difference.member, difference.spec))
    moved = {key.partition(".")[0] for key in {**taken, **other} if taken.get(key) != other.get(key)}
    return all(AXES[axis].stages == ("rollout",) for axis in moved)


def rows_of(member: str) -> str:
    """The table of one member's differences; nothing where there is none."""
    own = [difference for difference in DIFFERENCES if difference.member == member]
    return table(_HEAD, map(_cells, own)) if own else ""


def every_row(where: str) -> str:
    """The table of every difference; names link to the members' pages."""
    rows = ((f"[{d.member}](variants/{d.member}.md)", *_cells(d)) for d in DIFFERENCES)
    return table(("member", *_HEAD), rows)


def _cells(d: Difference) -> tuple[str, ...]:
    return d.about, f"{d.paper} ({d.section})", f"{d.code} ({d.file})", f"the {d.taken}'s", f"`{d.spec}`", effect(d)


def _wave(speed: float, low: float, high: float) -> Tensor:
    """Numbers [12, 7] between two bounds that look like noise and are the same everywhere."""
    steps = torch.arange(len(REWARDS) * WIDTH, dtype=torch.float64).view(-1, WIDTH)
    return low + (high - low) * (torch.sin(steps * speed) + 1) / 2
