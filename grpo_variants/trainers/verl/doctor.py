"""What `grpo-variants doctor` says about verl."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import entry_points

from grpo_variants.registry import names
from grpo_variants.trainers.base import Facts, Finding
from grpo_variants.versions import how_to_install

PLUGIN, GROUP, POLICY = "grpo_variants", "verl.plugins", "VERL_USE_EXTERNAL_PLUGINS"

# What a fresh interpreter finds out beside whether verl imports.
PROBE = """
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
"""


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
