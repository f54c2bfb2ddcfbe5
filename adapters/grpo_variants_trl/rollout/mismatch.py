"""What a rollout engine reports about the tokens it drew: checked when it arrives, filled where it has no number."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from grpo_variants.variant import Variant


def check_reported(variant: Variant, completion_ids: Sequence[Sequence[int]], logprobs: Any) -> None:
    """Raise ValueError unless there is one log-probability per completion token, where the variant reads them.

    None for a token is allowed: the engine could not score it. Without this check TRL would pad a short list with
    zeros, which means a probability of 1.
    """
    if logprobs is None:
        if variant.needs_rollout_logp:
            raise ValueError(
                f"{variant.name} reads the log-probabilities of the sampled tokens, and rollout_func returned "
                "logprobs=None. Return one number per completion token, or set correction=none, ratio.anchor=old."
            )
        return
    if len(logprobs) != len(completion_ids):
        raise ValueError(
            f"the rollouts have logprobs of {len(logprobs)} responses for {len(completion_ids)} completions; give one "
            "list per completion."
        )
    for row, (ids, values) in enumerate(zip(completion_ids, logprobs, strict=True)):
        if len(values) != len(ids):
            raise ValueError(
                f"logprobs[{row}] has {len(values)} numbers and completion_ids[{row}] has {len(ids)} tokens; give one "
                "number per token, None where the engine has none."
            )
        wrong = next((value for value in values if not (value is None or isinstance(value, Real))), None)
        if wrong is not None:
            raise ValueError(
                f"logprobs[{row}] holds {wrong!r}; allowed: a number per token, the log-probability of the sampled one."
            )


def filled(reported: Tensor | None, old_logp: Tensor) -> Tensor | None:
    """What the engine reported [B, T], with the trainer's number where it reported none: no mismatch is known there, so
    the weight is 1.
    """
    return None if reported is None else torch.where(reported.isnan(), old_logp, reported)
