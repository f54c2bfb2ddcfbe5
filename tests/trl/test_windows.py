"""An optimizer step's micro-batches have, together, the loss and the gradient of the step as one batch."""

import math

import pytest
import torch
from grpo_variants_trl.step.step_counts import spans_generations
from support.trl.runs import join, logged, make, steps_of
from support.trl.stock_loss import stub
from trl import GRPOTrainer

import grpo_variants as gv

# (gradient accumulation, steps per generation, iterations): generations that hold whole optimizer steps.
WHOLE = [(1, 1, 1), (2, 2, 1), (2, 4, 1), (1, 4, 2), (2, 1, 2), (2, 2, 2), (4, 2, 2)]


def as_one_batch(variant, micro):
    """Loss and gradient (with respect to logp) of a step's micro-batches put together, by the core in float64."""
    inputs = [m["inputs"] for m in micro]
    keep = join([i.get("gv_keep", torch.ones(len(i["advantages"]))) for i in inputs]).bool()
    mask = join([i["completion_mask"] for i in inputs]).bool() & keep.unsqueeze(1)
    old = [i.get("old_per_token_logps", m["logp"].detach()) for i, m in zip(inputs, micro, strict=True)]
    ref = join([i["ref_per_token_logps"] for i in inputs]).double() if "ref_per_token_logps" in inputs[0] else None
    groups = join([i["gv_group"] for i in inputs])
    counts = gv.Counts.of(mask, groups[keep], length=6, sequences=keep.sum())
    logp = join([m["logp"].detach() for m in micro]).double().requires_grad_(True)
    x = gv.Tokens(
        logp=logp,
        mask=mask,
        advantages=join([i["advantages"] for i in inputs]).double(),
        old_logp=join(old).double(),
        ref_logp=ref,
        row_weights=gv.row_weights(variant, mask.sum(1).double(), counts, groups),
    )
    loss = gv.policy_loss(variant, x, counts).loss
    loss.backward()
    return loss.detach(), logp.grad


def assert_equal_to_one_batch(variant, micro):
    loss, gradient = as_one_batch(gv.get(variant), micro)
    torch.testing.assert_close(sum(m["loss"].double() for m in micro), loss, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(join([m["logp"].grad for m in micro]).double(), gradient, rtol=1e-4, atol=1e-7)
    return gradient.abs().max().item()


@pytest.mark.parametrize("schedule", WHOLE)
@pytest.mark.parametrize(
    "spec", ["dapo,filter=none", "grpo", "dr_grpo", "dapo,aggregation=prompt_mean,overlong=keep", "delta_l"]
)
def test_micro_batches_add_up_to_the_step(tmp_path, spec, schedule):
    accumulation, steps, iterations = schedule
    trainer = make(
        tmp_path,
        f"gv_{spec}",
        gradient_accumulation_steps=accumulation,
        steps_per_generation=steps,
        num_iterations=iterations,
        max_steps=4,
        per_device_train_batch_size=4,
    )
    optimizer_steps = steps_of(trainer)
    assert [len(w) for w in optimizer_steps] == [accumulation] * 4
    assert max(assert_equal_to_one_batch(spec, micro) for micro in optimizer_steps) > 1e-3


def test_dropped_groups_leave_the_counts_of_the_step(tmp_path):
    trainer = make(
        tmp_path,
        "gv_dapo,overlong=keep,filter.max_rounds=0",
        gradient_accumulation_steps=2,
        steps_per_generation=2,
        max_steps=4,
        per_device_train_batch_size=4,
        rewards=[lambda completion_ids, **kwargs: [float(len(ids) > 2) for ids in completion_ids]],
    )
    dropped = 0
    for micro in steps_of(trainer):
        dropped += sum(int((~m["inputs"]["gv_keep"]).sum()) for m in micro)
        assert_equal_to_one_batch("dapo", micro)
    assert dropped > 0, "no group was constant: the filter was not exercised"


@pytest.mark.parametrize("schedule", [(1, 1, 1), (2, 2, 1), (2, 2, 2)])
@pytest.mark.parametrize(("spec", "loss"), [("psr", -1.0), ("nsr", 1.0)])
def test_responses_without_an_advantage_leave_the_counts_of_the_step(tmp_path, spec, loss, schedule):
    """On policy the ratio is 1, and the mean of -A over the tokens that are learnt from is -1 or 1, whatever share."""
    accumulation, steps, iterations = schedule
    trainer = make(
        tmp_path,
        f"gv_{spec}",
        gradient_accumulation_steps=accumulation,
        steps_per_generation=steps,
        num_iterations=iterations,
        max_steps=4,
        per_device_train_batch_size=4,
        rewards=[lambda completion_ids, **kwargs: [float(len(ids) > 2) for ids in completion_ids]],
    )
    shares = []
    for micro in steps_of(trainer):
        inputs = [m["inputs"] for m in micro]
        signal, mask = join([i["advantages"] for i in inputs]) != 0, join([i["completion_mask"] for i in inputs]).bool()
        assert torch.equal(join([i["gv_keep"] for i in inputs]), signal)
        tokens = mask.sum(1)
        shares.append((tokens[signal].sum() / tokens.sum()).item())
        assert_equal_to_one_batch(f"{spec},aggregation.rows=all", micro)
        if "old_per_token_logps" not in inputs[0]:
            assert sum(m["loss"] for m in micro).item() == pytest.approx(loss if signal.any() else 0.0, rel=1e-5)
    assert any(0 < share < 1 for share in shares)


def test_a_response_that_is_dropped_takes_its_kl_term_with_it(tmp_path):
    trainer = make(
        tmp_path,
        "gv_nsr,kl=k3,kl.beta=0.5",
        gradient_accumulation_steps=2,
        steps_per_generation=2,
        max_steps=3,
        learning_rate=1e-2,
        rewards=[lambda completion_ids, **kwargs: [float(len(ids) > 2) for ids in completion_ids]],
    )
    for micro in steps_of(trainer):
        assert_equal_to_one_batch("nsr,kl=k3,kl.beta=0.5,aggregation.rows=all", micro)
        for m in micro:
            dropped = m["inputs"]["advantages"] == 0
            assert m["logp"].grad[dropped].eq(0).all()


def test_a_short_optimizer_step_at_the_end_of_an_epoch_is_exact(tmp_path):
    # 64 prompts x 4 responses / 8 a micro-batch = 32 micro-batches an epoch, 3 a step: the 11th step has 2.
    trainer = make(
        tmp_path,
        "gv_grpo",
        gradient_accumulation_steps=3,
        steps_per_generation=1,
        max_steps=11,
    )
    optimizer_steps = steps_of(trainer)
    assert [len(w) for w in optimizer_steps] == [3] * 10 + [2]
    assert assert_equal_to_one_batch("grpo", optimizer_steps[-1]) > 1e-3


# (gradient accumulation, steps per generation, iterations): steps that hold micro-batches of two generations.
SPANNING = [(2, 1, 1), (4, 3, 1), (4, 1, 2)]


def trl_alone(micro, schedule, **flags):
    """TRL's own `_compute_loss` on a micro-batch that was recorded: its loss, gradient and metrics."""
    logp = micro["logp"].detach().clone().requires_grad_(True)
    trainer = stub(logp, micro["entropy"], accumulation=schedule[0], steps=schedule[1], **flags)
    loss = GRPOTrainer._compute_loss(trainer, None, micro["inputs"])
    loss.backward()
    return loss.detach(), logp.grad


@pytest.mark.parametrize("schedule", SPANNING)
@pytest.mark.parametrize(
    ("loss_type", "stock"),
    [
        ("gv_dapo,filter=none,overlong=keep,conventions=trl", {"loss_type": "dapo", "epsilon_high": 0.28}),
        ("gv_grpo,kl=none,conventions=trl", {"loss_type": "grpo"}),
        ("gv_grpo,kl=none,conventions=trl", {"loss_type": "grpo", "entropy_coef": 0.5}),
        (
            "gv_dapo,filter=none,overlong=keep,conventions=trl",
            {"loss_type": "dapo", "epsilon_high": 0.28, "entropy_coef": 0.5},
        ),
    ],
)
def test_a_step_over_two_generations_is_counted_by_trls_rule(tmp_path, loss_type, stock, schedule):
    """Each micro-batch has the loss and gradient of TRL's own code, which divides by its own generation's tokens."""
    accumulation, steps, iterations = schedule
    bonus = stock.get("entropy_coef", 0.0)
    trainer = make(
        tmp_path,
        loss_type,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=steps,
        num_iterations=iterations,
        approximate_windows=True,
        entropy_coef=bonus,
        max_steps=4,
        learning_rate=1e-2,
    )
    optimizer_steps = steps_of(trainer)
    assert [len(micro) for micro in optimizer_steps] == [accumulation] * 4
    for m in (m for micro in optimizer_steps for m in micro):
        loss, gradient = trl_alone(m, schedule, **stock)
        torch.testing.assert_close(m["loss"], loss, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(m["logp"].grad, gradient, rtol=1e-5, atol=1e-8)
    counted = [{int(m["inputs"]["num_items_in_batch"]) for m in micro} for micro in optimizer_steps]
    assert max(map(len, counted)) > 1, "no step has generations of different lengths: the rule was not exercised"
    assert max(m["logp"].grad.abs().max() for micro in optimizer_steps for m in micro) > 1e-3


def test_trls_rule_divides_each_micro_batch_by_its_own_generation(tmp_path):
    """Lengths 1 and 9 in one step: by hand."""
    lengths = iter([1] * 8 + [9] * 8)

    def rollout(prompts, trainer):
        ids, _, _ = trainer._tokenize_prompts(prompts)
        completions = [[1] * next(lengths) for _ in prompts]
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None}

    trainer = make(
        tmp_path,
        "gv_dapo,filter=none,overlong=keep,scale=none",
        rollout_func=rollout,
        rewards=[lambda completions, **kwargs: [float(i % 4 == 0) for i in range(len(completions))]],
        max_completion_length=9,
        gradient_accumulation_steps=2,
        steps_per_generation=1,
        approximate_windows=True,
        max_steps=1,
    )
    (micro,) = steps_of(trainer)
    for m, tokens in zip(micro, (8, 72), strict=True):
        expected = -m["inputs"]["advantages"] / (2 * tokens)
        torch.testing.assert_close(m["logp"].grad, expected.unsqueeze(1).expand_as(m["logp"]), rtol=1e-5, atol=0)
    assert micro[0]["inputs"]["advantages"].abs().max() == 0.75


@pytest.mark.parametrize("schedule", SPANNING)
@pytest.mark.parametrize("spec", ["grpo,kl=none", "gspo", "dapo,filter=none,overlong=keep"])
def test_metrics_of_a_step_over_two_generations_are_means_over_its_tokens_or_responses(tmp_path, spec, schedule):
    accumulation, steps, iterations = schedule
    trainer = make(
        tmp_path,
        f"gv_{spec}",
        gradient_accumulation_steps=accumulation,
        steps_per_generation=steps,
        num_iterations=iterations,
        approximate_windows=True,
        max_steps=4,
        learning_rate=2e-2,
    )
    optimizer_steps = steps_of(trainer)
    ratio, entropy, low, high, clipped = ([] for _ in range(5))
    for micro in optimizer_steps:
        mask = join([m["inputs"]["completion_mask"] for m in micro]).bool()
        logp = join([m["logp"].detach() for m in micro])
        old = join([m["inputs"].get("old_per_token_logps", m["logp"].detach()) for m in micro])
        d = torch.where(mask, logp - old, 0.0)
        values = (d.sum(1) / mask.sum(1)).exp() if gv.get(spec).ratio.per_sequence else d[mask].exp()
        ratio.append(values.mean())
        low.append(values.min())
        high.append(values.max())
        entropy.append(join([m["entropy"] for m in micro])[mask].mean())
        advantages = join([m["inputs"]["advantages"] for m in micro])
        if not gv.get(spec).ratio.per_sequence:
            advantages = advantages.unsqueeze(1).expand_as(d)[mask]
        clip = gv.get(spec).surrogate
        cut = (advantages > 0) & (values > 1 + clip.high) | (advantages < 0) & (values < 1 - clip.low)
        clipped.append(cut.float().mean())
    found = [logged(trainer, name) for name in ("gv/ratio/mean", "gv/ratio/min", "gv/ratio/max", "entropy")]
    for value, wanted in zip(found, (ratio, low, high, entropy), strict=True):
        assert value == pytest.approx([w.item() for w in wanted], rel=1e-5)
    assert max(entropy) < math.log(3)
    assert logged(trainer, "clip_ratio/region_mean") == pytest.approx([c.item() for c in clipped], abs=1e-6)


@pytest.mark.parametrize(
    ("schedule", "spans"),
    [((4, 2, 1), True), ((4, 1, 1), True), ((2, 1, 1), True), ((4, 3, 1), True), ((2, 3, 1), True)]
    + [(schedule, False) for schedule in WHOLE],
)
def test_which_schedules_span_generations(schedule, spans):
    assert spans_generations(*schedule) is spans
