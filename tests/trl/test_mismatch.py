"""Rollout and trainer mismatch in real TRL runs: the weights, the gradients and what is logged about them."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from grpo_variants_trl import VariantGRPOConfig
from grpo_variants_trl.rollout.sampling_params import NEUTRAL, reshaped
from support import tiny_model
from support.trl import engine as trl_engine
from support.trl.runs import logged, make, recorded

BASE = "dapo,overlong=keep,filter=none"
SHIFTS = torch.tensor([0.9, -1.2, 0.3, 0.05, -0.4, 0.0])  # d = old - mu at a response's tokens, turned by its row


def rollout_func(report):
    """Rollouts by TRL's own generation with log-probabilities of an engine that is off by known amounts.

    report: (row, d [T]) -> what the engine reports instead of old - d.
    """

    def rollout(prompts, trainer):
        ids, _, fields = trainer._tokenize_prompts(prompts)
        completions, _ = trainer._generate_single_turn(ids, None, fields, 4)
        logprobs = []
        for row, (p, c) in enumerate(zip(ids, completions, strict=True)):
            with torch.no_grad():
                full = trainer.model(torch.tensor([p + c])).logits[0, len(p) - 1 : -1].log_softmax(-1)
            old = full[torch.arange(len(c)), torch.tensor(c)]
            logprobs.append((old - SHIFTS.roll(row)[: len(c)]).tolist())
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": report(logprobs)}

    return rollout


def run(folder, correction, report=lambda logprobs: logprobs, **flags):
    spec = f"gv_{BASE},{correction}" if correction else f"gv_{BASE}"
    trainer = make(folder, spec, rollout_func=rollout_func(report), max_steps=1, **flags)
    seen = recorded(trainer)
    trainer.train()
    return trainer, seen


def log_weights(micro):
    """d of every token that the engine scored, one list a response."""
    rows = []
    for m in micro:
        x = m["inputs"]
        d = m["logp"].detach() - x["sampling_per_token_logps"]
        rows += [row[mask.bool()].tolist() for row, mask in zip(d, x["completion_mask"], strict=True)]
    return rows


def divergence(p, q):
    return p * math.log(p / q) + max(1 - p, 1e-6) * math.log(max(1 - p, 1e-6) / max(1 - q, 1e-6))


# A correction, its fields, and the weights of one response in plain numbers: (d, old, advantage) -> one per token.
WEIGHTS = {
    "token_truncate,correction.cap=1.5": lambda d, *_: [min(math.exp(x), 1.5) for x in d],
    "token_truncate,correction.cap=1.5,correction.floor=0.5": lambda d, *_: [
        min(max(math.exp(x), 0.5), 1.5) for x in d
    ],
    # IcePop's band.
    "token_mask,correction.low=0.5,correction.high=2": lambda d, *_: [
        math.exp(x) if 0.5 <= math.exp(x) <= 2 else 0.0 for x in d
    ],
    "sequence_truncate,correction.cap=1.2": lambda d, *_: [min(math.exp(sum(d)), 1.2)] * len(d),
    "sequence_mask,correction.low=0.7,correction.high=1.5": lambda d, *_: (
        [math.exp(sum(d)) if 0.7 <= math.exp(sum(d)) <= 1.5 else 0.0] * len(d)
    ),
    "geometric_truncate,correction.cap=1.1": lambda d, *_: [min(math.exp(sum(d) / len(d)), 1.1)] * len(d),
    "geometric_mask,correction.low=0.9,correction.high=1.3": lambda d, *_: (
        [float(0.9 <= math.exp(sum(d) / len(d)) <= 1.3)] * len(d)
    ),
    # On policy the drift mu - logp is -d.
    "off_policy_mask,correction.threshold=0.1": lambda d, old, a: (
        [float(not (a < 0 and -sum(d) / len(d) > 0.1))] * len(d)
    ),
    "kpop,correction.threshold=0.1": lambda d, old, a: [
        math.exp(x)
        if max(divergence(math.exp(o), math.exp(o - x)), divergence(math.exp(o - x), math.exp(o))) <= 0.1
        else 0.0
        for x, o in zip(d, old, strict=True)
    ],
    "token_truncate+geometric_mask,correction.cap=1.5,correction.low=0.9,correction.high=1.3": lambda d, *_: [
        min(math.exp(x), 1.5) * (0.9 <= math.exp(sum(d) / len(d)) <= 1.3) for x in d
    ],
}


@pytest.mark.parametrize("correction", WEIGHTS)
def test_every_correction_weighs_the_gradient(tmp_path, correction):
    """On policy a token's gradient is -A c / N, with c the correction's weight and N the step's tokens."""
    report = (lambda rows: [[min(p, -1e-3) for p in row] for row in rows]) if "kpop" in correction else (lambda r: r)
    trainer, (micro,) = run(tmp_path, f"correction={correction}", report)
    advantages, mask = micro["inputs"]["advantages"].tolist(), micro["inputs"]["completion_mask"].bool()
    gradient, weights = micro["logp"].grad, []
    for row, d in enumerate(log_weights([micro])):
        old = micro["logp"][row][mask[row]].tolist()
        weights.append(WEIGHTS[correction](d, old, advantages[row]))
        expected = [-advantages[row] * c / mask.sum().item() for c in weights[-1]]
        assert gradient[row][mask[row]].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-6)
    flat = [w for row in weights for w in row]
    assert len(set(flat)) > 1
    assert logged(trainer, "gv/correction/max") == pytest.approx([max(flat)], rel=1e-4)
    per_token = any(word in correction for word in ("token", "kpop"))
    zero = flat if per_token else [row[0] for row in weights]
    assert logged(trainer, "gv/correction/zero") == pytest.approx([zero.count(0.0) / len(zero)])


def truncated_share(rows, cap, floor=0.0, pool=None):
    units = [math.exp(pool(row)) for row in rows] if pool else [math.exp(d) for row in rows for d in row]
    return sum(not floor <= w <= cap for w in units) / len(units)


@pytest.mark.parametrize(
    ("correction", "share"),
    [
        ("token_truncate,correction.cap=1.5", lambda rows: truncated_share(rows, 1.5)),
        ("token_truncate,correction.cap=1.5,correction.floor=0.5", lambda rows: truncated_share(rows, 1.5, 0.5)),
        ("sequence_truncate,correction.cap=1.2", lambda rows: truncated_share(rows, 1.2, pool=sum)),
    ],
)
def test_the_share_that_is_truncated(tmp_path, correction, share):
    trainer, micro = run(tmp_path, f"correction={correction}")
    expected = share(log_weights(micro))
    assert 0 < expected < 1
    assert logged(trainer, "gv/correction/truncated") == pytest.approx([expected])


def diagnostics(rows):
    """What is logged about a step, from d of its tokens by plain loops."""
    flat = [d for row in rows for d in row]
    w, products = [math.exp(d) for d in flat], [math.exp(sum(row)) for row in rows if row]
    return {
        "ratio/mean": sum(w) / len(w),
        "ratio/min": min(w),
        "ratio/max": max(w),
        "ess": sum(w) ** 2 / (len(w) * sum(x * x for x in w)),
        "ess/sequence": sum(products) ** 2 / (len(products) * sum(x * x for x in products)),
        "distance": sum(map(abs, flat)) / len(flat),
        "kl/k1": -sum(flat) / len(flat),
        "kl/k3": sum(math.exp(d) - 1 - d for d in flat) / len(flat),
    }


def found(trainer, step=0):
    names = diagnostics([[0.0]])
    return {name: logged(trainer, f"gv/mismatch/{name}")[step] for name in names}


@pytest.mark.parametrize("correction", ["", "correction=token_truncate"])
def test_diagnostics_of_a_step_of_several_micro_batches(tmp_path, correction):
    """Also for a variant without correction: the log-probabilities are there, so the mismatch is shown."""
    flags = dict(gradient_accumulation_steps=2, per_device_train_batch_size=4)
    trainer, micro = run(tmp_path, correction, **flags)
    assert len(micro) == 2
    assert found(trainer) == pytest.approx(diagnostics(log_weights(micro)), rel=1e-4, abs=1e-6)


def test_a_token_without_a_number_is_in_no_diagnostic_and_has_weight_one(tmp_path):
    first_unknown = lambda rows: [[None, *row[1:]] for row in rows]  # noqa: E731
    trainer, (micro,) = run(tmp_path, "correction=token_mask,correction.low=0.99,correction.high=1.01", first_unknown)
    rows = [row[1:] for row in log_weights([micro])]
    assert found(trainer) == pytest.approx(diagnostics(rows), rel=1e-4, abs=1e-6)
    plain = -micro["inputs"]["advantages"] / micro["inputs"]["completion_mask"].sum()
    torch.testing.assert_close(micro["logp"].grad[:, 0], plain, rtol=1e-4, atol=1e-7)


def test_without_reported_log_probabilities_nothing_is_logged(tmp_path):
    trainer = make(tmp_path, f"gv_{BASE}", max_steps=1)
    trainer.train()
    assert not [key for row in trainer.state.log_history for key in row if "mismatch" in key]


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (lambda rows: None, "dapo reads the log-probabilities of the sampled tokens, and rollout_func returned"),
        (lambda rows: rows[:-1], "the rollouts have logprobs of 7 responses for 8 completions"),
        (lambda rows: [rows[0][:-1], *rows[1:]], r"logprobs\[0\] has \d numbers and completion_ids\[0\] has \d tokens"),
        (lambda rows: [rows[0], [[p] for p in rows[1]], *rows[2:]], r"logprobs\[1\] holds \[-.*\]; allowed: a number"),
    ],
)
def test_what_a_rollout_func_reports_is_checked(tmp_path, report, text):
    with pytest.raises(ValueError, match=text):
        run(tmp_path, "correction=token_truncate", report)


# An engine behind TRL's vLLM code


@pytest.fixture
def engine(monkeypatch):
    return trl_engine.behind_trl(monkeypatch, trl_engine.Engine())


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_an_engine_that_is_off_is_weighed_and_shown(tmp_path, engine, mode):
    """It reports 0.3 more than the trainer: every weight is e^-0.3, and k1 says how far it is off."""
    engine.error = 0.3
    spec = f"gv_{BASE},correction=token_truncate"
    trainer = make(tmp_path, spec, use_vllm=True, vllm_mode=mode, max_steps=1)
    seen = recorded(trainer)
    trainer.train()
    (micro,) = seen
    mask = micro["inputs"]["completion_mask"].bool()
    plain = (-micro["inputs"]["advantages"] / mask.sum()).unsqueeze(1).expand_as(mask)
    torch.testing.assert_close(micro["logp"].grad[mask], math.exp(-0.3) * plain[mask], rtol=1e-3, atol=1e-6)
    lengths = mask.sum(1).tolist()
    assert found(trainer) == pytest.approx(diagnostics([[-0.3] * n for n in lengths]), rel=1e-3, abs=1e-5)


def test_the_weight_of_a_truncated_distribution_is_the_mass_that_it_kept(tmp_path, engine):
    """With top_p the engine reports p / Z: the weight is Z, which undoes the renormalisation."""
    spec = f"gv_{BASE},correction=token_truncate"
    trainer = make(tmp_path, spec, use_vllm=True, vllm_mode="colocate", top_p=0.6, max_steps=1)
    seen = recorded(trainer)
    trainer.train()
    x = seen[0]["inputs"]
    ids = torch.cat([x["prompt_ids"], x["completion_ids"]], 1)
    with torch.no_grad():  # LoRA starts at zero, so the base model is the policy that sampled
        logits = tiny_model.model()(ids).logits[:, x["prompt_ids"].shape[1] - 1 : -1]
    ordered = logits.softmax(-1).sort(descending=True).values
    kept = torch.where(ordered.cumsum(-1) - ordered < 0.6, ordered, 0).sum(-1)
    mask = x["completion_mask"].bool()
    rows = [kept[row][mask[row]].log().tolist() for row in range(len(mask))]
    assert found(trainer) == pytest.approx(diagnostics(rows), rel=1e-3, abs=1e-5)
    assert found(trainer)["ratio/max"] < 1
    note = "top_p=0.6; the correction's weights take that into account"
    assert note in trainer.variant_card.text()


def test_the_weight_of_a_response_of_allowed_tokens_is_the_mass_that_they_have(tmp_path, engine):
    """Tokens 1 and 2 are allowed: a token's weight is their probability under the policy that sampled."""
    flags = dict(use_vllm=True, vllm_mode="colocate", generation_kwargs={"allowed_token_ids": [1, 2]}, max_steps=1)
    trainer = make(tmp_path, f"gv_{BASE},correction=token_truncate", **flags)
    seen = recorded(trainer)
    trainer.train()
    x = seen[0]["inputs"]
    ids = torch.cat([x["prompt_ids"], x["completion_ids"]], 1)
    with torch.no_grad():
        logits = tiny_model.model()(ids).logits[:, x["prompt_ids"].shape[1] - 1 : -1]
    kept = logits.softmax(-1)[..., 1:].sum(-1).log()
    mask = x["completion_mask"].bool()
    rows = [kept[row][mask[row]].tolist() for row in range(len(mask))]
    assert found(trainer) == pytest.approx(diagnostics(rows), rel=1e-3, abs=1e-5)
    assert found(trainer)["ratio/max"] < 1
    assert "allowed_token_ids=[1, 2]; the correction's weights take that into account" in trainer.variant_card.notes[-1]


READERS = {
    "correction=sequence_truncate": "correction=sequence_truncate",
    "correction=sequence_mask,correction.low=0.5,correction.high=2": "correction=sequence_mask",
    "correction=geometric_mask,correction.low=0.5,correction.high=2": "correction=geometric_mask",
    "correction=off_policy_mask,correction.threshold=0.5": "correction=off_policy_mask",
    "correction=kpop": "correction=kpop",
    "ratio.anchor=rollout": "ratio.anchor=rollout",
}


@pytest.mark.parametrize("part", READERS)
@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ({"top_p": 0.9}, "Set top_p=1,"),
        ({"top_k": 20, "min_p": 0.1}, "Set top_k=0, min_p=0,"),
        ({"generation_kwargs": {"allowed_token_ids": [0, 1]}}, "Remove allowed_token_ids,"),
        ({"generation_kwargs": {"structured_outputs": {"regex": "1+"}}}, "Remove structured_outputs,"),
        ({"vllm_structured_outputs_regex": "1+"}, "Remove vllm_structured_outputs_regex,"),
        ({"top_p": 0.9, "generation_kwargs": {"bad_words": ["0"]}}, "Set top_p=1 and remove bad_words,"),
        ({"generation_kwargs": {"a_new_sampler": 2}}, "Remove a_new_sampler,"),
    ],
)
def test_a_truncated_distribution_is_refused_by_what_would_take_it_for_mismatch(tmp_path, part, setting, fix):
    with pytest.raises(ValueError, match=re.escape(READERS[part]) + ".*would take that for mismatch.*" + fix):
        make(tmp_path, f"gv_{BASE},{part}", use_vllm=True, **setting)


BREAKS = {
    "top log-probabilities": ({"logprobs": 3}, {"use_vllm": True}, "logprobs=3, and TRL takes the first"),
    "one top log-probability": ({"logprobs": 1}, {"use_vllm": True, "vllm_mode": "server"}, "logprobs=1, and TRL"),
    "no log-probabilities": ({"logprobs": None}, {"use_vllm": True}, "logprobs=None, and TRL takes the first"),
    "more responses": ({"n": 2}, {"use_vllm": True}, "n=2, and TRL sets itself how many responses it asks for"),
    "a server's responses": ({"n": 4}, {"use_vllm": True, "vllm_mode": "server"}, "n=4, and TRL sets itself how many"),
    "a seed": ({"seed": 5}, {"use_vllm": True}, "seed=5. TRL asks a colocated engine for each response alone, so all"),
    "no sampling": ({"do_sample": False}, {}, "do_sample=False, with which all responses of a prompt are the same"),
    "several sequences": ({"num_return_sequences": 2}, {}, "num_return_sequences=2, and TRL expects one response"),
    "another kind of output": ({"return_dict_in_generate": True}, {}, "return_dict_in_generate=True, and TRL expects"),
}


@pytest.mark.parametrize("case", BREAKS)
def test_settings_that_break_sampling_are_refused_by_name_at_the_start(tmp_path, case):
    settings, flags, text = BREAKS[case]
    text = f"loss_type='gv_{BASE}' cannot be honoured by TRL: generation_kwargs has {text}"
    with pytest.raises(ValueError, match=re.escape(text)):
        make(tmp_path, f"gv_{BASE}", generation_kwargs=settings, **flags)


def test_a_server_draws_different_responses_from_one_seed(tmp_path, monkeypatch):
    """It is asked for all responses of a prompt at once, and gives each a seed of its own."""
    trl_engine.behind_trl(monkeypatch, trl_engine.Engine())
    make(tmp_path, f"gv_{BASE}", generation_kwargs={"seed": 5}, use_vllm=True, vllm_mode="server")


def test_a_temperature_of_0_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"temperature=0\.0 draws the same response again and again"):
        make(tmp_path, f"gv_{BASE}", temperature=0.0)


@pytest.mark.parametrize("engine_flags", [{}, {"use_vllm": True}])
def test_a_temperature_that_only_the_engine_knows_is_refused(tmp_path, engine_flags):
    text = "generation_kwargs has temperature=0.7, .* at temperature=1.0. Set temperature=0.7 itself"
    with pytest.raises(ValueError, match=text):
        make(tmp_path, f"gv_{BASE}", generation_kwargs={"temperature": 0.7}, **engine_flags)


def test_the_card_says_that_nothing_corrects(tmp_path, capsys):
    trainer = make(tmp_path, f"gv_{BASE}", top_p=0.9, generation_kwargs={"typical_p": 0.8}, max_steps=1)
    trainer.train()
    note = "Responses are drawn with top_p=0.9, typical_p=0.8, so from another distribution"
    assert note in " ".join(capsys.readouterr().out.split())
    assert any(
        line.startswith(note) for line in json.loads((Path(tmp_path) / "grpo_variant.json").read_text())["notes"]
    )


def test_a_rollout_func_samples_by_itself(tmp_path):
    trainer, _ = run(tmp_path, "correction=sequence_truncate", top_p=0.9)
    assert "drawn with" not in trainer.variant_card.text()


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_settings_change_nothing(tmp_path, name):
    for value in NEUTRAL[name]:
        assert (
            reshaped(VariantGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, generation_kwargs={name: value})) == {}
        )
    config = VariantGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, generation_kwargs={name: 0.37})
    assert reshaped(config) == {name: 0.37}
