"""`grpo-variants doctor`: what each trainer of this environment knows of the variants, or why it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping

import typer

from grpo_variants import __version__
from grpo_variants.registry import names
from grpo_variants.trainers import TRAINERS
from grpo_variants.trainers.base import Adapter, Facts, Finding
from grpo_variants.versions import how_to_install, installed

_TIMEOUT = 300

# What a child interpreter finds out: a trainer may break the process that imports it.
_PROBE = """
import importlib, importlib.util, json, sys, traceback, warnings
warnings.simplefilter("ignore")
def attempt(module):
    try:
        importlib.import_module(module)
    except BaseException as error:
        return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
package, adapter, further = sys.argv[1:]
facts = {"error": attempt(package)}
if facts["error"] is None:
    exec(further)
facts["adapter"] = attempt(adapter)
print("\\n" + json.dumps(facts))
"""


def doctor() -> None:
    """Say what the trainers know of the variants here, or why not; exit status 1 where something is missing."""
    adapters = {trainer.title: trainer.adapter for trainer in TRAINERS.values() if trainer.adapter is not None}
    versions = {adapter.package: installed(adapter.package) for adapter in adapters.values()}
    findings = [_core()]
    for adapter in adapters.values():
        found = versions[adapter.package]
        if found is None:
            findings.append(Finding("note", _how_to_get(adapter.package, beside=any(versions.values()))))
            continue
        findings += version_findings(adapter, found)
        findings += adapter.examine(probe(adapter))
    present = {title: adapter.package for title, adapter in adapters.items() if versions[adapter.package]}
    if len(present) > 1 and any(finding.state == "missing" for finding in findings):
        findings.append(Finding("note", _apart(present)))
    for finding in findings:
        typer.echo(f"{finding.state:<8}{finding.text}")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


def _apart(packages: Mapping[str, str]) -> str:
    """That trainers need environments of their own, with how to make one."""
    last = list(packages.values())[-1]
    return (
        f"{' and '.join(packages)} are both in this environment, where they do not work together. Give each its own, "
        f"in a clone of grpo-variants: python -m venv .venvs/{last} && .venvs/{last}/bin/pip install '.[{last}]'"
    )


def _how_to_get(package: str, beside: bool) -> str:
    """How to have a trainer that is not installed; beside another one it would not work."""
    where = "not installed here, and it needs an environment of its own: " if beside else "not installed; "
    return f"{package}: {where}{how_to_install(package)}"


def _core() -> Finding:
    try:
        return Finding("ok", f"grpo-variants {__version__}: {len(names())} variants")
    except ImportError as error:
        return Finding("missing", f"grpo-variants {__version__}: {error}")


def probe(adapter: Adapter) -> Facts:
    """What a fresh interpreter finds when it imports a trainer and its adapter."""
    command = [sys.executable, "-c", _PROBE, adapter.package, adapter.module, adapter.probe]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or ["the interpreter ended without a message"])[-1]}
    facts: Facts = json.loads(lines[-1])
    return facts


def version_findings(adapter: Adapter, found: str) -> Iterator[Finding]:
    """Whether a trainer's version is one that the tests ran with."""
    package, wanted = adapter.package, adapter.tested
    if found == wanted or found.startswith(f"{wanted}."):
        yield Finding("ok", f"{package} {found}")
    else:
        yield Finding("note", f"{package} {found} was not tested; the adapter is tested with {wanted}")
