"""Dynamic sampling in real TRL runs: which groups are drawn again, what the step trains on, what the log says."""

import json
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, IterableDataset
from grpo_variants_trl.checkpoint.state import STATE_FILE
from grpo_variants_trl.rollout.dynamic_sampling import NoSignalError
from grpo_variants_trl.rollout.prompts import PromptStream, task_text
from support import tiny_model
from support.trl.runs import logged, make, recorded

G = 4


class Scripted:
    """Rewards by call: each call's list of groups, `s` with signal (one right), `1` all right, `0` all wrong."""

    def __init__(self, *calls, then="s"):
        self.calls, self.then = list(calls), then
        self.__name__ = "scripted"
        self.seen = []

    def __call__(self, prompts, completions, completion_ids, **kwargs):
        kinds = self.calls.pop(0) if self.calls else self.then * (len(prompts) // G)
        assert len(kinds) * G == len(prompts)
        rewards = [float(kind == "1" or (kind == "s" and i == 0)) for kind in kinds for i in range(G)]
        self.seen.append({"prompts": prompts, "ids": completion_ids, "rewards": rewards})
        return rewards


def numbered(rows=64):
    """Every prompt another one, of 1 to 6 tokens: bits of its number."""
    return Dataset.from_list([{"prompt": " ".join(f"{i + 1:b}")} for i in range(rows)])


def trainer_of(tmp_path, reward, loss_type="gv_dapo,overlong=keep", **flags):
    flags = {"max_steps": 1, "per_device_train_batch_size": 4 * G} | flags
    rewards = reward if isinstance(reward, list) else [reward]
    return make(tmp_path, loss_type, rewards=rewards, train_dataset=numbered(), **flags)


def batch_of(trainer):
    """One generation batch of the data set's first four prompts."""
    return trainer._generate_and_score_completions([dict(trainer.train_dataset[i // G]) for i in range(4 * G)])


def rows_of(out, kind):
    return [ids[mask.bool()].tolist() for ids, mask in zip(out[f"{kind}_ids"], out[f"{kind}_mask"], strict=True)]


def test_groups_without_signal_take_the_responses_of_new_prompts(tmp_path):
    """Groups 1 and 3 fail; of the first round's four new groups the second fails, so its first and third are taken."""
    reward = Scripted("s0s1", "s0ss")
    trainer = trainer_of(tmp_path, reward)
    out = batch_of(trainer)
    first, second = reward.seen
    assert len(second["prompts"]) == 4 * G  # half of the groups had signal, so two places ask for four prompts
    taken = {1: 0, 3: 2}
    for group in range(4):
        source, place = (second, taken[group]) if group in taken else (first, group)
        rows = slice(place * G, place * G + G)
        assert rows_of(out, "completion")[group * G : group * G + G] == source["ids"][rows]
        tokens = [trainer.processing_class(p)["input_ids"] for p in source["prompts"][rows]]
        assert rows_of(out, "prompt")[group * G : group * G + G] == tokens
    assert len({len(p) for p in rows_of(out, "prompt")}) > 1, "prompts of unequal length, or padding is not tested"
    # One right of four: (1 - 1/4) / std and (0 - 1/4) / std with the sample standard deviation 1/2.
    torch.testing.assert_close(out["advantages"], torch.tensor([1.5, -0.5, -0.5, -0.5] * 4), rtol=1e-5, atol=0)
    assert out["gv_keep"].all()
    assert out["num_items_in_batch"] == out["completion_mask"].sum()


def test_new_prompts_are_not_those_of_the_batch_and_come_in_one_call_a_round(tmp_path):
    reward = Scripted("0000", "0000", "s0s0")
    batch_of(trainer_of(tmp_path, reward))
    prompts = [call["prompts"][::G] for call in reward.seen]
    assert [len(p) for p in prompts] == [4, 4, 4, 4]
    assert len({prompt for call in prompts for prompt in call}) == 16


def test_the_round_is_as_large_as_the_share_seen_asks_for(tmp_path):
    """One of four missing at a share of 3/4: ceil(1 / 0.75) = 2 prompts."""
    reward = Scripted("ss0s", "0s")
    batch_of(trainer_of(tmp_path, reward))
    assert [len(call["prompts"]) for call in reward.seen] == [4 * G, 2 * G]


def test_logs_are_those_of_the_batch_and_the_cost_is_logged_apart(tmp_path):
    reward = Scripted("s0s1", "s0ss")
    trainer = trainer_of(tmp_path, reward, log_completions=False)
    out = batch_of(trainer)
    log = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    lengths = out["completion_mask"].sum(1).float()
    assert log["reward"] == log["rewards/scripted/mean"] == 0.25
    assert log["reward_std"] == pytest.approx(torch.tensor([1.0, 0, 0, 0] * 4).std().item())
    assert log["completions/mean_length"] == pytest.approx(lengths.mean().item())
    assert log["completions/max_length"] == lengths.max()
    assert log["frac_reward_zero_std"] == 0
    ended = [ids[-1] == tiny_model.END for ids in rows_of(out, "completion")]
    assert log["completions/clipped_ratio"] == pytest.approx(1 - sum(ended) / len(ended))
    sampled = sum(len(ids) for call in reward.seen for ids in call["ids"])
    assert log["gv/filter/tokens_generated"] == sampled
    assert log["gv/filter/tokens_discarded"] == sampled - lengths.sum()
    assert (log["gv/filter/rounds"], log["gv/filter/kept_share"], log["gv/kept_responses"]) == (1, 0.5, 1)
    # Over both calls: 8 groups, 3 without signal, one of them all right; 6 of the 32 responses right.
    assert log["gv/groups/without_signal"] == pytest.approx(3 / 8)
    assert log["gv/groups/all_right"] == pytest.approx(1 / 8)
    assert log["gv/groups/all_wrong"] == pytest.approx(2 / 8)
    assert log["gv/groups/effective"] == 5
    assert log["gv/groups/expected_without_signal"] == pytest.approx((9 / 32) ** 4 + (23 / 32) ** 4)
    assert list(trainer._logs["rewards"]["scripted"]) == [1.0, 0, 0, 0] * 4
    texts = trainer.processing_class.batch_decode(rows_of(out, "completion"), skip_special_tokens=True)
    assert list(trainer._logs["completion"]) == texts
    assert list(trainer._logs["advantages"]) == pytest.approx([1.5, -0.5, -0.5, -0.5] * 4, rel=1e-5)
    seen_tokens = sum(len(c["ids"][i]) for c in reward.seen for i in range(len(c["ids"])))
    prompt_tokens = sum(len(p.split()) for call in reward.seen for p in call["prompts"])
    assert log["num_tokens"] == seen_tokens + prompt_tokens


def test_an_extra_column_that_has_not_one_value_a_response_is_named(tmp_path):
    def reward(log_extra, **kwargs):
        log_extra("once", [1])
        return [float(i % 2) for i in range(len(kwargs["prompts"]))]

    with pytest.raises(
        ValueError, match=r"^log_extra\('once'\) was given 1 values for 16 responses; give one per response"
    ):
        batch_of(trainer_of(tmp_path, reward))


def test_extra_columns_and_metrics_of_reward_functions_survive_dynamic_sampling(tmp_path):
    scripted = Scripted("s0s1", "s0ss")

    def reward(log_extra, log_metric, **kwargs):
        call = len(scripted.seen)
        log_extra("place", [f"{call}:{i // G}" for i in range(len(kwargs["prompts"]))])
        log_metric("call", float(call))
        return scripted(**kwargs)

    trainer = trainer_of(tmp_path, reward)
    batch_of(trainer)
    assert list(trainer._logs["extra"]["place"])[::G] == ["0:0", "1:0", "0:2", "1:2"]
    assert trainer._metrics["train"]["call"] == [0.5]


def test_after_the_last_round_the_batch_stays_short_and_what_is_left_has_the_whole_weight(tmp_path):
    """Group 3 never gets signal: it is out of the loss, and each other token weighs 1 / tokens of the rest."""
    reward = Scripted("s0s1", "s000", then="0")
    trainer = trainer_of(tmp_path, reward, "gv_dapo,overlong=keep,filter.max_rounds=3")
    seen = recorded(trainer)
    trainer.train()
    (micro,) = seen
    inputs, mask = micro["inputs"], micro["inputs"]["completion_mask"].bool()
    assert len(reward.seen) == 4
    kept = inputs["gv_keep"].bool()
    assert kept.sum() == 3 * G
    weight = 1 / mask[kept].sum()
    expected = -inputs["advantages"].unsqueeze(1) * weight * mask * kept.unsqueeze(1)
    torch.testing.assert_close(micro["logp"].grad, expected, rtol=1e-4, atol=1e-8)
    assert logged(trainer, "gv/filter/rounds") == [3]
    assert logged(trainer, "gv/kept_responses") == [0.75]


def test_no_signal_at_all_ends_with_what_was_seen(tmp_path):
    trainer = trainer_of(tmp_path, Scripted(then="0"), "gv_dapo,filter.max_rounds=2")
    with pytest.raises(NoSignalError) as error:
        trainer.train()
    assert str(error.value) == (
        "filter=zero_variance found no group with signal among 12 prompts, in 2 rounds of new ones "
        "(filter.max_rounds=2) from a data set of 64 prompts: 0 all right, 12 all wrong, 0 constant at another reward; "
        "mean reward 0, success rate 0. The task is too hard or too easy for the model as it is: change the prompts or "
        "the reward, raise num_generations=4 or filter.max_rounds, or set filter=none."
    )
    trainer = trainer_of(tmp_path, Scripted("0010", "1001", then="0"), "gv_dapo,filter.max_rounds=1")
    with pytest.raises(NoSignalError, match=r"3 all right, 5 all wrong, .* mean reward 0.375, success rate 0.375"):
        trainer.train()


@pytest.mark.parametrize("statistics", ["keep", "drop"])
def test_where_no_response_counts_it_says_so_and_blames_no_task(tmp_path, statistics):
    """Rewards are missing, or every response is truncated and statistics leave those out."""

    def reward(completions, **kwargs):
        return [None if statistics == "keep" else float(i % 2) for i in range(len(completions))]

    spec = f"gv_dapo,overlong.statistics={statistics},filter.max_rounds=1"
    trainer = trainer_of(tmp_path, reward, spec)
    trainer._generate_single_turn = lambda ids, *given: ([[tiny_model.ONE] * 6 for _ in ids], None)
    with pytest.raises(
        NoSignalError, match=r"among 8 prompts, in 1 rounds .* 64 prompts: no response counts, since no "
    ):
        trainer.train()


def test_without_rounds_groups_are_dropped_and_nothing_is_drawn(tmp_path):
    reward = Scripted("s0s1")
    trainer = trainer_of(tmp_path, reward, "gv_dapo,overlong=keep,filter.max_rounds=0")
    out = batch_of(trainer)
    assert len(reward.seen) == 1
    assert out["gv_keep"].view(4, G).all(1).tolist() == [True, False, True, False]
    everything_fails = trainer_of(tmp_path, Scripted(then="0"), "gv_dapo,overlong=keep,filter.max_rounds=0")
    everything_fails.train()
    assert logged(everything_fails, "gv/groups/all_wrong") == [1]


def test_a_reward_that_is_not_the_metric_cannot_fake_a_signal(tmp_path):
    """Lengths differ in every group; the metric is the first function, for which groups 1 and 3 fail."""
    scripted = Scripted("s0s1", "ssss")

    def lengths(completion_ids, **kwargs):
        return [0.01 * len(ids) + 0.001 * i for i, ids in enumerate(completion_ids)]

    batch_of(trainer_of(tmp_path, [scripted, lengths], "gv_dapo,overlong=keep,filter.metric=scripted"))
    assert len(scripted.seen) == 2
    by_total = Scripted("s0s1", "ssss")
    batch_of(trainer_of(tmp_path, [by_total, lengths]))
    assert len(by_total.seen) == 1


@pytest.mark.parametrize(("spec", "calls"), [("gdpo,filter=zero_variance", [4, 4]), ("dapo,overlong=keep", [4, 4, 4])])
def test_rules_that_normalise_each_reward_keep_a_group_whose_components_differ(tmp_path, spec, calls):
    """At first the second function cancels the other, so every total is 1; the components differ in groups 0 and 2."""
    scripted = Scripted("s0s1", "s0s0")

    def cancels(completions, **kwargs):
        rewards = scripted.seen[-1]["rewards"]
        return [1 - r if len(scripted.seen) == 1 else 0.0 for r in rewards]

    batch_of(trainer_of(tmp_path, [scripted, cancels], f"gv_{spec}"))
    assert [len(call["prompts"]) // G for call in scripted.seen] == calls


def test_missing_and_truncated_responses_are_no_signal(tmp_path):
    """In group 0 only a missing reward differs; with statistics=drop only a truncated response differs in group 1."""
    table = [[None, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]]
    calls = []

    def reward(prompts, completion_ids, **kwargs):
        calls.append(len(prompts) // G)
        if len(calls) > 1:
            return [float(i % G == 0) for i in range(len(prompts))]
        return [value for row in table for value in row]

    def ends_all_but_the_fifth(trainer):
        generate = trainer._generate_single_turn

        def generating(*args):
            ids, logprobs = generate(*args)
            ids = [[tiny_model.ONE] * 6 if i == G else [tiny_model.ONE, tiny_model.END] for i in range(len(ids))]
            return ids, logprobs

        trainer._generate_single_turn = generating

    for statistics, wanted in (("keep", 2), ("drop", 4)):
        calls.clear()
        spec = f"gv_dapo,overlong=mask,overlong.statistics={statistics}"
        trainer = trainer_of(tmp_path, reward, spec)
        ends_all_but_the_fifth(trainer)
        batch_of(trainer)
        assert calls == [4, wanted], statistics


def test_memory_goes_by_the_prompts_that_are_trained(tmp_path):
    scripted = Scripted("s0s1", "s0ss")
    trainer = trainer_of(tmp_path, scripted, "gv_dcpo,filter=zero_variance")
    batch_of(trainer)
    first, second = (call["prompts"][::G] for call in scripted.seen)
    trained = {first[0], first[2], second[0], second[2]}
    tables = trainer.memory.state_dict()
    assert tables
    assert [set(table["keys"]) for table in tables.values()] == [trained] * len(tables)
    assert len({*first, *second}) == 8


def test_evaluation_draws_nothing_again(tmp_path):
    scripted = Scripted(then="0")
    trainer = trainer_of(tmp_path, scripted, eval_dataset=numbered(8))
    trainer.evaluate()
    assert sum(len(call["prompts"]) for call in scripted.seen) == 8 * G


def test_accumulation_and_iterations_train_on_the_filled_batch(tmp_path):
    """Two micro-batches a step, two iterations: each step has all 16 responses, none of a group without signal."""
    scripted = Scripted("s0s1", "s0ss")
    trainer = trainer_of(
        tmp_path,
        scripted,
        per_device_train_batch_size=2 * G,
        gradient_accumulation_steps=2,
        num_iterations=2,
        max_steps=2,
    )
    seen = recorded(trainer)
    trainer.train()
    assert len(scripted.seen) == 2
    wanted = sorted(
        ids
        for call, groups in zip(scripted.seen, ([0, 2], [0, 2]), strict=True)
        for g in groups
        for ids in call["ids"][g * G : g * G + G]
    )
    for step in (0, 1):
        micro = [m["inputs"] for m in seen if m["step"] == step]
        assert sorted(ids for out in micro for ids in rows_of(out, "completion")) == wanted
        tokens = sum(out["completion_mask"].sum() for out in micro)
        total = sum(m["logp"].grad.abs().sum() for m in seen if m["step"] == step)
        mean = sum((out["advantages"].abs() * out["completion_mask"].sum(1)).sum() for out in micro) / tokens
        assert total == pytest.approx(mean.item(), rel=0.05)


def test_resume_goes_on_with_the_next_prompts(tmp_path):
    saving = dict(save_strategy="steps", save_steps=1, max_steps=2)
    whole = trainer_of(tmp_path / "whole", Scripted("s0s1", "s0ss", "0sss", "s0"), **saving)
    whole.train()
    drawn = json.loads((tmp_path / "whole" / "checkpoint-1" / STATE_FILE).read_text())["prompts_drawn"]
    assert 4 <= drawn <= 8
    reward = Scripted("0sss", "s0")
    resumed = trainer_of(tmp_path / "resumed", reward, **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert resumed._dynamic_sampling.stream.drawn == whole._dynamic_sampling.stream.drawn
    assert reward.seen[1]["prompts"][0] == whole.reward_funcs[0].seen[3]["prompts"][0]


def test_data_sets_that_dynamic_sampling_cannot_draw_from_are_refused_at_the_start(tmp_path):
    few = Dataset.from_list([{"prompt": "0 1"}])
    with pytest.raises(ValueError, match=r"a batch has 2 prompts and the data set only 1\. Give at least as many"):
        make(tmp_path, "gv_dapo", train_dataset=few)
    images = Dataset.from_list([{"prompt": "0 1", "image": None}] * 8)
    text = r"draws new groups for text prompts only, and the data set has 'image'\. Set filter.max_rounds=0"
    with pytest.raises(ValueError, match=text):
        make(tmp_path, "gv_dapo", train_dataset=images)
    with pytest.raises(ValueError, match="compares the responses of a prompt, and num_generations=1 leaves none"):
        make(tmp_path, "gv_reinforce,filter=zero_variance", num_generations=1)


def test_rows_of_new_prompts_are_as_trls_own(tmp_path):
    """One object per response, and no column that TRL leaves out."""
    rows = numbered().map(lambda row: {"notes": {"text": row["prompt"]}, "answer": 1})
    trainer = make(tmp_path, "gv_dapo", train_dataset=rows)
    first, second = trainer._dynamic_sampling._draw(2, set())[:2]
    assert first == second
    assert first["notes"] is not second["notes"]
    assert set(first) == {"prompt", "notes", "answer"}
    trainer = make(tmp_path, "gv_dapo", train_dataset=rows, remove_unused_columns=True)
    assert [set(row) for row in trainer._dynamic_sampling._draw(2, set())] == [{"prompt"}] * 8


def generated(count):
    """A stream that does not know its columns."""
    return IterableDataset.from_generator(lambda: ({"prompt": " ".join(f"{i + 1:b}")} for i in range(count)))


def test_dynamic_sampling_draws_from_a_stream_that_does_not_know_its_columns(tmp_path):
    scripted = Scripted("s0s1", "s0ss")
    flags = dict(per_device_train_batch_size=4 * G, max_steps=1, remove_unused_columns=True)
    trainer = make(tmp_path, "gv_dapo,overlong=keep", rewards=[scripted], train_dataset=generated(64), **flags)
    trainer.train()
    assert logged(trainer, "gv/filter/rounds") == [1]
    first, second = (set(call["prompts"]) for call in scripted.seen)
    assert len(first | second) == 8


# The stream of prompts


def test_a_task_is_the_prompt_or_with_environments_the_whole_row():
    plain, playing = SimpleNamespace(environment_factories=None), SimpleNamespace(environment_factories={None: object})
    rows = [{"prompt": [{"role": "user", "content": ""}], "level": level} for level in (1, 2)]
    assert len({task_text(plain, row) for row in rows}) == 1
    assert len({task_text(playing, row) for row in rows}) == 2
    assert task_text(plain, {"prompt": "0 1", "level": 1}) == "0 1"
    assert task_text(playing, {"level": 1}) == '{"level": 1}'
    assert task_text(plain, {"prompt": [object()]}) is None


def take(stream, count, **options):
    return [row["prompt"] for row in stream.take(count, **options)]


def test_every_epoch_has_every_prompt_once_in_another_order():
    stream = PromptStream(numbered(8), seed=3, shuffle=True)
    epochs = [take(stream, 8) for _ in range(3)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert take(PromptStream(numbered(8), seed=3, shuffle=True), 8) == epochs[0]
    assert take(PromptStream(numbered(8), seed=4, shuffle=True), 8) != epochs[0]
    assert take(PromptStream(numbered(3), seed=3, shuffle=False), 4) == ["1", "1 0", "1 1", "1"]


def test_a_stream_is_shuffled_anew_every_epoch_too():
    """In its own order it would give the prompts of TRL's next batches."""

    def epochs(shuffle):
        stream = PromptStream(generated(8), seed=3, shuffle=shuffle)
        return [take(stream, 8) for _ in range(3)]

    in_order = take(PromptStream(numbered(8), seed=3, shuffle=False), 8)
    assert epochs(False) == [in_order] * 3
    assert all(sorted(epoch) == sorted(in_order) for epoch in epochs(True))
    assert len({tuple(epoch) for epoch in [in_order, *epochs(True)]}) == 4
    with pytest.raises(ValueError, match="the stream of prompts is empty; give a data set with rows"):
        take(PromptStream(generated(0), seed=3, shuffle=False), 1)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_place_in_the_stream_is_found_again(streamed):
    def fresh():
        rows = numbered(5)
        return PromptStream(rows.to_iterable_dataset() if streamed else rows, seed=1, shuffle=True)

    stream = fresh()
    take(stream, 7)
    after = take(stream, 6)
    again = fresh()
    again.seek(7)
    assert take(again, 6) == after


def test_prompts_of_the_batch_are_passed_over_while_there_are_others():
    stream = PromptStream(numbered(4), seed=0, shuffle=False)
    assert take(stream, 2, known=lambda row: row["prompt"] in {"1", "1 1"}) == ["1 0", "1 0 0"]
    assert stream.drawn == 4
    assert len(take(stream, 2, known=lambda row: True)) == 2
