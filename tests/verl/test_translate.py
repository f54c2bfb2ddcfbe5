"""What translate prints, read by Hydra and by the adapter: the variant comes back, and nothing is left to report."""

from dataclasses import fields, replace

import pytest
from grpo_variants_verl.run_config import read_run_config, refusals, reports
from verl_configs import from_command_line

import grpo_variants as gv
from grpo_variants.objective.correction import OffPolicyMask
from grpo_variants.rollout.dynamic_sampling import ZeroVariance
from grpo_variants.trainers.verl import words
from grpo_variants.trainers.verl.limits import notes
from grpo_variants.trainers.verl.translate import run_settings


def translatable(name):
    """Whether verl can run a variant; tests/core/test_translate.py holds the others to their reasons."""
    try:
        run_settings(gv.get(name))
    except ValueError:
        return False
    return True


SPECS = [
    *(name for name in gv.names() if name != "remax" and translatable(name)),
    "grpo,scale=none,baseline=leave_one_out",
    "dapo,surrogate.high=0.3,kl=k3,kl.beta=0.01",
    "dapo,filter.metric=acc,overlong=penalty,overlong.buffer=128,overlong.factor=0.5",
    "grpo,kl=abs,kl.beta=0.1",
    "grpo,kl.gradient=k2",
    "grpo,conventions=verl,surrogate.low=0.1",
    "gspo,conventions=verl,baseline=leave_one_out",
    "reinforce_pp,credit=outcome,ratio=sequence",
    "reinforce_pp,kl=none",
    "rloo,correction=token_truncate+geometric_mask,correction.cap=3,correction.low=0.9,correction.high=1.1",
    "rloo,correction=token_mask,correction.low=0.5,correction.high=5",
    "rloo,correction=sequence_truncate,correction.cap=1.5",
    "rloo,correction=sequence_mask,correction.low=none,correction.high=3",
    "grpo,correction=off_policy_mask,correction.threshold=0.5",
    "grpo,ratio.anchor=rollout",
    "dr_grpo,aggregation.length=512",
    "psr,aggregation.rows=all",
    "nsr,aggregation=sequence_mean",
    "dapo,aggregation.rows=signal",
    "delta_l,aggregation=constant",
]


@pytest.fixture(scope="module", params=SPECS)
def pair(request):
    """A variant, and the run that its overrides configure."""
    variant = gv.get(request.param)
    return variant, read_run_config(from_command_line(*words.overrides(run_settings(variant))))


def test_both_ends_have_the_variants_parts(pair):
    variant, run = pair
    for axis in ("baseline", "scale", "credit", "singleton"):
        assert getattr(run.estimator.variant, axis) == getattr(variant, axis)
    for axis in ("ratio", "surrogate", "kl", "correction", "tokens"):
        assert getattr(run.loss.variant, axis) == getattr(variant, axis)
    # Weights that a loss cannot have are carried by the advantages.
    carried = run.estimator if words.carried_over(variant.aggregation) else run.loss
    assert carried.variant.aggregation == variant.aggregation


def unbounded(rule):
    """A filter as verl runs it: it draws until the batch is full."""
    return replace(rule, max_rounds=None) if isinstance(rule, ZeroVariance) else rule


def test_verls_settings_say_what_the_variant_says(pair):
    variant, run = pair
    has = words.read_kl_in_loss(run.get) or words.read_kl_in_reward(run.get)
    assert words.same_kl(has, variant.kl)
    assert words.read_filter(run.get) == unbounded(variant.filter)
    assert words.read_overlong(run.get) == variant.overlong or words.overlong_settings(variant) == {}
    theirs = tuple(part for part in variant.correction if not isinstance(part, OffPolicyMask))
    for mine, found in zip(theirs, words.read_correction(run.get), strict=True):
        for field in fields(mine):
            assert getattr(found, field.name) == pytest.approx(getattr(mine, field.name))


def test_nothing_is_refused_and_only_what_verl_lacks_is_reported(pair):
    variant, run = pair
    assert list(refusals(run)) == []
    known = (
        "clip_ratio_c",
        "rollout_rs takes",
        "in bypass mode",
        "keeps every response of a group of 4",
        "no response in the middle",
        "draws every response of a group of 4",
    )
    left = [report for report in reports(run) if not any(words in report for words in known)]
    masked = [note for note in notes(variant) if note.startswith("verl does not mask")]
    assert len(left) == len(masked), left


def test_prompt_mean_is_a_pair():
    variant = gv.get("dapo,aggregation=prompt_mean")
    run = read_run_config(from_command_line(*words.overrides(run_settings(variant))))
    assert run.estimator.variant.aggregation == variant.aggregation
    assert run.loss.variant.aggregation == gv.get("dapo").aggregation
    assert list(refusals(run)) == []


def test_delta_l_is_a_pair():
    variant = gv.get("delta_l,aggregation.alpha=1,aggregation.length=512")
    run = read_run_config(from_command_line(*words.overrides(run_settings(variant))))
    assert run.estimator.variant.aggregation == variant.aggregation
    assert run.loss.variant.aggregation == gv.get("dr_grpo,aggregation.length=512").aggregation
    assert list(refusals(run)) == []


def test_remax_uses_verls_own_estimator():
    run = read_run_config(from_command_line(*words.overrides(run_settings(gv.get("remax")))))
    assert (run.own_estimator, run.get("trainer.use_v1")) == ("remax", False)
    assert run.loss.variant.surrogate == gv.get("remax").surrogate
    assert list(refusals(run)) == []
