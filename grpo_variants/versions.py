"""Versions of installed packages."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def installed(package: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def how_to_install(trainer: str) -> str:
    """What installs this package with a trainer: it is not on a package index."""
    return f"in a clone of grpo-variants: pip install '.[{trainer}]'"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are installed."""
    return {package: found for package in packages if (found := installed(package)) is not None}
