"""Facts about the family that its texts state, by exact enumeration: no sampling, no tolerance for noise."""

import itertools
import math

import pytest
import torch

import grpo_variants as gv
from grpo_variants import reference

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def outcomes(group_size):
    """Every 0/1 outcome of a group, flattened: rewards and group ids."""
    table = torch.tensor(list(itertools.product([0.0, 1.0], repeat=group_size)), dtype=torch.float64)
    return table.flatten(), torch.arange(len(table)).repeat_interleave(group_size), table


@pytest.mark.parametrize("p", [0.05, 0.95])
def test_a_group_of_eight_has_a_signal_34_percent_of_the_time_at_5_percent_success(p):
    rewards, groups, table = outcomes(8)
    right = table.sum(1)
    probability = p**right * (1 - p) ** (8 - right)
    kept = gv.keep_groups(rewards, groups).view(-1, 8)
    assert (kept.all(1) == kept.any(1)).all()  # whole groups only
    mixed = (probability * kept[:, 0]).sum().item()
    assert mixed == pytest.approx(1 - p**8 - (1 - p) ** 8, rel=1e-12)
    assert round(mixed, 2) == 0.34


def expected_gradient(spec, group_size, logits, rewards, greedy=None):
    """E over every group of actions of mean_i A_i * grad log pi(a_i), with respect to the logits of the policy."""
    policy = logits.softmax(0)
    actions = torch.tensor(list(itertools.product(range(len(policy)), repeat=group_size)))
    groups = torch.arange(len(actions)).repeat_interleave(group_size)
    inputs = {} if greedy is None else {"greedy_rewards": torch.full(groups.shape, greedy, dtype=torch.float64)}
    advantages = gv.advantages(spec, rewards[actions].flatten(), groups, **inputs).view(actions.shape)
    score = torch.eye(len(policy), dtype=torch.float64)[actions] - policy
    return torch.einsum("o,og,oga->a", policy[actions].prod(1), advantages, score) / group_size


LOGITS = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64)
ACTION_REWARDS = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


def true_gradient():
    """Gradient of the expected reward, by automatic differentiation of the sum that it is."""
    z = LOGITS.clone().requires_grad_()
    (z.softmax(0) * ACTION_REWARDS).sum().backward()
    return z.grad


@pytest.mark.parametrize("group_size", [2, 3, 4])
@pytest.mark.parametrize(
    ("spec", "ratio"),
    [
        ("reinforce", lambda g: 1),
        ("rloo", lambda g: 1),
        ("dr_grpo", lambda g: (g - 1) / g),
    ],
)
def test_leave_one_out_is_unbiased_and_the_group_mean_shorter_by_g_minus_1_over_g(spec, ratio, group_size):
    found = expected_gradient(spec, group_size, LOGITS, ACTION_REWARDS)
    torch.testing.assert_close(found, ratio(group_size) * true_gradient(), **EXACT)


def test_remax_is_unbiased():
    found = expected_gradient("remax", 2, LOGITS, ACTION_REWARDS, greedy=1.0)
    torch.testing.assert_close(found, true_gradient(), **EXACT)


def test_the_toy_update_is_the_group_mean_s_expected_gradient():
    policy = LOGITS.softmax(0)
    step = torch.zeros(3, dtype=torch.float64)
    for actions in itertools.product(range(3), repeat=3):
        moved = reference.group_update(LOGITS.numpy(), actions, ACTION_REWARDS.numpy()[list(actions)], lr=1.0)
        step += policy[list(actions)].prod() * (torch.tensor(moved) - LOGITS)
    torch.testing.assert_close(step, 2 / 3 * true_gradient(), **EXACT)


def success_gradient(spec, group_size, p):
    """Expected gradient for one logit z with success probability p = sigmoid(z), over every number of successes."""
    k = torch.arange(group_size + 1)
    rewards = (torch.arange(group_size) < k[:, None]).double()
    groups = k.repeat_interleave(group_size)
    advantages = gv.advantages(spec, rewards.flatten(), groups).view(rewards.shape)
    probability = torch.distributions.Binomial(group_size, torch.tensor(p, dtype=torch.float64)).log_prob(k.double())
    return (probability.exp() * (advantages * (rewards - p)).mean(1)).sum().item()


@pytest.mark.parametrize("p", [0.02, 0.2, 0.5, 0.8])
def test_the_mean_alone_gives_the_true_gradient_times_63_over_64(p):
    assert success_gradient("dr_grpo", 64, p) == pytest.approx(63 / 64 * p * (1 - p), rel=1e-10)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_with_the_std_a_large_group_climbs_two_arcsin_of_the_root_of_p(p):
    def objective(z):
        return 2 * math.asin(math.sqrt(1 / (1 + math.exp(-z))))

    z, step = math.log(p / (1 - p)), 1e-5
    slope = (objective(z + step) - objective(z - step)) / (2 * step)
    errors = [abs(success_gradient("grpo", size, p) / slope - 1) for size in (32, 512)]
    assert errors[1] < 0.005
    assert errors[1] < errors[0] / 8  # it closes in as 1/G


def test_the_std_gives_a_hard_prompt_about_three_times_the_relative_weight():
    def weight(p):
        return success_gradient("grpo", 64, p) / (p * (1 - p))

    assert weight(0.5) == pytest.approx(2, rel=0.02)
    # 0.98^64 = 27 % of the groups are all wrong, so the factor stays below 1 / sqrt(0.02 * 0.98) = 7.1
    assert weight(0.02) == pytest.approx(6, rel=0.05)
    assert weight(0.02) / weight(0.5) == pytest.approx(3, rel=0.05)


def length_gradient(spec, length=None):
    """Gradient a token of two wrong responses (A = -1) of 100 and 1000 tokens in a group of eight."""
    lengths = torch.tensor([100, 1000, 10, 10, 10, 10, 10, 10])
    mask = torch.arange(1000) < lengths[:, None]
    logp = torch.full(mask.shape, -1.0, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([-1.0, -1, 1, 1, 0, 0, 0, 0], dtype=torch.float64)
    counts = gv.Counts.of(mask, length=length)
    gv.policy_loss(spec, gv.Tokens(logp=logp, mask=mask, advantages=advantages), counts).loss.backward()
    return logp.grad[0, 0].item(), logp.grad[1, 0].item()


def test_the_sequence_mean_pushes_a_long_wrong_answer_ten_times_less_a_token():
    on_policy = "grpo,kl=none"
    assert length_gradient(on_policy) == pytest.approx((1 / 800, 1 / 8000), rel=1e-12)


@pytest.mark.parametrize(("spec", "weight"), [("dr_grpo", 1 / (8 * 1024)), ("dapo", 1 / 1160)])
def test_a_constant_or_a_token_mean_pushes_every_token_alike(spec, weight):
    assert length_gradient(spec, length=1024) == pytest.approx((weight, weight), rel=1e-12)


# KL placements, on a policy over three symbols: sums over the symbols are expectations.
REF = torch.tensor([-0.2, 0.5, 0.3], dtype=torch.float64).log_softmax(0)


def kl_gradients():
    """Gradients of KL(policy || ref) and KL(ref || policy) with respect to the logits."""
    z = LOGITS.clone().requires_grad_()
    logp = z.log_softmax(0)
    reverse = (logp.exp() * (logp - REF)).sum()
    forward = (REF.exp() * (REF - logp)).sum()
    return [torch.autograd.grad(value, z, retain_graph=True)[0] for value in (reverse, forward)]


def loss_gradient(spec, advantages):
    """Expected loss on policy and its gradient: the responses are the three symbols, weighted by their chance."""
    z = LOGITS.clone().requires_grad_()
    logp = z.log_softmax(0).unsqueeze(1)
    x = gv.Tokens(
        logp=logp,
        mask=torch.ones(3, 1, dtype=torch.bool),
        advantages=advantages,
        ref_logp=REF.unsqueeze(1),
        row_weights=logp.detach().exp().squeeze(1),
    )
    loss = gv.policy_loss(spec, x).loss
    return loss.item(), torch.autograd.grad(loss, z)[0]


NO_ADVANTAGE = torch.zeros(3, dtype=torch.float64)
REVERSE, FORWARD = kl_gradients()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("kl=k1", torch.zeros_like(REVERSE)),
        ("kl=k2", REVERSE),
        ("kl=k3", FORWARD),
        ("kl=k1,kl.gradient=k2", REVERSE),
        ("kl=k3,kl.gradient=k2", REVERSE),
        ("kl=k3,kl.weighted=ratio", REVERSE),
        ("kl=k1,kl.weighted=ratio", REVERSE),
    ],
)
def test_the_gradient_of_a_kl_in_the_loss(options, expected):
    _, found = loss_gradient(f"grpo,{options},kl.beta=1", NO_ADVANTAGE)
    torch.testing.assert_close(found, expected, **EXACT)


def test_the_three_gradients_differ_on_this_policy():
    assert (REVERSE - FORWARD).abs().max() > 0.01
    assert REVERSE.abs().max() > 0.1


@pytest.mark.parametrize("gradient", ["own", "k2"])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_estimate_the_reverse_kl_whatever_gradient_they_carry(estimator, gradient):
    value, _ = loss_gradient(f"grpo,kl={estimator},kl.beta=1,kl.gradient={gradient}", NO_ADVANTAGE)
    logp = LOGITS.log_softmax(0)
    assert value == pytest.approx((logp.exp() * (logp - REF)).sum().item(), rel=1e-12)


def test_k1_in_the_reward_gives_the_gradient_of_the_reverse_kl():
    spec = "reinforce,kl=k1,kl.beta=0.5,kl.placement=reward"
    advantages = gv.advantages(
        spec,
        torch.zeros(3, dtype=torch.float64),
        [0, 1, 2],
        mask=torch.ones(3, 1),
        old_logp=LOGITS.log_softmax(0).unsqueeze(1),
        ref_logp=REF.unsqueeze(1),
    )
    _, found = loss_gradient(spec, advantages)
    torch.testing.assert_close(found, 0.5 * REVERSE, **EXACT)


def test_k3_in_the_reward_does_not():
    spec = "reinforce,kl=k3,kl.beta=1,kl.placement=reward"
    logp = LOGITS.log_softmax(0).unsqueeze(1)
    inputs = {"mask": torch.ones(3, 1), "old_logp": logp, "ref_logp": REF.unsqueeze(1)}
    advantages = gv.advantages(spec, torch.zeros(3, dtype=torch.float64), [0, 1, 2], **inputs)
    _, found = loss_gradient(spec, advantages)
    assert (found - REVERSE).abs().max() > 0.01


# What a step costs: 2 N FLOPs a token for a forward pass, 6 N for a training pass, of a model of N parameters.
PARAMETERS = 32e9
DAPO_TOKENS = 512 * 16 * 5000


def flops_a_token(name):
    """FLOPs over N: generated, scored by the old policy, by the reference where the variant has one, and trained."""
    variant = gv.get(name)
    reference_pass = 2 if variant.kl_in_loss or variant.kl_in_reward else 0
    return 2 + 2 + reference_pass + 6


@pytest.mark.parametrize(("name", "share"), [("grpo", 1 / 6), ("dapo", 1 / 5), ("reinforce_pp", 1 / 6)])
def test_generation_s_share_of_the_flops(name, share):
    assert 2 / flops_a_token(name) == pytest.approx(share, rel=1e-12)


def test_the_size_of_a_dapo_step_and_of_the_critic_that_it_does_without():
    assert round(DAPO_TOKENS / 1e6) == 41
    assert flops_a_token("dapo") * PARAMETERS * DAPO_TOKENS == pytest.approx(1.31e19, rel=0.01)
    weights, gradients, adam = 2 + 4, 2, 8  # bytes a parameter: bf16 and its fp32 copy, bf16, two fp32 moments
    assert (weights + gradients + adam) * PARAMETERS == 512e9
