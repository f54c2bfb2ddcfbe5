"""One generation batch of a TRL trainer on given rewards: what TRL makes of them, and what a variant does."""

import grpo_variants_trl as gvt
from trl import GRPOConfig, GRPOTrainer

from support.trl.runs import make


def rollouts(folder, loss_type, trainer=gvt.VariantGRPOTrainer, config=gvt.VariantGRPOConfig, **flags):
    """One generation batch of 16 responses to one prompt, in groups of 4 unless a flag says otherwise."""
    made = make(folder, loss_type, trainer=trainer, config=config, per_device_train_batch_size=16, **flags)
    return made, made._generate_and_score_completions([{"prompt": "0 0 1", "t": 1}] * 16)


def given(table):
    """Reward functions that return the columns of a table."""

    def column(k):
        def reward(completions, **kwargs):
            return [None if value is None else float(value) for value in (row[k] for row in table)]

        reward.__name__ = f"given_{k}"
        return reward

    return [column(k) for k in range(len(table[0]))]


MIXED = [[r] for r in (1, 0, 0, 1, 0.3, 0.7, 0.1, 0.9, 2, 2, 2, -1, 0, 1, 0, 0)]
SEVERAL = [[r, (7 * i) % 5 / 4] for i, (r,) in enumerate(MIXED)]
MISSING = [[None if i % 5 == 0 else r, None if i in (1, 5, 10) else s] for i, (r, s) in enumerate(SEVERAL)]


def stock(tmp_path, table, **flags):
    _, out = rollouts(tmp_path, "dapo", GRPOTrainer, GRPOConfig, rewards=given(table), **flags)
    return out["advantages"]


def own(tmp_path, spec, table, **flags):
    _, out = rollouts(tmp_path, f"gv_{spec}", rewards=given(table), **flags)
    return out["advantages"]
