"""grpo-variants in TRL: the variant trainer and config, a patch that gives the stock trainer the same loss types."""

from grpo_variants.versions import how_to_install

try:
    import trl as _trl  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}. Install it {how_to_install('trl')}") from error

from grpo_variants.rollout.steps import Step, step_rewards, step_spans, token_ends
from grpo_variants_trl.config.grpo_config import VariantGRPOConfig
from grpo_variants_trl.patch import register, registered, unregister
from grpo_variants_trl.trainer import VariantGRPOTrainer

__all__ = [
    "Step",
    "VariantGRPOConfig",
    "VariantGRPOTrainer",
    "register",
    "registered",
    "step_rewards",
    "step_spans",
    "token_ends",
    "unregister",
]
