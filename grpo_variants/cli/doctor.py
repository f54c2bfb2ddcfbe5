"""`grpo-variants doctor`: what each trainer of this environment knows of the variants, or why it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import typer

from grpo_variants import __version__
from grpo_variants.catalogue import names
from grpo_variants.versions import how_to_install, installed

TESTED = {"trl": "1.16", "verl": "0.9.1"}
PLUGIN, GROUP, POLICY = "grpo_variants", "verl.plugins", "VERL_USE_EXTERNAL_PLUGINS"
_TIMEOUT = 300

Facts = Mapping[str, Any]

# What a child interpreter finds out: a host may break the process that imports it.
_PROBE = """
import importlib, importlib.util, json, sys, traceback, warnings
warnings.simplefilter("ignore")
def attempt(module):
    try:
        importlib.import_module(module)
    except BaseException as error:
        return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
facts = {"error": attempt(sys.argv[1])}
if sys.argv[1] == "verl" and facts["error"] is None:
    facts["algorithms"] = attempt("verl.trainer.ppo.core_algos")
    algorithms = sys.modules.get("verl.trainer.ppo.core_algos")
    for kind, registry in (("estimators", "ADV_ESTIMATOR_REGISTRY"), ("losses", "POLICY_LOSS_REGISTRY")):
        facts[kind] = [name for name in getattr(algorithms, registry, ()) if name.startswith("gv_")]
    facts["queue"] = attempt("transfer_queue")
    facts["engine"] = attempt("verl.workers.engine.fsdp.transformer_impl")
    facts["beside_trl"] = None
    if importlib.util.find_spec("trl") and attempt("trl.experimental.ppo"):
        head = "AutoModelForCausalLMWithValueHead"  # looked for when a model is built, as soon as TRL can be found
        facts["beside_trl"] = None if hasattr(importlib.import_module("trl"), head) else "it looks for trl." + head
facts["adapter"] = attempt("grpo_variants_" + sys.argv[1])
print("\\n" + json.dumps(facts))
"""


@dataclass(frozen=True)
class Finding:
    """One line: `ok`, `note` or `missing`, and a sentence."""

    state: str
    text: str


def doctor() -> None:
    """Say what TRL and verl know of the variants here, or why not; exit status 1 where something is missing."""
    versions = {host: installed(host) for host in TESTED}
    findings = [_core()]
    for host, examine in (("trl", trl_findings), ("verl", verl_findings)):
        found = versions[host]
        if found is None:
            findings.append(Finding("note", _how_to_get(host, beside=any(versions.values()))))
            continue
        findings += version_findings(host, found)
        findings += examine(probe(host))
    if all(versions.values()) and any(finding.state == "missing" for finding in findings):
        findings.append(Finding("note", _APART))
    for finding in findings:
        typer.echo(f"{finding.state:<8}{finding.text}")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


# verl looks for what TRL no longer has as soon as TRL can be found, and their other requirements differ as well.
_APART = (
    "TRL and verl are both in this environment, where they do not work together. Give each its own, in a clone of "
    "grpo-variants: python -m venv .venvs/verl && .venvs/verl/bin/pip install '.[verl]'"
)


def _how_to_get(host: str, beside: bool) -> str:
    """How to have a trainer that is not installed; beside another one it would not work."""
    where = "not installed here, and it needs an environment of its own: " if beside else "not installed; "
    return f"{host}: {where}{how_to_install(host)}"


def _core() -> Finding:
    try:
        return Finding("ok", f"grpo-variants {__version__}: {len(names())} variants")
    except ImportError as error:
        return Finding("missing", f"grpo-variants {__version__}: {error}")


def probe(host: str) -> Facts:
    """What a fresh interpreter finds when it imports a host."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, host], capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or ["the interpreter ended without a word"])[-1]}
    facts: Facts = json.loads(lines[-1])
    return facts


def version_findings(host: str, found: str) -> Iterator[Finding]:
    """Whether a host's version is one that the tests ran with."""
    wanted = TESTED[host]
    if found == wanted or found.startswith(f"{wanted}."):
        yield Finding("ok", f"{host} {found}")
    else:
        yield Finding("note", f"{host} {found} was not tested; the adapter is tested with {wanted}")


def trl_findings(facts: Facts) -> Iterator[Finding]:
    """What TRL has of the variants."""
    if facts["error"]:
        yield Finding("missing", f"trl does not import: {facts['error']}")
    elif facts["adapter"]:
        yield Finding("missing", f"trl: the variant trainer does not import: {facts['adapter']}")
    else:
        yield Finding("ok", "trl: VariantGRPOTrainer takes every variant as loss_type gv_<name>")


def verl_findings(facts: Facts) -> Iterator[Finding]:
    """What verl has of the variants, and whether it can train at all."""
    broken = facts["error"] or facts.get("algorithms")
    if broken:
        yield Finding("missing", f"verl does not import: {broken}")
        return
    yield from _registered(facts)
    if facts["queue"]:
        yield Finding(
            "missing", f"verl: its default trainer needs TransferQueue: {facts['queue']} (pip install TransferQueue)"
        )
    if facts["engine"]:
        yield Finding("missing", f"verl: its FSDP engine does not import: {facts['engine']}")
    if facts["beside_trl"]:
        yield Finding(
            "missing",
            f"verl: its FSDP engine builds no model beside this TRL: {facts['beside_trl']}",
        )


def _registered(facts: Facts) -> Iterator[Finding]:
    if facts["estimators"] and facts["losses"]:
        yield Finding("ok", f"verl: {len(facts['estimators'])} estimators and {len(facts['losses'])} losses gv_<name>")
        both = set(facts["estimators"]) & set(facts["losses"])
        absent = [f"gv_{name}" for name in names() if f"gv_{name}" not in both]
        if absent:
            yield Finding("missing", f"verl: not registered: {', '.join(absent)}")
        return
    yield Finding("missing", f"verl does not know the variants: {_why_not(facts)}")


def _why_not(facts: Facts) -> str:
    """The reason that verl itself only logs at debug level."""
    policy = os.environ.get(POLICY, "auto").strip().lower()
    if facts["adapter"]:
        return facts["adapter"]  # type: ignore[no-any-return]
    if policy == "none":
        return f"{POLICY}=none switches plugins off; unset it"
    if policy != "auto" and PLUGIN not in [name.strip() for name in policy.split(",")]:
        return f"{POLICY}={policy} leaves out {PLUGIN}; add it"
    if not any(entry.name == PLUGIN for entry in entry_points(group=GROUP)):
        return f"no entry point {GROUP}: the package is on the path but not installed; {how_to_install('verl')}"
    return "its plugin loaded and registered nothing; is another package named grpo_variants_verl on the path?"
