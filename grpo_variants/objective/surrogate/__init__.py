"""Surrogates: the per-token objective. Each maps (log ratio, tokens, counts) -> SurrogateOutput, unreduced."""

from collections.abc import Mapping

from grpo_variants.objective.surrogate.asymmetric import Aspo, CeGppo, Dcpo, Fipo
from grpo_variants.objective.surrogate.base import Slope, Surrogate, SurrogateOutput
from grpo_variants.objective.surrogate.batch import Bapo, ClipCov, KlCov, M2po
from grpo_variants.objective.surrogate.clipping import Clip, EntropyClip, Gmpo
from grpo_variants.objective.surrogate.score import Band, Cispo, DppoKl, DppoTv, PpoMask, Reinforce, Topr, Vespo
from grpo_variants.objective.surrogate.soft import Dro, Quadratic, Sapo

# The choices of the axis, by their words in a spec string.
CHOICES: Mapping[str, type[Surrogate]] = {
    "reinforce": Reinforce,
    "clip": Clip,
    "entropy_clip": EntropyClip,
    "cispo": Cispo,
    "sapo": Sapo,
    "gmpo": Gmpo,
    "vespo": Vespo,
    "topr": Topr,
    "dppo_tv": DppoTv,
    "dppo_kl": DppoKl,
    "ppo_mask": PpoMask,
    "band": Band,
    "quadratic": Quadratic,
    "dro": Dro,
    "aspo": Aspo,
    "ce_gppo": CeGppo,
    "dcpo": Dcpo,
    "fipo": Fipo,
    "clip_cov": ClipCov,
    "kl_cov": KlCov,
    "bapo": Bapo,
    "m2po": M2po,
}

__all__ = [
    "CHOICES",
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
