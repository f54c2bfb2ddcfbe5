"""`python -m verl.trainer.main_ppo` by the example's script: Ray, LoRA and KL, two steps, one worker and two."""

import sys

import pytest
import verl_cpu
from grpo_variants_verl.run_config import read_run_config, refusals, reports
from verl_configs import from_command_line
from verl_cpu.overrides import small_run
from verl_cpu.run import Runs, metrics, script

from grpo_variants import card

SPEC = "rloo,kl=k2,kl.beta=0.05"
WORKERS = (1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("verl")


@pytest.fixture(scope="module")
def runs(folder):
    """A run on one worker and one on two, which draw the same responses in their first step."""
    return Runs({workers: trained(folder, workers) for workers in WORKERS})


def trained(folder, workers):
    places = {"DATA": str(folder / "data"), "OUT": str(folder / f"out{workers}"), "GPUS": str(workers)}
    return script("--cpu-smoke", SPEC, "trainer.save_freq=2", **places)


@pytest.fixture
def logs(runs):
    """What the runs printed."""
    return runs.logs()


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_it_trains(logs, workers):
    """Advantages, loss and gradient are not 0, and the KL to the base model grows from the second step on."""
    first, second = metrics(logs[workers])
    for step in (first, second):
        assert step["critic/advantages/max"] > 0.05
        assert step["critic/advantages/min"] < -0.05
        assert abs(step["actor/pg_loss"]) > 0.01
        assert step["actor/grad_norm"] > 0.01
    assert first["actor/kl_loss"] == 0
    assert second["actor/kl_loss"] > 1e-5
    assert second["actor/kl_coef"] == 0.05


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_leave_one_out_advantages_average_to_nothing(logs, workers):
    """Each group's advantages add up to 0; the logged mean is over tokens, and lengths differ a little."""
    for step in metrics(logs[workers]):
        assert abs(step["critic/advantages/mean"]) < 0.1 * step["critic/advantages/max"]


@pytest.mark.slow
def test_two_workers_have_the_loss_of_one(logs):
    """The same responses in the first step, split over two ranks whose gradients verl averages."""
    one, two = (metrics(logs[workers])[0] for workers in WORKERS)
    for key in ("actor/pg_loss", "critic/score/mean", "critic/advantages/max", "critic/advantages/min"):
        assert two[key] == pytest.approx(one[key], rel=1e-5)
    assert one["critic/score/max"] > one["critic/score/min"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_the_run_shows_its_variant_and_reports_nothing_for_what_translate_printed(logs, workers):
    assert f"variant {SPEC}" in logs[workers]
    assert "Fix:" not in logs[workers]
    assert "health: 2 steps checked, nothing found." in logs[workers]
    assert [step["gv/health/findings"] for step in metrics(logs[workers])] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_the_card_lies_beside_the_checkpoints_and_in_each(logs, folder, workers):
    out = folder / f"out{workers}"
    beside, inside = card.read_card(out), card.read_card(out / "global_step_2")
    assert beside == inside
    assert beside["spec"].startswith(SPEC)
    assert beside["host"] == "verl"
    assert "verl" in beside["versions"]


@pytest.mark.slow
def test_a_typo_costs_seconds(folder):
    """Refused before Ray starts and before a model is looked for: there is none, and no worker has said a word."""
    words = [*small_run(folder / "nothing", folder / "none"), "algorithm.adv_estimator=gv_rlo"]
    command = [sys.executable, "-W", "ignore", "-m", "verl.trainer.main_ppo", *words]
    done = script(command=command, cwd=folder, **verl_cpu.environment())
    assert done.returncode == 1
    assert "adv_estimator='gv_rlo' is unknown" in done.stdout
    assert "Did you mean 'gv_rloo'?" in done.stdout
    assert "pid=" not in done.stdout


@pytest.mark.parametrize(
    "spec", ["dapo,kl=k3,kl.beta=0.001,filter.metric=acc,overlong=penalty,overlong.buffer=128", "dr_grpo"]
)
def test_the_configuration_for_a_gpu_is_one_that_verl_takes(spec):
    """The same script without --cpu-smoke: composed by Hydra, nothing refused, nothing left to report."""
    printed = script("--print", spec, DATA="/data", OUT="/out")
    assert printed.returncode == 0, printed.stdout
    overrides = [line for line in printed.stdout.splitlines() if "=" in line]
    run = read_run_config(from_command_line(*overrides))
    assert list(refusals(run)) == []
    assert [report for report in reports(run) if not report.startswith("clip_ratio_c")] == []
    assert run.get("actor_rollout_ref.model.lora_rank") == 32


def test_a_slow_machine_is_one_short_line():
    """Stopped with all that it has started; one test fails by that line, and those after it are left out."""
    slow = script(command=["bash", "-c", "sleep 60 & echo begun; wait"], limit=0.5)
    assert (slow.returncode, slow.stdout) == (None, "begun\n")
    runs = Runs({1: slow})
    line = "main_ppo did not end within 0.5 s: the machine is too slow or too busy"
    with pytest.raises(pytest.fail.Exception) as failed:
        runs.logs()
    assert (failed.value.msg, failed.value.pytrace) == (line, False)
    with pytest.raises(pytest.skip.Exception):
        runs.logs()


def test_the_script_says_what_it_needs():
    assert "give a variant" in script().stdout
    assert script("--gpu", "rloo").returncode == 2
