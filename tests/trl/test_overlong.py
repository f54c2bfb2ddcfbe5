"""Truncated responses in real TRL runs: masks, group statistics, the soft punishment, and every token that ends one."""

import re

import pytest
import torch
from grpo_variants_trl.rollout.eos import turn_ends
from support import tiny_model
from support.trl import engine as trl_engine
from support.trl.runs import logged, make, recorded
from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer

END, ZERO, ONE = tiny_model.END, tiny_model.ZERO, tiny_model.ONE
LIMIT = 4
# Two groups of four with lengths by hand; those that do not end are at the limit.
COMPLETIONS = [
    [[ONE, END], [ONE, ONE, ONE, ONE], [ZERO, ONE, END], [ONE, ZERO, ONE, END]],
    [[ZERO, ZERO, ZERO, ZERO], [END], [ONE, ONE, ZERO, ONE], [ZERO, END]],
]
REWARDS = [1.0, 5.0, 0.0, 2.0, 3.0, 1.0, 7.0, 0.0]
TRUNCATED = torch.tensor([0, 1, 0, 0, 1, 0, 1, 0]).bool()
LENGTHS = [2, 4, 3, 4, 4, 1, 4, 2]


def fixed(prompts, trainer):
    """Rollouts that are always the same."""
    completions = [ids for group in COMPLETIONS for ids in group]
    ids, _, _ = trainer._tokenize_prompts(prompts)
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None}


def run(folder, spec, **flags):
    """One step on the fixed rollouts; TRL shuffles the rows, and the inputs come back in their own order."""
    defaults = dict(rewards=[lambda completions, **_: REWARDS], rollout_func=fixed, max_completion_length=LIMIT)
    trainer = make(folder, f"gv_{spec}", max_steps=1, shuffle_dataset=False, **{**defaults, **flags})
    seen = recorded(trainer)
    batches, generate = [], trainer._generate_and_score_completions

    def keep(inputs):
        batches.append(generate(inputs))
        return batches[-1]

    trainer._generate_and_score_completions = keep
    trainer.train()
    return trainer, batches[0], seen


def centred(rewards, counted):
    """Rewards less the mean of those of the group that count; 0 for one that does not."""
    rewards, found = torch.tensor(rewards), []
    for group in (slice(0, 4), slice(4, 8)):
        mean = rewards[group][counted[group]].mean()
        found.append(torch.where(counted[group], rewards[group] - mean, 0.0))
    return torch.cat(found)


EVERY = torch.ones(8, dtype=torch.bool)
DR = "dr_grpo,aggregation=token_mean"


@pytest.mark.parametrize(("statistics", "counted"), [("keep", EVERY), ("drop", ~TRUNCATED)])
def test_masked_responses_are_in_no_loss_and_no_count(tmp_path, statistics, counted):
    """Their rewards stay in the group's mean, or leave it: (1 + 0 + 2) / 3 in the first group, (1 + 0) / 2 then."""
    _, out, (micro,) = run(tmp_path, f"{DR},overlong=mask,overlong.statistics={statistics}")
    torch.testing.assert_close(out["advantages"], centred(REWARDS, counted))
    lengths = micro["inputs"]["completion_mask"].sum(1)
    assert sorted(lengths.tolist()) == [0, 0, 0, 1, 2, 2, 3, 4]
    # On policy a token's gradient is -A / N over the tokens that count: 2 + 3 + 4 + 1 + 2.
    mask, gradient = micro["inputs"]["completion_mask"].bool(), micro["logp"].grad
    assert mask.sum() == 12
    expected = (-micro["inputs"]["advantages"] / 12).unsqueeze(1).expand_as(gradient)
    torch.testing.assert_close(gradient[mask], expected[mask])
    assert gradient[~mask].abs().max() == 0
    assert gradient.abs().max() > 0.01


@pytest.mark.parametrize(("statistics", "counted"), [("keep", EVERY), ("drop", ~TRUNCATED)])
def test_kept_responses_train_unless_their_reward_leaves_the_statistics(tmp_path, statistics, counted):
    _, out, (micro,) = run(tmp_path, f"{DR},overlong=keep,overlong.statistics={statistics}")
    torch.testing.assert_close(out["advantages"], centred(REWARDS, counted))
    assert micro["inputs"]["completion_mask"].sum() == sum(LENGTHS)


def test_a_filter_looks_at_the_rewards_that_count(tmp_path):
    """Only the truncated response of the first group differs: a signal with its reward, none without."""
    rewards = [1.0, 5.0, 1.0, 1.0, 3.0, 1.0, 7.0, 0.0]
    given = dict(rewards=[lambda completions, **_: rewards])
    for statistics, kept in (("keep", [True] * 8), ("drop", [False] * 4 + [True] * 4)):
        spec = f"{DR},filter=zero_variance,filter.max_rounds=0,overlong.statistics={statistics}"
        _, out, _ = run(tmp_path / statistics, spec, **given)
        assert out["gv_keep"].tolist() == kept


@pytest.mark.parametrize(
    ("buffer", "factor", "penalties"),
    [
        # (L - b - l) / b between L - b and L, by hand for L = 4.
        (2, 1.0, [0, -1, -0.5, -1, -1, 0, -1, 0]),
        (4, 1.0, [-0.5, -1, -0.75, -1, -1, -0.25, -1, -0.5]),
        (2, 0.5, [0, -0.5, -0.25, -0.5, -0.5, 0, -0.5, 0]),
    ],
)
def test_the_soft_punishment_is_a_reward_down_to_its_cap(tmp_path, buffer, factor, penalties):
    """Every response of the longest length gets -factor, whether it ended there or was cut."""
    spec = f"{DR},overlong=penalty,overlong.buffer={buffer},overlong.factor={factor}"
    trainer, out, (micro,) = run(tmp_path, spec)
    shaped = [r + p for r, p in zip(REWARDS, penalties, strict=True)]
    torch.testing.assert_close(out["advantages"], centred(shaped, EVERY))
    assert micro["inputs"]["completion_mask"].sum() == sum(LENGTHS)
    assert logged(trainer, "gv/overlong_penalty") == pytest.approx([sum(penalties) / 8])
    assert logged(trainer, "reward") == pytest.approx([sum(REWARDS) / 8])  # what the judge gave, without the punishment


def test_a_response_over_the_limit_is_punished_no_more_than_one_at_it(tmp_path):
    """A rollout_func may return more tokens than max_completion_length: here all of length 4 against a limit of 3."""
    spec = f"{DR},overlong=penalty,overlong.buffer=2"
    _, out, _ = run(tmp_path, spec, max_completion_length=3)
    penalties = [-0.5, -1, -1, -1, -1, 0, -1, -0.5]
    torch.testing.assert_close(
        out["advantages"], centred([r + p for r, p in zip(REWARDS, penalties, strict=True)], EVERY)
    )


# Which tokens end a response


def two_ends(model):
    """A model that may end in the tokenizer's end or in ONE, as one with an end-of-turn token."""
    model.generation_config = GenerationConfig(eos_token_id=[END, ONE], pad_token_id=END)
    return model


def sampled(trainer, size=8):
    out = trainer._generate_and_score_completions([{"prompt": "0 0 1", "t": 1}] * size)
    rows = zip(out["completion_ids"], out["completion_mask"], strict=True)
    return out, [ids[mask.bool()].tolist() for ids, mask in rows]


def test_every_end_of_the_models_generation_config_ends_a_response(tmp_path):
    trainer = make(tmp_path, f"gv_{DR},overlong=mask", model=two_ends(tiny_model.model()), max_completion_length=3)
    assert sorted(trainer.eos_token_ids) == [END, ONE]
    out, completions = sampled(trainer, 24)
    kept = [ids for ids in completions if ids]
    assert {ids[-1] for ids in kept} == {END, ONE}
    assert all(not {END, ONE} & set(ids[:-1]) for ids in kept)
    cut = [row.tolist() for row, ids in zip(out["completion_ids"], completions, strict=True) if not ids]
    assert cut == [[ZERO] * 3] * len(cut)


MORE_ENDS = dict(generation_kwargs={"eos_token_id": [END, ONE]}, max_completion_length=5)


def test_trl_adds_a_token_behind_an_end_that_only_generation_knows(tmp_path):
    """TRL as it is: generation stops at ONE, TRL does not cut there, and the padding counts as a token."""
    trainer = make(tmp_path, "dapo", trainer=GRPOTrainer, config=GRPOConfig, **MORE_ENDS)
    _, completions = sampled(trainer, 24)
    assert [ONE, END] in [ids[-2:] for ids in completions if len(ids) < 5]


def test_an_end_of_the_generation_kwargs_ends_a_response(tmp_path):
    trainer = make(tmp_path, f"gv_{DR},overlong=mask", **MORE_ENDS)
    _, completions = sampled(trainer, 24)
    kept = [ids for ids in completions if ids]
    assert {ids[-1] for ids in kept} == {END, ONE}
    assert all(not {END, ONE} & set(ids[:-1]) for ids in kept)


def test_a_stop_token_of_vllm_ends_a_response(tmp_path, monkeypatch):
    trl_engine.behind_trl(monkeypatch, trl_engine.Engine())
    flags = dict(use_vllm=True, vllm_mode="server", generation_kwargs={"stop_token_ids": [ONE]})
    trainer = make(tmp_path, f"gv_{DR},overlong=mask", max_completion_length=6, **flags)
    _, completions = sampled(trainer, 24)
    assert {ids[-1] for ids in completions if ids} == {END, ONE}


def chatting(closing):
    """A tokenizer whose template closes an assistant's message by a token, ONE being special."""
    made = tiny_model.tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["1"]})
    made.chat_template = "{% for m in messages %}{{ m['content'] + ' ' + '" + closing + " ' }}{% endfor %}"
    return made


@pytest.mark.parametrize(("closing", "ends"), [("1", [ONE]), ("<end>", [END]), ("0", []), ("", [])])
def test_the_token_that_closes_a_turn(tmp_path, closing, ends):
    trainer = make(tmp_path, "gv_dr_grpo", processing_class=chatting(closing))
    assert turn_ends(trainer) == ends
    assert set(trainer.eos_token_ids) == {END, *ends}


def test_a_response_that_a_chat_engine_ended_is_not_truncated(tmp_path):
    """The full completions with ONE at their end were ended by the turn; [0, 0, 0, 0] was cut."""
    trainer, out, _ = run(tmp_path, f"{DR},overlong=mask,overlong.statistics=drop", processing_class=chatting("1"))
    counted = torch.tensor([i != 4 for i in range(8)])
    assert (out["completion_mask"].sum(1) > 0).tolist() == counted.tolist()
    torch.testing.assert_close(out["advantages"], centred(REWARDS, counted))
    assert logged(trainer, "completions/clipped_ratio") == [1 / 8]


def test_trl_takes_a_response_that_a_chat_engine_ended_for_truncated(tmp_path):
    """TRL as it is, on the same rollouts: three of eight."""
    flags = dict(rollout_func=fixed, processing_class=chatting("1"), max_completion_length=LIMIT)
    rewards = [lambda completions, **_: REWARDS]
    trainer = make(tmp_path, "dapo", GRPOTrainer, GRPOConfig, rewards, mask_truncated_completions=True, **flags)
    out, _ = sampled(trainer)
    assert (out["completion_mask"].sum(1) == 0).tolist() == TRUNCATED.tolist()


def test_generation_goes_on_after_a_closed_turn(tmp_path):
    """A model may close one message and open the next: its response is cut at its own end only."""
    trainer = make(tmp_path, f"gv_{DR}", processing_class=chatting("1"), max_completion_length=6)
    _, completions = sampled(trainer, 24)
    assert any(ONE in ids[:-1] for ids in completions)


@pytest.mark.parametrize("rule", ["overlong=mask", "overlong.statistics=drop"])
def test_a_stop_at_a_text_is_refused_where_truncation_counts(tmp_path, rule):
    flags = dict(use_vllm=True, generation_kwargs={"stop": ["</answer>"]})
    with pytest.raises(ValueError, match=re.escape("generation_kwargs has stop=['</answer>']") + ".*overlong=keep"):
        make(tmp_path, f"gv_{DR},{rule}", **flags)
