"""From TRL's configuration to a variant: the loss type, tuned by TRL's own flags."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from trl import GRPOConfig

from grpo_variants.options import read_options
from grpo_variants.registry import registered
from grpo_variants.spec import configure
from grpo_variants.spelling import full_keys, resolved_values
from grpo_variants.trainers.trl.words import FLAG_KEYS, FLAGS, FlagError, flag_values
from grpo_variants.variant import Variant

# TRL declares its own default of this flag to be 3.0 and gives None a meaning, so "unset" needs a third value.
CLIP_MAX_UNSET = math.nan


@dataclass(frozen=True)
class Choice:
    """A variant that a config asks for, and where its values came from (by the keys of a spec string)."""

    variant: Variant
    origins: Mapping[str, str]


def choose(loss_type: str, given: Mapping[str, Any]) -> Choice:
    """The variant of a `gv_` loss type with the given TRL flags applied.

    Raises ValueError for an unknown spec, for a flag that has no effect on the variant, and where a flag and the spec
    string disagree.
    """
    name, _, rest = loss_type.partition(",")
    in_spec = read_options(rest)
    variant = configure(registered(name), _completed(in_spec, given))
    written = {key: f"loss_type ({key}={text})" for key, text in full_keys(variant, in_spec).items()}
    origins = dict(written)
    for flag, value in given.items():
        after = tuned(variant, flag, value, given)
        changed = _changed(variant, after)
        for key in filter(written.__contains__, changed):
            new, old = (resolved_values(v).get(key, "none") for v in (after, variant))
            raise FlagError(
                f"{flag}={value!r} and loss_type={loss_type!r} disagree about {key}: {new!r} and {old!r}. "
                "Set one of them."
            )
        source = f"flag {flag}={value}"
        origins |= dict.fromkeys(changed, source)
        origins = dict.fromkeys(FLAG_KEYS.get(flag, ()), source) | origins
        variant = after
    return Choice(variant, {key: source for key, source in origins.items() if key in resolved_values(variant)})


def _completed(in_spec: Mapping[str, str], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec's options; a KL term that it names takes its coefficient, which has no default, from TRL's flag."""
    if in_spec.get("kl", "none") == "none" or "kl.beta" in in_spec or not given.get("beta"):
        return in_spec
    return {**in_spec, "kl.beta": given["beta"]}


def tuned(variant: Variant, flag: str, value: Any, given: Mapping[str, Any]) -> Variant:
    """The variant with one of TRL's flags applied; raises FlagError where it cannot be honoured.

    given: every flag that is set, since some are read together.
    """
    try:
        return FLAGS[flag](variant, value, given)
    except ValueError as error:
        text = str(error)
        raise FlagError(text if text.startswith(f"{flag}=") else f"{flag}={value!r}: {text}") from None


def _changed(before: Variant, after: Variant) -> list[str]:
    old, new = resolved_values(before), resolved_values(after)
    return [key for key in {**new, **old} if old.get(key, MISSING) != new.get(key, MISSING)]


TRL_DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(GRPOConfig) if f.name in FLAGS}


def changed_flags(config: GRPOConfig) -> dict[str, Any]:
    """The flags of a plain GRPOConfig that are not at TRL's default; an explicit default looks like an unset flag."""
    return {name: getattr(config, name) for name in FLAGS if getattr(config, name) != TRL_DEFAULTS[name]}


def trl_values(variant: Variant) -> dict[str, Any]:
    """TRL's flags for a variant: its own values where it has what the flag sets, TRL's default elsewhere.

    TRL's code builds the reference, masks and logs by these, and callbacks read and change them.
    """
    return TRL_DEFAULTS | flag_values(variant)
