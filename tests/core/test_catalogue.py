"""The registry: the catalogue's members, a user's own, and the modules that every process imports."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

import grpo_variants as gv
from grpo_variants import registry
from grpo_variants.advantage.baseline import GroupMean
from grpo_variants.catalogue import CATALOGUE

SEED_MEMBERS = (
    "reinforce",
    "rloo",
    "grpo",
    "grpo_process",
    "dr_grpo",
    "dapo",
    "gspo",
    "gspo_token",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
)


@pytest.fixture
def own_registry(monkeypatch):
    """A registry that forgets what a test registers."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def child(code, folder, modules):
    """Run code in another interpreter that finds this package and the modules of a folder."""
    path = os.pathsep.join([str(folder), os.getcwd(), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "GRPO_VARIANTS_MODULES": modules}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)


def test_names_start_with_the_catalogue_in_its_order():
    names = gv.names()
    assert names[: len(SEED_MEMBERS)] == SEED_MEMBERS
    assert len(set(names)) == len(names)
    assert [variant.name for variant in CATALOGUE] == list(names)


def test_no_two_members_are_the_same_rule():
    """A second name for one rule would be a mistake: at least one choice or field differs."""
    described = {"name": "same", "references": ()}
    described |= dict.fromkeys(("summary", "formula", "note", "confirmed", "unconfirmed"), "")
    assert len({replace(gv.get(name), **described) for name in gv.names()}) == len(gv.names())


def test_references_say_where_a_member_is_defined():
    assert str(gv.get("grpo").references[0]).endswith("(2024), arXiv:2402.03300")
    assert str(gv.get("reinforce").references[0]).endswith("(1992)")


@pytest.mark.usefixtures("own_registry")
def test_a_registered_variant_is_found_by_its_name():
    mine = gv.Variant(name="mine", baseline=GroupMean(), summary="mine")
    assert gv.register(mine) is mine
    assert gv.get("mine") == mine
    assert gv.names()[-1] == "mine"
    assert gv.advantages("mine", [1.0, 0.0], [0, 0]).tolist() == [0.5, -0.5]


@pytest.mark.usefixtures("own_registry")
def test_registering_again_is_harmless_but_a_taken_name_is_refused():
    mine = gv.register(gv.Variant(name="mine", baseline=GroupMean()))
    again = gv.register(gv.Variant(name="mine", baseline=GroupMean()))
    assert again == mine
    with pytest.raises(ValueError, match=r"the name 'mine' is taken by another variant \(mine\); choose another name"):
        gv.register(gv.Variant(name="mine"))
    with pytest.raises(ValueError, match=r"the name 'grpo' is taken by another variant \(grpo\)"):
        gv.register(gv.Variant(name="grpo"))
    assert gv.get("grpo").kl is not None


def test_a_test_leaves_no_variant_behind():
    assert "mine" not in gv.names()


MODULE = """
import grpo_variants as gv
base = gv.get({base!r})
gv.register(gv.Variant(name={name!r}, baseline=base.baseline, aggregation=base.aggregation))
"""


def test_modules_of_the_environment_are_imported_in_every_process(tmp_path):
    """The second module, in a package, starts from a variant of the first, which itself starts from the catalogue."""
    (tmp_path / "first_rules.py").write_text(MODULE.format(name="first", base="dr_grpo"))
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "rules.py").write_text(MODULE.format(name="second", base="first"))
    code = "import grpo_variants as gv; print(gv.names()[-2:], gv.get('second,aggregation.length=9'))"
    done = child(code, tmp_path, " first_rules , pack.rules,")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "('first', 'second') second,aggregation.length=9.0"


def test_modules_are_imported_once_and_when_a_name_is_looked_for(tmp_path):
    """Not with the package, which they import themselves, nor for a name of the catalogue."""
    (tmp_path / "noisy.py").write_text("print('imported')")
    code = "import grpo_variants as gv; gv.get('grpo'); print('before'); gv.names(); print('after'); gv.names()"
    assert child(code, tmp_path, "noisy").stdout.split() == ["before", "imported", "after"]


def test_a_module_that_fails_says_so_every_time(tmp_path):
    """A second look must not find an incomplete registry and call the variant unknown."""
    (tmp_path / "broken.py").write_text("raise RuntimeError('half a rule')")
    code = """
import os
import grpo_variants as gv
for module in ("broken", "no_such_module"):
    os.environ["GRPO_VARIANTS_MODULES"] = module
    for _ in range(2):
        try:
            gv.get("half")
        except (RuntimeError, ImportError) as error:
            print(error)
"""
    missing = "GRPO_VARIANTS_MODULES names 'no_such_module', which cannot be imported: No module named 'no_such_module'"
    done = child(code, tmp_path, "")
    assert done.stdout.splitlines() == ["half a rule"] * 2 + [missing] * 2
