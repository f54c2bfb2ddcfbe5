"""Configurations: what is refused before a model loads, what is reported once, what is filled in."""

import logging

import pytest
from grpo_variants_verl import VariantPolicyLossConfig, remove_checks, watch_config
from grpo_variants_verl.launch import CALLBACK, DRIVER_VARIABLE
from grpo_variants_verl.settings import estimator_choice, loss_choice
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl_configs import composed, validated

import grpo_variants as gv

ESTIMATOR = "algorithm.adv_estimator"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
TARGET = "actor_rollout_ref.actor.policy_loss._target_=grpo_variants_verl.VariantPolicyLossConfig"
AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"


def options(text):
    return f'+algorithm.grpo_variants.options="{text}"'


def loss_options(text):
    return (TARGET, f'+actor_rollout_ref.actor.policy_loss.options="{text}"')


@pytest.fixture
def reported(caplog):
    """What the adapter reported, one line each."""
    caplog.set_level(logging.WARNING, logger="grpo_variants_verl")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "grpo_variants_verl"]


def test_one_flag_is_enough_for_an_estimator():
    config = validated(f"{ESTIMATOR}=gv_rloo")
    assert estimator_choice("rloo", config.algorithm).variant.baseline == gv.get("rloo").baseline


def test_one_flag_is_enough_for_a_loss():
    config = validated(f"{LOSS}=gv_gspo")
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    variant = loss_choice("gspo", actor).variant
    assert (variant.surrogate.low, variant.surrogate.high) == (3e-4, 4e-4)


def test_names_are_written_as_verl_has_them_registered():
    """verl looks them up letter by letter."""
    config = validated(f"{ESTIMATOR}='gv_Dr. GRPO'", f"{LOSS}=GV-GSPO")
    assert config.algorithm.adv_estimator == "gv_dr_grpo"
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "gv_gspo"
    policy_loss = VariantPolicyLossConfig(loss_mode="gv_Dr-GRPO", options="surrogate.high=0.3")
    assert policy_loss.loss_mode == "gv_dr_grpo"


def test_options_reach_each_end():
    config = validated(
        f"{ESTIMATOR}=gv_grpo",
        options("scale=none,baseline=leave_one_out"),
        f"{LOSS}=gv_grpo",
        *loss_options("surrogate.high=0.28,aggregation=token_mean"),
    )
    rule = estimator_choice("grpo", config.algorithm).variant
    objective = loss_choice("grpo", omega_conf_to_dataclass(config.actor_rollout_ref.actor)).variant
    wanted = gv.get("grpo,scale=none,baseline=leave_one_out,surrogate.high=0.28,aggregation=token_mean")
    assert (rule.scale, rule.baseline) == (wanted.scale, wanted.baseline)
    assert (objective.surrogate, objective.aggregation) == (wanted.surrogate, wanted.aggregation)


def test_a_configuration_that_says_what_the_variant_says_has_nothing_to_report(reported):
    validated(
        f"{ESTIMATOR}=gv_rloo",
        f"{LOSS}=gv_rloo",
        f"{AGGREGATION}=seq-mean-token-sum",
    )
    assert reported() == []


def test_verls_own_configurations_are_left_alone(reported):
    before = composed(f"{ESTIMATOR}=grpo")
    assert validated(f"{ESTIMATOR}=grpo") == before
    assert reported() == []


def test_the_constant_is_the_longest_response_unless_something_is_said():
    factor = "actor_rollout_ref.actor.loss_scale_factor"
    assert OmegaConf.select(validated(f"{LOSS}=gv_dr_grpo", "data.max_response_length=321"), factor) == 321
    assert OmegaConf.select(validated(f"{LOSS}=gv_dr_grpo", f"{factor}=99"), factor) == 99
    said = validated(f"{LOSS}=gv_dr_grpo", *loss_options("aggregation.length=77"))
    assert OmegaConf.select(said, factor) is None


def test_workers_are_told_of_the_driver_and_of_a_users_own_modules(monkeypatch):
    monkeypatch.setenv("GRPO_VARIANTS_MODULES", "json")
    config = validated(f"{ESTIMATOR}=gv_rloo")
    told = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env)["env_vars"]
    assert told == {DRIVER_VARIABLE: gv.__version__, "GRPO_VARIANTS_MODULES": "json"}
    assert config.trainer.checkpoint_callback_class == CALLBACK


def test_a_users_own_callback_stays_and_is_told_how_to_write_the_card(reported):
    own = "verl.trainer.ppo.checkpoint_callback.CheckpointCallback"
    config = validated(f"{ESTIMATOR}=gv_rloo", f"trainer.checkpoint_callback_class={own}")
    assert config.trainer.checkpoint_callback_class == own
    assert any(f"writes no variant card: derive it from {CALLBACK}" in line for line in reported())


def test_a_second_check_of_the_same_run_says_nothing_again(reported, capsys):
    """The legacy trainer validates in its driver and in its task runner."""
    from verl.utils import config as verl_config

    config = validated(f"{LOSS}=gv_gspo")
    first, shown = len(reported()), capsys.readouterr().out
    verl_config.validate_config(config, use_reference_policy=False, use_critic=False)
    assert first == len(reported()) == 1
    assert "variant gspo" in shown
    assert "variant gspo" not in capsys.readouterr().out


def test_the_checks_can_be_taken_off_and_put_back():
    remove_checks()
    try:
        validated(f"{ESTIMATOR}=gv_rlo")  # verl itself finds out after the first rollout
    finally:
        watch_config()
        watch_config()
    with pytest.raises(ValueError, match="gv_rlo"):
        validated(f"{ESTIMATOR}=gv_rlo")
