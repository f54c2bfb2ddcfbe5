"""The health check in verl: what verl logs in each step becomes warnings, in the trainer's own process."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from verl.utils import tracking

from grpo_variants.health import HealthCheck, Observation
from grpo_variants.names import PREFIX
from grpo_variants.trainers.verl import words
from grpo_variants_verl.run_config import RunConfig, concerns, read_run_config
from grpo_variants_verl.settings import node_of
from grpo_variants_verl.worker_check import LOG

SWITCH = "algorithm.grpo_variants.health"
_IDENTICAL = "gv/groups/identical"
_COUNTERS = "gv/health/"
# What verl logs of a correction's weights, those of its own and those of a variant's objective.
_CUT = (
    "rollout_corr/rollout_is_ratio_fraction_high",
    "rollout_corr/rollout_rs_masked_fraction",
    f"actor/{PREFIX}correction/zero",
    f"actor/{PREFIX}correction/truncated",
)
_CLIPPED = (f"actor/{PREFIX}clip/region", "actor/pg_clipfrac")
_OUTPUT = ("prompts", "responses", "response_mask")


class Watch:
    """The health check of one run: from verl's metrics of a step to warnings and counters."""

    def __init__(self, run: RunConfig) -> None:
        """Read from the configuration what the metrics do not say."""
        self._on_policy = _always_on_policy(run)
        self._added_kl = _added_kl(run)
        self.check = HealthCheck(remedies(run))

    def __call__(self, metrics: dict[str, Any], step: int) -> None:
        """Warn of what is wrong in a step, and put the counters beside its metrics."""
        if "training/global_step" not in metrics:  # a validation alone
            return
        for line in self.check.observe(step, self._observation(metrics)):
            LOG.warning(line)
        metrics |= {_COUNTERS + name: value for name, value in self.check.counters().items()}

    def _observation(self, metrics: Mapping[str, Any]) -> Observation:
        def value(*keys: str) -> float | None:
            return next((float(metrics[key]) for key in keys if key in metrics), None)

        extremes = [abs(v) for key in ("max", "min") if (v := value(f"critic/advantages/{key}")) is not None]
        cuts = [float(metrics[key]) for key in _CUT if key in metrics]
        # verl logs NaN for the advantages of a batch without a single token in its response mask.
        empty = bool(extremes) and all(map(math.isnan, extremes))
        return Observation(
            identical=value(_IDENTICAL),
            largest_advantage=None if empty or not extremes else max(extremes),
            loss_tokens=0.0 if empty else None,
            gradient_norm=value("actor/grad_norm"),
            clipped=value(*_CLIPPED),
            ratio=value(f"actor/{PREFIX}ratio/mean"),
            on_policy=self._on_policy,
            cut_weights=max(cuts, default=None),
            added_kl=self._added_kl,
        )


def _always_on_policy(run: RunConfig) -> bool:
    """Whether every update is the first one after its responses were drawn, so that its ratios are 1."""
    epochs, mini = run.get(f"{words.ACTOR}.ppo_epochs"), run.get(f"{words.ACTOR}.ppo_mini_batch_size")
    bypassed = run.get(f"{words.CORRECTION}.bypass_mode")
    return epochs == 1 and mini == run.get("data.train_batch_size") and not bypassed and not _asynchronous(run)


def _asynchronous(run: RunConfig) -> bool:
    return bool(run.get(words.V1)) and run.get("trainer.v1.trainer_mode") not in (None, "sync")


def _added_kl(run: RunConfig) -> float | None:
    """The coefficient of a KL in the loss that the member has not; what else differs is reported at the start."""
    added = words.read_kl_in_loss(run.get)
    if run.loss is None or added is None or run.loss.variant.kl is not None:
        return None
    return added.beta


def remedies(run: RunConfig) -> dict[str, str]:
    """What to set in verl, by symptom."""
    length = f"{words.MAX_LENGTH} (now {run.get(words.MAX_LENGTH)})"
    rate = f"actor_rollout_ref.actor.optim.lr (now {run.get(f'{words.ACTOR}.optim.lr')})"
    samples = f"{words.ROLLOUT}.temperature (now {run.get(f'{words.ROLLOUT}.temperature')})"
    return {
        "all_overlong": f"raise {length}",
        "identical_responses": f"set {words.ROLLOUT}.do_sample=True and raise {samples}",
        "no_signal": "look at the reward function and at a few responses, or choose prompts of another difficulty",
        "nothing_scored": "look at the response masks and at what the agent loop returns",
        "nonfinite_gradient": f"lower {rate}, or look for infinite rewards and log-probabilities",
        "off_on_policy": "look for dropout, and for dtypes or kernels that differ between its two forwards",
        "every_token_clipped": f"lower {rate}, or widen the clip bounds",
        "correction_cuts_most": "compare dtypes and sampling settings of trainer and engine, or raise the threshold",
        "zero_gradient": "look whether the trained parameters require gradients and whether the advantages reach them",
        "added_kl": f"set {words.ACTOR}.use_kl_loss=False to train it as it is defined",
    }


def watch_health() -> None:
    """Add the health check to verl's logging, for every run of a variant; doing it again changes nothing."""
    if hasattr(tracking.Tracking.log, "__wrapped__"):
        return
    tracking.Tracking.__init__ = _with_watch(tracking.Tracking.__init__)
    tracking.Tracking.log = _with_check(tracking.Tracking.log)
    tracking.Tracking.finish = _with_summary(tracking.Tracking.finish)


def _with_watch(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def initialise(self: Any, *args: Any, config: Any = None, **kwargs: Any) -> None:
        original(self, *args, config=config, **kwargs)
        given = config if isinstance(config, DictConfig) else OmegaConf.create(config or {})
        self.grpo_variants_watch = _watch_of(given)

    return initialise


def _watch_of(config: DictConfig) -> Watch | None:
    """The watch of a configuration; None where it trains no variant, or has the check switched off."""
    if OmegaConf.select(config, words.ESTIMATOR) is None or not concerns(config):
        return None
    if node_of(config.algorithm).get("health") is False:
        return None
    _compare_responses()
    return Watch(read_run_config(config))


def _with_check(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def log(self: Any, data: dict[str, Any], step: int, *args: Any, **kwargs: Any) -> None:
        watch = getattr(self, "grpo_variants_watch", None)
        if watch is not None:
            watch(data, step)
        original(self, data, step, *args, **kwargs)

    return log


def _with_summary(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def finish(self: Any, *args: Any, **kwargs: Any) -> None:
        watch, self.grpo_variants_watch = getattr(self, "grpo_variants_watch", None), None
        if watch is not None and watch.check.steps:
            print(*watch.check.summary(), sep="\n", flush=True)
        original(self, *args, **kwargs)

    return finish


def _compare_responses() -> None:
    """Add the share of groups whose responses are all the same to verl's metrics of a batch."""
    from verl.trainer.ppo import metric_utils

    original = metric_utils.compute_data_metrics
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def compute_data_metrics(batch: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        found = original(batch, *args, **kwargs)
        if all(name in batch.batch for name in _OUTPUT):
            found[_IDENTICAL] = identical_groups(*(batch.batch[name] for name in _OUTPUT))
        return found

    for module in [m for key, m in sys.modules.items() if key.startswith("verl.")]:
        if getattr(module, "compute_data_metrics", None) is original:
            module.compute_data_metrics = compute_data_metrics  # type: ignore[attr-defined]


def identical_groups(prompts: Tensor, responses: Tensor, mask: Tensor) -> float:
    """Share of the groups of several responses in which all responses are the same.

    prompts [N, P], responses [N, T], mask [N, T]: token ids as verl pads them; equal prompts make a group.
    """
    told = torch.stack([_fingerprint(prompts), _fingerprint(responses * mask.bool())], dim=1)
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for prompt, response in told.tolist():
        groups[prompt].append(response)
    several = [found for found in groups.values() if len(found) > 1]
    return sum(len(set(found)) == 1 for found in several) / len(several) if several else 0.0


def _fingerprint(ids: Tensor) -> Tensor:
    """One integer per row [N]; different rows have the same one with a chance of one in 2 to the 60."""
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(2**62, (ids.shape[1],), generator=generator).to(ids.device) | 1
    return (ids.long() * factors).sum(1)  # overflow is fine in a hash
