"""An optimizer step's micro-batches have, together, the loss and the gradient of the step as one batch."""

from itertools import groupby

import pytest
import torch
from grpo_variants_trl.windows import spans_generations
from trl_runs import make, recorded

import grpo_variants as gv

# (gradient accumulation, steps per generation, iterations): generations that hold whole optimizer steps.
WHOLE = [(1, 1, 1), (2, 2, 1), (2, 4, 1), (1, 4, 2), (2, 1, 2), (2, 2, 2), (4, 2, 2)]


def join(values):
    """Micro-batches of different widths as one [B, T] tensor, or their rows as one [B]."""
    width = max(v.shape[-1] for v in values)
    return torch.cat([v if v.dim() == 1 else torch.nn.functional.pad(v, (0, width - v.shape[1])) for v in values])


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


def steps_of(trainer):
    seen = recorded(trainer)
    trainer.train()
    return [list(micro) for _, micro in groupby(seen, key=lambda m: m["step"])]


@pytest.mark.parametrize("schedule", WHOLE)
@pytest.mark.parametrize("spec", ["dapo,filter=none", "grpo", "dr_grpo", "dapo,aggregation=prompt_mean,overlong=keep"])
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
    windows = steps_of(trainer)
    assert [len(w) for w in windows] == [accumulation] * 4
    assert max(assert_equal_to_one_batch(spec, micro) for micro in windows) > 1e-3


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


def test_a_short_window_at_the_end_of_an_epoch_is_exact(tmp_path):
    # 64 prompts x 4 responses / 8 a micro-batch = 32 micro-batches an epoch, 3 a step: the 11th step has 2.
    trainer = make(
        tmp_path,
        "gv_grpo",
        gradient_accumulation_steps=3,
        steps_per_generation=1,
        max_steps=11,
    )
    windows = steps_of(trainer)
    assert [len(w) for w in windows] == [3] * 10 + [2]
    assert assert_equal_to_one_batch("grpo", windows[-1]) > 1e-3


def test_counting_by_the_hosts_rule_is_off_by_the_generations_share(tmp_path):
    """A window of 2 micro-batches out of generations of 1: TRL's rule takes the first one's tokens twice."""
    trainer = make(
        tmp_path,
        "gv_dapo,filter=none",
        gradient_accumulation_steps=2,
        steps_per_generation=1,
        approximate_windows=True,
        max_steps=3,
    )
    for micro in steps_of(trainer):
        tokens = [int(m["inputs"]["completion_mask"].sum()) for m in micro]
        _, exact = as_one_batch(gv.get("dapo"), micro)
        approximate = join([m["logp"].grad for m in micro]).double()
        torch.testing.assert_close(approximate * 2 * tokens[0], exact * sum(tokens), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "spans"),
    [((4, 2, 1), True), ((4, 1, 1), True), ((2, 1, 1), True), ((4, 3, 1), True), ((2, 3, 1), True)]
    + [(schedule, False) for schedule in WHOLE],
)
def test_which_schedules_span_generations(schedule, spans):
    assert spans_generations(*schedule) is spans
