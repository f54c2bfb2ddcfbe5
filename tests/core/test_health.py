"""The health check: each symptom from the numbers of a step, which one is named, when, and what the summary says."""

import pytest

from grpo_variants.health import NAMES, HealthCheck, Observation, symptoms_of

HEALTHY = Observation(
    overlong=0.2,
    identical=0.0,
    without_reward=0.0,
    largest_advantage=1.6,
    all_right=0.2,
    all_wrong=0.3,
    loss_tokens=100.0,
    gradient_norm=0.7,
    clipped=0.15,
    ratio=1.02,
    cut_weights=0.1,
)


def step(**seen):
    return Observation(**{**HEALTHY.__dict__, **seen})


def check():
    return HealthCheck({name: f"fix {name}" for name in NAMES})


def test_a_healthy_step_and_one_of_which_nothing_is_known_have_no_symptom():
    assert symptoms_of(HEALTHY) == []
    assert symptoms_of(Observation()) == []


# What is observed, and the one symptom that is named for it: what follows from it is not named beside it.
CASES = [
    (dict(overlong=1.0, largest_advantage=0.0, loss_tokens=0.0, gradient_norm=0.0), "all_overlong"),
    (dict(identical=1.0, largest_advantage=0.0, gradient_norm=0.0), "identical_responses"),
    (dict(largest_advantage=0.0, all_right=1.0, all_wrong=0.0, gradient_norm=0.0), "no_signal"),
    (dict(largest_advantage=1e-8), "no_signal"),
    (dict(loss_tokens=0.0, gradient_norm=0.0), "nothing_scored"),
    (dict(gradient_norm=float("nan")), "nonfinite_gradient"),
    (dict(gradient_norm=float("inf")), "nonfinite_gradient"),
    (dict(gradient_norm=0.0), "zero_gradient"),
    (dict(clipped=1.0, gradient_norm=0.0), "every_token_clipped"),
    (dict(clipped=0.02, on_policy=True), "off_on_policy"),
    (dict(clipped=1.0, on_policy=True), "off_on_policy"),
    (dict(clipped=0.0, ratio=1.11, on_policy=True), "off_on_policy"),
    (dict(clipped=None, ratio=0.89, on_policy=True), "off_on_policy"),
    (dict(cut_weights=0.51), "correction_cuts_most"),
    (dict(added_kl=0.04), "added_kl"),
]


@pytest.mark.parametrize(("seen", "name"), CASES)
def test_each_symptom_is_named_by_its_cause_alone(seen, name):
    assert [symptom.name for symptom in symptoms_of(step(**seen))] == [name]


def test_every_symptom_has_a_case():
    assert {name for _, name in CASES} == set(NAMES)


EDGES = [
    dict(overlong=0.99),
    dict(identical=0.9),
    dict(largest_advantage=2e-6),
    dict(clipped=0.98),
    dict(clipped=0.01, ratio=1.09, on_policy=True),
    dict(cut_weights=0.5),
    dict(gradient_norm=1e-30),
    dict(loss_tokens=1.0),
    dict(added_kl=0.0),
]


@pytest.mark.parametrize("seen", EDGES)
def test_what_comes_near_is_no_symptom(seen):
    assert symptoms_of(step(**seen)) == []


SIGNALS = [
    (dict(without_reward=1.0), "no reward function gave a number for any response, so every advantage is 0"),
    (
        dict(all_right=1.0, all_wrong=0.0),
        "every response of every group is right, or the reward function is constant, so every advantage is 0",
    ),
    (
        dict(all_right=0.0, all_wrong=1.0),
        "every response of every group is wrong, or the reward function is constant, so every advantage is 0",
    ),
    (
        dict(all_right=0.25, all_wrong=0.75),
        "no group has a signal (25% all right, 75% all wrong), so every advantage is 0",
    ),
    (
        dict(all_right=0.0, all_wrong=0.0),
        "the reward is the same for all responses of a group, so every advantage is 0",
    ),
]


@pytest.mark.parametrize(("seen", "cause"), SIGNALS)
def test_no_signal_says_which_way(seen, cause):
    (symptom,) = symptoms_of(step(largest_advantage=0.0, **seen))
    assert symptom.cause(step(**seen)) == cause


def test_a_warning_comes_at_the_first_step_and_when_it_lasts():
    health = check()
    due = {n: health.observe(n, step(gradient_norm=0.0)) for n in range(1, 40)}
    said = {n: lines for n, lines in due.items() if lines}
    text = "the gradient is exactly 0 although tokens count in the loss; fix zero_gradient."
    assert said == {
        1: [f"step 1: {text}"],
        3: [f"step 3, 3 steps in a row: {text}"],
        30: [f"step 30, 30 steps in a row: {text}"],
    }


def test_a_symptom_of_a_later_step_is_named_when_it_lasts_only():
    health = check()
    steps = [HEALTHY, step(gradient_norm=0.0), step(gradient_norm=0.0), HEALTHY, *[step(gradient_norm=0.0)] * 3]
    said = [len(health.observe(n, seen)) for n, seen in enumerate(steps, 1)]
    assert said == [0, 0, 0, 0, 0, 0, 1]
    assert health.counts == {"zero_gradient": 5}


def test_a_setting_is_named_at_the_first_step_and_never_counted():
    health = check()
    said = [health.observe(n, step(added_kl=0.04)) for n in (1, 2, 3)]
    assert said == [
        ["step 1: kl.beta=0.04 adds a KL term and a reference that this member is defined without; fix added_kl."],
        [],
        [],
    ]
    assert health.summary() == ["health: 3 steps checked, nothing found."]
    assert health.counters() == {"findings": 0.0}


def test_counters_are_the_latest_steps_and_the_summary_is_the_runs():
    health = check()
    health.observe(1, step(gradient_norm=0.0))
    assert health.counters() == {"findings": 1.0, "zero_gradient": 1.0}
    health.observe(2, step(clipped=1.0, cut_weights=0.8))
    assert health.counters() == {
        "findings": 2.0,
        "zero_gradient": 0.0,
        "every_token_clipped": 1.0,
        "correction_cuts_most": 1.0,
    }
    health.observe(3, step(clipped=1.0))
    assert health.summary() == [
        "health: every_token_clipped in 2 of 3 steps; fix every_token_clipped.",
        "health: zero_gradient in 1 of 3 steps; fix zero_gradient.",
        "health: correction_cuts_most in 1 of 3 steps; fix correction_cuts_most.",
    ]


def test_remedies_are_complete():
    with pytest.raises(ValueError, match=r"remedies=\['zero_gradient'\] do not match; give one remedy for each of"):
        HealthCheck({name: "x" for name in NAMES if name != "zero_gradient"})
