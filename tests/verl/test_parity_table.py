"""docs/parity/verl.json has what this suite compared with verl, and something on every built-in of verl's."""

import inspect

import pytest
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper


def own(registry):
    return {name for name in registry if not name.startswith("gv_")}


PRESETS = dict(inspect.getmembers(RolloutCorrectionConfig, inspect.ismethod))
BUILT_IN = {
    "estimator ": own(core_algos.ADV_ESTIMATOR_REGISTRY),
    "loss ": own(core_algos.POLICY_LOSS_REGISTRY) - {"bypass_mode"},  # by its presets
    "rollout_correction preset ": {name for name in PRESETS if not name.startswith("_")},
    "rollout_rs='": rollout_corr_helper.SUPPORTED_ROLLOUT_RS_OPTIONS,
    "loss_agg_mode='": {"token-sum"},
    "kl_loss_type='": {"kl", "abs", "mse", "low_var_kl", "k1+", "k3+"},
}


def test_the_committed_table_is_what_the_tests_found(compared):
    compared.check()


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_built_in_is_in_the_table(compared, kind):
    said = " ".join(f"{row['builtin']} " for row in compared.committed())
    for name in BUILT_IN[kind]:
        assert any(f"{kind}{name}{end}" in said for end in ",;' "), f"nothing in the table on verl's {kind}{name}"
