"""The registry: every named variant of this process, the catalogue's and a user's own."""

from __future__ import annotations

import importlib
import os
from typing import Any, Protocol, TypeVar

from grpo_variants.names import key_of, without_prefix
from grpo_variants.tensors.checks import did_you_mean

MODULES_VARIABLE = "GRPO_VARIANTS_MODULES"


class Named(Protocol):
    """What is registered: a variant, by its name."""

    @property
    def name(self) -> str:
        """A plain word."""
        ...


V = TypeVar("V", bound=Named)

# By what every way to write a name shares, so that no name can mean two variants.
_REGISTRY: dict[str, Any] = {}


def register(variant: V) -> V:
    """Add a user's own variant to the registry of this process, and return it.

    Registering an equal variant again does nothing. Put the call into a module and name that module in
    GRPO_VARIANTS_MODULES=pkg.mod (comma-separated), so that every process finds it, Ray workers included.
    Raises ValueError for a name that another variant has, or that reads as one: `d_apo` reads as `dapo`.
    """
    taken = _REGISTRY.setdefault(key_of(variant.name), variant)
    if taken.name != variant.name:
        raise ValueError(
            f"the name {variant.name!r} reads as {taken.name!r}, which is another variant; choose another name."
        )
    if taken != variant:
        raise ValueError(f"the name {variant.name!r} is taken by another variant ({taken}); choose another name.")
    return variant


def names() -> tuple[str, ...]:
    """Names of every registered variant: the catalogue's first, then a user's own."""
    _load_modules()
    return tuple(variant.name for variant in _REGISTRY.values())


def find(name: str) -> Any:
    """The registered variant that a name means, however it is written (`GSPO`, `Dr. GRPO`, `gv_dapo`), or None."""
    key = key_of(name)
    if key not in _REGISTRY:
        _load_modules()
    return _REGISTRY.get(key)


def found_exactly(name: str) -> Any:
    """The registered variant that has exactly this name, or None."""
    found = find(name)
    return found if found is not None and found.name == name else None


def registered(name: str) -> Any:
    """The registered variant of a name, without options; the name may be written in any way.

    Raises ValueError for an unknown name, with the nearest known ones.
    """
    found = find(name)
    if found is not None:
        return found
    if "=" in name:
        raise ValueError(
            f"{name!r} is no variant's name; write name,key=value,key=value, as in 'dapo,surrogate.high=0.3'."
        )
    raise ValueError(f"unknown variant {name!r}.{did_you_mean(without_prefix(name), names())} {all_names()}")


def all_names() -> str:
    """The sentence that ends an error about an unknown name, in place of a long list."""
    return f"`grpo-variants list` and gv.names() have all {len(_REGISTRY)}."


def _load_modules() -> None:
    """Import the modules that GRPO_VARIANTS_MODULES names; one that is imported already costs a look-up."""
    for module in filter(None, (m.strip() for m in os.environ.get(MODULES_VARIABLE, "").split(","))):
        if not all(part.isidentifier() for part in module.split(".")):
            raise ImportError(
                f"{MODULES_VARIABLE} names {module!r}, which is no module's name; write it with dots, as in pkg.mod, "
                "and put the folder of pkg on PYTHONPATH."
            )
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ImportError(f"{MODULES_VARIABLE} names {module!r}, which cannot be imported: {error}") from error
