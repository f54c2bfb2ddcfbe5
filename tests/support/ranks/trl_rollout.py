"""Child of test_two_processes.py: greedy baselines, overlong rules and mismatch over ranks, against plain loops."""

import math
import sys
from itertools import chain

import torch
import torch.distributed as dist

from support import tiny_model
from support.ranks.trl_two import everywhere, leave
from support.trl.runs import logged, make, recorded

G, ROWS, LIMIT = 4, 10, 4  # 10 responses per rank, so the third of five prompts has two responses on each rank


def step(folder, spec, reward, **flags):
    """One optimizer step: the trainer, its generation batch, and its two micro-batches."""
    trainer = make(
        folder,
        f"gv_{spec}",
        rewards=[reward],
        per_device_train_batch_size=ROWS // 2,
        gradient_accumulation_steps=2,
        max_completion_length=LIMIT,
        peft_config=None,
        max_steps=1,
        **flags,
    )
    batches, generate = [], trainer._generate_and_score_completions

    def keep(inputs):
        batches.append((list(inputs), generate(inputs)))
        return batches[-1][1]

    trainer._generate_and_score_completions = keep
    seen = recorded(trainer)
    return trainer, batches, seen


def responses(out):
    return [ids[mask.bool()].tolist() for ids, mask in zip(out["completion_ids"], out["completion_mask"], strict=True)]


def score(ids, t):
    return sum(x == tiny_model.ONE for x in ids) / 6 + 0.1 * len(ids) + t


def own(values):
    """This rank's part of a list over both."""
    return values[dist.get_rank() * ROWS :][:ROWS]


def greedy(folder):
    calls = []

    def reward(completion_ids, t, **kwargs):
        calls.append(len(t))
        return [score(ids, n) for ids, n in zip(completion_ids, t, strict=True)]

    trainer, batches, _ = step(f"{folder}/greedy", "remax", reward)
    model = tiny_model.model()  # the policy before the step
    trainer.train()
    inputs, out = batches[0]
    deviations, totals = [], {}
    for row, ids, advantage in zip(inputs, responses(out), out["advantages"].tolist(), strict=True):
        prompt = torch.tensor([trainer.processing_class(row["prompt"])["input_ids"]])
        best = model.generate(prompt, max_new_tokens=LIMIT, do_sample=False, pad_token_id=0)[
            0, prompt.shape[1] :
        ].tolist()
        best = best[: best.index(0) + 1] if 0 in best else best
        totals[row["prompt"]] = score(best, row["t"])
        deviations.append(abs(advantage - score(ids, row["t"]) + totals[row["prompt"]]))
    prompts = list(chain.from_iterable(everywhere([row["prompt"] for row in inputs])))[::G]
    known = {prompt: value for part in everywhere(totals) for prompt, value in part.items()}
    mean = sum(known[prompt] for prompt in prompts) / len(prompts)
    return {
        "advantages": max(deviations),
        "size": out["advantages"].abs().max().item(),
        "logged": abs(logged(trainer, "gv/greedy_reward")[0] - mean),
        "asked": calls,
    }


def overlong(folder, rule):
    def reward(completion_ids, t, **kwargs):
        return [score(ids, n) for ids, n in zip(completion_ids, t, strict=True)]

    trainer, batches, seen = step(folder, f"dr_grpo,aggregation=token_mean,{rule}", reward)
    trainer.train()
    inputs, out = batches[0]
    full = [row[: row.index(0) + 1] if 0 in row else row for row in out["completion_ids"].tolist()]
    full = [ids[:LIMIT] for ids in full]
    mine = [(score(ids, row["t"]), len(ids), ids[-1] != 0) for ids, row in zip(full, inputs, strict=True)]
    rewards, lengths, cut = map(list, zip(*chain.from_iterable(everywhere(mine)), strict=True))
    drop, mask = "drop" in rule, "overlong=mask" in rule
    if "penalty" in rule:
        rewards = [r - max(0, n - 2) / 2 for r, n in zip(rewards, lengths, strict=True)]
    expected = []
    for i, r in enumerate(rewards):
        group = range(i // G * G, i // G * G + G)
        counted = [rewards[j] for j in group if not (drop and cut[j])]
        expected.append(0.0 if (drop and cut[i]) or not counted else r - sum(counted) / len(counted))
    tokens = sum(n for n, c in zip(lengths, cut, strict=True) if not (mask and c))
    gradient = 0.0
    for m in seen:
        inside = m["inputs"]["completion_mask"].bool()
        # Gradients are averaged over the two ranks, so each rank's share is twice its part of the mean.
        plain = (-2 * m["inputs"]["advantages"] / tokens).unsqueeze(1) * inside
        gradient = max(gradient, (m["logp"].grad - plain).abs().max().item())
    return {
        "advantages": (out["advantages"] - torch.tensor(own(expected))).abs().max().item(),
        "gradient": gradient,
        "masked": [sum(responses_of) for responses_of in everywhere([not ids for ids in responses(out)])],
        "cut": [sum(cut[:ROWS]), sum(cut[ROWS:])],
    }


def mismatch(folder):
    def rollout(prompts, trainer):
        ids, _, fields = trainer._tokenize_prompts(prompts)
        completions, _ = trainer._generate_single_turn(ids, None, fields, G)
        logprobs = []
        for row, (p, c) in enumerate(zip(ids, completions, strict=True)):
            with torch.no_grad():
                full = trainer.model(torch.tensor([p + c])).logits[0, len(p) - 1 : -1].log_softmax(-1)
            shift = 0.3 * math.sin(row + 7 * dist.get_rank())
            logprobs.append([full[t, token].item() - shift * (t + 1) for t, token in enumerate(c)])
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": logprobs}

    spec = "dapo,correction=token_truncate,correction.cap=1.2,overlong=keep,filter=none"
    trainer, _, seen = step(
        f"{folder}/mismatch", spec, lambda completions, **_: [float(len(c)) for c in completions], rollout_func=rollout
    )
    trainer.train()
    rows = []
    for m in seen:
        d, mask = m["logp"].detach() - m["inputs"]["sampling_per_token_logps"], m["inputs"]["completion_mask"].bool()
        rows += [line[inside].tolist() for line, inside in zip(d, mask, strict=True)]
    flat = [d for part in everywhere(rows) for row in part for d in row]
    w = [math.exp(d) for d in flat]
    expected = {
        "gv/mismatch/ratio/mean": sum(w) / len(w),
        "gv/mismatch/ratio/min": min(w),
        "gv/mismatch/ratio/max": max(w),
        "gv/mismatch/ess": sum(w) ** 2 / (len(w) * sum(x * x for x in w)),
        "gv/mismatch/kl/k1": -sum(flat) / len(flat),
        "gv/mismatch/kl/k3": sum(math.exp(d) - 1 - d for d in flat) / len(flat),
        "gv/correction/truncated": sum(x > 1.2 for x in w) / len(w),
    }
    return {name: abs(logged(trainer, name)[0] - value) for name, value in expected.items()} | {
        "spread": max(w) - min(w)
    }


RULES = ("overlong=mask,overlong.statistics=drop", "overlong=mask", "overlong=penalty,overlong.buffer=2")

if __name__ == "__main__":
    folder = sys.argv[1]
    found = {"greedy": greedy(folder), "mismatch": mismatch(folder)}
    leave(folder, found | {rule: overlong(f"{folder}/{i}", rule) for i, rule in enumerate(RULES)})
