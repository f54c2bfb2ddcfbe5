"""The NumPy reference: against finite differences, against the package, and against numbers worked by hand."""

import ast
import inspect

import numpy as np
import pytest
import torch

import grpo_variants as gv
from grpo_variants import reference

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def batch(seed=0, rows=5, width=24):
    """Off-policy log-probabilities with ratios on both sides of the clip range, a ragged mask with holes."""
    rng = np.random.default_rng(seed)
    old = -rng.uniform(2.1, 4.0, (rows, width))
    logp = old + rng.normal(0, 0.4, (rows, width))
    ref = old + rng.normal(0, 0.3, (rows, width))
    mask = rng.random((rows, width)) < 0.7
    mask[0] = True
    mask[-1] = False  # a response without a token
    advantages = np.array([1.5, -0.7, 0.3, -1.1, 2.0])
    return logp, old, ref, advantages, mask


@pytest.mark.parametrize(
    ("function", "rewards", "expected"),
    [
        (reference.rloo_advantages, [[0, 1, 3], [1, 1, 1]], [[-2, -0.5, 2.5], [0, 0, 0]]),
        (reference.rloo_advantages, [[0.7], [2.0]], [[0], [0]]),
        (reference.group_advantages, [[0.7], [2.0]], [[0], [0]]),
        (reference.group_advantages, [[0.7] * 8], [[0] * 8]),
        # mean 2, deviations (-1, -1, -1, 3), variance 12 / 3 = 4
        (reference.group_advantages, [[1, 1, 1, 5]], [[-1 / 2.000001, -1 / 2.000001, -1 / 2.000001, 3 / 2.000001]]),
    ],
)
def test_advantages_by_hand(function, rewards, expected):
    np.testing.assert_allclose(function(rewards), expected, rtol=1e-14, atol=0)


def test_advantages_without_std_are_centred_rewards():
    np.testing.assert_allclose(
        reference.group_advantages([[0, 1, 3]], normalize_std=False), [[-4 / 3, -1 / 3, 5 / 3]], rtol=1e-14
    )


def test_the_epsilon_is_added_to_the_standard_deviation():
    np.testing.assert_allclose(reference.group_advantages([[1, 1, 1, 5]], eps=2), [[-0.25, -0.25, -0.25, 0.75]])


@pytest.mark.parametrize("function", [reference.rloo_advantages, reference.group_advantages])
def test_rewards_of_another_shape_are_refused(function):
    with pytest.raises(ValueError, match=r"rewards has shape \(3,\); allowed: \[P, G\]"):
        function([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("rloo", reference.rloo_advantages),
        ("grpo", reference.group_advantages),
        ("dr_grpo", lambda r: reference.group_advantages(r, normalize_std=False)),
    ],
)
def test_advantages_equal_the_package(name, rule):
    rewards = np.random.default_rng(1).normal(size=(7, 4))
    rewards[2] = 0.7
    ours = gv.advantages(name, torch.tensor(rewards).flatten(), [p for p in range(7) for _ in range(4)])
    np.testing.assert_allclose(ours.view(7, 4).numpy(), rule(rewards), **EXACT)


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("agg", reference.AGGREGATIONS)
def test_gradient_equals_finite_differences(agg, beta):
    logp, old, ref, advantages, mask = batch()

    def loss(lp):
        return reference.grpo_loss(lp, old, ref, advantages, mask, 0.2, 0.28, beta, agg, max_len=8)

    gradient = loss(logp)[1]
    numeric = np.zeros_like(logp)
    step = 1e-6
    for index in np.ndindex(*logp.shape):
        shift = np.zeros_like(logp)
        shift[index] = step
        numeric[index] = (loss(logp + shift)[0] - loss(logp - shift)[0]) / (2 * step)
    np.testing.assert_allclose(gradient, numeric, atol=1e-8)
    assert np.abs(gradient).sum() > 0.1


@pytest.mark.parametrize(
    ("agg", "spec"),
    [
        ("seq_mean", "grpo,surrogate.high=0.28"),
        ("token_mean", "grpo,surrogate.high=0.28,aggregation=token_mean"),
        ("const", "grpo,surrogate.high=0.28,aggregation=constant,aggregation.length=8"),
    ],
)
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("per_token", [False, True])
def test_loss_and_gradient_equal_the_package(agg, spec, beta, per_token):
    logp, old, ref, advantages, mask = batch(seed=3)
    if per_token:
        advantages = np.random.default_rng(4).normal(size=logp.shape)
    loss, gradient = reference.grpo_loss(logp, old, ref, advantages, mask, 0.2, 0.28, beta, agg, max_len=8)
    lp = torch.tensor(logp, requires_grad=True)
    x = gv.Tokens(
        logp=lp,
        old_logp=torch.tensor(old),
        ref_logp=torch.tensor(ref),
        advantages=torch.tensor(advantages),
        mask=torch.tensor(mask),
    )
    ours = gv.policy_loss(f"{spec},kl.beta={beta}", x).loss
    ours.backward()
    np.testing.assert_allclose(ours.item(), loss, **EXACT)
    np.testing.assert_allclose(lp.grad.numpy(), gradient, **EXACT)


def test_on_policy_the_loss_is_minus_the_mean_advantage_and_its_gradient_reinforce():
    logp, _, _, advantages, _ = batch()
    loss, gradient = reference.grpo_loss(logp, logp, None, advantages, np.ones_like(logp), beta=0)
    assert loss == pytest.approx(-advantages.mean(), rel=1e-14)
    np.testing.assert_allclose(gradient, np.tile(-advantages[:, None] / (5 * 24), (1, 24)), rtol=1e-14)


def test_what_stands_under_the_mask_is_not_read():
    logp, old, ref, advantages, mask = batch()
    clean = reference.grpo_loss(logp, old, ref, advantages, mask)
    holes = [np.where(mask, value, np.nan) for value in (logp, old, ref)]
    dirty = reference.grpo_loss(*holes, advantages, mask)
    assert dirty[0] == clean[0]
    np.testing.assert_array_equal(dirty[1], clean[1])
    assert (dirty[1][~mask] == 0).all()


def test_an_empty_mask_gives_zero():
    logp, old, ref, advantages, mask = batch()
    for agg in reference.AGGREGATIONS:
        loss, gradient = reference.grpo_loss(logp, old, ref, advantages, np.zeros_like(mask), agg=agg, max_len=8)
        assert loss == 0
        assert not gradient.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agg": "mean"}, "agg='mean' is unknown; allowed: seq_mean, token_mean, const"),
        ({"agg": "const"}, "agg='const' needs max_len"),
        ({"logp_ref": None}, "beta=0.04 needs logp_ref"),
    ],
)
def test_errors_name_what_is_allowed(options, message):
    logp, old, ref, advantages, mask = batch()
    arguments = {"logp": logp, "logp_old": old, "logp_ref": ref, "adv": advantages, "mask": mask} | options
    with pytest.raises(ValueError, match=message):
        reference.grpo_loss(**arguments)


def test_group_update_by_hand():
    # z = 0: pi = (1/3, 1/3, 1/3). Actions (0, 2, 2, 1), rewards (1, 0, 0, 1): mean 1/2, A = (.5, -.5, -.5, .5).
    # The A sum to 0, so pi drops out: z_a = lr/4 * sum of A over the responses with action a = 2/4 * (.5, .5, -1).
    z = np.zeros(3)
    np.testing.assert_allclose(
        reference.group_update(z, [0, 2, 2, 1], [1, 0, 0, 1], lr=2.0), [0.25, 0.25, -0.5], rtol=1e-14
    )
    assert not z.any()


def test_group_update_of_equal_rewards_changes_nothing():
    z = np.array([0.3, -0.2])
    np.testing.assert_array_equal(reference.group_update(z, [0, 1, 1], [0.7, 0.7, 0.7], lr=5.0), z)


def test_group_update_is_the_gradient_step_of_the_reference_loss():
    # A response of one token, on policy: the chain rule through log softmax turns grpo_loss's gradient into the step.
    z, actions, rewards = np.array([0.5, -0.3, 0.1]), np.array([0, 2, 1, 1]), np.array([1.0, 0, 1, 0])
    policy = np.exp(z) / np.exp(z).sum()
    advantages = reference.group_advantages(rewards[None], normalize_std=False)[0]
    logp = np.log(policy[actions])[:, None]
    _, gradient = reference.grpo_loss(logp, logp, None, advantages, np.ones((4, 1)), beta=0)
    expected = z - 0.7 * (gradient * (np.eye(3)[actions] - policy)).sum(0)
    np.testing.assert_allclose(reference.group_update(z, actions, rewards, lr=0.7), expected, **EXACT)


TASK = np.array([[0.9, 0.2, 0.1], [0.05, 0.1, 0.6]])


def test_training_improves_on_the_uniform_policy():
    policy, curve = reference.train(TASK, steps=200, G=8, lr=1.0, seed=0)
    assert len(curve) == 201
    assert curve[0] == pytest.approx(TASK.mean(), rel=1e-14)  # z = 0 is the uniform policy
    assert curve[-1] > 0.72  # the best possible is (0.9 + 0.6) / 2 = 0.75
    np.testing.assert_allclose(policy.sum(1), 1, rtol=1e-12)
    assert curve[-1] == pytest.approx((policy * TASK).sum(1).mean(), rel=1e-12)
    np.testing.assert_array_equal(policy.argmax(1), TASK.argmax(1))


def test_training_is_the_seed_s_alone():
    first, again, other = (reference.train(TASK, steps=20, G=4, lr=0.5, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first[0], again[0])
    assert first[1] == again[1]
    assert first[1] != other[1]


def test_a_learning_rate_of_zero_learns_nothing():
    policy, curve = reference.train(TASK, steps=5, G=4, lr=0.0, seed=0)
    np.testing.assert_allclose(policy, 1 / 3, rtol=1e-14)
    assert curve == [curve[0]] * 6


def test_the_reference_imports_nothing_but_numpy():
    imported = set()
    for node in ast.walk(ast.parse(inspect.getsource(reference))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.partition(".")[0])
    assert imported == {"__future__", "typing", "numpy"}
