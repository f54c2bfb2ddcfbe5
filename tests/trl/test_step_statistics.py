"""Objectives with a statistic of the optimizer step: the step's own in TRL, whatever its split into micro-batches."""

from dataclasses import replace

import pytest
import torch
from grpo_variants_trl.step import stage, step_statistics
from support import tiny_model
from support.trl.runs import join, logged, make, steps_of, weights

import grpo_variants as gv

# Settings under which the statistic binds on a few short responses.
SPECS = [
    "forking_tokens,filter=none,overlong=keep",
    "bapo,surrogate.floor=0.9,surrogate.floor_end=0.999,surrogate.ceiling=1.001,surrogate.step=0.01",
    "m2po,surrogate.budget=0.01,surrogate.low=0,surrogate.high=0",
    "clip_cov,surrogate.fraction=0.2,surrogate.cov_low=-10",
    "kl_cov,surrogate.fraction=0.2",
]
# (gradient accumulation, steps per generation, iterations)
SCHEDULES = [(4, 4, 2), (2, 4, 1), (1, 4, 2)]


def whole(micro):
    """A step's micro-batches as one `Tokens` in float64."""
    inputs = [m["inputs"] for m in micro]
    draws = [m["draws"] for m in micro]
    return gv.Tokens(
        logp=join([m["logp"].detach() for m in micro]).double().requires_grad_(True),
        mask=join([i["completion_mask"] for i in inputs]).bool(),
        advantages=join([i["advantages"] for i in inputs]).double(),
        old_logp=join(
            [i.get("old_per_token_logps", m["logp"].detach()) for i, m in zip(inputs, micro, strict=True)]
        ).double(),
        entropy=join([m["entropy"] for m in micro]).double(),
        draws=None if draws[0] is None else join(draws).double(),
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("spec", SPECS)
def test_micro_batches_add_up_to_the_step_as_one_batch(tmp_path, spec, schedule):
    accumulation, steps, iterations = schedule
    flags = dict(gradient_accumulation_steps=accumulation, steps_per_generation=steps, num_iterations=iterations)
    trainer = make(
        tmp_path, f"gv_{spec}", **flags, max_steps=4, per_device_train_batch_size=4, learning_rate=3e-2, beta=0.0
    )
    variant, moved, apart = trainer.variant, 0.0, 0.0
    for micro in steps_of(trainer):
        x = whole(micro)
        loss = gv.policy_loss(variant, x).loss
        loss.backward()
        torch.testing.assert_close(sum(m["loss"].double() for m in micro), loss.detach(), rtol=1e-4, atol=1e-6)
        gradient = join([m["logp"].grad for m in micro]).double()
        torch.testing.assert_close(gradient, x.logp.grad, rtol=1e-4, atol=1e-7)
        moved = max(moved, gradient.abs().max().item())
        apart = max(apart, (gradient - by_micro_batch(variant, x, len(micro))).abs().max().item())
    assert moved > 1e-3
    assert accumulation < 4 or apart > 1e-4, "the micro-batches' own statistics would have done"


def by_micro_batch(variant, x, count):
    """The gradient with each micro-batch's own statistics, as both trainers' built-ins take them."""
    counts = gv.Counts.of(x.mask)
    logp = x.logp.detach().requires_grad_(True)
    named = {name: value for name, value in vars(replace(x, logp=logp)).items() if value is not None}
    rows = torch.arange(len(logp)).chunk(count)
    sum(
        gv.policy_loss(variant, gv.Tokens(**{k: v[part] for k, v in named.items()}), counts).loss for part in rows
    ).backward()
    return logp.grad


@pytest.mark.parametrize("spec", SPECS)
def test_any_split_trains_the_same_parameters(tmp_path, monkeypatch, spec):
    """16 responses as one micro-batch, and as four: the same parameters after two updates on them."""

    def by_content(trainer, batches):
        """Random numbers that go with a response, wherever it lies."""

        def draws(ids):
            powers = 3 ** torch.arange(ids.shape[1]) * 0.61803398875
            return ((ids * powers).cumsum(1) * 7.31) % 1

        return [{**batch, step_statistics.DRAWS: draws(batch["completion_ids"])} for batch in batches]

    monkeypatch.setattr("grpo_variants_trl.step.stage.with_draws", by_content)
    ends = []
    for size, accumulation in ((16, 1), (4, 4)):
        flags = dict(per_device_train_batch_size=size, gradient_accumulation_steps=accumulation, num_iterations=2)
        trainer = make(tmp_path / str(size), f"gv_{spec}", **flags, max_steps=2, learning_rate=1e-2, beta=0.0)
        before = weights(trainer)
        trainer.train()
        ends.append(weights(trainer) - before)
    assert ends[0].abs().max() > 1e-3
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=2e-6)


def test_the_entropy_mask_is_trls_own_where_a_step_is_one_micro_batch(tmp_path):
    trainer = make(tmp_path, "gv_forking_tokens,filter=none,overlong=keep", max_steps=1, per_device_train_batch_size=16)
    ((micro,),) = steps_of(trainer)
    mask = micro["inputs"]["completion_mask"]
    theirs = trainer.get_high_entropy_mask(micro["entropy"], mask, 0.8)
    kept = micro["logp"].grad != 0
    assert 0 < theirs.sum() < mask.sum() / 2
    has_advantage = (micro["inputs"]["advantages"] != 0).unsqueeze(1)
    assert torch.equal(kept, theirs.bool() & has_advantage)
    (share,) = logged(trainer, "gv/tokens/kept")
    assert share == pytest.approx(theirs.sum().item() / mask.sum().item(), rel=1e-6)


@pytest.mark.parametrize("spec", ["bapo", "m2po", "clip_cov", "kl_cov", "forking_tokens,filter=none"])
def test_a_step_over_two_generations_is_refused(tmp_path, spec):
    flags = dict(gradient_accumulation_steps=4, steps_per_generation=2, per_device_train_batch_size=4)
    for approximate in (False, True):
        with pytest.raises(ValueError, match="Set steps_per_generation=4"):
            make(tmp_path, f"gv_{spec}", **flags, approximate_windows=approximate)


@pytest.mark.parametrize(("spec", "passes"), [("bapo", 1), ("grpo,kl=none", 0)])
def test_the_pass_for_the_statistic_runs_for_the_members_that_need_it_only(tmp_path, spec, passes):
    trainer = make(tmp_path, f"gv_{spec}", max_steps=1, beta=0.0)
    score, seen = trainer._score_tokens, []

    def scoring(*args, **options):
        seen.append(torch.is_grad_enabled())
        return score(*args, **options)

    trainer._score_tokens = scoring
    trainer.train()
    assert (seen.count(False), seen.count(True)) == (passes, 1)


def test_evaluation_takes_the_statistic_of_its_batch(tmp_path, monkeypatch):
    trainer = make(tmp_path, f"gv_{SPECS[0]}", max_steps=1, eval_dataset=tiny_model.dataset(8))
    seen, compute = [], stage.loss_of

    def computing(variant, x, counts):
        seen.append((counts.thresholds["entropy"].item(), variant.thresholds(x)["entropy"].item()))
        return compute(variant, x, counts)

    monkeypatch.setattr(stage, "loss_of", computing)
    trainer.evaluate()
    assert len(seen) == 4
    assert len({given for given, _ in seen}) > 1
    assert [given for given, _ in seen] == pytest.approx([own for _, own in seen], rel=1e-6)
