"""What importing the core brings in: torch, and no trainer."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_variants as gv
from grpo_variants.trainers import TRAINERS

FOLDER = Path(gv.__file__).parent
ORACLE = Path(__file__).parents[1] / "support" / "oracle"
FRAMEWORKS = ("trl", "verl", "transformers", "peft", "datasets", "accelerate", "ray", "hydra")
COMMAND_LINE = ("typer", "rich", "click")
PLAIN = {"__future__", "cmath", "collections", "decimal", "fractions", "itertools", "math", "statistics", "typing"}


@functools.cache
def modules_after(statement):
    """Names of every module that another interpreter has after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


def imported(path):
    """Top-level names and modules that a file's import statements name, wherever in the file they stand."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_importing_the_core_imports_torch_and_no_trainer():
    loaded = modules_after("import grpo_variants")
    assert "torch" in loaded
    assert loaded & {*FRAMEWORKS, *COMMAND_LINE} == set()
    ours = {name for name in loaded if name.startswith(("grpo_variants_trl", "grpo_variants_verl"))}
    assert ours == set()


def test_importing_the_core_imports_none_of_its_extras():
    """The NumPy reference, the command line and whatever else stands beside the core are imported when asked for."""
    loaded = modules_after("import grpo_variants")
    for extra in ("reference", "cli", "lm_head.head", "analysis", "card"):
        assert f"grpo_variants.{extra}" not in loaded


def test_no_file_of_the_core_imports_a_trainer():
    """Not even inside a function: what a trainer needs stands in its adapter."""
    core = [path for path in FOLDER.rglob("*.py")]
    assert len(core) > 60
    for path in core:
        roots = {name.partition(".")[0] for name in imported(path)}
        refused = {*FRAMEWORKS, "grpo_variants_trl", "grpo_variants_verl", *COMMAND_LINE}
        allowed = {*COMMAND_LINE, "grpo_variants_trl"} if path.parent.name == "cli" else set()
        assert roots & refused <= allowed, path


def test_the_reference_imports_numpy_alone():
    """It checks the package, so it must share nothing with it; loaded as a file it needs neither torch nor the rest."""
    path = FOLDER / "reference.py"
    assert {name.partition(".")[0] for name in imported(path)} == {"__future__", "numpy", "typing"}
    load = f"import importlib.util as u; s = u.spec_from_file_location('alone', {str(path)!r})"
    loaded = modules_after(f"{load}; m = u.module_from_spec(s); s.loader.exec_module(m); assert m.grpo_loss")
    assert not {"torch", "grpo_variants"} & loaded


def test_the_oracle_shares_nothing_with_the_package():
    parts = sorted(ORACLE.glob("*.py"))
    names = {name for part in parts for name in imported(part) if not f"{name}.".startswith("support.oracle.")}
    assert {name.partition(".")[0] for name in names} <= PLAIN
    assert len(parts) > 3


# Lowest first; a module imports from its own layer and from those below it. A folder stands for all of its modules.
LAYERS = (
    ("tensors", "part", "names", "versions", "files", "numerics", "fast_paths", "reference"),
    ("advantage.memory", "advantage.group_size", "advantage.inputs", "objective.inputs", "foreign_words"),
    ("objective.block",),
    ("objective.ratio", "objective.kl", "objective.surrogate", "objective.correction", "objective.aggregation"),
    ("objective.token_filter", "objective.metrics", "objective.rule", "objective.autograd"),
    ("objective.fast", "objective.compute", "lm_head"),
    ("advantage",),
    ("rollout",),
    ("parts", "axes", "spelling", "options", "fences", "registry"),
    ("variant",),
    ("advice", "spec", "catalogue"),
    ("functions", "health"),
    ("trainers",),
    ("card",),
    ("cli",),
)


def modules():
    """Every module of the package by its name without the package's, with its syntax tree."""
    for path in sorted(FOLDER.rglob("*.py")):
        parts = path.relative_to(FOLDER).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            yield name, ast.parse(path.read_text())


MODULES = dict(modules())


def arrows(name):
    """The package's modules that a module imports, wherever in the file."""
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpo_variants"):
            source = node.module.removeprefix("grpo_variants").removeprefix(".")
            for alias in node.names:
                inner = f"{source}.{alias.name}".removeprefix(".")
                yield inner if inner in MODULES else source
        elif isinstance(node, ast.Import):
            yield from (a.name.partition(".")[2] for a in node.names if a.name.startswith("grpo_variants."))


def layer_of(name):
    """The number of a module's layer: that of the longest entry that names it or a folder around it."""
    found = {entry: n for n, layer in enumerate(LAYERS) for entry in layer if f"{name}.".startswith(f"{entry}.")}
    assert found, f"{name} is in no layer: add it to LAYERS"
    return found[max(found, key=len)]


GRAPH = {name: {arrow for arrow in arrows(name) if arrow and arrow != name} for name in MODULES}


@pytest.mark.parametrize("name", GRAPH)
def test_no_import_runs_from_a_lower_to_a_higher_layer(name):
    above = {other for other in GRAPH[name] if layer_of(other) > layer_of(name)}
    assert not above, f"{name} imports from a higher layer"


def test_no_circle_of_imports():
    order = graphlib.TopologicalSorter(GRAPH)
    order.prepare()  # raises CycleError


def test_the_core_names_no_trainer():
    """Neither in code nor in prose: what is known of one stands in its folder. The catalogue cites papers' code."""
    named = re.compile(r"\b(?:" + "|".join({*TRAINERS, *(t.title for t in TRAINERS.values())}) + r")\b", re.IGNORECASE)
    for path in FOLDER.rglob("*.py"):
        if path.relative_to(FOLDER).parts[0] not in ("trainers", "catalogue"):
            assert not named.search(path.read_text()), path


def test_every_layer_is_there():
    for entry in (entry for layer in LAYERS for entry in layer):
        assert any(f"{name}.".startswith(f"{entry}.") for name in GRAPH), entry


def test_the_public_names_are_all_there():
    assert sorted(gv.__all__) == gv.__all__
    assert all(hasattr(gv, name) for name in gv.__all__)
    assert callable(gv.kl)  # no module may take the name of a public function
    assert callable(gv.advantages)
