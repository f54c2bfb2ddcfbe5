"""TRL's words in a spec string: its flags, its loss types, an attribute of its trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_variants.foreign_words import Word
from grpo_variants.spec import configure
from grpo_variants.trainers.base import name_comes_first
from grpo_variants.trainers.trl.words import FLAG_KEYS, FLAGS
from grpo_variants.variant import Variant


def _low(variant: Variant, value: Any, given: Mapping[str, Any]) -> Variant:
    return configure(variant, {"surrogate.low": value})


WORDS: Mapping[str, Word] = {
    **{flag: Word("TRL", tune, FLAG_KEYS.get(flag, ())) for flag, tune in FLAGS.items()},
    "epsilon_low": Word("TRL", _low, ("surrogate.low",)),  # an attribute of its trainer
    "loss_type": Word("TRL", name_comes_first),
}
