"""The card of a run: estimator, loss and verl's own parts as one variant, written where checkpoints go."""

import json
import logging

import pytest
from grpo_variants_verl import VariantCallback, builtins
from grpo_variants_verl.cards import make_card
from grpo_variants_verl.run_config import read_run_config
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl_configs import composed, validated

import grpo_variants as gv
from grpo_variants import card
from grpo_variants.spelling import resolved_values
from grpo_variants.trainers.verl.translate import run_settings
from grpo_variants.trainers.verl.words import overrides

ESTIMATOR = "algorithm.adv_estimator"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
ACTOR = "actor_rollout_ref.actor"


def card_of(*words):
    return make_card(read_run_config(composed(*words)))


def whole(spec):
    """The overrides of a variant, as translate prints them."""
    return overrides(run_settings(gv.get(spec)))


# What verl does of each variant in its own way: its bounds of a KL, filter and truncated responses.
THEIRS = ("kl.bound", "kl.value_bound", "filter.max_rounds", "overlong")


def translatable(name):
    try:
        run_settings(gv.get(name))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in gv.names() if name != "remax" and translatable(name)])
def test_a_run_of_a_variant_is_that_variant(name):
    found, wanted = resolved_values(card_of(*whole(name)).variant), resolved_values(gv.get(name))
    differing = {key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)}
    assert {key for key in differing if not key.startswith(THEIRS)} == set()


def test_verls_bounds_of_the_kl_term_are_on_the_card():
    """verl clamps k3 at 10, which the paper's grpo does not."""
    found = card_of(*whole("grpo")).as_dict()
    assert found["spec"] == "grpo,kl.value_bound=10.0"
    assert found["values"]["kl.value_bound"] == {"value": 10.0, "origin": "verl's configuration"}
    assert found["values"]["kl.beta"] == {"value": 0.04, "origin": "paper"}


def test_equal_objectives_have_equal_hashes_whatever_the_trainer():
    """verl adds nothing to rloo: the hash is that of the bare variant."""
    assert card_of(*whole("rloo")).hash == card.Card(variant=gv.get("rloo"), trainer="trl").hash
    assert card_of(*whole("rloo"), f"{ACTOR}.entropy_coeff=0.01").hash != card_of(*whole("rloo")).hash


def test_the_length_of_dr_grpo_counts_under_the_name_that_trl_has():
    config = validated(f"{ESTIMATOR}=gv_dr_grpo", f"{LOSS}=gv_dr_grpo", "data.max_response_length=256")
    found = make_card(read_run_config(config))
    wanted = card.Card(variant=gv.get("dr_grpo"), trainer="trl", effective={"max_completion_length": 256})
    assert found.hash == wanted.hash


def test_an_estimator_with_verls_own_loss():
    """gv_rloo's advantages and verl's vanilla loss: its clip, dual clip and aggregation come from verl's fields."""
    found = card_of(f"{ESTIMATOR}=gv_rloo", f"{ACTOR}.clip_ratio_high=0.3")
    values = found.as_dict()["values"]
    assert values["baseline"] == {"value": "leave_one_out", "origin": "paper"}
    assert values["surrogate.high"] == {"value": 0.3, "origin": "loss vanilla"}
    assert values["surrogate.dual"]["value"] == 3.0
    assert values["aggregation"] == {"value": "token_mean", "origin": "loss vanilla"}
    assert found.variant.name == "rloo"


POLICY_LOSS = f"{ACTOR}.policy_loss"
# verl's own losses: overrides, and values of the card.
NATIVE = {
    "vanilla": ([], {"surrogate": "clip", "surrogate.dual": 3.0, "ratio.bound_low": 20.0}),
    "gspo": (
        [f"{ACTOR}.clip_ratio_low=3e-4"],
        {"ratio": "sequence_token", "surrogate.low": 3e-4, "surrogate.high": 0.2},
    ),
    "gpg": ([], {"surrogate": "reinforce", "ratio": "none"}),
    "cispo": (
        [f"{ACTOR}.clip_ratio_high=4.0"],
        {"surrogate": "cispo", "surrogate.cap": None, "surrogate.low": 0.2, "surrogate.high": 4.0},
    ),
    "sapo": (
        [f"{ACTOR}.tau_pos=2.0"],
        {"surrogate": "sapo", "surrogate.tau_pos": 2.0, "surrogate.tau_neg": 1.05, "aggregation": "sequence_mean"},
    ),
    "geo_mean": (
        [f"{ACTOR}.clip_ratio_low=0.4"],
        {"surrogate": "gmpo", "surrogate.low": 0.4, "surrogate.high": 0.2, "aggregation": "sequence_mean"},
    ),
    "dppo_tv": ([], {"surrogate": "dppo_tv", "surrogate.cap": 3.0, "surrogate.low": 0.2, "ratio.anchor": "old"}),
    "dppo_kl": ([f"{ACTOR}.clip_ratio_c=20.0"], {"surrogate": "dppo_kl", "surrogate.cap": 20.0, "surrogate.high": 0.2}),
    "clip_cov": (
        [f"{POLICY_LOSS}.clip_cov_ratio=0.01", f"{POLICY_LOSS}.clip_cov_lb=0.5"],
        {"surrogate": "clip_cov", "surrogate.fraction": 0.01, "surrogate.cov_low": 0.5, "surrogate.cov_high": 5.0},
    ),
    "kl_cov": ([], {"surrogate": "kl_cov", "surrogate.coef": 0.1, "surrogate.fraction": 2e-4, "ratio.bound_low": None}),
    "dro": ([f"{POLICY_LOSS}.dro_beta=0.3"], {"surrogate": "dro", "surrogate.tau": 0.3, "ratio": "token"}),
    "bypass_mode": ([], {"surrogate": "clip", "surrogate.dual": 3.0, "ratio.anchor": "rollout"}),
}


def test_every_loss_of_verls_is_on_the_card():
    own = {name for name in POLICY_LOSS_REGISTRY if not name.startswith("gv_")}
    assert own == NATIVE.keys() == {name.partition(",")[0] for name in builtins.LOSSES}


@pytest.mark.parametrize("loss", NATIVE)
def test_verls_own_losses_are_described(loss):
    words, expected = NATIVE[loss]
    found = card_of(f"{ESTIMATOR}=gv_rloo", f"{LOSS}={loss}", *words)
    values = found.as_dict()["values"]
    assert {key: values[key]["value"] for key in expected} == expected
    assert values["surrogate"]["origin"] == f"loss {loss}"
    assert "aggregation" in expected or values["aggregation"]["value"] == "token_mean"
    assert not any("does not describe" in note for note in found.notes)


def test_a_loss_that_is_described_in_part_says_so(parity):
    assert "verl's geo_mean is a mean over the responses of each micro-batch, whatever the step's counts." in (
        card_of(f"{ESTIMATOR}=gv_rloo", f"{LOSS}=geo_mean").notes
    )
    by_weight = f"+{POLICY_LOSS}.rollout_correction.loss_type=reinforce"
    for words, missing in (
        (
            [f"{LOSS}=bypass_mode", by_weight],
            "The policy loss is verl's own bypass_mode, which this card does not describe.",
        ),
        ([f"{ACTOR}.loss_agg_mode=token-sum"], "verl aggregates by token-sum, which this card does not describe."),
    ):
        assert missing in card_of(f"{ESTIMATOR}=gv_rloo", *words).notes
    parity.missing("loss_agg_mode='token-sum'", "every aggregation here is a mean, or divided by a constant")


@pytest.mark.parametrize("estimator", ["grpo", "grpo_passk", "grpo_vectorized"])
def test_the_flag_that_keeps_verls_own_estimators_from_dividing(estimator):
    found = card_of(f"{ESTIMATOR}={estimator}", "algorithm.norm_adv_by_std_in_grpo=False", f"{LOSS}=gv_gspo")
    divides = estimator == "grpo_vectorized"  # it is not handed the flag
    assert found.as_dict()["values"]["scale"]["value"] == ("group_std" if divides else "none")


def test_a_loss_with_verls_own_estimator():
    found = card_of(f"{ESTIMATOR}=grpo", "algorithm.norm_adv_by_std_in_grpo=False", f"{LOSS}=gv_gspo").as_dict()
    assert found["values"]["scale"] == {"value": "none", "origin": "estimator grpo"}
    assert found["values"]["singleton"]["value"] == "raw"
    assert found["values"]["surrogate.high"] == {"value": 4e-4, "origin": "paper"}


def test_where_the_users_values_come_from():
    found = card_of(
        f"{ESTIMATOR}=gv_dapo",
        '+algorithm.grpo_variants.options="scale=none"',
        f"{LOSS}=gv_dapo",
        f"{ACTOR}.clip_ratio_high=0.4",
        f"{ACTOR}.use_kl_loss=True",
        f"{ACTOR}.kl_loss_type=mse",
        f"{ACTOR}.kl_loss_coef=0.02",
    ).as_dict()["values"]
    assert found["scale"] == {"value": "none", "origin": "algorithm.grpo_variants.options"}
    assert found["surrogate.high"] == {"value": 0.4, "origin": "actor_rollout_ref.actor.clip_ratio_high"}
    assert found["kl"] == {"value": "k2", "origin": "verl's configuration"}
    assert found["kl.beta"] == {"value": 0.02, "origin": "verl's configuration"}


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        (["rollout_is=token", "rollout_is_threshold=3.0"], "token_truncate,correction.cap=3.0"),
        (["rollout_is=token", 'rollout_is_threshold="0.5_5.0"'], "token_mask,correction.low=0.5,correction.high=5"),
        (["rollout_is=sequence"], "sequence_truncate"),
        (
            ["rollout_rs=seq_mean_k1", 'rollout_rs_threshold="0.5_4.0"'],
            "geometric_mask,correction.low=0.25,correction.high=2",
        ),
    ],
)
def test_verls_rollout_correction_is_on_the_card(words, spec):
    """rollout_rs bounds -log w: 0.5 to 4 keeps weights from 1/4 to 1/0.5."""
    found = card_of(*whole("rloo"), *(f"algorithm.rollout_correction.{word}" for word in words))
    assert found.variant.correction == gv.get(f"rloo,correction={spec}").correction


def test_a_correction_without_log_probabilities_is_none():
    """verl computes no weight where the rollout engine's log-probabilities are not kept."""
    words = ("algorithm.rollout_correction.rollout_is=token", "actor_rollout_ref.rollout.calculate_log_probs=False")
    found = card_of(*whole("rloo"), *words)
    assert found.variant.correction == ()
    note = "verl computes no rollout correction, since the rollout engine's log-probabilities are not kept."
    assert found.notes == (note,)


def test_weights_stay_on_the_card_beside_a_rejection_that_it_cannot_describe():
    correction = ("rollout_is=token", "rollout_rs=token_k2", "rollout_rs_threshold=0.1")
    found = card_of(*whole("rloo"), *(f"algorithm.rollout_correction.{word}" for word in correction))
    assert found.variant.correction == gv.get("rloo,correction=token_truncate").correction
    assert found.notes == ("verl rejects by rollout_rs=token_k2.",)


def test_normalised_weights_are_another_objective():
    weights = "algorithm.rollout_correction.rollout_is=token"
    plain = card_of(*whole("rloo"), weights)
    found = card_of(*whole("rloo"), weights, "algorithm.rollout_correction.rollout_is_batch_normalize=True")
    assert found.notes == ("verl divides the rollout weights by their mean over the batch.",)
    assert found.hash != plain.hash
    assert plain.notes == ()


def test_an_adaptive_coefficient_is_on_the_card():
    found = card_of(*whole("reinforce_pp"), "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.target_kl=0.2")
    assert found.as_dict()["effective"]["kl_control"] == "adaptive, towards a KL of 0.2 over a horizon of 10000"
    assert found.notes == (
        "verl changes the coefficient of the KL penalty during the run; kl.beta is what it starts from.",
    )
    assert found.hash != card_of(*whole("reinforce_pp")).hash


def test_a_reference_without_the_adapter_is_on_the_card():
    adapter = "actor_rollout_ref.model.lora_adapter_path=/adapter"
    note = "The KL's reference is the base model without the adapter that the run starts from."
    assert note in card_of(*whole("grpo"), adapter).notes
    assert note not in card_of(*whole("rloo"), adapter).notes


def test_the_filter_is_the_one_that_the_trainer_has():
    """The V1 trainer draws without a bound, the legacy trainer filters nothing; the paper's bound is neither."""
    values = card_of(*whole("dapo")).as_dict()["values"]
    assert values["filter.max_rounds"] == {"value": None, "origin": "verl's configuration"}
    assert gv.get(card_of(*whole("dapo")).as_dict()["spec"]).filter.max_rounds is None
    assert card_of(*whole("dapo"), "trainer.use_v1=False").as_dict()["values"]["filter"]["value"] == "none"


def test_what_the_card_cannot_describe_it_says(parity):
    found = card_of(f"{ESTIMATOR}=gae", f"{LOSS}=gv_gspo", "algorithm.rollout_correction.bypass_mode=True")
    assert found.notes == (
        "Advantages are verl's own gae, which this card does not describe.",
        "Bypass mode: the old log-probabilities are the rollout engine's.",
    )
    parity.missing("estimator gae", "it needs a critic")


def test_the_callback_writes_beside_checkpoints_and_into_each(tmp_path):
    config = composed(*whole("rloo"), f"trainer.default_local_dir={tmp_path}/out")
    callback = VariantCallback(config=config)
    assert json.loads((tmp_path / "out" / card.FILE_NAME).read_text())["spec"] == "rloo"
    callback.on_save(trainer=None, global_step=3, checkpoint_dir=f"{tmp_path}/out/global_step_3", async_save=False)
    assert card.read_card(tmp_path / "out" / "global_step_3")["hash"] == card.read_card(tmp_path / "out")["hash"]


def test_the_legacy_trainer_has_no_callback_so_the_driver_writes(tmp_path):
    validated(f"{ESTIMATOR}=gv_rloo", "trainer.use_v1=False", f"trainer.default_local_dir={tmp_path}/out")
    assert card.read_card(tmp_path / "out")["values"]["baseline"]["value"] == "leave_one_out"


def test_the_run_starts_by_showing_its_card(capsys):
    validated(f"{ESTIMATOR}=gv_rloo", f"{LOSS}=gv_rloo")
    assert "variant rloo  (objective hash" in capsys.readouterr().out


@pytest.fixture
def reported(caplog):
    """What the adapter reported, one line each."""
    caplog.set_level(logging.WARNING, logger="grpo_variants_verl")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "grpo_variants_verl"]


def started(folder, *words):
    return VariantCallback(config=composed(*words, f"trainer.default_local_dir={folder}"))


def checkpointed(folder, step, callback=None):
    """A checkpoint as verl leaves it, with the callback's card."""
    (folder / f"global_step_{step}").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    if callback is not None:
        callback.on_save(trainer=None, global_step=step, checkpoint_dir=f"{folder}/global_step_{step}")
    return folder / f"global_step_{step}"


OTHER = "actor_rollout_ref.actor.clip_ratio_high=0.35"


def test_a_resume_with_another_objective_is_reported_and_the_earlier_card_stays(tmp_path, reported):
    first = started(tmp_path, *whole("grpo"))
    checkpoint = checkpointed(tmp_path, 2, first)
    started(tmp_path, *whole("grpo"))
    assert reported() == []
    second = started(tmp_path, *whole("grpo"), OTHER)
    line = f"{checkpoint} was trained with another objective:\n  surrogate.high: 0.2 -> 0.35"
    assert reported() == [line]
    assert card.read_card(tmp_path)["hash"] == second.card.hash
    assert card.read_card(checkpoint)["hash"] == first.card.hash
    kept = json.loads((tmp_path / f"grpo_variant.{first.card.hash}.json").read_text())
    assert kept["hash"] == first.card.hash


def test_a_checkpoint_is_named_by_its_path_too(tmp_path, reported):
    old = checkpointed(tmp_path / "old", 3, started(tmp_path / "old", *whole("grpo")))
    path = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={old}")
    started(tmp_path / "new", *whole("gspo"), *path)
    (line,) = reported()
    assert line.startswith(f"{old} was trained with another objective:\n  ratio: token -> sequence\n")
    assert card.read_card(tmp_path / "old")["variant"] == "grpo"


def test_a_run_from_the_start_reports_nothing_and_keeps_the_earlier_card(tmp_path, reported):
    first = started(tmp_path, *whole("grpo"))
    checkpointed(tmp_path, 2, first)
    started(tmp_path, *whole("grpo"), OTHER, "trainer.resume_mode=disable")
    assert reported() == []
    assert (tmp_path / f"grpo_variant.{first.card.hash}.json").exists()


def test_the_legacy_trainer_compares_with_the_card_beside_its_checkpoints(tmp_path, reported):
    words = (f"{ESTIMATOR}=gv_rloo", "trainer.use_v1=False", f"trainer.default_local_dir={tmp_path}")
    validated(*words)
    checkpoint = checkpointed(tmp_path, 1)
    validated(*words, f"{ACTOR}.clip_ratio_high=0.3")
    line = f"{checkpoint} was trained with another objective:\n  surrogate.high: 0.2 -> 0.3"
    assert line in reported()


def test_a_damaged_card_is_named_kept_and_stops_nothing(tmp_path, reported):
    first = started(tmp_path, *whole("grpo"))
    checkpoint = checkpointed(tmp_path, 2, first)
    torn = (tmp_path / card.FILE_NAME).read_text()[:100]
    (tmp_path / card.FILE_NAME).write_text(torn)
    (checkpoint / card.FILE_NAME).write_text(torn)
    started(tmp_path, *whole("gspo"))
    assert card.read_card(tmp_path)["variant"] == "gspo"
    assert (tmp_path / "grpo_variant.unreadable.json").read_text() == torn
    places = [line.split(" is truncated or damaged")[0] for line in reported()]
    assert places == [str(folder / card.FILE_NAME) for folder in (tmp_path, checkpoint)]


STATISTIC = (
    "floor and ceiling of bapo are those of each micro-batch of each worker, since a policy loss in verl sees no more. "
    "They are the step's on one worker, with actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu as large as "
    "actor_rollout_ref.actor.ppo_mini_batch_size times actor_rollout_ref.rollout.n."
)
# The mini-batch is 4 prompts of 2 responses.
ONE = ("actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8")
SPLITS = [
    (ONE, 0),
    ((ONE[0], "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"), 1),
    ((*ONE, "trainer.n_gpus_per_node=2"), 1),
    ((*ONE, "trainer.nnodes=2"), 1),
    ((*ONE, "actor_rollout_ref.actor.use_dynamic_bsz=True"), 1),
]


@pytest.mark.parametrize(("overrides", "count"), SPLITS)
def test_the_card_says_where_a_statistic_is_a_micro_batchs(overrides, count):
    """A step that is one micro-batch on one worker has the whole step's statistic."""
    assert card_of(*whole("bapo"), *overrides).notes.count(STATISTIC) == count
    assert STATISTIC not in card_of(*whole("grpo"), *overrides).notes
