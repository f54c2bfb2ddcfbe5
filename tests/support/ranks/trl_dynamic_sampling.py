"""Child of test_two_processes.py: dynamic sampling over ranks; whether what a row carries is its response's."""

import sys

import torch
import torch.distributed as dist

import grpo_variants as gv
from support.ranks.trl_two import everywhere, leave
from support.trl.runs import logged, make, recorded

G = 4


def reward_of(prompt_ids, completion_ids):
    """1 for a rare pattern that goes by prompt and response, so that most groups have no signal at first."""
    return float((7 * sum(prompt_ids) + 3 * len(prompt_ids) + 5 * sum(completion_ids) + len(completion_ids)) % 9 == 0)


def rows(out, kind):
    return [ids[mask.bool()].tolist() for ids, mask in zip(out[f"{kind}_ids"], out[f"{kind}_mask"], strict=True)]


def check(trainer, out):
    """Largest deviation of what the batch carries from what its own ids give, over every rank."""
    prompts, completions = rows(out, "prompt"), rows(out, "completion")
    rewards = [reward_of(p, c) for p, c in zip(prompts, completions, strict=True)]
    every = [r for part in everywhere(rewards) for r in part]
    groups = [i // G for i in range(len(every))]
    names = [str(p) for part in everywhere(prompts) for p in part]
    expected = gv.advantages(trainer.variant, every, groups)
    first = dist.get_rank() * len(rewards)
    with torch.no_grad():
        logp, _, _ = trainer._score_tokens(trainer.model, out)
    mask = out["completion_mask"].bool()
    kept = gv.keep_groups(every, groups)
    return {
        "advantages": (out["advantages"] - expected[first:][: len(rewards)]).abs().max().item(),
        "old_logp": (out["old_per_token_logps"] - logp)[mask].abs().max().item(),
        "keep": (out["gv_keep"] != kept[first:][: len(rewards)]).sum().item(),
        "split": sum(len(set(names[g : g + G])) > 1 for g in range(0, len(names), G)),
        "tokens": (out["num_items_in_batch"] - sum(everywhere(int(mask[out["gv_keep"]].sum())))).item(),
        "effective": int(kept.sum()) // G,
    }


def run(folder):
    def reward(prompts, completion_ids, **kwargs):
        tokens = [trainer.processing_class(p)["input_ids"] for p in prompts]
        return [reward_of(p, c) for p, c in zip(tokens, completion_ids, strict=True)]

    # 10 responses per rank and generation, in groups of 4: the third group lies on both ranks.
    trainer = make(
        folder,
        "gv_dapo,overlong=keep,filter.max_rounds=6",
        rewards=[reward],
        per_device_train_batch_size=5,
        gradient_accumulation_steps=2,
        steps_per_generation=2,
        num_iterations=2,
        peft_config=None,
        max_steps=4,
    )
    found, generate = [], trainer._generate_and_score_completions

    def checked(inputs):
        out = generate(inputs)
        found.append(check(trainer, out))
        return out

    trainer._generate_and_score_completions = checked
    seen = recorded(trainer)
    trainer.train()
    return {
        "batches": found,
        "rounds": everywhere(logged(trainer, "gv/filter/rounds")),
        "gradient": sum(m["logp"].grad.abs().sum().item() for m in seen),
        "drawn": everywhere(trainer._dynamic_sampling.stream.drawn),
    }


if __name__ == "__main__":
    leave(sys.argv[1], run(sys.argv[1]))
