"""Loaded by verl in every process (VERL_USE_EXTERNAL_MODULES): the platform, the rollout engine, the process group."""

from functools import wraps

from verl.utils import distributed

from verl_cpu import platform, rollout  # noqa: F401


def _with_gloo(original):
    """verl asks for the backend string cpu:gloo,cpu:gloo, which torch refuses."""

    @wraps(original)
    def initialize(timeout_second=None, backend=None):
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    return initialize


distributed.initialize_global_process_group_ray = _with_gloo(distributed.initialize_global_process_group_ray)
