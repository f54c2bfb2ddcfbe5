"""grpo-variants in verl: importing this registers one estimator and one policy loss per variant, `gv_<name>`.

verl imports it in every process by the entry point group `verl.plugins`. A failure is logged here, since verl itself
hides why a plugin does not load.
"""

import logging

from grpo_variants.versions import how_to_install

try:
    import verl as _verl  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}. Install it {how_to_install('verl')}") from error

try:
    from grpo_variants_verl.cards import VariantCallback
    from grpo_variants_verl.config import VariantPolicyLossConfig
    from grpo_variants_verl.health import watch_health
    from grpo_variants_verl.launch import remove_checks, watch_config
    from grpo_variants_verl.metric_means import keep_means
    from grpo_variants_verl.patch import extend_host, restore_host
    from grpo_variants_verl.registration import register
    from grpo_variants_verl.steps import Step, step_scores

    register()
    watch_config()
    keep_means()
    watch_health()
except Exception as error:
    logging.getLogger(__name__).error("the plugin did not load, so no gv_ name is known to verl: %r", error)
    raise

__all__ = [
    "Step",
    "VariantCallback",
    "VariantPolicyLossConfig",
    "extend_host",
    "register",
    "remove_checks",
    "restore_host",
    "step_scores",
    "watch_config",
]
