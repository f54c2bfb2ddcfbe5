"""Spec strings: `name[,axis=choice][,axis.field=value]...` -> Variant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_variants.advice import advised
from grpo_variants.fences import Meaningless
from grpo_variants.options import UnknownKey, applied, read_options
from grpo_variants.registry import registered
from grpo_variants.variant import Variant


def get(spec: str) -> Variant:
    """Turn a spec string into a variant.

    `name[,axis=choice][,axis.field=value]...`: axis choices apply first and reset that axis's fields, then
    conventions, then fields. For example `dapo,surrogate.high=0.3,kl=k3,kl.beta=0.01`.
    The name may be written as people write it: `Dr. GRPO`, `reinforce++`, `gv_dapo`.
    Raises ValueError for an unknown name, axis, choice, field or value, with the nearest known ones.
    """
    name, _, rest = str(spec).partition(",")
    return configure(registered(name), read_options(rest))


def resolve(variant: Variant | str) -> Variant:
    """A variant from a variant or a spec string."""
    return variant if isinstance(variant, Variant) else get(variant)


def configure(variant: Variant, options: Mapping[str, Any]) -> Variant:
    """A variant with options applied; keys as in a spec string, values as text or already typed.

    Raises ValueError as `get` does.
    """
    try:
        return applied(variant, options)
    except (UnknownKey, Meaningless) as error:
        raise ValueError(advised(variant, options, error)) from None
