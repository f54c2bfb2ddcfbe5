"""The recorded batch through TRL's path: rewards to advantages, micro-batches of an optimizer step, loss.

The numbers equal the core's and, where verl's suite has run on the same sources, verl's.
"""

from functools import cache

import pytest
import torch
from grpo_variants_trl.rollout.greedy import GreedyBaseline, GreedyPass
from support import recorded, tiny_model
from support.trl.runs import make
from trl import GRPOTrainer

MICRO = 4  # responses per micro-batch: three of them, shuffled, are an optimizer step


@pytest.fixture(scope="module", autouse=True)
def _recorded_rollouts():
    """TRL's generation returns the recorded batch, and its reward functions the recorded rewards."""

    def rollouts(trainer, inputs):
        x = recorded.batch()
        trainer._generate(None)
        trainer._calculate_rewards(inputs, None, None, None)
        length = x["written"].sum(1, keepdim=True)
        ends = torch.arange(recorded.WIDTH) == length - 1
        return {
            "prompt_ids": torch.ones(recorded.ROWS, 2, dtype=torch.long),
            "prompt_mask": torch.ones(recorded.ROWS, 2, dtype=torch.long),
            "completion_ids": torch.where(ends, tiny_model.END, tiny_model.ONE),
            "completion_mask": x["written"].long(),
            "tool_mask": (x["mask"] | ~x["written"]).long(),
            "advantages": torch.zeros(recorded.ROWS),
            "num_items_in_batch": x["mask"].sum(),
            "old_per_token_logps": x["old_logp"],
            "ref_per_token_logps": x["ref_logp"],
        }

    def responses(*_):
        lengths = recorded.batch()["written"].sum(1).tolist()
        return None, [[tiny_model.ONE] * (length - 1) + [tiny_model.END] for length in lengths], None, None, None

    def rewards(trainer, *_):
        for name in ("frac_reward_zero_std", "reward", "reward_std", "completions/clipped_ratio"):
            trainer._metrics["train"][name].append(0.0)
        return recorded.batch()["rewards"].unsqueeze(1)

    def greedy(*_):
        found = recorded.batch()["greedy_rewards"].unsqueeze(1)
        return GreedyPass(found, torch.ones(len(found)), torch.ones(len(found), dtype=torch.bool))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GRPOTrainer, "_generate_and_score_completions", rollouts)
        patch.setattr(GRPOTrainer, "_generate", responses)
        patch.setattr(GRPOTrainer, "_calculate_rewards", rewards)
        patch.setattr(GreedyBaseline, "__call__", greedy)
        yield


@cache
def through_trl(name, folder):
    trainer = make(
        folder,
        f"gv_{name}",
        rewards=[tiny_model.ones],
        per_device_train_batch_size=MICRO,
        gradient_accumulation_steps=recorded.ROWS // MICRO,
        num_generations=recorded.GROUP_SIZE,
        max_completion_length=recorded.MAX_LENGTH,
        skip_zero_gradient_rows=False,  # the log-probabilities are handed in by their places in the micro-batch
    )
    trainer.current_gradient_accumulation_steps = recorded.ROWS // MICRO
    logp = recorded.batch()["logp"].clone().requires_grad_()
    out = trainer._generate_and_score_completions([{"prompt": "0"}] * recorded.ROWS)
    order = torch.randperm(recorded.ROWS, generator=torch.Generator().manual_seed(0)).split(MICRO)
    trainer._buffered_inputs = [{k: v if v.dim() == 0 else v[rows] for k, v in out.items()} for rows in order]
    total = 0.0
    for rows, inputs in zip(order, trainer._buffered_inputs, strict=True):
        trainer._score_tokens = lambda *_, r=rows, **__: (logp[r], torch.ones_like(logp[r]), None)
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        total += loss.item()
        trainer._step += 1
    rule = out["advantages"]
    return recorded.result(rule if rule.dim() == 2 else rule.unsqueeze(1).expand(-1, recorded.WIDTH), total, logp.grad)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cross_trainer")


# Those whose weights verl's advantages carry are not compared with verl.
@pytest.mark.parametrize("name", [*recorded.runnable(), "psr", "nsr"])
def test_trls_path_equals_the_core(parity, name, folder):
    wanted = recorded.core(name)
    pairs = recorded.pairs(through_trl(name, folder), wanted)
    parity.equal(name, None, rtol=recorded.TOLERANCE, atol=recorded.TOLERANCE, **pairs)
    assert abs(wanted["loss"]) > 1e-4


def test_trl_leaves_its_numbers_for_verl(folder):
    recorded.write("trl", {name: through_trl(name, folder) for name in recorded.runnable()})
    assert recorded.read("trl").keys() == set(recorded.runnable())


def test_trl_equals_verl(folder):
    theirs = recorded.read("verl")
    if theirs is None:
        pytest.skip("verl's suite has not run on these sources yet; it compares when it does")
    common = [name for name in recorded.runnable() if name in theirs]
    assert len(common) >= 8
    for name in common:
        recorded.assert_same(through_trl(name, folder), theirs[name])
