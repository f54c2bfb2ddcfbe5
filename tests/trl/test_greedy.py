"""ReMax's greedy baseline in real TRL runs: one response per prompt, by transformers and behind TRL's vLLM code."""

import pytest
import torch
from datasets import Dataset
from grpo_variants_trl.rollout.greedy import Shares, _prompts
from support import tiny_model
from support.trl import engine as trl_engine
from support.trl.runs import logged, make
from transformers import LlamaForCausalLM

END = tiny_model.END


def best(trainer, prompt_ids, limit=6):
    """The most likely token, one after the other, until the end or the limit."""
    ids = []
    while len(ids) < limit and END not in ids:
        with torch.no_grad():
            ids.append(int(trainer.model(torch.tensor([prompt_ids + ids])).logits[0, -1].argmax()))
    return ids


def two_prompts(trainer, size=4):
    return [dict(trainer.train_dataset[i // size]) for i in range(2 * size)]


def sampled(out):
    return [r[m.bool()].tolist() for r, m in zip(out["completion_ids"], out["completion_mask"], strict=True)]


def watched(scores):
    """A reward function that keeps its calls, and gives the share of ones plus a column of the dataset."""

    def reward(prompts, completions, completion_ids, t, log_metric, **kwargs):
        scores.append({"prompts": prompts, "completions": completions, "ids": completion_ids, "t": t})
        log_metric("watched", float(len(prompts)))
        return [sum(x == tiny_model.ONE for x in ids) / 6 + n for ids, n in zip(completion_ids, t, strict=True)]

    return reward


@pytest.mark.parametrize("engine", ["transformers", "colocate", "server"])
def test_one_greedy_response_a_prompt_is_the_baseline(tmp_path, monkeypatch, engine):
    """A generation batch of two prompts with four responses each: two greedy responses, scored with their columns."""
    flags, calls = {}, []
    if engine != "transformers":
        trl_engine.behind_trl(monkeypatch, trl_engine.Engine())
        flags = {"use_vllm": True, "vllm_mode": engine, "top_p": 0.9, "generation_kwargs": {"temperature": 1.0}}
    trainer = make(tmp_path, "gv_remax", rewards=[watched(calls)], **flags)
    out = trainer._generate_and_score_completions(two_prompts(trainer))
    drawn, greedy = calls
    assert (len(drawn["ids"]), greedy["t"], greedy["prompts"]) == (8, [1, 2], ["0 0 1", "0 1 0"])
    expected = [best(trainer, trainer.processing_class(p)["input_ids"]) for p in greedy["prompts"]]
    assert greedy["ids"] == expected
    reward = torch.tensor([sum(x == tiny_model.ONE for x in ids) / 6 for ids in [*sampled(out), *expected]])
    torch.testing.assert_close(out["advantages"], reward[:8] - reward[8:].repeat_interleave(4))
    assert out["advantages"].abs().max() > 0.1
    log = trainer._metrics["train"]
    assert log["gv/greedy_reward"] == pytest.approx([1.5 + reward[8:].mean().item()])
    assert log["gv/greedy_length"] == [sum(map(len, expected)) / 2]
    # What is logged about responses is about the sampled ones; the greedy ones' tokens were generated all the same.
    lengths = [len(ids) for ids in sampled(out)]
    assert log["completions/mean_length"] == [sum(lengths) / 8]
    assert log["watched"] == [8.0]
    assert len(trainer._logs["completion"]) == 8
    assert log["num_tokens"] == [8 * 3 + 2 * 3 + sum(lengths) + sum(map(len, expected))]


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_the_engine_is_asked_for_one_most_likely_response(tmp_path, monkeypatch, mode):
    """Between two sampled batches; the user's other generation settings stay, and the sampled ones come back."""
    engine = trl_engine.behind_trl(monkeypatch, trl_engine.Engine())
    flags = {"use_vllm": True, "vllm_mode": mode, "top_p": 0.9, "top_k": 2, "repetition_penalty": 1.1}
    trainer = make(tmp_path, "gv_remax", generation_kwargs={"temperature": 1.0, "stop_token_ids": [7]}, **flags)
    for _ in range(2):
        trainer._generate_and_score_completions(two_prompts(trainer))
    one, first, again, second = (params for _, params in engine.asked)
    assert (first.n, first.temperature, first.top_p, first.top_k, first.min_p) == (1, 0.0, 1.0, 0, 0.0)
    assert (first.repetition_penalty, first.stop_token_ids, first.max_tokens) == (1.1, [7], 6)
    assert first == second
    assert (one.temperature, one.top_p, one.top_k, one.n) == (1.0, 0.9, 2, 4 if mode == "server" else 1)
    assert one == again
    assert [len(prompts) for prompts, _ in engine.asked[1::2]] == [2, 2]


def test_greedy_training_with_an_engine(tmp_path, monkeypatch):
    trl_engine.behind_trl(monkeypatch, trl_engine.Engine())
    trainer = make(tmp_path, "gv_remax", use_vllm=True, vllm_mode="colocate", num_generations=1)
    trainer.train()
    assert len(logged(trainer, "gv/greedy_reward")) == 2
    assert min(logged(trainer, "grad_norm")) > 1e-4


def test_the_greedy_rows_are_drawn_in_the_batch_of_the_sampled_ones(tmp_path, monkeypatch):
    """One call of the model's generation for both; with dynamic sampling, which may replace prompts, another one."""
    asked, generate = [], LlamaForCausalLM.generate

    def counting(model, *args, **kwargs):
        asked.append(len(kwargs["input_ids"]))
        return generate(model, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "generate", counting)
    for spec, rows in (("gv_remax", [8 + 2]), ("gv_remax,filter=zero_variance,filter.max_rounds=1", [8, 2])):
        asked.clear()
        trainer = make(tmp_path / str(len(rows)), spec, rewards=[tiny_model.ones], max_completion_length=12)
        out = trainer._generate_and_score_completions(two_prompts(trainer))
        assert asked == rows
        greedy = [best(trainer, trainer.processing_class(p)["input_ids"], 12) for p in ("0 0 1", "0 1 0")]
        baseline = torch.tensor(tiny_model.ones(greedy)).repeat_interleave(4)
        torch.testing.assert_close(out["advantages"], torch.tensor(tiny_model.ones(sampled(out))) - baseline)


def test_settings_that_shape_the_distribution_shape_the_greedy_response_too(tmp_path):
    """A least length of five: the most likely token among those that are allowed, also where the end is likelier."""
    calls = []
    flags = dict(rewards=[watched(calls)], top_k=2, generation_kwargs={"min_new_tokens": 5, "typical_p": 0.9})
    trainer = make(tmp_path, "gv_remax", **flags)
    trainer._generate_and_score_completions(two_prompts(trainer))
    for prompt, ids in zip(calls[1]["prompts"], calls[1]["ids"], strict=True):
        prefix = trainer.processing_class(prompt)["input_ids"]
        for t, token in enumerate(ids):
            with torch.no_grad():
                logits = trainer.model(torch.tensor([prefix + ids[:t]])).logits[0, -1]
            logits[END] = float("-inf") if t < 5 else logits[END]
            assert token == int(logits.argmax())


def test_a_model_that_generates_past_the_hook_is_an_error(tmp_path):
    trainer = make(tmp_path, "gv_remax")
    trainer.accelerator.unwrap_model = lambda model, **kwargs: tiny_model.model()
    with pytest.raises(RuntimeError, match="the greedy responses were sampled"):
        trainer._greedy.generate(lambda ids, *rest: (ids, None), [[1, 1, 2]] * 8, None, {}, 4)


CHAT = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}{% if add_generation_prompt %}{{ '0' }}{% endif %}"


def test_conversational_prompts(tmp_path):
    """A run on chats: greedy responses are messages, as the sampled ones are."""
    calls, tokenizer = [], tiny_model.tokenizer()
    tokenizer.chat_template = CHAT
    rows = [{"prompt": [{"role": "user", "content": f"0 {i % 2}"}], "t": i % 2} for i in range(8)]
    trainer = make(
        tmp_path,
        "gv_remax",
        rewards=[watched(calls)],
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        max_steps=1,
    )
    starting = {t: best(trainer, [1, 1 + t, 1]) for t in (0, 1)}
    trainer.train()
    drawn, greedy = calls
    assert all(c[0]["role"] == "assistant" for c in [*drawn["completions"], *greedy["completions"]])
    assert sorted(greedy["t"]) == [0, 1]
    for messages, ids, t in zip(greedy["completions"], greedy["ids"], greedy["t"], strict=True):
        assert ids == starting[t]
        assert messages[0]["content"] == trainer.processing_class.decode(ids, skip_special_tokens=True)
    assert logged(trainer, "gv/greedy_length") == [sum(map(len, starting.values())) / 2]


def test_a_prompt_without_a_greedy_reward_is_not_trained_on(tmp_path):
    """The judge gives nothing for the greedy response to the first prompt: its four responses leave the batch."""

    def sometimes(completion_ids, t, **kwargs):
        one_row_a_prompt = len(t) == 2
        return [
            None if one_row_a_prompt and n == 1 else float(len(ids)) for ids, n in zip(completion_ids, t, strict=True)
        ]

    trainer = make(tmp_path, "gv_remax", rewards=[sometimes])
    out = trainer._generate_and_score_completions(two_prompts(trainer))
    assert out["advantages"][:4].tolist() == [0.0] * 4
    assert out["advantages"][4:].abs().max() > 0.5
    greedy = best(trainer, trainer.processing_class("0 1 0")["input_ids"])
    assert trainer._metrics["train"]["gv/greedy_reward"] == [float(len(greedy))]


def test_the_penalty_is_taken_off_both_sides(tmp_path):
    """With a reward of 0 the advantage is the penalty of the sampled length less that of the greedy length."""
    trainer = make(
        tmp_path, "gv_remax,overlong=penalty,overlong.buffer=4", rewards=[lambda t, **kwargs: [0.0] * len(t)]
    )
    out = trainer._generate_and_score_completions(two_prompts(trainer))
    penalty = lambda ids: -max(0, len(ids) - 2) / 4  # noqa: E731
    greedy = [best(trainer, trainer.processing_class(p)["input_ids"]) for p in ("0 0 1", "0 1 0")]
    expected = [penalty(ids) - penalty(greedy[i // 4]) for i, ids in enumerate(sampled(out))]
    torch.testing.assert_close(out["advantages"], torch.tensor(expected))
    assert out["advantages"].abs().max() > 0.2


@pytest.mark.parametrize(
    ("rows", "ranks", "size", "prompts", "places"),
    [
        # By hand. Two prompts of four on one rank.
        (8, 1, 4, [[0, 1]], [0, 0, 0, 0, 1, 1, 1, 1]),
        # The middle one of three lies on both ranks and is answered on the first; the second answers its own twice.
        (6, 2, 4, [[0, 1], [2]], [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
        # One prompt over both ranks: the second has none and answers for the sake of the collective calls.
        (2, 2, 4, [[0], []], [0, 0, 0, 0]),
        (2, 2, 1, [[0, 1], [2, 3]], [0, 1, 2, 3]),
    ],
)
def test_a_prompt_is_answered_on_the_rank_where_it_starts(rows, ranks, size, prompts, places):
    shares = Shares(rows, ranks, size)
    assert [shares.prompts(rank) for rank in range(ranks)] == prompts
    assert shares.places() == places
    assert {len(shares.own_rows(rank)) for rank in range(ranks)} == {shares.width}


def test_images_of_a_column_are_in_the_messages():
    rows = [{"prompt": [{"role": "user", "content": "what?"}], "image": picture} for picture in ("a", "b")]
    found = _prompts(rows)
    assert [message["content"][0] for (message,) in found] == [{"type": "image", "image": p} for p in ("a", "b")]
    several = [{"prompt": rows[0]["prompt"], "images": ["a", "b"]}]
    assert [block.get("image") for block in _prompts(several)[0][0]["content"]] == ["a", "b", None]
    assert _prompts([{"prompt": "0 1"}]) == ["0 1"]
