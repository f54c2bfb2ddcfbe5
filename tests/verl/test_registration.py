"""Registration: every name, twice, in a process that verl started, and what happens where it fails."""

import json
import os
import pickle
import subprocess
import sys

import grpo_variants_verl
import pytest
from verl.trainer.ppo import core_algos

import grpo_variants as gv


def child(code, **environment):
    """Run code in a fresh interpreter, and return the JSON value that it prints last."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_every_variant_is_an_estimator_and_a_policy_loss():
    for name in gv.names():
        assert core_algos.get_adv_estimator_fn(f"gv_{name}").name == name
        assert core_algos.get_policy_loss_fn(f"gv_{name}").name == name


def test_registering_again_changes_nothing():
    estimators, losses = dict(core_algos.ADV_ESTIMATOR_REGISTRY), dict(core_algos.POLICY_LOSS_REGISTRY)
    assert grpo_variants_verl.register() == tuple(f"gv_{name}" for name in gv.names())
    assert estimators == core_algos.ADV_ESTIMATOR_REGISTRY
    assert losses == core_algos.POLICY_LOSS_REGISTRY


def test_verls_own_names_stay_verls():
    for registry in (core_algos.ADV_ESTIMATOR_REGISTRY, core_algos.POLICY_LOSS_REGISTRY):
        assert {f.__module__ for name, f in registry.items() if not name.startswith("gv_")} == {core_algos.__name__}


def test_a_name_that_somebody_else_has_is_an_error(monkeypatch):
    monkeypatch.setitem(core_algos.POLICY_LOSS_REGISTRY, "gv_rloo", core_algos.compute_policy_loss_vanilla)
    with pytest.raises(ValueError, match="verl already has a policy loss 'gv_rloo'"):
        grpo_variants_verl.register()


def test_registered_functions_can_be_sent_to_a_worker():
    loss = core_algos.get_policy_loss_fn("gv_gspo")
    assert pickle.loads(pickle.dumps(loss)) == loss


def test_verl_finds_the_plugin_by_its_entry_point_with_a_users_own_variant(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "import grpo_variants as gv\n"
        "gv.register(replace(gv.get('grpo,surrogate.high=0.5'), name='mine'))\n"
    )
    code = """
import json, verl
from verl.trainer.ppo import core_algos
registries = (core_algos.ADV_ESTIMATOR_REGISTRY, core_algos.POLICY_LOSS_REGISTRY)
print(json.dumps([sorted(n for n in registry if n.startswith("gv_")) for registry in registries]))
"""
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    (estimators, losses), _ = child(code, GRPO_VARIANTS_MODULES="mine", PYTHONPATH=path)
    assert estimators == losses == sorted(["gv_mine", *(f"gv_{name}" for name in gv.names())])


def test_without_the_plugin_a_run_stops_instead_of_training_something_else():
    """An estimator and a loss that are not there are errors in verl itself; the config class brings them along."""
    code = """
import json, verl
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos
from verl.utils.config import omega_conf_to_dataclass
found = []
for lookup in (core_algos.get_adv_estimator_fn, core_algos.get_policy_loss_fn):
    try:
        lookup("gv_rloo")
    except ValueError as error:
        found.append(str(error))
omega_conf_to_dataclass(OmegaConf.create({"_target_": "grpo_variants_verl.VariantPolicyLossConfig"}))
print(json.dumps([*found, core_algos.get_policy_loss_fn("gv_rloo").name]))
"""
    (estimator, loss, brought), _ = child(code, VERL_USE_EXTERNAL_PLUGINS="none")
    assert estimator == "Unknown advantage estimator simply: gv_rloo"
    assert loss.startswith("Unsupported loss mode: gv_rloo.")
    assert brought == "rloo"


def test_a_module_that_fails_is_named_although_verl_hides_it(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    code = """
import json, verl
from verl.trainer.ppo import core_algos
print(json.dumps("gv_rloo" in core_algos.POLICY_LOSS_REGISTRY))
"""
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    registered, log = child(code, GRPO_VARIANTS_MODULES="broken", PYTHONPATH=path)
    assert not registered
    assert "the plugin did not load, so no gv_ name is known to verl" in log
    assert "nothing_of_this_name" in log


@pytest.mark.slow
def test_the_plugin_adds_at_most_a_fifth_of_a_second():
    """Beyond core_algos; the lesser of two, without the collector's pauses over verl's million objects."""
    code = """
import gc, json, time
gc.disable()
import verl
from verl.trainer.ppo import core_algos
start = time.process_time()
import grpo_variants_verl
print(json.dumps(time.process_time() - start))
"""
    costs = [child(code, VERL_USE_EXTERNAL_PLUGINS="none")[0] for _ in range(2)]
    assert 0.01 < min(costs) <= 0.2
