"""VariantGRPOConfig: TRL's own values with a built-in loss type, a variant from any way in, and what is too late."""

import contextlib
import dataclasses
import inspect
import io
import json
import pickle
import re

import pytest
from grpo_variants_trl import VariantGRPOConfig, VariantGRPOTrainer
from grpo_variants_trl.config.flags import FLAGS
from grpo_variants_trl.config.grpo_config import BUILT_IN
from support import tiny_model
from support.trl.runs import lora, make
from trl import GRPOConfig, GRPOTrainer, TrlParser

import grpo_variants as gv

COMMON = dict(output_dir="unused", use_cpu=True, bf16=False, report_to="none")
# One explicit value a flag, none of them TRL's default.
EXPLICIT = {
    "beta": 0.1,
    "epsilon": 0.1,
    "epsilon_high": 0.3,
    "delta": 4.0,
    "scale_rewards": "batch",
    "importance_sampling_level": "sequence",
    "multi_objective_aggregation": "normalize_then_sum",
    "mask_truncated_completions": True,
    "top_entropy_quantile": 0.5,
    "use_bias_correction_kl": False,
    "off_policy_mask_threshold": 0.5,
    "sapo_temperature_neg": 2.0,
    "sapo_temperature_pos": 3.0,
    "vespo_k_pos": 4.0,
    "vespo_lambda_pos": 5.0,
    "vespo_k_neg": 6.0,
    "vespo_lambda_neg": 7.0,
    "vllm_importance_sampling_correction": False,
    "vllm_importance_sampling_mode": "token_mask",
    "vllm_importance_sampling_clip_max": 2.0,
    "vllm_importance_sampling_clip_min": 0.5,
    "vllm_importance_sampling_cap": 2.5,
}


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    """A trainer makes its output folder; not in the tree."""
    monkeypatch.chdir(tmp_path)


def config(loss_type="gv_dapo", **flags):
    return VariantGRPOConfig(**{**COMMON, "loss_type": loss_type, **flags})


def values(made):
    """Every field that TRL's config has."""
    return {f.name: getattr(made, f.name) for f in dataclasses.fields(GRPOConfig)}


def parse(arguments, yaml=None, folder=None):
    """The config as TRL's command line makes it."""
    arguments = ["--output_dir", "unused", "--use_cpu", "--bf16", "false", "--report_to", "none", *arguments]
    if yaml is not None:
        path = folder / "run.yaml"
        path.write_text(yaml)
        arguments += ["--config", str(path)]
    return TrlParser([VariantGRPOConfig]).parse_args_and_config(arguments)[0]


@pytest.mark.parametrize("loss_type", BUILT_IN)
def test_a_built_in_loss_type_gets_every_one_of_trls_defaults_back(loss_type):
    assert values(config(loss_type)) == values(GRPOConfig(**COMMON, loss_type=loss_type))


@pytest.mark.parametrize("flag", FLAGS)
def test_a_built_in_loss_type_keeps_an_explicit_flag(flag):
    given = {flag: EXPLICIT[flag]}
    assert getattr(GRPOConfig(**COMMON), flag) != EXPLICIT[flag]
    assert values(config("dapo", **given)) == values(GRPOConfig(**COMMON, loss_type="dapo", **given))


def test_a_built_in_loss_type_keeps_an_explicit_none_of_the_clip():
    flags = dict(vllm_importance_sampling_clip_max=None, vllm_importance_sampling_mode="token_mask")
    assert config("dapo", **flags).vllm_importance_sampling_clip_max is None


def test_scale_rewards_aliases_of_a_built_in_loss_type():
    assert [config("dapo", scale_rewards=word).scale_rewards for word in (True, False)] == ["group", "none"]


def test_a_built_in_loss_type_from_the_command_line_and_yaml(tmp_path):
    yaml = "loss_type: dapo\nscale_rewards: none\n"
    expected = values(GRPOConfig(**COMMON, loss_type="dapo", scale_rewards="none", beta=0.1))
    assert values(parse(["--beta", "0.1"], yaml, tmp_path)) == expected


SPEC = "gv_dapo,surrogate.high=0.3"
WAYS = {
    "flags": (["--loss_type", SPEC, "--beta", "0.1", "--mask_truncated_completions", "false"], None),
    "yaml": ([], f"loss_type: {SPEC}\nbeta: 0.1\nmask_truncated_completions: false\n"),
    "flags over yaml": (
        ["--loss_type", SPEC, "--beta", "0.1"],
        "loss_type: gv_grpo\nbeta: 0.2\nmask_truncated_completions: false\n",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_variant_from_the_command_line_and_yaml(tmp_path, way):
    made = parse(*WAYS[way], tmp_path)
    assert made.choice.variant == gv.get("dapo,surrogate.high=0.3,kl=k3,kl.beta=0.1,overlong=keep")
    assert made.choice.origins["surrogate.high"] == "loss_type (surrogate.high=0.3)"
    assert made.choice.origins["kl.beta"] == "flag beta=0.1"


def test_explicit_defaults_and_nulls_are_seen_from_yaml(tmp_path):
    off = parse([], "loss_type: gv_grpo\nbeta: 0.0\nscale_rewards: false\n", tmp_path)
    assert off.choice.variant == gv.get("grpo,kl=none,scale=none")
    text = "loss_type: gv_grpo\nvllm_importance_sampling_mode: token_mask\n"
    unset = parse([], text + "vllm_importance_sampling_clip_min: 0.5\n", tmp_path)
    assert unset.choice.variant.correction[0].high == 3.0
    null = parse(
        [], text + "vllm_importance_sampling_clip_min: 0.5\nvllm_importance_sampling_clip_max: null\n", tmp_path
    )
    assert null.choice.variant.correction[0].high is None


# What TRL's fields say of a variant: its own values where TRL has a flag for them, TRL's defaults elsewhere.
NATIVE = [
    ("gv_grpo", {"beta": 0.04, "scale_rewards": "group", "mask_truncated_completions": False}),
    ("gv_dapo", {"beta": 0.0, "scale_rewards": "group", "mask_truncated_completions": True}),
    ("gv_dr_grpo", {"beta": 0.0, "scale_rewards": "none", "mask_truncated_completions": False}),
    ("gv_reinforce_pp", {"beta": 0.01, "scale_rewards": "batch"}),
    ("gv_dapo,kl=k1,kl.beta=0.3,overlong=keep", {"beta": 0.3, "mask_truncated_completions": False}),
    ("gv_grpo", {"vllm_importance_sampling_correction": False}),
    ("gv_grpo,correction=token_truncate", {"vllm_importance_sampling_correction": True}),
    ("gv_grpo,ratio.anchor=rollout", {"vllm_importance_sampling_correction": True}),
    ("gv_grpo,correction=off_policy_mask,correction.threshold=0.5", {"vllm_importance_sampling_correction": False}),
    ("gv_gspo", {"epsilon": 3e-4, "epsilon_high": 4e-4, "delta": None, "importance_sampling_level": "sequence"}),
    ("gv_rloo", {"epsilon": 0.2, "epsilon_high": None, "delta": None, "importance_sampling_level": "token"}),
    ("gv_cispo", {"epsilon": 0.2, "epsilon_high": 5.0}),
    ("gv_gmpo", {"epsilon": 0.4, "epsilon_high": 0.4}),
    ("gv_two_sided", {"delta": 4.0}),
    ("gv_sapo,surrogate.tau_neg=2", {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 2.0}),
    ("gv_vespo", {"vespo_k_pos": 2.0, "vespo_k_neg": 3.0, "vespo_lambda_pos": 3.0, "vespo_lambda_neg": 2.0}),
    ("gv_gdpo", {"multi_objective_aggregation": "normalize_then_sum"}),
    ("gv_dapo,tokens=top_entropy,tokens.fraction=0.4", {"top_entropy_quantile": 0.4}),
    ("gv_grpo,kl.weighted=ratio", {"use_bias_correction_kl": True}),
    ("gv_grpo", {"use_bias_correction_kl": False}),
    ("gv_deepseek_v32", {"off_policy_mask_threshold": 0.5}),
    (
        "gv_dapo,correction=token_mask,correction.low=0.5,correction.high=5",
        {
            "vllm_importance_sampling_mode": "token_mask",
            "vllm_importance_sampling_clip_min": 0.5,
            "vllm_importance_sampling_clip_max": 5.0,
        },
    ),
    (
        "gv_dapo,correction=sequence_truncate,correction.cap=4",
        {
            "vllm_importance_sampling_mode": "sequence_truncate",
            "vllm_importance_sampling_clip_min": None,
            "vllm_importance_sampling_clip_max": 4.0,
        },
    ),
]


@pytest.mark.parametrize(("loss_type", "expected"), NATIVE)
def test_trl_reads_what_it_needs_for_the_variant(loss_type, expected):
    made = config(loss_type)
    assert {name: getattr(made, name) for name in expected} == expected


BOOLEANS = [f.name for f in dataclasses.fields(GRPOConfig) if f.type in ("bool", "bool | None", bool, bool | None)]


def forms(name):
    """What TRL's parser takes for a boolean."""
    dashed = name.replace("_", "-")
    always = [[f"--{name}"], [f"--{dashed}"], [f"--{name}", "false"], [f"--{dashed}=0"], [f"--{name}", "yes"]]
    return [*always, [f"--no_{name}"], [f"--no-{dashed}"]]


def parsed(cls, arguments):
    """The values that a parser makes of arguments, before the config checks them; None where it refuses."""
    parser = TrlParser([cls])
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        namespace, rest = parser.parse_known_args(["--output_dir", "unused", *arguments])
        return None if rest else namespace
    return None


@pytest.mark.parametrize("name", BOOLEANS)
def test_a_boolean_takes_every_form_that_trls_parser_takes(name):
    taken = 0
    for arguments in forms(name):
        stock = parsed(GRPOConfig, arguments)
        if stock is not None:
            taken += 1
            assert getattr(parsed(VariantGRPOConfig, arguments), name) is getattr(stock, name), arguments
    assert taken >= 3


SWITCHES = (
    "mask_truncated_completions",
    "use_bias_correction_kl",
    "vllm_importance_sampling_correction",
    "skip_zero_gradient_rows",
)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_boolean_that_may_be_unset_takes_every_form(name, capsys):
    values = [getattr(parsed(VariantGRPOConfig, arguments), name) for arguments in [[], *forms(name)]]
    assert values == [None, True, True, False, False, True, False, False]
    with pytest.raises(SystemExit):
        TrlParser([VariantGRPOConfig]).parse_args_and_config(["--output_dir", "unused", f"--no_{name}", "true"])
    assert f"--no_{name} takes no value; write --no_{name}, or --{name} true or false." in capsys.readouterr().err


def test_bare_flags_reach_the_variant_and_the_built_in_loss():
    assert parse(["--loss_type", "gv_grpo", "--mask_truncated_completions"]).choice.variant == gv.get(
        "grpo,overlong=mask"
    )
    assert parse(["--loss_type", "gv_dapo", "--no_mask_truncated_completions"]).choice.variant == gv.get(
        "dapo,overlong=keep"
    )
    assert parse(["--loss_type", "gv_grpo", "--use_bias_correction_kl"]).choice.variant.kl.weighted == "ratio"
    corrected = parse(["--loss_type", "gv_dapo", "--vllm_importance_sampling_correction"]).choice.variant
    assert corrected == gv.get("dapo,correction=sequence_mask,correction.low=none,correction.high=3")
    own = parse(["--loss_type", "dapo", "--mask_truncated_completions", "--no_use_bias_correction_kl"])
    assert (own.mask_truncated_completions, own.use_bias_correction_kl) == (True, False)


def test_the_command_line_explains_itself(capsys):
    with pytest.raises(SystemExit):
        TrlParser([VariantGRPOConfig]).parse_args_and_config(["--help"])
    printed = capsys.readouterr().out
    assert "--no_skip_zero_gradient_rows" in printed
    assert "as_given" not in printed


# Loss types and flags, each of which a config made from its own values has to keep.
OWN = {
    "a variant": ("gv_dapo", {}),
    "a KL term": ("gv_grpo", {"beta": 0.1}),
    "a KL term that is off": ("gv_grpo", {"beta": 0.0}),
    "a flag that changes nothing": ("gv_dapo", {"use_bias_correction_kl": False}),
    "clip bounds": ("gv_dapo,surrogate.high=0.3", {"epsilon": 0.1, "epsilon_high": 0.3}),
    "a scale by an alias": ("gv_dr_grpo", {"scale_rewards": True}),
    "an anchor at the engine": ("gv_grpo,ratio.anchor=rollout", {"vllm_importance_sampling_correction": False}),
    "a correction": ("gv_dapo", {"vllm_importance_sampling_mode": "token_mask"}),
    "no clip": (
        "gv_dapo",
        {"vllm_importance_sampling_clip_max": None, "vllm_importance_sampling_clip_min": 0.5},
    ),
    "a built-in loss": ("dapo", {"beta": 0.1, "epsilon_high": 0.3}),
    "steps per generation": ("gv_dapo", {"steps_per_generation": 4}),
    "a generation batch": ("gv_dapo", {"generation_batch_size": 32}),
}


@pytest.mark.parametrize("case", OWN)
def test_a_config_can_be_made_from_its_own_values(case):
    made = config(OWN[case][0], **OWN[case][1])
    saved = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    elsewhere = {"accelerator_config": None, "hub_token": None}
    for again in (dataclasses.replace(made), VariantGRPOConfig(**made.to_dict()), VariantGRPOConfig(**saved)):
        assert again.choice == made.choice
        # transformers hides a token that is written and replaces this object.
        assert values(again) | elsewhere == values(made) | elsewhere
        assert again.as_given == made.as_given


def test_a_changed_value_is_given_and_the_others_stay_as_they_were():
    made = config("gv_grpo", beta=0.1, gradient_accumulation_steps=2)
    again = dataclasses.replace(made, epsilon_high=0.28)
    assert again.choice.variant == gv.get("grpo,kl.beta=0.1,surrogate.high=0.28")
    assert again.choice.origins["surrogate.high"] == "flag epsilon_high=0.28"
    assert "surrogate.low" not in again.choice.origins
    off = dataclasses.replace(made, beta=0.0)
    assert off.choice.variant == gv.get("grpo,kl=none")
    with pytest.raises(ValueError, match=re.escape("sapo_temperature_neg=3.0: no effect on gv_grpo")):
        dataclasses.replace(made, sapo_temperature_neg=3.0)
    longer = dataclasses.replace(made, gradient_accumulation_steps=4)
    assert (longer.steps_per_generation, longer.generation_batch_size) == (4, 32)


@pytest.mark.parametrize(("before", "after"), [("gv_grpo", "gv_dapo"), ("dapo", "gv_gspo"), ("gv_gspo", "gv_rloo")])
def test_another_loss_type_takes_only_what_was_set(before, after):
    again = dataclasses.replace(config(before), loss_type=after)
    assert again.choice == config(after).choice
    tuned = dataclasses.replace(config(before, beta=0.07), loss_type=after)
    assert tuned.choice == config(after, beta=0.07).choice


ALONE = {"remax", "reinforce", "reinforce_pp", "w_reinforce", "psr", "nsr", "raft_pp", "krpo", "spo", "topr"}


@pytest.mark.parametrize("name", gv.names())
def test_one_response_a_prompt_is_for_variants_that_need_no_group(name):
    if name in ALONE:
        assert config(f"gv_{name}", num_generations=1).num_generations == 1
        return
    with pytest.raises(ValueError, match="at least 2 generations per prompt"):
        config(f"gv_{name}", num_generations=1)


@pytest.mark.parametrize("loss_type", ["gv_remax,scale=group_std", "gv_reinforce,baseline=leave_one_out", "dapo"])
def test_one_response_a_prompt_is_refused_where_the_spec_compares_within_groups(loss_type):
    with pytest.raises(ValueError, match="at least 2 generations per prompt"):
        config(loss_type, num_generations=1)


def test_trls_other_checks_still_run_for_a_variant_without_group():
    with pytest.raises(ValueError, match=r"must be divisible by num_generations \(3\)"):
        config("gv_remax", num_generations=3, per_device_train_batch_size=8)


UNKNOWN = {
    "dapo,surrogate.high=0.3": "Did you mean 'gv_dapo,surrogate.high=0.3'? Allowed: gv_ and a variant's name or spec",
    "gspo": "loss_type='gspo' is unknown. Did you mean 'gv_gspo'? Allowed: gv_ and a variant's name or spec string",
    "Dr. GRPO": "loss_type='Dr. GRPO' is unknown. Did you mean 'gv_dr_grpo' or TRL's own 'dr_grpo'? Allowed: gv_ and",
    "GSPO,kl=none": "loss_type='GSPO,kl=none' is unknown. Did you mean 'gv_gspo,kl=none'? Allowed: gv_ and a variant's",
    "dr_grpoo": "Did you mean 'dr_grpo'?",
    "gv_nope": "unknown variant 'gv_nope'. `grpo-variants list` and gv.names() have all",
    "gv_dap": "Did you mean 'dapo'?",
    "gv_": "unknown variant 'gv_'. `grpo-variants list` and gv.names() have all",
    "gv_dapo,clip=0.3": "dapo: unknown axis 'clip'; axes: selection, transform, baseline, scale,",
    "gv_dapo,surrogate.hi=0.3": "surrogate=clip has no field 'hi'. Did you mean 'high'? Its fields: low, high, dual.",
    "gv_dapo,scale=std": "dapo: scale='std' is unknown; choices of scale: none, group_std, batch_std,",
    "gv_dapo,surrogate.high=wide": "dapo: surrogate.high='wide' is not a number.",
    "gv_dapo,surrogate.high": "'surrogate.high' is not axis=choice or axis.field=value",
    "gv_dapo,kl=k3": "kl=k3 on 'dapo' needs kl.beta, which has no default",
    "gv_dapo,filter=none,filter=none": "filter is given twice",
}


@pytest.mark.parametrize("loss_type", UNKNOWN)
def test_a_wrong_spec_fails_when_the_config_is_made(loss_type):
    with pytest.raises(ValueError, match=re.escape(UNKNOWN[loss_type])):
        config(loss_type)


@pytest.mark.parametrize(
    ("loss_type", "spec"),
    [
        ("gv_GSPO", "gspo"),
        ("gv_Dr. GRPO,scale=group_std", "dr_grpo,scale=group_std"),
        ("GV-reinforce++,kl.beta=0.1", "reinforce_pp,kl.beta=0.1"),
    ],
)
def test_a_variants_name_may_be_written_as_people_write_it(loss_type, spec):
    assert str(config(loss_type).choice.variant) == spec
    plain = GRPOConfig(output_dir="unused", use_cpu=True, bf16=False, loss_type=loss_type, beta=0.1)
    assert plain.loss_type == loss_type


def test_the_help_of_the_loss_type_says_what_a_variant_is():
    (field,) = (f for f in dataclasses.fields(VariantGRPOConfig) if f.name == "loss_type")
    (own,) = (f for f in dataclasses.fields(GRPOConfig) if f.name == "loss_type")
    assert field.default == own.default
    assert field.metadata["help"].startswith("gv_ and a variant's name or spec string")
    assert field.metadata["help"].endswith(own.metadata["help"])


def test_trls_own_loss_types_are_those_that_its_trainer_computes():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    compared = re.findall(r"self\.loss_type (?:==|in) (\[.*?\]|\".*?\")", source)
    assert sorted(set(re.findall(r'"(\w+)"', " ".join(compared)))) == list(BUILT_IN)
    for word in BUILT_IN:
        assert config(word).choice is None


@pytest.mark.parametrize("number", [2.5, 4.0, "4"])
def test_a_part_of_a_response_is_refused(number):
    with pytest.raises(ValueError, match=re.escape(f"num_generations={number!r} is not a whole number; allowed: the")):
        config("gv_rloo", num_generations=number, per_device_train_batch_size=20)


def test_approximate_windows_needs_a_variant():
    assert config("gv_dapo", approximate_windows=True).approximate_windows
    with pytest.raises(ValueError, match="approximate_windows=True has no effect with the built-in loss_type='dapo'"):
        config("dapo", approximate_windows=True)


def test_a_config_survives_pickling():
    made = pickle.loads(pickle.dumps(config("gv_dapo,surrogate.high=0.3", beta=0.1)))
    assert made.choice == config("gv_dapo,surrogate.high=0.3", beta=0.1).choice
    assert values(made) == values(config("gv_dapo,surrogate.high=0.3", beta=0.1))


def test_a_config_is_written_as_plain_values():
    written = config("gv_dapo", beta=0.1).to_dict()
    assert (written["loss_type"], written["beta"], written["approximate_windows"]) == ("gv_dapo", 0.1, False)


def construct(made, **more):
    return VariantGRPOTrainer(
        model=tiny_model.model(),
        reward_funcs=tiny_model.ones,
        args=made,
        train_dataset=tiny_model.dataset(),
        processing_class=tiny_model.tokenizer(),
        peft_config=lora(),
        **more,
    )


@pytest.mark.parametrize(
    ("flag", "value"),
    [("beta", 0.1), ("epsilon", 0.1), ("scale_rewards", "none"), ("mask_truncated_completions", False)],
)
def test_a_flag_that_is_changed_too_late_is_refused(flag, value):
    made = config("gv_dapo")
    setattr(made, flag, value)
    text = f"{flag} was set to {value!r} after the config was made, where it cannot tune 'gv_dapo' any more. Give it to"
    with pytest.raises(ValueError, match=re.escape(text)):
        construct(made)


@pytest.mark.parametrize(("before", "after"), [("gv_dapo", "gv_grpo"), ("dapo", "gv_dapo"), ("gv_dapo", "dapo")])
def test_a_loss_type_that_is_changed_too_late_is_refused(before, after):
    made = config(before)
    made.loss_type = after
    text = f"loss_type was changed from {before!r} to {after!r} after the config was made; make a new config with it."
    with pytest.raises(ValueError, match=text):
        construct(made)


def test_a_plain_config_needs_the_variants_kl_coefficient(tmp_path):
    text = (
        "loss_type='gv_grpo' has kl.beta=0.04, but GRPOConfig has beta=0, from which the trainer builds its "
        "reference. Set beta=0.04, or use VariantGRPOConfig, or switch the KL term off with "
        "loss_type='gv_grpo,kl=none'."
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        make(tmp_path, "gv_grpo", config=GRPOConfig)
    assert make(tmp_path, "gv_grpo", config=GRPOConfig, beta=0.04).variant == gv.get("grpo")
    assert make(tmp_path, "gv_grpo,kl=none", config=GRPOConfig).variant == gv.get("grpo,kl=none")


@pytest.mark.parametrize("cls", [GRPOConfig, VariantGRPOConfig])
def test_an_unknown_loss_type_gets_its_hint_from_every_config(tmp_path, cls):
    text = "loss_type='rloo' is unknown. Did you mean 'gv_rloo'? Allowed: gv_ and a variant's name or spec string"
    with pytest.raises(ValueError, match=re.escape(text)):
        make(tmp_path, "rloo", config=cls)


def test_a_plain_config_is_read_by_what_differs_from_trls_defaults(tmp_path):
    trainer = make(tmp_path, "gv_dapo", config=GRPOConfig, epsilon=0.1, epsilon_high=0.3, beta=0.02)
    assert trainer.variant == gv.get("dapo,surrogate.low=0.1,surrogate.high=0.3,kl=k3,kl.beta=0.02")
    assert trainer.mask_truncated_completions is True
    assert trainer.variant_card.origins["surrogate.low"] == "flag epsilon=0.1"
    with pytest.raises(ValueError, match=r"epsilon=0\.1 alone sets both clip bounds"):
        make(tmp_path, "gv_dapo", config=GRPOConfig, epsilon=0.1)


def test_a_plain_config_with_a_built_in_loss_type_is_left_alone(tmp_path):
    trainer = make(tmp_path, "dapo", config=GRPOConfig, beta=0.02)
    assert (trainer.variant, trainer.beta, trainer.loss_type) == (None, 0.02, "dapo")
