"""The catalogue: every named member of the family, one entry each, and the registry of a user's own."""

from __future__ import annotations

import importlib
import os

from grpo_variants.catalogue.asymmetric import ASYMMETRIC
from grpo_variants.catalogue.batch import BATCH
from grpo_variants.catalogue.founding import FOUNDING
from grpo_variants.catalogue.group_statistics import GROUP_STATISTICS
from grpo_variants.catalogue.mismatch import MISMATCH
from grpo_variants.catalogue.recombined import RECOMBINED
from grpo_variants.catalogue.remembered import REMEMBERED
from grpo_variants.catalogue.score import SCORE
from grpo_variants.catalogue.selective import SELECTIVE
from grpo_variants.catalogue.soft import SOFT
from grpo_variants.catalogue.token_credit import TOKEN_CREDIT
from grpo_variants.checks import did_you_mean
from grpo_variants.variant import Variant

MODULES_VARIABLE = "GRPO_VARIANTS_MODULES"

_EVERY = (
    *FOUNDING,
    *GROUP_STATISTICS,
    *SELECTIVE,
    *TOKEN_CREDIT,
    *REMEMBERED,
    *RECOMBINED,
    *MISMATCH,
    *SCORE,
    *SOFT,
    *ASYMMETRIC,
    *BATCH,
)

# The main catalogue first, then what has a value that its authors did not confirm.
CATALOGUE: tuple[Variant, ...] = tuple(sorted(_EVERY, key=lambda variant: variant.contrib))

_REGISTRY: dict[str, Variant] = {variant.name: variant for variant in CATALOGUE}
_REQUIRED = object()


def register(variant: Variant) -> Variant:
    """Add a user's own variant to the registry of this process, and return it.

    Registering an equal variant again does nothing. Put the call into a module and name that module in
    GRPO_VARIANTS_MODULES=pkg.mod (comma-separated), so that every process finds it, Ray workers included.
    Raises ValueError for a name that another variant has.
    """
    taken = _REGISTRY.setdefault(variant.name, variant)
    if taken != variant:
        raise ValueError(f"the name {variant.name!r} is taken by another variant ({taken}); choose another name.")
    return variant


def names() -> tuple[str, ...]:
    """Names of every registered variant: the catalogue's first, then a user's own."""
    _load_modules()
    return tuple(_REGISTRY)


def registered(name: str, default: object = _REQUIRED) -> Variant:
    """The registered variant of a name, without options; raises ValueError for an unknown name, lists the known."""
    if name not in _REGISTRY:
        _load_modules()
    if name in _REGISTRY:
        return _REGISTRY[name]
    if isinstance(default, Variant):
        return default
    if "=" in name:
        raise ValueError(
            f"{name!r} is no variant's name; write name,key=value,key=value, as in 'dapo,surrogate.high=0.3'."
        )
    raise ValueError(f"unknown variant {name!r}; known: {', '.join(_REGISTRY)}.{did_you_mean(name, _REGISTRY)}")


def _load_modules() -> None:
    """Import the modules that GRPO_VARIANTS_MODULES names; one that is imported already costs a look-up."""
    for module in filter(None, (m.strip() for m in os.environ.get(MODULES_VARIABLE, "").split(","))):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ImportError(f"{MODULES_VARIABLE} names {module!r}, which cannot be imported: {error}") from error
