"""The catalogue: every named member of the family, one entry each; importing it registers them."""

from __future__ import annotations

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
from grpo_variants.registry import register
from grpo_variants.variant import Variant

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

for _variant in CATALOGUE:
    register(_variant)
