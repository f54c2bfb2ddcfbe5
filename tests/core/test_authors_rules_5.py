"""Members against rules that a trainer does not have, or has otherwise, written anew from what the sources do."""

import math

import pytest
import torch
from torch.testing import assert_close

import grpo_variants as gv

EXACT = {"rtol": 1e-9, "atol": 1e-11}
ROWS, WIDTH, LONGEST = 10, 8, 16


def step(seed):
    """Tokens in float64 with both signs of A, ratios from 0.1 to 12, and an engine off by up to a factor of 20."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.tensor([8, 6, 1, 7, 5, 8, 2, 3, 8, 4])
    mask = torch.arange(WIDTH) < lengths[:, None]
    old = -normal(ROWS, WIDTH).abs() - 6
    logp = old + 0.5 * normal(ROWS, WIDTH)
    logp[0, 0], logp[1, 0] = old[0, 0] + 2.4, old[1, 0] + 2.4
    rollout = old + 0.4 * normal(ROWS, WIDTH)
    rollout[0, 1], rollout[4, 0] = old[0, 1] - 3, old[4, 0] - 3  # whole ratios above 10, for both signs of A
    return {
        "logp": logp.requires_grad_(),
        "mask": mask,
        "advantages": torch.tensor([1.5, -0.5, 1, 0.7, -1.2, 2, -2, -0.3, 0, 0.4]).double(),
        "old_logp": old,
        "ref_logp": old + 0.3 * normal(ROWS, WIDTH),
        "rollout_logp": rollout,
    }


def rows(x):
    """Each response's own tokens, its advantage and its ratios."""
    for i, here in enumerate(x["mask"]):
        own = {name: x[name][i][here] for name in ("logp", "old_logp", "ref_logp", "rollout_logp")}
        yield own | {"a": float(x["advantages"][i]), "ratio": (own["logp"] - own["old_logp"]).exp()}


def ppo(row):
    return torch.maximum(-row["a"] * row["ratio"], -row["a"] * row["ratio"].clamp(0.8, 1.2))


def precision_rl(x):
    """sail-sg/Precision-RL, oat/main.py 665 to 687 with Dr. GRPO's critic: the whole weight, dropped above 10."""
    total = 0.0
    for row in rows(x):
        weight = math.exp(float((row["old_logp"] - row["rollout_logp"]).sum()))
        total = total + (ppo(row) * (weight if weight <= 10 else 0.0)).sum() / LONGEST
    return total / ROWS


def icepop(x):
    """OpenRLHF/OpenRLHF, openrlhf/models/loss.py: the token's weight where it is from 0.5 to 5, else nothing."""
    total = 0.0
    for row in rows(x):
        weight = (row["old_logp"] - row["rollout_logp"]).exp()
        total = total + (ppo(row) * weight * ((weight >= 0.5) & (weight <= 5))).mean()
    return total / ROWS


def drifted(threshold):
    """THUDM/slime, slime/utils/ppo_utils.py 54 to 92: a wrong response is out once its mean drift is above."""

    def loss(x):
        total = 0.0
        for row in rows(x):
            drift = float((row["rollout_logp"] - row["logp"]).detach().mean())
            policy = 0 * ppo(row) if row["a"] < 0 and drift > threshold else ppo(row)
            u = row["ref_logp"] - row["logp"]
            total = total + (policy + 1e-3 * row["ratio"] * (u.exp() - u - 1)).mean()
        return total / ROWS

    return loss


RULES = {
    "seq_mis": precision_rl,
    "icepop": icepop,
    "deepseek_v32": drifted(0.5),
    "deepseek_v32,correction.threshold=1e-4": drifted(1e-4),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spec", RULES)
def test_loss_and_gradient_are_those_of_the_rule(spec, seed):
    x = step(seed)
    expected = RULES[spec](x)
    (slope,) = torch.autograd.grad(expected, x["logp"])
    found = gv.policy_loss(spec, gv.Tokens(**x), gv.Counts.of(x["mask"], length=LONGEST)).loss
    (gradient,) = torch.autograd.grad(found, x["logp"])
    assert slope.abs().max() > 1e-3
    assert_close(found, expected, **EXACT)
    assert_close(gradient, slope, **EXACT)


def test_seq_mis_of_the_first_release_was_daposs_with_a_bound_of_3():
    from grpo_variants.catalogue.former import FORMER

    x = step(0)
    former = gv.policy_loss(f"seq_mis,{FORMER['seq_mis']}", gv.Tokens(**x)).loss
    spelt = gv.policy_loss("dapo,correction=sequence_mask,correction.low=none,correction.high=3", gv.Tokens(**x)).loss
    assert former == spelt
    now = gv.policy_loss("seq_mis", gv.Tokens(**x), gv.Counts.of(x["mask"], length=LONGEST)).loss
    assert abs(former - now) > 0.01


def test_qaes_quantile_is_a_reward_that_occurs_or_lies_between_two():
    """Three wrong of eight: the smallest x with F(x) >= 0.4 is 1; torch.quantile is 0.8 of the way from 0 to 1."""
    rewards = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]).double()
    deviation = math.sqrt(15 / 8 / 7) + 1e-6
    paper = gv.advantages("qae", rewards, ["q"] * 8)
    assert_close(paper, (rewards - 1) / deviation, **EXACT)
    readme = gv.advantages("qae,baseline.interpolation=linear", rewards, ["q"] * 8)
    assert_close(readme, (rewards - torch.quantile(rewards, 0.4)) / deviation, **EXACT)
    assert torch.quantile(rewards, 0.4).item() == pytest.approx(0.8)


def most_varied(rewards, keep):
    """YixuanEvenXu/pods, trainer/maxvargrpo_trainer.py 499 to 538: so many of the best, the rest of the worst."""
    order = sorted(range(len(rewards)), key=lambda i: rewards[i])
    best, chosen = None, None
    for high in (keep, *range(keep)):
        way = order[: keep - high] + order[len(order) - high :]
        mean = sum(rewards[i] for i in way) / keep
        spread = sum((rewards[i] - mean) ** 2 for i in way) / keep
        if best is None or spread > best + 1e-12:
            best, chosen = spread, way
    return chosen


@pytest.mark.parametrize("keep", [2, 3, 4])
@pytest.mark.parametrize(
    "rewards", [[3, 2.5, 1, 0.5, 0, 0], [1, 0, 1, 1, 0, 1, 1, 1], [0.1, 0.7, 0.2, 0.9, 0.4], [2] * 5]
)
def test_pods_learns_from_the_rewards_that_vary_most(rewards, keep):
    spec, ids = f"pods,selection.keep={keep}", ["q"] * len(rewards)
    given = torch.tensor(rewards, dtype=torch.float64)
    kept = most_varied(rewards, keep)
    assert gv.selected(spec, given, ids).nonzero().flatten().tolist() == sorted(kept)
    chosen = given[sorted(kept)]
    wanted = torch.zeros(len(rewards), dtype=torch.float64)
    wanted[sorted(kept)] = (chosen - chosen.mean()) / (chosen.std() + 1e-4)
    assert_close(gv.advantages(spec, given, ids), wanted, **EXACT)


def test_pods_by_numbers():
    rewards = torch.tensor([3, 2.5, 1, 0.5, 0, 0]).double()
    found = gv.advantages("pods,selection.keep=4,scale.eps=0", rewards, ["q"] * 6)
    assert found.tolist() == pytest.approx([1.015129452, 0.702781928, 0, 0, -0.858955690, -0.858955690])


def pruned(advantages, share):
    """lzhxmu/CPPO, src/open_r1/grpo_trainer_gsm.py 875 to 930: the largest |A|, of what it is handed."""
    order = sorted(range(len(advantages)), key=lambda i: -abs(advantages[i]))
    return sorted(order[: max(int(len(advantages) * share), 1)])


def test_cppo_learns_from_the_largest_advantages_of_a_prompt_or_of_the_batch():
    rewards, ids = torch.tensor([2, 1, 0, 0, 1, 1, 1, 0]).double(), [*"aaaabbbb"]
    groups = [rewards[:4], rewards[4:]]
    whole = torch.cat([(r - r.mean()) / (r.std() + 1e-4) for r in groups])
    for spec, rows in (
        ("cppo", pruned(whole[:4].tolist(), 0.5) + [4 + i for i in pruned(whole[4:].tolist(), 0.5)]),
        ("cppo,selection.over=batch", pruned(whole.tolist(), 0.5)),
        ("cppo,selection.share=0.25", [0, 7]),
    ):
        kept = gv.selected(spec, rewards, ids)
        assert kept.nonzero().flatten().tolist() == rows
        assert_close(gv.advantages(spec, rewards, ids), torch.where(kept, whole, 0.0), **EXACT)


def test_rows_that_are_pruned_are_in_no_mean_and_have_no_kl():
    """The loss of the rows that `gv.selected` names is that of the batch in which the others do not exist."""
    x, ids = step(0), [*"aaaaabbbbb"]
    rewards = torch.tensor([1, 0, 0.5, 0, 0, 1, 1, 0, 0, 1]).double()
    kept = gv.selected("cppo", rewards, ids)
    advantages = gv.advantages("cppo", rewards, ids)
    assert kept.tolist() == (advantages != 0).tolist()
    own = {name: value[kept] for name, value in x.items()} | {"advantages": advantages[kept]}
    total, count = 0.0, 0
    for row in rows({**x, "advantages": advantages}):
        if row["a"] == 0:
            continue
        u = row["ref_logp"] - row["logp"]
        total, count = total + (ppo(row) + 0.04 * (u.exp() - u - 1)).sum(), count + len(u)
    assert count < x["mask"].sum()
    assert_close(gv.policy_loss("cppo", gv.Tokens(**own)).loss, total / count, **EXACT)


def test_to_ask_which_rows_are_kept_leaves_the_memory_and_an_invalid_response_alone():
    """DCPO's memory after one step is that of the step, whether or not the rows were asked for before."""
    rewards, ids, spec = torch.tensor([1, 0, 0, 1]).double(), ["q"] * 4, "dcpo,selection=largest_advantage"
    asked, unasked = gv.Memory(), gv.Memory()
    kept = gv.selected(spec, rewards, ids, state=asked, valid=[True, True, True, False])
    assert kept.tolist() == [True, False, False, False]  # half of three, rounded down
    assert asked.state_dict() == unasked.state_dict()
    assert_close(gv.advantages(spec, rewards, ids, state=asked), gv.advantages(spec, rewards, ids, state=unasked))
    assert asked.state_dict() == unasked.state_dict() != gv.Memory().state_dict()
