"""Names as people type them: every spelling is the registered variant, and no spelling means two of them."""

import pytest
from typer.testing import CliRunner

import grpo_variants as gv
from grpo_variants import registry as registry_module
from grpo_variants.advantage.baseline import LeaveOneOut
from grpo_variants.catalogue import CATALOGUE
from grpo_variants.cli.app import app
from grpo_variants.names import is_prefixed, key_of

SPELLINGS = {
    "GSPO": "gspo",
    "Dr. GRPO": "dr_grpo",
    "DrGRPO": "dr_grpo",
    "dr-grpo": "dr_grpo",
    "lite-ppo": "lite_ppo",
    "Lite PPO": "lite_ppo",
    "reinforce++": "reinforce_pp",
    "REINFORCE++-baseline": "reinforce_pp_baseline",
    "Reinforce++ Baseline": "reinforce_pp_baseline",
    "GSPO-token": "gspo_token",
    "GTPO\N{NON-BREAKING HYPHEN}entropy": "gtpo_entropy",
    "DeepSeek-V3.2": "deepseek_v32",
    "Kimi k1.5": "kimi_k15",
    "CE-GPPO": "ce_gppo",
    "gv_dapo": "dapo",
    "GV-DAPO": "dapo",
    " gv_Dr.GRPO ": "dr_grpo",
}


@pytest.fixture
def registry(monkeypatch):
    """A registry that forgets what a test adds."""
    monkeypatch.setattr(registry_module, "_REGISTRY", dict(registry_module._REGISTRY))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_name_may_be_written_as_people_write_it(spelling):
    name = SPELLINGS[spelling]
    assert gv.get(spelling) == gv.get(name)
    assert gv.get(f"{spelling},aggregation=token_mean") == gv.get(f"{name},aggregation=token_mean")
    assert str(gv.get(spelling)) == name


def test_functions_and_commands_take_every_spelling():
    rewards, groups = [1.0, 0.0, 0.0], ["q"] * 3
    assert gv.advantages("Dr. GRPO", rewards, groups).tolist() == gv.advantages("dr_grpo", rewards, groups).tolist()
    for command in (["show", "{}"], ["translate", "{}", "--to", "trl"], ["translate", "{}", "--to", "verl"]):
        outputs = [CliRunner().invoke(app, [word.format(name) for word in command]) for name in ("dr_grpo", "Dr. GRPO")]
        assert outputs[0].exit_code == outputs[1].exit_code == 0
        assert outputs[0].output == outputs[1].output


def test_no_two_variants_share_a_spelling():
    keys = [key_of(variant.name) for variant in CATALOGUE]
    assert sorted(keys) == sorted(set(keys))
    assert len(gv.names()) >= len(CATALOGUE) == len(keys)
    assert [gv.get(name).name for name in gv.names()] == list(gv.names())
    assert not any(is_prefixed(name) for name in gv.names())


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", ["d_apo", "DAPO", "gv_dapo"])
def test_a_users_name_must_not_read_as_another_one(name):
    with pytest.raises(ValueError, match=f"the name '{name}' reads as 'dapo', which is another variant"):
        gv.register(gv.Variant(name=name, baseline=LeaveOneOut()))
    assert gv.get("dapo").name == "dapo"


@pytest.mark.usefixtures("registry")
def test_a_users_own_name_may_be_written_in_any_way_too():
    mine = gv.register(gv.Variant(name="My_Own", baseline=LeaveOneOut()))
    assert [gv.get(word) for word in ("My_Own", "my-own", "gv_my_own")] == [mine] * 3
    assert gv.register(mine) is mine
    with pytest.raises(ValueError, match="the name 'My_Own' is taken by another variant"):
        gv.register(gv.Variant(name="My_Own"))


def test_a_variant_that_is_not_registered_is_not_taken_for_one_that_it_reads_as():
    """Its spec string says what differs from the defaults, not from the registered variant."""
    assert str(gv.Variant(name="d_apo", baseline=LeaveOneOut())) == "d_apo,baseline=leave_one_out"


@pytest.mark.parametrize("word", ["gv_dapo", "GV-dapo", " gv dapo", "gv.dapo"])
def test_a_prefix_in_any_spelling(word):
    assert is_prefixed(word)
    assert key_of(word) == "dapo"


@pytest.mark.parametrize("word", ["dapo", "gvdapo", "gv", ""])
def test_what_has_no_prefix(word):
    assert not is_prefixed(word)


SUGGESTIONS = {
    "grpoo": "unknown variant 'grpoo'. Did you mean 'grpo'? `grpo-variants list` and gv.names() have all ",
    "DAPOO": "unknown variant 'DAPOO'. Did you mean 'dapo'? `grpo-variants list`",
    "quite another word": "unknown variant 'quite another word'. `grpo-variants list` and gv.names() have all ",
    "grpo,surogate=clip": "grpo: unknown axis 'surogate'. Did you mean 'surrogate'? Axes: selection, transform, ",
    "grpo,surrogate=clop": "grpo: surrogate='clop' is unknown. Did you mean 'clip'? Choices of surrogate: reinforce, ",
    "grpo,surrogate.hihg=0.3": "grpo: surrogate=clip has no field 'hihg'. Did you mean 'high'? Its fields: low, high, ",
    "grpo,scale.eps_in=vra": "grpo: scale.eps_in='vra' is unknown. Did you mean 'var'? Allowed: std, var, floor.",
    "grpo,scale.eps_in=q": "grpo: scale.eps_in='q' is unknown; allowed: std, var, floor.",
}


@pytest.mark.parametrize("spec", SUGGESTIONS)
def test_a_suggestion_comes_first_and_the_list_last_and_short(spec):
    with pytest.raises(ValueError, match=r"\w") as refused:
        gv.get(spec)
    assert str(refused.value).startswith(SUGGESTIONS[spec])
    assert len(str(refused.value)) < 400
