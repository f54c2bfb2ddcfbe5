"""Process supervision in a real TRL trainer: step rewards of every form become the paper's advantages."""

import math
import re
import statistics

import grpo_variants_trl as gvt
import pytest
import torch
from grpo_variants_trl.rollout.process_rewards import ReasoningSteps
from support import tiny_model
from support.trl.rewards import rollouts
from support.trl.runs import logged, make, recorded, weights
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

GROUP = 4


def by_hand(steps, lengths, width, eps=1e-6):
    """Advantages [N, T] of step rewards [(last token, reward), ...] a response, in groups of 4; plain Python.

    Every step of the group is one sample of the mean and of the deviation (with n - 1); each token gets the sum of the
    normalised rewards of the steps that end at it or later. A response of None is out.
    """
    found = torch.zeros(len(steps), width, dtype=torch.float64)
    for first in range(0, len(steps), GROUP):
        rows = [i for i in range(first, first + GROUP) if steps[i] is not None]
        every = [reward for i in rows for _, reward in steps[i]]
        mean, deviation = statistics.fmean(every), statistics.stdev(every)
        for i in rows:
            for t in range(lengths[i]):
                found[i, t] = sum((r - mean) / (deviation + eps) for end, r in steps[i] if end >= t)
    return found.float()


def lengths_of(out):
    return out["completion_mask"].sum(1).tolist()


def two_steps(ids, i):
    """A step up to the middle and one to the end, of rewards that differ from response to response."""
    middle = max(len(ids) // 2 - 1, 0)
    return [(middle, 0.25 * i), (len(ids) - 1, (7 * i) % 5 - 1.0)] if len(ids) > 1 else [(0, 0.25 * i)]


def made(folder, *functions, spec="gv_grpo_process,kl=none", **flags):
    return rollouts(folder, spec, rewards=list(functions), **flags)


def steps_reward(completion_ids, **kwargs):
    return [two_steps(ids, i) for i, ids in enumerate(completion_ids)]


def steps_reward_class(completion_ids, **kwargs):
    return [[gvt.Step(end=end, reward=r) for end, r in two_steps(ids, i)] for i, ids in enumerate(completion_ids)]


async def steps_reward_later(completion_ids, **kwargs):
    return [two_steps(ids, i) for i, ids in enumerate(completion_ids)]


class Scorer:
    """A reward function that is an object."""

    __name__ = "scorer"

    def __call__(self, completion_ids, **kwargs):
        return steps_reward(completion_ids)


@pytest.mark.parametrize("function", [steps_reward, steps_reward_class, steps_reward_later, Scorer()])
def test_advantages_are_those_of_the_paper(tmp_path, function):
    trainer, out = made(tmp_path, function)
    steps = [two_steps(range(n), i) for i, n in enumerate(lengths_of(out))]
    expected = by_hand(steps, lengths_of(out), out["completion_ids"].shape[1])
    torch.testing.assert_close(out["advantages"], expected, rtol=1e-5, atol=1e-6)
    assert len(set(lengths_of(out))) > 1
    # What TRL shows is the sum of a response's steps.
    total = statistics.fmean(sum(r for _, r in own) for own in steps)
    assert trainer._metrics["train"]["reward"][-1] == pytest.approx(total)
    assert [name for name in out if name.startswith("gv_step")] == []


def test_spans_of_text_are_mapped_to_tokens(tmp_path):
    """The tiny tokenizer writes a word a token, and a space belongs to the word after it."""

    @gvt.step_rewards(at=re.compile(" "))
    def word(steps, **kwargs):
        return [[0.1 * i + j + (step == "1") for j, step in enumerate(own)] for i, own in enumerate(steps)]

    _, out = made(tmp_path, word)
    steps = []
    for i, (ids, n) in enumerate(zip(out["completion_ids"].tolist(), lengths_of(out), strict=True)):
        words = [t for t in ids[:n] if t != tiny_model.END] or [None]
        # A cut behind a space: the space is complete with the next word, and the last step with the response.
        ends = [*range(1, len(words)), n - 1]
        steps.append(
            [(end, 0.1 * i + j + (w == tiny_model.ONE)) for j, (end, w) in enumerate(zip(ends, words, strict=True))]
        )
    expected = by_hand(steps, lengths_of(out), out["completion_ids"].shape[1])
    torch.testing.assert_close(out["advantages"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (
            "steps",
            "the data set has a column 'steps', and lines is given the steps of its responses under that name by",
        ),
        (
            "completions",
            "the data set has a column 'completions', the name under which reward functions get the batch's",
        ),
    ],
)
def test_a_column_named_as_an_argument_is_refused_at_the_start(tmp_path, column, text):
    @gvt.step_rewards()
    def lines(steps, **columns):
        return [[1.0] * len(own) for own in steps]

    rows = tiny_model.dataset().rename_column("t", column)
    with pytest.raises(ValueError, match=re.escape(text)):
        make(tmp_path, "gv_grpo_process", rewards=[lines], train_dataset=rows)


def test_an_outcome_reward_joins_the_last_step(tmp_path):
    """Weighted, like every function: on the step that ends with the response, or as a step of its own."""

    def first_token(completion_ids, **kwargs):
        return [[(0, 0.5 * i)] for i in range(len(completion_ids))]

    def outcome(completion_ids, **kwargs):
        return [float(i % 3) if i != 5 else None for i in range(len(completion_ids))]

    _, out = made(tmp_path, steps_reward, outcome, first_token, reward_weights=[1.0, 2.0, 3.0])
    steps = []
    for i, n in enumerate(lengths_of(out)):
        total = dict(two_steps(range(n), i))
        if i != 5:
            total[n - 1] = total.get(n - 1, 0) + 2 * (i % 3)
        total[0] = total.get(0, 0) + 3 * 0.5 * i
        steps.append(sorted(total.items()))
    expected = by_hand(steps, lengths_of(out), out["completion_ids"].shape[1])
    torch.testing.assert_close(out["advantages"], expected, rtol=1e-5, atol=1e-6)


def test_a_punishment_of_length_is_an_outcome(tmp_path):
    """Four tokens are free, the fifth and the sixth cost a half each."""
    spec = "gv_grpo_process,kl=none,overlong=penalty,overlong.buffer=2"
    _, out = made(tmp_path, steps_reward, spec=spec)
    steps = []
    for i, n in enumerate(lengths_of(out)):
        total = dict(two_steps(range(n), i))
        total[n - 1] += min(0, (4 - n) / 2)
        steps.append(sorted(total.items()))
    assert max(lengths_of(out)) > 4
    expected = by_hand(steps, lengths_of(out), out["completion_ids"].shape[1])
    torch.testing.assert_close(out["advantages"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("missing", [math.nan, None])
def test_a_missing_step_reward_takes_its_response_out(tmp_path, missing):
    def holed(completion_ids, **kwargs):
        found = [two_steps(ids, i) for i, ids in enumerate(completion_ids)]
        found[2] = [(end, missing) for end, _ in found[2][:1]] + found[2][1:]
        return found

    def outcome(completion_ids, **kwargs):
        return [1.0] * len(completion_ids)

    _, out = made(tmp_path, holed, outcome, reward_weights=[1.0, 0.0])
    steps = [two_steps(range(n), i) for i, n in enumerate(lengths_of(out))]
    steps[2] = None
    expected = by_hand(steps, lengths_of(out), out["completion_ids"].shape[1])
    torch.testing.assert_close(out["advantages"], expected, rtol=1e-5, atol=1e-6)
    assert out["advantages"][2].eq(0).all()


def test_a_response_that_no_function_scores_is_out(tmp_path):
    def some(completion_ids, **kwargs):
        return [None if i == 6 else two_steps(ids, i) for i, ids in enumerate(completion_ids)]

    _, out = made(tmp_path, some)
    steps = [None if i == 6 else two_steps(range(n), i) for i, n in enumerate(lengths_of(out))]
    expected = by_hand(steps, lengths_of(out), out["completion_ids"].shape[1])
    torch.testing.assert_close(out["advantages"], expected, rtol=1e-5, atol=1e-6)


def test_two_steps_that_end_within_one_token_both_count(tmp_path):
    """The tiny tokenizer writes "0" and the space before it in one token."""

    def halves(completions, completion_ids, **kwargs):
        return [
            [((0, 1), 1.0 * i), ((1, 2), 2.0), ((2, 3), -1.0)] if len(text) > 3 else [((0, len(text)), 0.5)]
            for i, text in enumerate(completions)
        ]

    _, out = made(tmp_path, halves)
    steps = []
    for i, (ids, n) in enumerate(zip(out["completion_ids"].tolist(), lengths_of(out), strict=True)):
        words = sum(t != tiny_model.END for t in ids[:n])
        steps.append([(0, 1.0 * i), (1, 2.0), (1, -1.0)] if words > 2 else [(n - 1, 0.5)])
    assert sum(len(own) == 3 for own in steps) > 3
    expected = by_hand(steps, lengths_of(out), out["completion_ids"].shape[1])
    torch.testing.assert_close(out["advantages"], expected, rtol=1e-5, atol=1e-6)


def varied(completion_ids, **kwargs):
    return [[(t, float(token == tiny_model.ONE) + 0.1 * t) for t, token in enumerate(ids)] for ids in completion_ids]


def test_a_run_trains_each_token_on_its_own_advantage(tmp_path):
    """One step: the gradient of each token's log-probability is -advantage / (rows x length), GRPO's on policy."""
    trainer = make(tmp_path, "gv_grpo_process,kl=none", rewards=[varied], max_steps=1)
    before = weights(trainer)
    seen = recorded(trainer)
    trainer.train()
    (micro,) = seen
    inputs = micro["inputs"]
    ids, n = inputs["completion_ids"].tolist(), lengths_of(inputs)
    mask = inputs["completion_mask"].bool()
    assert inputs["advantages"].shape == mask.shape
    # Rows were shuffled, so a group is known by its prompt: gv_group says which.
    order = sorted(range(len(ids)), key=lambda row: int(inputs["gv_group"][row]))
    steps = varied([ids[row][: n[row]] for row in order])
    expected = by_hand(steps, [n[row] for row in order], mask.shape[1])
    torch.testing.assert_close(inputs["advantages"][order], expected, rtol=1e-4, atol=1e-5)
    gradient = -inputs["advantages"] / (len(ids) * mask.sum(1, keepdim=True))
    torch.testing.assert_close(micro["logp"].grad, torch.where(mask, gradient, 0.0), rtol=1e-4, atol=1e-6)
    assert (weights(trainer) - before).abs().max() > 1e-4


def test_evaluation_scores_steps_too(tmp_path):
    trainer = make(tmp_path, "gv_grpo_process", rewards=[varied], eval_dataset=tiny_model.dataset(8), max_steps=1)
    trainer.train()
    found = trainer.evaluate()
    assert found["eval_rewards/varied/mean"] == pytest.approx(found["eval_reward"])
    assert logged(trainer, "gv/steps_per_response")[0] > 1


def test_groups_whose_steps_are_all_equal_are_drawn_again(tmp_path):
    """Equal totals are no lack of signal, equal steps are one; prompts "0 0 1" and "0 1 0" have no signal here."""

    def given(prompts, completion_ids, **kwargs):
        return [
            [(t, 0.5 if prompt in ("0 0 1", "0 1 0") else float(t % 2)) for t in range(len(ids))]
            for prompt, ids in zip(prompts, completion_ids, strict=True)
        ]

    spec = "gv_grpo_process,kl=none,filter=zero_variance"
    trainer = make(tmp_path, spec, rewards=[given], per_device_train_batch_size=16, max_steps=1)
    prompts = ("0 0 1", "0 1 1", "0 1 0", "1 0 0")
    out = trainer._generate_and_score_completions([{"prompt": prompt} for prompt in prompts for _ in range(4)])
    assert trainer._metrics["train"]["gv/filter/rounds"][-1] >= 1
    texts = trainer.processing_class.batch_decode(out["prompt_ids"], skip_special_tokens=True)
    assert set(texts) == {"0 1 1", "1 0 0"}
    steps = [[(t, float(t % 2)) for t in range(n)] for n in lengths_of(out)]
    expected = by_hand(steps, lengths_of(out), out["completion_ids"].shape[1])
    torch.testing.assert_close(out["advantages"], expected, rtol=1e-5, atol=1e-6)


def test_signal_of_steps():
    """Groups of two: equal steps, other steps, equal responses of unequal steps, equal totals, steps in no place twice,
    and a difference to a response that does not count.
    """
    ends = torch.tensor(
        [[1, 2], [1, 0], [1, 2], [1, 2], [1, 2], [1, 2], [1, 2], [2, 0], [1, 0], [0, 2], [1, 2], [1, 2]]
    )
    rewards = [[1, 1], [1, 0], [1, 1], [1, 0], [0, 1], [0, 1], [1, 1], [2, 0], [1, 0], [0, 2], [1, 1], [0, 1]]
    steps = ReasoningSteps(ends, torch.tensor(rewards).float(), torch.full((12,), 2))
    valid = torch.arange(12) != 11
    assert steps.with_signal(torch.arange(12) // 2, valid).view(6, 2).tolist() == [
        [kept] * 2 for kept in (False, True, True, True, True, False)
    ]


BAD = {
    "a position outside": (lambda ids: [(len(ids), 1.0)], "a step ends at "),
    "a span outside": (lambda ids: [((0, 99), 1.0)], "a step ends at 99, outside a text of "),
    "out of order": (lambda ids: [(0, 1.0), (0, 1.0)], "a step that ends at 0 follows one that ends at 0"),
    "numbers without positions": (lambda ids: [1.0, 2.0], "1.0 is no step; allowed"),
    "no steps": (lambda ids: [], "no steps; give one at least, or None"),
    "a word for a reward": (lambda ids: [(0, "good")], "could not convert string to float"),
}


@pytest.mark.parametrize("case", BAD)
def test_steps_that_are_none_are_named_with_function_and_response(tmp_path, case):
    wrong, text = BAD[case]

    def given(completion_ids, **kwargs):
        return [two_steps(ids, 0) for ids in completion_ids[:3]] + [wrong(ids) for ids in completion_ids[3:]]

    with pytest.raises(ValueError, match=f"reward function given, response 3: {re.escape(text)}"):
        made(tmp_path, given)


def test_a_wrong_number_of_responses_is_trls_error(tmp_path):
    def given(completion_ids, **kwargs):
        return [[(0, 1.0)]] * 3

    with pytest.raises(ValueError, match="'given' returned 3 rewards, but 16 were expected"):
        made(tmp_path, given)


def test_a_run_without_any_step_is_refused(tmp_path):
    with pytest.raises(ValueError, match=re.escape("no reward function gave any: return a list of gvt.Step")):
        made(tmp_path, tiny_model.ones)


def test_steps_without_process_supervision_are_not_taken(tmp_path):
    """TRL's own error: nothing that has no effect passes."""
    with pytest.raises((TypeError, ValueError)):
        made(tmp_path, steps_reward, spec="gv_grpo,kl=none")


MEND = "Call the model in a function under @gvt.step_rewards that returns its scores at the steps' ends."


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            AutoModelForTokenClassification,
            "LlamaForTokenClassification scores tokens, and TRL takes its first score for the response's reward.",
        ),
        (
            AutoModelForSequenceClassification,
            "credit=process needs step rewards, and a reward model gives one number per response.",
        ),
    ],
)
def test_reward_models_alone_are_refused(tmp_path, kind, text):
    scorer = kind.from_config(tiny_model.model().config)
    with pytest.raises(ValueError, match=re.escape(f"{text} {MEND}")):
        make(tmp_path, "gv_grpo_process", rewards=[scorer])
