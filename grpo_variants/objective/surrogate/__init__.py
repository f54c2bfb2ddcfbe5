"""Surrogates: the per-token objective. Each maps (log ratio, tokens, counts) -> SurrogateOutput, unreduced."""

from grpo_variants.objective.surrogate.asymmetric import Aspo, CeGppo, Dcpo, Fipo
from grpo_variants.objective.surrogate.base import Slope, Surrogate, SurrogateOutput
from grpo_variants.objective.surrogate.batch import Bapo, ClipCov, KlCov, M2po
from grpo_variants.objective.surrogate.clipping import Clip, EntropyClip, Gmpo
from grpo_variants.objective.surrogate.score import Band, Cispo, DppoKl, DppoTv, PpoMask, Reinforce, Topr, Vespo
from grpo_variants.objective.surrogate.soft import Dro, Quadratic, Sapo

__all__ = [
    "Aspo",
    "Band",
    "Bapo",
    "CeGppo",
    "Cispo",
    "Clip",
    "ClipCov",
    "Dcpo",
    "DppoKl",
    "DppoTv",
    "Dro",
    "EntropyClip",
    "Fipo",
    "Gmpo",
    "KlCov",
    "M2po",
    "PpoMask",
    "Quadratic",
    "Reinforce",
    "Sapo",
    "Slope",
    "Surrogate",
    "SurrogateOutput",
    "Topr",
    "Vespo",
]
