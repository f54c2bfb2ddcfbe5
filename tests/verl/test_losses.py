"""Policy losses: verl's own under conventions=verl in value, gradient and metrics; counts of the whole step."""

import logging

import pytest
import torch
from grpo_variants_verl import VariantPolicyLossConfig, builtins, worker_check
from grpo_variants_verl.settings import loss_choice
from torch.testing import assert_close
from verl.trainer.ppo import core_algos
from verl.workers.config import FSDPActorConfig, PolicyLossConfig

import grpo_variants as gv
from grpo_variants.trainers.verl.limits import loss_form, loss_refusals

# What verl hands a policy loss beside the tensors: 3 ranks, 47 tokens and 12 responses in the step.
STEP = {"dp_size": 3, "batch_num_tokens": 47, "global_batch_size": 12, "loss_scale_factor": 9}
AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant",
}


def batch(rows=6, width=7, drift=1.0, dtype=torch.float64):
    """Log-probabilities off policy, holes in the mask, one empty row, rubbish where the mask is 0."""
    torch.manual_seed(5)
    mask = torch.rand(rows, width) < 0.7
    mask[:, 0], mask[2] = True, False
    old = -2 * torch.rand(rows, width, dtype=dtype) - 0.1
    logp = (old + drift * torch.randn(rows, width, dtype=dtype)).clamp(max=-0.01).requires_grad_()
    advantages = torch.randn(rows, 1, dtype=dtype).expand(rows, width) * mask
    return {"old_log_prob": old, "log_prob": logp, "advantages": advantages, "response_mask": mask}


def actor(loss_mode="vanilla", options=None, step=STEP, **fields):
    cls = PolicyLossConfig if options is None else VariantPolicyLossConfig
    extra = {key: fields.pop(key) for key in list(fields) if key in PolicyLossConfig.__dataclass_fields__}
    extra |= {} if options is None else {"options": options}
    config = FSDPActorConfig(
        rollout_n=2, ppo_micro_batch_size_per_gpu=2, policy_loss=cls(loss_mode=loss_mode, **extra), **fields
    )
    config.global_batch_info.update(step)
    return config


def run(config, tensors, weights=None):
    """Loss, gradient and metrics of a configuration's policy loss."""
    logp = tensors["log_prob"].detach().clone().requires_grad_()
    loss_fn = core_algos.get_policy_loss_fn(config.policy_loss.loss_mode)
    given = {**tensors, "log_prob": logp, "rollout_is_weights": weights}
    loss, metrics = loss_fn(**given, loss_agg_mode=config.loss_agg_mode, config=config)
    loss.backward()
    return loss.detach(), logp.grad, {key: float(value) for key, value in metrics.items()}


def ours(name, mode, **fields):
    """The configuration of the gv_ loss that equals verl's own `name` aggregated by `mode`."""
    base, _, rest = builtins.LOSSES[name].spec.partition(",")
    options = f"{rest.removeprefix('kl=none,')},aggregation={AGGREGATIONS[mode]}"
    return actor(f"gv_{base}", options, loss_agg_mode=mode, **fields)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("drift", [0.0, 0.3, 3.0, 30.0])
@pytest.mark.parametrize("name", ["vanilla", "gspo", "gpg"])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_trainers_own_loss(parity, name, drift, mode, weighted):
    """Value, gradient and verl's metrics. gv_gspo_token clips at 3e-4 and 4e-4, so verl is told the same."""
    clips = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4} if name == "gspo" else {}
    tensors = batch(drift=drift)
    weights = torch.rand(6, 7, dtype=torch.float64) * 2 * tensors["response_mask"] if weighted else None
    wanted = run(actor(name, loss_agg_mode=mode, **clips), tensors, weights)
    found = run(ours(name, mode), tensors, weights)
    builtin = f"loss {name}, through the plugin; every loss_agg_mode with counterpart, with and without rollout weights"
    pairs = {"loss": (found[0], wanted[0]), "gradient": (found[1], wanted[1])}
    parity.equal(builtins.LOSSES[name].spec, builtin, atol=1e-9, rtol=1e-7, **pairs)
    metrics = {f"metric {key}": (found[2][key], value) for key, value in wanted[2].items()}
    parity.equal(builtins.LOSSES[name].spec, builtin, atol=1e-6, rtol=1e-6, **metrics)
    assert found[1].abs().max() > 1e-4


def test_verls_metrics_are_not_all_zero():
    """At drift 1 some tokens are clipped, some by the dual clip: the parity test compares something."""
    metrics = run(ours("vanilla", "token-mean"), batch(drift=1.5))[2]
    assert metrics["actor/pg_clipfrac"] > 0.1
    assert metrics["actor/pg_clipfrac_lower"] > 0.02
    assert abs(metrics["actor/ppo_kl"]) > 0.02


def test_verls_field_for_the_dual_clip_is_read():
    """A = -1, ratio e^2 = 7.389: PPO's loss is 7.389 with gradient 7.389; with clip_ratio_c=4 it stops at 4."""
    one = torch.ones(1, 1, dtype=torch.float64)
    tensors = {"old_log_prob": -3 * one, "log_prob": -one, "advantages": -one, "response_mask": one.bool()}
    step = {"dp_size": 1, "batch_num_tokens": 1, "global_batch_size": 1}
    mine = run(actor("gv_grpo", step=step), tensors)
    assert mine[0].item() == pytest.approx(7.38905609893065)
    assert mine[1].item() == pytest.approx(7.38905609893065)
    asked = run(actor("gv_grpo", step=step, clip_ratio_c=4.0), tensors)
    assert (asked[0].item(), asked[1].item()) == (4.0, 0.0)


# verl's own loss, the gv_ loss and its options, verl's fields that were moved.
MOVED = [
    ("sapo", "sapo", "conventions=verl", {"tau_pos": 2.0}),
    ("sapo", "sapo", "conventions=verl", {"tau_pos": 2.0, "tau_neg": 0.5}),
    ("kl_cov", "kl_cov", "ratio.bound_low=none,ratio.bound_high=none", {"kl_cov_ratio": 0.3, "ppo_kl_coef": 0.7}),
    ("dro", "kimi_k15", "ratio=token,ratio.bound_low=none,ratio.bound_high=none", {"dro_beta": 0.3}),
    (
        "dppo_tv",
        "dppo_tv",
        "conventions=verl,ratio.anchor=old",
        {"clip_ratio_c": 5.0, "clip_ratio_low": 0.02, "clip_ratio_high": 0.05},
    ),
    (
        "dppo_kl",
        "dppo_kl",
        "conventions=verl,ratio.anchor=old",
        {"clip_ratio_c": 1.5, "clip_ratio_low": 0.03, "clip_ratio_high": 0.07},
    ),
    ("cispo", "cispo", "conventions=verl,surrogate.low=0.2", {"clip_ratio_high": 1.5}),
    ("cispo", "cispo", "conventions=verl", {"clip_ratio_high": 0.5, "clip_ratio_low": 0.3}),
    ("vanilla", "grpo", "conventions=verl", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "clip_ratio_c": 1.5}),
]


@pytest.mark.parametrize(("own", "name", "options", "moved"), MOVED, ids=[f"{m[0]}-{'-'.join(m[3])}" for m in MOVED])
def test_a_field_that_was_moved_counts_as_in_verls_own_loss(own, name, options, moved):
    """Value and gradient, and another value than with verl's defaults."""
    mode = "seq-mean-token-mean" if own == "sapo" else "token-mean"
    tensors, options = batch(), f"{options},aggregation={AGGREGATIONS[mode]}"
    wanted = run(actor(own, loss_agg_mode=mode, **moved), tensors)
    found = run(actor(f"gv_{name}", options, loss_agg_mode=mode, **moved), tensors)
    assert_close(found[0], wanted[0], atol=1e-9, rtol=1e-9)
    assert_close(found[1], wanted[1], atol=1e-9, rtol=1e-7)
    assert abs(run(actor(f"gv_{name}", options, loss_agg_mode=mode), tensors)[0] - found[0]) > 1e-3


def test_every_field_of_clip_cov_is_read():
    """It draws tokens at random, so the surrogate is compared and not the loss."""
    config = actor("gv_clip_cov", clip_cov_ratio=0.1, clip_cov_lb=-0.2, clip_cov_ub=0.8, clip_ratio_high=0.3)
    found = loss_choice("clip_cov", config)
    fields = "surrogate.fraction=0.1,surrogate.cov_low=-0.2,surrogate.cov_high=0.8,surrogate.high=0.3"
    assert found.variant.surrogate == gv.get(f"clip_cov,{fields}").surrogate
    assert found.origins["surrogate.fraction"] == "actor_rollout_ref.actor.policy_loss.clip_cov_ratio"


RUNNABLE = [name for name in gv.names() if not list(loss_refusals(gv.get(name)))]
# A statistic of the batch is that of each micro-batch in verl, which hands none of the step's over.
SPLIT = [name for name in RUNNABLE if not gv.get(name).surrogate.whole_batch]


def core_loss(name, tensors, counts, weights=None):
    """The core's own loss and gradient, without the KL term, which verl adds."""
    logp = tensors["log_prob"].detach().clone().requires_grad_()
    x = gv.Tokens(
        logp=logp,
        mask=tensors["response_mask"],
        advantages=tensors["advantages"],
        old_logp=tensors["old_log_prob"],
        correction=weights,
    )
    out = gv.policy_loss(loss_form(gv.get(name)), x, counts)
    out.loss.backward()
    return out.loss.detach(), logp.grad


@pytest.mark.parametrize("name", RUNNABLE)
def test_equals_the_core_with_the_steps_counts(name):
    tensors = batch()
    counts = gv.Counts(tokens=47, sequences=12, length=9, grad_average=3)
    torch.manual_seed(1)
    wanted = core_loss(name, tensors, counts)
    torch.manual_seed(1)  # for a loss that draws
    found = run(actor(f"gv_{name}"), tensors)
    assert_close(found[0], wanted[0], atol=1e-12, rtol=1e-12)
    assert_close(found[1], wanted[1], atol=1e-12, rtol=1e-12)
    assert wanted[1].abs().max() > 1e-4


@pytest.mark.parametrize("sizes", [(6,), (2, 4), (1, 1, 1, 1, 1, 1)])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", SPLIT)
def test_neither_micro_batches_nor_ranks_matter(name, ranks, sizes):
    """The gradients of any split, averaged over ranks as FSDP does, equal those of the whole on one rank.

    Each micro-batch is padded to its own longest response, as verl pads it.
    """
    tensors = batch()
    step = {"batch_num_tokens": int(tensors["response_mask"].sum()), "global_batch_size": 6, "loss_scale_factor": 9}
    whole = run(actor(f"gv_{name}", step={**step, "dp_size": 1}), tensors)
    loss, grad, start = 0.0, torch.zeros(6, 7, dtype=torch.float64), 0
    for size in sizes:
        rows = slice(start, start + size)
        width = max(1, int((tensors["response_mask"][rows] * (torch.arange(7) + 1)).max()))
        part = {key: value[rows, :width] for key, value in tensors.items()}
        found = run(actor(f"gv_{name}", step={**step, "dp_size": ranks}), part)
        loss += found[0] / ranks
        grad[rows, :width] += found[1] / ranks
        start += size
    assert_close(loss, whole[0], atol=1e-12, rtol=1e-10)
    assert_close(grad, whole[1], atol=1e-12, rtol=1e-10)


def test_without_counts_the_micro_batch_is_the_step():
    tensors = batch()
    found = run(actor("gv_dapo", step={}), tensors)
    wanted = core_loss("dapo", tensors, gv.Counts.of(tensors["response_mask"]))
    assert_close(found[0], wanted[0], atol=1e-12, rtol=1e-12)
    assert_close(found[1], wanted[1], atol=1e-12, rtol=1e-12)


def test_several_ranks_without_counts_are_an_error():
    with pytest.raises(ValueError, match="gv_dapo: 2 ranks but no batch_num_tokens or global_batch_size"):
        run(actor("gv_dapo", step={"dp_size": 2}), batch())


def test_constant_without_a_length_is_an_error_with_the_line_that_fixes_it():
    fix = r"actor_rollout_ref.actor.loss_scale_factor='\$\{data.max_response_length\}'"
    with pytest.raises(ValueError, match=fix):
        run(actor("gv_dr_grpo", step={**STEP, "loss_scale_factor": None}), batch())


@pytest.mark.parametrize(
    ("fields", "options", "low", "high"),
    [
        ({}, "", 0.2, 0.28),
        ({"clip_ratio_high": 0.5}, "", 0.2, 0.5),
        ({"clip_ratio_low": 0.1}, "", 0.1, 0.28),
        ({"clip_ratio": 0.3}, "", 0.3, 0.3),
        ({"clip_ratio": 0.3, "clip_ratio_low": 0.1}, "", 0.1, 0.3),
        ({}, "surrogate.high=0.4", 0.2, 0.4),
        ({"clip_ratio_high": 0.4}, "surrogate.high=0.4", 0.2, 0.4),
    ],
)
def test_clip_comes_from_verls_fields_where_they_were_moved(fields, options, low, high):
    """One token with ratio e: its loss is -(1 + high) for A = 1; with ratio 1/e it is 1 - low for A = -1."""
    logp = torch.tensor([[-1.0], [-3.0]], dtype=torch.float64)
    tensors = {
        "old_log_prob": torch.full((2, 1), -2.0, dtype=torch.float64),
        "log_prob": logp,
        "advantages": torch.tensor([[1.0], [-1.0]], dtype=torch.float64),
        "response_mask": torch.ones(2, 1, dtype=torch.bool),
    }
    loss = run(actor("gv_dapo", options, step={}, **fields), tensors)[0]
    assert loss.item() == pytest.approx((-(1 + high) + (1 - low)) / 2)


def test_a_clip_field_and_an_option_that_disagree_are_an_error():
    config = actor("gv_dapo", "surrogate.high=0.4", clip_ratio_high=0.3)
    with pytest.raises(ValueError, match=r"clip_ratio_high=0.3 and surrogate.high=0.4 in .* disagree"):
        run(config, batch())


def test_off_policy_mask_multiplies_verls_weights():
    """V3.2's mask drops rows with A < 0 whose mean old - logp exceeds 0.5: row 0. Row 1 keeps its weights of 0.5."""
    logp = torch.tensor([[-3.0, -3.0], [-2.0, -2.0]], dtype=torch.float64)
    tensors = {
        "old_log_prob": torch.full((2, 2), -2.0, dtype=torch.float64),
        "log_prob": logp,
        "advantages": -torch.ones(2, 2, dtype=torch.float64),
        "response_mask": torch.ones(2, 2, dtype=torch.bool),
    }
    config = actor("gv_dapo", "correction=off_policy_mask,correction.threshold=0.5", step={})
    half = torch.full((2, 2), 0.5, dtype=torch.float64)
    loss, grad, _ = run(config, tensors, half)
    assert loss.item() == pytest.approx(2 * 0.5 / 4)  # two tokens of ratio 1 and A = -1, weight 0.5, of 4 tokens
    assert_close(grad, torch.tensor([[0.0, 0.0], [0.125, 0.125]], dtype=torch.float64))


def test_metrics_are_floats_with_the_same_keys_for_any_batch():
    """Keys must agree over ranks, and verl turns every value into a float anyway."""
    found = [run(actor("gv_gspo"), batch(rows=rows))[2] for rows in (3, 6)]
    empty = batch()
    empty["response_mask"] = torch.zeros_like(empty["response_mask"])
    found.append(run(actor("gv_gspo"), empty)[2])
    assert found[0].keys() == found[1].keys() == found[2].keys()
    assert {"actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower", "actor/gv_ratio/mean"} <= found[0].keys()
    assert all(type(value) is float for value in found[0].values())


def test_an_empty_micro_batch_gives_a_loss_of_zero_that_runs_backward():
    empty = batch()
    empty["response_mask"] = torch.zeros_like(empty["response_mask"])
    loss, grad, _ = run(actor("gv_grpo"), empty)
    assert loss.item() == 0
    assert grad.abs().max() == 0


def test_verl_may_change_the_returned_loss_in_place():
    """ppo_loss subtracts the entropy bonus in place and then runs backward."""
    tensors = batch()
    logp = tensors["log_prob"]
    config = actor("gv_grpo")
    first, _ = core_algos.get_policy_loss_fn("gv_grpo")(**tensors, config=config)
    kept = first.item()
    first -= 1.0
    first.backward()
    second, _ = core_algos.get_policy_loss_fn("gv_grpo")(**tensors, config=config)
    assert second.item() == kept
    assert logp.grad.abs().max() > 0


def test_half_precision_log_probabilities_are_upcast():
    tensors = batch(dtype=torch.float32)
    exact = run(actor("gv_grpo"), tensors)[0]
    coarse = {key: value.detach().bfloat16() if value.is_floating_point() else value for key, value in tensors.items()}
    rounded = {key: value.float() if value.is_floating_point() else value for key, value in coarse.items()}
    found, _, _ = run(actor("gv_grpo"), coarse)
    assert found.dtype == torch.float32
    assert_close(found, run(actor("gv_grpo"), rounded)[0])
    assert abs(found - exact) < 0.05 * abs(exact) + 0.05


def test_a_policy_loss_without_config_says_what_it_needs():
    with pytest.raises(ValueError, match=r"gv_grpo reads its options from verl's actor config"):
        core_algos.get_policy_loss_fn("gv_grpo")(**batch())


@pytest.fixture
def reports(monkeypatch, caplog):
    """What this process reports, as a process in which no gv_ loss has run yet."""
    monkeypatch.setattr(worker_check, "_met", set())
    monkeypatch.delenv(worker_check.DRIVER_VARIABLE, raising=False)
    caplog.set_level(logging.WARNING, logger="grpo_variants_verl")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "grpo_variants_verl"]


def test_a_process_without_a_driver_reports_once(reports):
    """Whoever calls verl's losses from a program of their own has nobody that checked the configuration."""
    for _ in range(3):
        run(actor("gv_gspo"), batch())
    assert len(reports()) == 1
    assert "Fix: actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean" in reports()[0]
    run(actor("gv_gspo", "surrogate.low=0.001"), batch())
    assert len(reports()) == 2


def test_a_worker_whose_driver_has_reported_says_nothing(reports, monkeypatch):
    monkeypatch.setenv(worker_check.DRIVER_VARIABLE, gv.__version__)
    run(actor("gv_gspo"), batch())
    assert reports() == []


def test_a_worker_with_another_version_than_the_driver_does_not_train(reports, monkeypatch):
    monkeypatch.setenv(worker_check.DRIVER_VARIABLE, "0.0.1")
    with pytest.raises(RuntimeError, match=r"gv_gspo: the driver has grpo-variants 0.0.1, this worker has 0"):
        run(actor("gv_gspo"), batch())
