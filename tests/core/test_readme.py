"""README.md says what is true: its snippets run, its commands, targets, links and overrides exist."""

import re
import shlex

import pytest
import torch
from support import readme

import grpo_variants as gv
from grpo_variants import registry
from grpo_variants.cli.app import app
from tools.docs import pages as docs_pages

INDEX = (readme.ROOT / "docs" / "index.md").read_text("utf-8")


@pytest.fixture
def namespace(monkeypatch):
    """Names after the blocks that need no trainer have run, in order and as they stand."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    names = {}
    for text in (readme.TEXT, INDEX):
        for code in readme.blocks("python", text):
            if not readme.is_trl(code):
                exec(compile(code, "README.md", "exec"), names)
    return names


def test_the_functions_give_the_numbers_of_the_text(namespace):
    # G = 8, two right: mean 1/4, sample deviation sqrt(3/14) = 0.4629; (1 - 1/4) / 0.4629 and (0 - 1/4) / 0.4629.
    right, wrong = 0.75 / (3 / 14) ** 0.5, -0.25 / (3 / 14) ** 0.5
    expected = torch.tensor([right, wrong, wrong, wrong, right, wrong, wrong, wrong])
    torch.testing.assert_close(namespace["advantages"], expected, rtol=1e-5, atol=0)
    for value in (right, wrong):
        assert f"{value:+.2f}" in readme.TEXT
    assert namespace["out"].loss.item() == pytest.approx(0, abs=1e-6)
    # Mean over each response of 5 tokens, then over 8 responses: the gradient is -A / 40 a token.
    torch.testing.assert_close(namespace["logp"].grad, -expected.unsqueeze(1).expand(8, 5) / 40, rtol=1e-5, atol=0)


def test_spec_strings_mean_what_their_comments_say(namespace):
    (spelt_out,) = re.findall(r'gv\.get\("([^"]+)"\)  # dr_grpo, spelt out$', INDEX, re.MULTILINE)
    assert docs_pages.spec_against(gv.get("dr_grpo")) == str(gv.get(spelt_out))
    assert gv.get("dapo,surrogate.high=0.3").surrogate.high == 0.3
    assert (gv.get("dapo,kl=k3,kl.beta=0.01").kl.estimator, gv.get("dapo,kl=k3,kl.beta=0.01").kl.beta) == ("k3", 0.01)
    assert gv.get("grpo,conventions=trl").scale.eps == 1e-4
    assert (gv.get("mine").kl.estimator, gv.get("mine").surrogate.high) == ("k2", 0.28)


def test_every_python_block_is_run_by_a_test():
    code = readme.blocks("python")
    assert [readme.is_trl(block) for block in code] == [True, False]


def test_the_readme_is_short_and_the_table_of_variants_is_the_catalogues():
    assert len(readme.TEXT.splitlines()) <= 110
    assert docs_pages.fill(readme.TEXT, "README.md") == readme.TEXT, f"run `{docs_pages.COMMAND}`"
    table = (readme.ROOT / "docs" / "variants" / "index.md").read_text("utf-8")
    for name in gv.names():
        assert f"[{name}]({name}.md)" in table
    assert "docs/variants/index.md" in readme.TEXT


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", readme.TEXT) if not link.startswith("http")]
    assert len(links) > 15
    assert [link for link in links if not (readme.ROOT / link).exists()] == []


def test_commands_and_make_targets_exist():
    known = {command.name for command in app.registered_commands}
    used = set(re.findall(r"grpo-variants (\w+)", readme.TEXT))
    assert used - known == set()
    assert {"trl", "list", "show"} <= used
    targets = set(re.findall(r"^make ([\w-]+)", "\n".join(readme.blocks("sh")), re.MULTILINE))
    assert targets == {"quickstart", "quickstart-verl", "test"}
    assert targets <= set(re.findall(r"^([\w-]+):", (readme.ROOT / "Makefile").read_text(), re.MULTILINE))


def test_extras_and_versions_are_those_of_the_package():
    project = (readme.ROOT / "pyproject.toml").read_text()
    for extra in re.findall(r"pip install \"\.\[(\w+)\]\"", readme.TEXT):
        assert f"\n{extra} = [" in project
    assert '"trl==1.16.*"' in project
    assert "TRL 1.16" in readme.TEXT
    assert '"verl==0.9.1"' in project
    assert "verl 0.9.1" in readme.TEXT
    assert 'requires-python = ">=3.10"' in project
    assert "Python 3.10 or newer" in readme.TEXT


def test_the_verl_overrides_name_variants_and_options():
    (block,) = [block for block in readme.blocks("sh") if "main_ppo" in block]
    overrides = dict(word.partition("=")[::2] for word in shlex.split(block.replace("\\\n", " "))[3:])
    loss = "actor_rollout_ref.actor.policy_loss"
    assert overrides["algorithm.adv_estimator"].removeprefix("gv_") in gv.names()
    assert overrides[f"{loss}.loss_mode"].removeprefix("gv_") in gv.names()
    assert overrides[f"{loss}._target_"] == "grpo_variants_verl.VariantPolicyLossConfig"
    options = overrides[f"+{loss}.options"].strip('"')
    assert gv.get(f"dapo,{options}").surrogate.high == 0.3
