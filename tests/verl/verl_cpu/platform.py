"""A verl platform for the CPU: memory questions answer 0, streams and profilers do nothing."""

import types
from contextlib import nullcontext

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _Module(types.ModuleType):
    """torch.cpu, and what verl asks of torch.<device> besides."""

    def __getattr__(self, name):
        return getattr(torch.cpu, name)


def _nothing(*args, **kwargs):
    return None


def _zero(*args, **kwargs):
    return 0


def _module():
    module = _Module("verl_cpu_device")
    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device"):
        setattr(module, name, _nothing)
    for name in ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
        setattr(module, name, _zero)
    module.is_available = lambda: True
    module.mem_get_info = lambda *args: (1 << 33, 1 << 34)
    module.current_device = lambda: "cpu"
    module.get_device_name = lambda *args: "CPU"
    module.get_device_capability = lambda *args: (None, None)
    module.manual_seed = module.manual_seed_all = torch.manual_seed
    module.get_rng_state = lambda *args: torch.get_rng_state()
    module.set_rng_state = lambda state, *args: torch.set_rng_state(state)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _module()

    def is_available(self):
        return True

    def is_platform_available(self, use_smi_check=False):
        return False  # chosen by VERL_PLATFORM only, never detected

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return nullcontext()

    def ray_resource_name(self):
        return "GPU"

    def ray_resource_options(self, num_gpus):
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing
