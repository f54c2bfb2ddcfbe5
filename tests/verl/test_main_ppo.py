"""`python -m verl.trainer.main_ppo` with Ray, LoRA and KL: two steps, one worker and two."""

import shlex

import pytest
from verl_cpu import tiny
from verl_cpu.run import main_ppo, metrics

import grpo_variants as gv
from grpo_variants import card
from grpo_variants.cli.translate import verl_lines

pytestmark = pytest.mark.slow

SPEC = "rloo,kl=k2,kl.beta=0.05"
LORA = ["actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8"]
RUNS = {1: ["trainer.save_freq=2"], 2: []}


def words(spec):
    """The overrides that `grpo-variants translate` prints, as a shell hands them on."""
    return shlex.split("\n".join(verl_lines(gv.get(spec))).replace("\\\n", " "), comments=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.make(tmp_path_factory.mktemp("verl"))


@pytest.fixture(scope="module")
def logs(folder):
    """Output of a run on one worker and of a run on two, which draw the same responses in their first step."""
    finished = {n: main_ppo(folder, folder / f"out{n}", [*LORA, *more, *words(SPEC)], n) for n, more in RUNS.items()}
    for done in finished.values():
        assert done.returncode == 0, done.stdout[-4000:]
    return {workers: done.stdout for workers, done in finished.items()}


@pytest.mark.parametrize("workers", RUNS)
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


@pytest.mark.parametrize("workers", RUNS)
def test_leave_one_out_advantages_average_to_nothing(logs, workers):
    """Each group's advantages add up to 0; the logged mean is over tokens, and lengths differ a little."""
    for step in metrics(logs[workers]):
        assert abs(step["critic/advantages/mean"]) < 0.1 * step["critic/advantages/max"]


def test_two_workers_have_the_loss_of_one(logs):
    """The same responses in the first step, split over two ranks whose gradients verl averages."""
    one, two = (metrics(logs[workers])[0] for workers in (1, 2))
    for key in ("actor/pg_loss", "critic/score/mean", "critic/advantages/max", "critic/advantages/min"):
        assert two[key] == pytest.approx(one[key], rel=1e-5)
    assert one["critic/score/max"] > one["critic/score/min"]


@pytest.mark.parametrize("workers", RUNS)
def test_the_run_shows_its_variant_and_reports_nothing_for_what_translate_printed(logs, workers):
    assert f"variant {SPEC}" in logs[workers]
    assert "Mend:" not in logs[workers]


def test_the_card_lies_beside_the_checkpoints_and_in_each(logs, folder):
    beside, inside = card.read_card(folder / "out1"), card.read_card(folder / "out1" / "global_step_2")
    assert beside == inside
    assert beside["spec"].startswith(SPEC)
    assert beside["host"] == "verl"
    assert "verl" in beside["versions"]


def test_a_typo_costs_seconds(folder):
    """Refused before Ray starts: no worker has said a word."""
    done = main_ppo(folder, folder / "none", ["algorithm.adv_estimator=gv_rlo"], timeout=120)
    assert done.returncode == 1
    assert "adv_estimator='gv_rlo' is unknown" in done.stdout
    assert "Did you mean 'gv_rloo'?" in done.stdout
    assert "pid=" not in done.stdout
