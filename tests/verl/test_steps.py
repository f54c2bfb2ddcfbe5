"""Step rewards in verl: written to the steps' last tokens, and read back by the estimator as the paper's advantages."""

import math

import numpy as np
import pytest
import torch
from grpo_variants_verl import Step, step_scores
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch.testing import assert_close
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.trainer.ppo import core_algos

CONFIG = OmegaConf.create({"gamma": 1.0, "grpo_variants": {"step_rewards": "nonzero"}})
IDS = [[5, 6, 7, 8], [5, 6], [5, 6, 7]]
# Two steps, one and two, rewards 1 or 0: mean 0.6 and sample deviation sqrt(0.3) over all five of them.
STEPS = [[(1, 1.0), (3, 0.0)], [(1, 1.0)], [Step(end=0, reward=0.0), Step(end=2, reward=1.0)]]


def estimate(scores, mask):
    estimator = core_algos.get_adv_estimator_fn("gv_grpo_process")
    uids = np.array(["a"] * len(mask), dtype=object)
    return estimator(token_level_rewards=scores, response_mask=mask, index=uids, config=CONFIG)[0]


MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])


@pytest.mark.parametrize("shift", [-0.5, 2.0])
def test_rewards_of_zero_are_steps_and_a_shift_changes_nothing(shift):
    good, bad = 0.4 / math.sqrt(0.3), -0.6 / math.sqrt(0.3)
    wanted = [[good + bad] * 2 + [bad] * 2, [good, good, 0, 0], [bad + good, good, good, 0]]
    found = estimate(step_scores(STEPS, IDS, 4, shift=shift), MASK)
    assert_close(found, torch.tensor(wanted), atol=5e-6, rtol=0)


def test_a_nan_takes_its_response_out():
    steps = [*STEPS[:2], [(0, math.nan), (2, 1.0)]]
    found = estimate(step_scores(steps, IDS, 4, shift=-0.5), MASK)
    # 1, 0 and 1 are left: mean 2/3, sample deviation sqrt(1/3).
    good, bad = (1 / 3) / math.sqrt(1 / 3), (-2 / 3) / math.sqrt(1 / 3)
    wanted = [[good + bad] * 2 + [bad] * 2, [good, good, 0, 0], [0.0] * 4]
    assert_close(found, torch.tensor(wanted), atol=5e-6, rtol=0)


class Words:
    is_fast = False

    def decode(self, ids, skip_special_tokens):
        return " ".join("abcdefghij"[i] for i in ids if i)


def test_spans_of_text_are_mapped():
    scores = step_scores([[((0, 1), 2.0), ((1, 5), 3.0)]], [[5, 6, 7, 0]], 6, tokenizer=Words())
    assert scores.tolist() == [[2, 0, 0, 3, 0, 0]]  # the last one ends with the response


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([(1, 0.0)], "response 0: a step's reward is 0 .*Set shift="),
        ([(4, 1.0)], "response 0: a step ends at 4, outside a response of 4 tokens"),
        ([(2, 1.0), (1, 1.0)], "response 0: a step that ends at 1 follows one that ends at 2"),
        ([], "response 0: no steps"),
    ],
)
def test_what_is_no_step_is_named(steps, text):
    with pytest.raises(ValueError, match=text):
        step_scores([steps], IDS[:1], 4)


def test_two_steps_within_a_token_are_refused():
    with pytest.raises(ValueError, match="two steps end within token 1"):
        step_scores([[((0, 2), 1.0), ((2, 3), 1.0), ((3, 5), 1.0)]], [[5, 6, 7]], 3, tokenizer=Words())


class Steps(RewardManagerBase):
    """The reward manager of docs/verl.md: `run_single` returns a response's steps, here put together for a batch."""

    async def run_single(self, data):
        raise NotImplementedError

    @classmethod
    def assemble_rm_scores(cls, data, scores):
        responses, prompts = data.batch["responses"], data.batch["prompts"].size(1)
        lengths = data.batch["attention_mask"][:, prompts:].sum(1).tolist()
        ids = [row[:n] for row, n in zip(responses.tolist(), lengths, strict=True)]
        return step_scores(scores, ids, responses.size(1), shift=-0.5)


def test_a_reward_manager_of_verl_writes_them():
    responses = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0], [5, 6, 7, 0]])
    batch = {
        "prompts": torch.ones(3, 2),
        "responses": responses,
        "attention_mask": torch.cat([torch.ones(3, 2), MASK], 1).long(),
    }
    scores = Steps.assemble_rm_scores(DataProto(batch=TensorDict(batch, batch_size=3)), STEPS)
    assert_close(scores, step_scores(STEPS, IDS, 4, shift=-0.5))
    assert scores[0].tolist() == [0, 0.5, 0, -0.5]
