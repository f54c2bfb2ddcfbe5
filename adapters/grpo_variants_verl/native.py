"""verl's own estimators and losses as members of the family, for the card and for the parity tests."""

from __future__ import annotations

from collections.abc import Mapping

ESTIMATORS: Mapping[str, str] = {
    "grpo": "grpo,conventions=verl",
    "grpo_vectorized": "grpo,conventions=verl",
    "rloo": "rloo,conventions=verl",
    "rloo_vectorized": "rloo,conventions=verl,singleton=zero",
    "reinforce_plus_plus": "reinforce_pp,conventions=verl",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline,conventions=verl",
    "remax": "remax,conventions=verl",
    "opo": "opo,conventions=verl",
    "grpo_passk": "passk,scale=group_std,conventions=verl",
    "gdpo": "gdpo,conventions=verl",
    "optimal_token_baseline": "otb,conventions=verl",
}
LOSSES: Mapping[str, str] = {
    "vanilla": "grpo,conventions=verl",
    "gspo": "gspo_token,conventions=verl",
    "gpg": "reinforce,conventions=verl",
}
