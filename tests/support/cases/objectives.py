"""What the tests try the wider family's surrogates, corrections and token filters on.

A field of a surrogate that is not named here is tried on values around its default: a new surrogate needs no line.
"""

from dataclasses import MISSING, fields
from typing import Literal, get_args, get_origin, get_type_hints

from grpo_variants.objective.ratio import TokenRatio
from grpo_variants.objective.surrogate import CHOICES

# Values of fields that a random spec string draws from.
FIELD_VALUES = {
    "surrogate.cap": (None, 1.1, 5.0),
    "surrogate.floor": (0.0, 0.4),
    "surrogate.ceiling": (1.0, 1.5),
    "surrogate.tau": (0.1, 2.0),
    "surrogate.tau_pos": (0.5, 1.0),
    "surrogate.tau_neg": (1.05, 2.0),
    "surrogate.k_pos": (1.0, 2.0),
    "surrogate.k_neg": (2.0, 3.0),
    "surrogate.lambda_pos": (1.5, 3.0),
    "surrogate.lambda_neg": (1.0, 2.0),
    "surrogate.range": (0.2, 0.5),
    "surrogate.keep_low": (0.0, 0.75),
    "surrogate.keep_high": (0.5, 1.0),
    "surrogate.half_life": (2.0, 32.0),
    "surrogate.weight_low": (0.5, 1.0),
    "surrogate.weight_high": (1.2, 2.0),
    "surrogate.safety": (1.5, 10.0),
    "surrogate.fraction": (2e-4, 0.3),
    "surrogate.top_low": (0.1, 0.5),
    "surrogate.top_high": (0.2, 0.4),
    "surrogate.cov_low": (-1.0, 0.1),
    "surrogate.cov_high": (1.5, 5.0),
    "surrogate.coef": (0.0, 1.0),
    "surrogate.floor_end": (0.4, 0.9),
    "surrogate.ceiling_end": (3.0, 4.0),
    "surrogate.step": (0.05, 0.2),
    "surrogate.first": ("ceiling", "floor"),
    "surrogate.target": (0.3, 0.6),
    "surrogate.budget": (0.04, 0.1),
    "surrogate.drops": ("by_sign", "both"),
    "surrogate.mean": ("geometric", "harmonic"),
    "surrogate.penalty": (0.0, 0.5),
    "surrogate.rule": ("clip", "mask"),
}
# Why a random spec string may be refused.
REFUSALS = (
    "the largest weight is cap, or 1 + high",
    "surrogate.cap='none' is not a number",
    "surrogate.dual='none' is not a number",
    "surrogate.floor_end=",
)

PRODUCT = "grpo,ratio=sequence_product"
# With the registered members these set every choice and every field.
SPECS = (
    "grpo,surrogate=cispo,surrogate.cap=1.2",
    "grpo,surrogate=cispo,surrogate.cap=none,surrogate.high=0.1,surrogate.low=0.1",
    "gspo,surrogate=cispo,surrogate.cap=1.1",
    "grpo,surrogate=sapo,surrogate.tau_pos=2,surrogate.tau_neg=0.5",
    "gspo,surrogate=sapo",
    "grpo,surrogate=gmpo,surrogate.low=0.1,surrogate.high=0.2",
    "grpo,surrogate=gmpo,ratio.anchor=rollout,correction=token_truncate,tokens=top_entropy",
    "grpo,surrogate=gmpo,surrogate.mean=harmonic,surrogate.low=0.1,surrogate.high=0.2",
    "grpo,surrogate=band,surrogate.low=0.3,surrogate.high=0.4,surrogate.penalty=0.1",
    "grpo,surrogate=ppo_mask,surrogate.low=0.1,surrogate.high=0.1,surrogate.cap=1.1",
    "minirl,surrogate.cap=none,surrogate.drops=both,surrogate.penalty=0.3",
    f"{PRODUCT},surrogate=vespo,surrogate.k_pos=1,surrogate.k_neg=2",
    f"{PRODUCT},surrogate=vespo,surrogate.lambda_pos=1,surrogate.lambda_neg=3",
    f"{PRODUCT},surrogate=topr,surrogate.floor=0.5,surrogate.ceiling=0.9",
    f"{PRODUCT},surrogate=topr,surrogate.ceiling=2",
    *(f"grpo,surrogate={s},surrogate.low=0.01,surrogate.high=0.02,surrogate.cap=1.1" for s in ("dppo_tv", "dppo_kl")),
    *(f"grpo,surrogate={s}" for s in ("dppo_tv", "dppo_kl")),
    *(
        f"grpo,surrogate={s},surrogate.low=0.02,surrogate.high=0.01,surrogate.drops=both,surrogate.penalty=0.3"
        for s in ("dppo_tv", "dppo_kl")
    ),
    "prime_rl,surrogate.drops=both,surrogate.low=0.1,surrogate.high=0.1",
    "grpo,surrogate=quadratic,surrogate.range=0.4",
    "gspo,surrogate=quadratic",
    "grpo,surrogate=dro,surrogate.tau=2",
    f"{PRODUCT},surrogate=dro,surrogate.tau=0.5",
    "grpo,surrogate=entropy_clip",
    "grpo,surrogate=entropy_clip,surrogate.fraction=0.5,surrogate.low=0.05,surrogate.high=0.1,surrogate.dual=1.3",
    "grpo,surrogate=entropy_clip,surrogate.fraction=0.4,surrogate.top_low=0.1,surrogate.top_high=0.3,surrogate.dual=none",
    "grpo,surrogate=aspo,surrogate.low=0.1,surrogate.high=0.05,surrogate.cap=1.2",
    "grpo,surrogate=aspo,surrogate.fraction=0.6,surrogate.top_low=0.3,surrogate.top_high=0.6",
    "gspo,surrogate=aspo,surrogate.cap=none,surrogate.fraction=none",
    "gspo_token,surrogate=aspo,surrogate.low=0.05,surrogate.high=0.1",
    *(f"grpo,kl={k},kl.beta=0.5,kl.exempt=0.4" for k in ("k1", "k2", "k3", "abs")),
    "gspo,kl=k3,kl.beta=0.5,kl.exempt=0.2,kl.weighted=ratio,kl.gradient=k2,kl.value_bound=0.05",
    "dapo,kl=k3,kl.beta=0.5,kl.exempt=0.7,kl.weighted=ratio",
    "grpo,surrogate=ce_gppo,surrogate.low=0.1,surrogate.high=0.1,surrogate.keep_low=0.5,surrogate.keep_high=0.3",
    "gspo,surrogate=ce_gppo",
    "grpo,surrogate=dcpo",
    "grpo,surrogate=dcpo,surrogate.low=0.02,surrogate.high=0.01,surrogate.cap=1.3",
    "grpo,surrogate=fipo",
    "grpo,surrogate=fipo,surrogate.half_life=2,surrogate.weight_low=0.5,surrogate.weight_high=2,surrogate.safety=1.1",
    "grpo,surrogate=fipo,surrogate.dual=1.2,surrogate.low=0.1,surrogate.high=0.1",
    "grpo,surrogate=clip_cov,surrogate.cov_low=0.05,surrogate.cov_high=0.8,surrogate.fraction=0.2",
    "grpo,surrogate=clip_cov,surrogate.cov_low=-3,surrogate.low=0.1,surrogate.high=0.1",
    "grpo,surrogate=kl_cov,surrogate.fraction=0.3,surrogate.coef=0.5",
    "grpo,surrogate=kl_cov",
    *(
        f"grpo,surrogate=bapo,surrogate.target={share},surrogate.first={first},surrogate.dual=1.5"
        for share in (0.1, 0.45, 0.55, 0.9)
        for first in ("floor", "ceiling")
    ),
    "grpo,surrogate=bapo,surrogate.floor=0.3,surrogate.floor_end=0.7,surrogate.first=floor,surrogate.target=0.6",
    "grpo,surrogate=bapo,surrogate.ceiling=1.1,surrogate.ceiling_end=1.5,surrogate.step=0.3",
    "gspo,surrogate=bapo",
    *(f"grpo,surrogate=m2po,surrogate.budget={b}" for b in (0.01, 0.1, 0.2, 3)),
    *(f"grpo,surrogate=m2po,surrogate.budget={b},surrogate.rule=mask" for b in (1e-6, 0.01, 0.1, 0.2, 3)),
    *(f"grpo,surrogate=m2po,surrogate.low={low},surrogate.high=0.1" for low in (0.3, 1.5)),
    *(f"grpo,correction=kpop,correction.threshold={t}" for t in (0.01, 0.1, 0.5)),
    "dapo,correction=kpop+sequence_mask,correction.threshold=0.2,correction.low=0.5,correction.high=3",
)

# What a choice is tried on where its axis's base means nothing to it.
BASE_OF_CHOICE = {"vespo": PRODUCT, "topr": PRODUCT}
# Two values of each field that differ in something.
PAIRS = {
    "surrogate.cap": (0.9, 1.1),
    "surrogate.floor": (0.0, 0.7),
    "surrogate.ceiling": (1.0, 1.5),
    "surrogate.tau": (0.1, 0.5),
    "surrogate.tau_pos": (1.0, 2.0),
    "surrogate.tau_neg": (1.0, 2.0),
    "surrogate.k_pos": (1.0, 2.0),
    "surrogate.k_neg": (1.0, 2.0),
    "surrogate.lambda_pos": (1.0, 2.0),
    "surrogate.lambda_neg": (1.0, 2.0),
    "surrogate.range": (0.2, 0.4),
    "surrogate.keep_low": (0.5, 0.75),
    "surrogate.keep_high": (0.5, 1.0),
    "surrogate.half_life": (1.0, 32.0),
    "surrogate.weight_low": (0.5, 1.0),
    "surrogate.weight_high": (1.1, 1.5),
    "surrogate.safety": (1.05, 10.0),
    "surrogate.fraction": (2e-4, 0.3),
    "surrogate.top_low": (0.1, 0.4),
    "surrogate.top_high": (0.1, 0.4),
    "surrogate.cov_low": (-0.5, 0.1),
    "surrogate.cov_high": (0.2, 5.0),
    "surrogate.coef": (0.5, 1.0),
    "surrogate.floor_end": (0.7, 0.9),
    "surrogate.ceiling_end": (1.3, 3.0),
    "surrogate.step": (0.05, 0.2),
    "surrogate.first": ("ceiling", "floor"),
    "surrogate.target": (0.3, 0.6),
    "surrogate.budget": (0.01, 0.1),
    "surrogate.drops": ("by_sign", "both"),
    "surrogate.mean": ("geometric", "harmonic"),
    "surrogate.penalty": (0.0, 0.5),
    "surrogate.rule": ("clip", "mask"),
}
# Two values for one choice only, where the others' are too far apart or too close for it.
PAIRS_OF_CHOICE = {
    "dppo_kl surrogate.high": (0.01, 0.05),
    "dppo_kl surrogate.low": (0.01, 0.05),
    "dcpo surrogate.cap": (1.1, 1.3),
    "fipo surrogate.dual": (1.1, 1.5),
}
# Settings without which two values of a choice's field would be the same.
WITH = {
    "cispo surrogate.high": {"surrogate.cap": None},
    # Balanced from the start, and on the way.
    "bapo surrogate.floor": {"surrogate.target": 0.0},
    "bapo surrogate.ceiling": {"surrogate.target": 0.0},
    "bapo surrogate.step": {"surrogate.target": 0.545, "surrogate.floor_end": 0.6},
    "bapo surrogate.first": {"surrogate.target": 0.545},
}
NEEDED = {
    "cispo": {"surrogate.cap": 1.1},
    "clip_cov": {"surrogate.fraction": 0.3, "surrogate.cov_low": -0.5},
    "kl_cov": {"surrogate.fraction": 0.3},
    "bapo": {"surrogate.target": 0.6},
    "m2po": {"surrogate.budget": 0.01},
    "kpop": {"correction.threshold": 0.05},
}


def around(surrogate, field):
    """Two values of a field: its default, and another one near it."""
    hint, value = get_type_hints(surrogate)[field.name], field.default
    if get_origin(hint) is Literal:
        return get_args(hint)[:2]
    if value is MISSING or value is None:
        return (0.5, 1.5) if value is MISSING else (None, 1.5)
    return (value, value * 1.5 if value else 0.5)


def base_of(word):
    """A spec string on which a surrogate means something."""
    ratios = CHOICES[word].ratios
    return BASE_OF_CHOICE.get(word, "grpo" if not ratios or TokenRatio in ratios else PRODUCT)


NEW = [
    (word, surrogate, field)
    for word, surrogate in CHOICES.items()
    for field in fields(surrogate)
    if not any(f"surrogate={word}" in spec and f"surrogate.{field.name}=" in spec for spec in SPECS)
]
SPECS += tuple(f"{base_of(w)},surrogate={w},surrogate.{f.name}={str(around(s, f)[1]).lower()}" for w, s, f in NEW)
FIELD_VALUES = {f"surrogate.{f.name}": around(s, f) for _, s, f in NEW} | FIELD_VALUES
PAIRS = {f"surrogate.{f.name}": around(s, f) for _, s, f in NEW} | PAIRS
