"""What a worker checks when its policy loss first runs."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch.distributed as dist

from grpo_variants import __version__
from grpo_variants.names import PREFIX
from grpo_variants_verl.config_diff import actor_reports
from grpo_variants_verl.settings import Chosen, getter

LOG = logging.getLogger("grpo_variants_verl")
# Set for every worker by a driver that has checked and reported the configuration: the driver's version.
DRIVER_VARIABLE = "GRPO_VARIANTS_VERL_DRIVER"
_met: set[Chosen] = set()


def first_use(chosen: Chosen, actor: Any) -> None:
    """Once per process and variant: refuse another version than the driver's, and report what the driver has not.

    Raises RuntimeError where the driver has another version of this package: the same name may mean something else.
    """
    if chosen in _met:
        return
    _met.add(chosen)
    driver = os.environ.get(DRIVER_VARIABLE)
    if driver not in (None, __version__):
        raise RuntimeError(
            f"{PREFIX}{chosen.variant.name}: the driver has grpo-variants {driver}, this worker has {__version__}; "
            "install the same version on every node."
        )
    if driver is None and not (dist.is_initialized() and dist.get_rank()):
        get = getter(actor)
        for report in actor_reports(chosen.variant, get):
            LOG.warning(report.sentence(get))
