"""docs/parity/trl.json has what this suite compared with TRL, and something on every built-in of TRL's."""

import inspect
import re

from trl import GRPOTrainer


def test_the_committed_table_is_what_the_tests_found(compared):
    compared.check()


def test_every_built_in_is_in_the_table(compared):
    source = inspect.getsource(GRPOTrainer._compute_loss)
    losses = set(re.findall(r'"(\w+)"', " ".join(re.findall(r"loss_type (?:==|in) ([^:]+):", source))))
    assert losses == {"grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"}
    generating = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    modes = set(re.findall(r"'((?:token|sequence)_(?:truncate|mask))'", generating))
    assert len(modes) == 4
    wanted = {f"loss_type='{name}'" for name in losses}
    wanted |= {f"vllm_importance_sampling_mode='{mode}'" for mode in modes}
    wanted |= {f"scale_rewards='{scale}'" for scale in ("group", "batch", "none")}
    wanted |= {"multi_objective_aggregation='normalize_then_sum'", "off_policy_mask_threshold", "top_entropy_quantile"}
    wanted |= {"importance_sampling_level='sequence'", "delta", "use_bias_correction_kl", "GMPOTrainer", "RLOOTrainer"}
    said = " ".join(row["builtin"] for row in compared.committed())
    assert {name for name in wanted if name not in said} == set()
