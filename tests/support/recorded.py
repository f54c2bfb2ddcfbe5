"""One recorded batch of rollouts, what the core makes of it in float64, and the files that two suites exchange.

Each trainer's suite sends the batch through its own code and writes its numbers; whichever runs second compares. A file
counts only for the sources that wrote it.
"""

import hashlib
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import torch

import grpo_variants as gv
from grpo_variants.advantage.compute import advantages_of
from grpo_variants.objective.aggregation import trained
from grpo_variants.trainers.verl.translate import run_settings
from grpo_variants.trainers.verl.words import carried_over

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("GRPO_VARIANTS_EXCHANGE", ROOT / "build" / "cross_trainer"))
TOLERANCE = 1e-6
PARTS = ("advantages", "loss", "gradient")

GROUPS, GROUP_SIZE, WIDTH = 3, 4, 7
ROWS = GROUPS * GROUP_SIZE
MAX_LENGTH = 9  # the trainer's longest response, longer than any of these: no response is truncated


@cache
def batch():
    """Twelve responses to three prompts, off policy, with holes in the mask; float64, the same on every machine.

    No group is constant and no response is truncated, since TRL and verl treat those differently by design.
    """
    random = np.random.RandomState(20)
    lengths = np.array([7, 3, 5, 1, 6, 7, 2, 4, 3, 5, 7, 6])
    position = np.arange(WIDTH)
    written = position < lengths[:, None]
    tool = written & (random.rand(ROWS, WIDTH) < 0.15) & (position > 0) & (position < lengths[:, None] - 1)
    old = -2 * random.rand(ROWS, WIDTH) - 0.1
    arrays = {
        "logp": np.minimum(old + 0.3 * random.randn(ROWS, WIDTH), -0.001),
        "old_logp": old,
        "ref_logp": np.minimum(old + 0.4 * random.randn(ROWS, WIDTH), -0.001),
        "rewards": np.round(random.randn(ROWS), 3),
        "greedy_rewards": np.repeat(np.round(random.randn(GROUPS), 3), GROUP_SIZE),
    }
    made = {key: torch.tensor(value, dtype=torch.float64) for key, value in arrays.items()}
    made["written"], made["mask"] = torch.tensor(written), torch.tensor(written & ~tool)
    made["groups"] = [f"prompt-{i // GROUP_SIZE}" for i in range(ROWS)]
    return made


def runnable():
    """Variants that both trainers run on this batch, in micro-batches: not every input is recorded."""
    return [name for name in gv.names() if not any(why(gv.get(name)) for why in NOT_COMPARED)]


def refused_by_verl(variant):
    """Also those with one reward per step, or with inputs that verl keeps for its own names."""
    try:
        run_settings(variant)
    except ValueError:
        return True
    return False


NOT_COMPARED = (
    lambda variant: type(variant.credit).__name__ == "Process",
    refused_by_verl,
    lambda variant: variant.needs_rollout_logp,  # the trainers get an engine's numbers in different ways
    lambda variant: getattr(variant.transform, "k", 0) >= GROUP_SIZE,  # pass@4 of four responses: no signal
    lambda variant: carried_over(variant.aggregation),  # verl's advantages carry weights, TRL's and the core's do not
    lambda variant: variant.surrogate.whole_batch,  # of a micro-batch, and the trainers' are of different sizes
)


def core(name):
    """Advantages [N, T], loss and gradient of the core in float64, the KL term included."""
    x = batch()
    variant = gv.get(name)
    keys = ("mask", "old_logp", "ref_logp", "greedy_rewards")
    rollouts = gv.Rollouts(rewards=x["rewards"], groups=x["groups"], **{key: x[key] for key in keys})
    advantages = advantages_of(variant, rollouts)
    spread = advantages if advantages.dim() == 2 else advantages.unsqueeze(1) * x["mask"]
    logp = x["logp"].clone().requires_grad_()
    tokens = gv.Tokens(
        logp=logp,
        mask=x["mask"],
        advantages=advantages,
        old_logp=x["old_logp"],
        ref_logp=x["ref_logp"],
        groups=x["groups"],
    )
    counts = gv.Counts.of(trained(variant.aggregation, tokens).mask, length=MAX_LENGTH)
    out = gv.policy_loss(variant, tokens, counts)
    out.loss.backward()
    return result(spread, out.loss, logp.grad)


def result(advantages, loss, gradient):
    """A trainer's numbers as plain lists; advantages and gradient count at loss tokens only."""
    mask = batch()["mask"]
    clean = [torch.where(mask, value.double(), 0.0).tolist() for value in (advantages.detach(), gradient.detach())]
    return {"advantages": clean[0], "loss": float(torch.as_tensor(loss).detach()), "gradient": clean[1]}


@cache
def key():
    """A digest of the sources: numbers of other sources are not compared."""
    files = sorted([*(ROOT / "grpo_variants").rglob("*.py"), *(ROOT / "adapters").rglob("*.py"), Path(__file__)])
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def write(trainer, results):
    """Leave a trainer's numbers for the other trainer's suite."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{trainer}.json").write_text(json.dumps({"key": key(), "results": results}))


def read(trainer):
    """The numbers of a trainer's suite under the same sources, by variant; None where it has not run."""
    path = FOLDER / f"{trainer}.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    return content["results"] if content.get("key") == key() else None


def pairs(found, wanted):
    """Two results, quantity by quantity."""
    return {part: tuple(torch.tensor(x[part], dtype=torch.float64) for x in (found, wanted)) for part in PARTS}


def assert_same(found, wanted):
    """Advantages, loss and gradient agree to 1e-6."""
    for part, (mine, theirs) in pairs(found, wanted).items():
        error = (mine - theirs).abs() - TOLERANCE * theirs.abs()
        assert error.max() <= TOLERANCE, f"{part} differs by up to {(mine - theirs).abs().max():.3g}"
