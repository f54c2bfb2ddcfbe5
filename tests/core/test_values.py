"""What the public functions say of numbers that are no mask, no log-probability, no length, no count and no reward."""

import math
import re

import pytest
import torch
from torch.testing import assert_close

import grpo_variants as gv

LOGP = torch.tensor([[-1.0, -2.0, -0.5], [-0.25, -3.0, -1.5]])
MASK = torch.tensor([[True, True, False], [True, True, True]])
PLAIN = "grpo,kl=none"
TWO = {"rewards": [1.0, 0.0], "groups": [0, 0]}


def tokens(**given):
    return gv.Tokens(**{"logp": LOGP, "mask": MASK, "advantages": torch.tensor([1.0, -1.0]), "old_logp": LOGP} | given)


def refuses(message, function, *args, **kwargs):
    """The function raises ValueError, and its text has the message."""
    with pytest.raises(ValueError, match=re.escape(message)):
        function(*args, **kwargs)


# Masks and log-probabilities of a loss

CALLS = {
    "policy_loss": lambda x: gv.policy_loss("grpo", x),
    "correction_weights": lambda x: gv.correction_weights("tis", x),
    "thresholds": lambda x: gv.get("m2po").thresholds(x),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask": None}, "mask is missing; allowed: a tensor, as in mask=torch.tensor(...)."),
        ({"mask": [[1, 1, 0], [1, 1, 1]]}, "mask is of type list; allowed: a tensor"),
        ({"logp": None}, "logp is missing"),
        ({"advantages": None}, "advantages is missing"),
        ({"mask": MASK * 0.5}, "mask holds 0.5 at [0, 0]; allowed: 0 and 1, or True and False. Weights of tokens go"),
        ({"mask": MASK * 2}, "mask holds 2 at [0, 0]"),
        ({"mask": MASK.double() - 1}, "mask holds -1 at [0, 2]"),
        ({"mask": torch.where(MASK, 1.0, math.nan)}, "mask holds nan at [0, 2]"),
        ({"logp": -LOGP}, "logp holds 1 at [0, 0]; allowed: log-probabilities, which are at most 0. For probabilities"),
        ({"old_logp": LOGP + 0.3}, "old_logp holds 0.05 at [1, 0]"),
        ({"rollout_logp": LOGP.exp()}, "rollout_logp holds 0.367879 at [0, 0]"),
        ({"logp": LOGP.long()}, "logp is of dtype torch.int64; allowed: a floating one, as in logp.float()."),
        ({"old_logp": LOGP.long()}, "old_logp is of dtype torch.int64"),
        ({"old_logp": LOGP.to("meta")}, "logp is on cpu and old_logp on meta; move them to one device, as in old_logp"),
        ({"mask": MASK.to("meta")}, "logp is on cpu and mask on meta"),
    ],
)
def test_a_loss_is_not_computed_of(call, given, message):
    refuses(message, call, tokens(**given))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_loss_takes_its_tokens_as_such(call):
    refuses("the tokens are of type dict; allowed: gv.Tokens(logp=", call, {"logp": LOGP})


@pytest.mark.parametrize(
    ("dtype", "rounding", "beyond"),
    [(torch.float64, 1e-4, 2e-3), (torch.float32, 1e-4, 2e-3), (torch.bfloat16, 0.2, 0.5), (torch.float16, 0.2, 0.5)],
)
def test_rounding_may_lift_a_log_probability_above_0(dtype, rounding, beyond):
    def logp(value):
        return torch.tensor([[value, -2.0, -0.5], [-0.25, -3.0, -1.5]], dtype=dtype)

    lifted = tokens(logp=logp(rounding), old_logp=logp(rounding))
    assert_close(gv.policy_loss(PLAIN, lifted).loss, torch.tensor(0.0, dtype=torch.float64), check_dtype=False)
    refuses("logp holds", gv.policy_loss, "grpo", tokens(logp=logp(beyond)))


def test_what_the_mask_leaves_out_may_be_anything():
    """Padding of the value 1, which is no log-probability, at the one token that does not count."""
    padded = torch.where(MASK, LOGP, 1.0)
    logp = (padded + torch.where(MASK, -0.1, 0.0)).requires_grad_()
    gv.policy_loss(PLAIN, tokens(logp=logp, old_logp=padded)).loss.backward()
    # -(1/2) ratio A / |o|, ratio e^-0.1; the wrong response's ratio is inside of the clip range.
    ratio = math.exp(-0.1)
    expected = torch.tensor([[-ratio / 4, -ratio / 4, 0.0], [ratio / 6, ratio / 6, ratio / 6]])
    assert_close(logp.grad, expected)


def test_masks_of_0_and_1_are_masks_in_every_type():
    for dtype in (torch.bool, torch.uint8, torch.long, torch.float32, torch.bfloat16):
        drifted = LOGP - torch.tensor([0.1, 0.3, 0.2])
        x = tokens(logp=drifted, mask=MASK.to(dtype))
        expected = gv.policy_loss(PLAIN, tokens(logp=drifted)).loss
        assert expected.abs() > 1e-3
        assert gv.policy_loss(PLAIN, x).loss == expected


# Counts


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": 0}, "counts.length=0 is out of range; allowed: a finite number above 0"),
        ({"length": -8}, "counts.length=-8 is out of range"),
        ({"length": math.inf}, "counts.length=inf is out of range"),
        ({"length": math.nan}, "counts.length=nan is out of range"),
        ({"length": torch.tensor(-8.0)}, "counts.length=-8.0 is out of range"),
        ({"sequences": -2}, "counts.sequences=-2 is out of range; allowed: a finite number of at least 0"),
        ({"tokens": -1}, "counts.tokens=-1 is out of range"),
        ({"tokens": None}, "counts.tokens=None is not a number"),
        ({"tokens": math.nan}, "counts.tokens=nan is out of range"),
        ({"nonempty": -1}, "counts.nonempty=-1 is out of range"),
        ({"prompts": -1}, "counts.prompts=-1 is out of range"),
        ({"grad_average": 0}, "counts.grad_average=0 is out of range"),
        ({"grad_average": -1}, "counts.grad_average=-1 is out of range"),
        ({"sequences": torch.tensor([2, 3])}, "counts.sequences has shape (2,); allowed: a number or a 0-d tensor."),
        ({"tokens": True}, "counts.tokens=True is not a number"),
    ],
)
def test_counts_that_count_nothing_are_refused(given, message):
    refuses(message, gv.Counts, **({"tokens": 6, "sequences": 2} | given))


def test_counts_of_a_step_without_a_token_are_counts():
    counts = gv.Counts(tokens=0, sequences=0, nonempty=0, prompts=0)
    empty = tokens(mask=torch.zeros_like(MASK), logp=LOGP.clone().requires_grad_())
    found = gv.policy_loss("dapo", empty, counts).loss
    found.backward()
    assert found == 0
    assert (empty.logp.grad == 0).all()


def test_a_device_is_not_read_back():
    """What a 0-d tensor on a device counts is left to the one who made it; looking would wait for the device."""
    length = torch.tensor(0.0, device="meta")
    assert gv.Counts(tokens=6, sequences=2, length=length).length is length
    on_meta = {name: value.to("meta") for name, value in vars(tokens(mask=MASK * 0.5)).items() if value is not None}
    assert gv.policy_loss(PLAIN, gv.Tokens(**on_meta)).loss.shape == ()


@pytest.mark.parametrize(
    "call", [lambda c: gv.policy_loss("grpo", tokens(), c), lambda c: gv.row_weights("grpo", [1, 2], c)]
)
def test_counts_are_counts(call):
    refuses("counts is of type int; allowed: gv.Counts(...) of the step, or None.", call, 6)


# Weights of responses


def test_weights_of_responses_count_the_step_by_their_lengths():
    assert_close(gv.row_weights("grpo", torch.tensor([1, 3]), None), torch.tensor([1 / 2, 1 / 6]))
    assert_close(gv.row_weights("dapo", [1, 3], None), torch.tensor([1 / 4, 1 / 4]))
    assert_close(
        gv.row_weights("dapo,aggregation=prompt_mean", [1, 3, 4], None, ["q", "q", "p"]),
        torch.tensor([1 / 8, 1 / 8, 1 / 8]),
    )
    counts = gv.Counts.of(torch.tensor([[1, 0, 0], [1, 1, 1]]))
    assert_close(gv.row_weights("grpo", [1, 3], None), gv.row_weights("grpo", [1, 3], counts))


@pytest.mark.parametrize(
    ("lengths", "groups", "message"),
    [
        ([1, -3], None, "lengths holds -3 at [1]; allowed: a number of tokens, 0, 1, 2 and so on."),
        ([1, 2.5], None, "lengths holds 2.5 at [1]"),
        ([[1, 2]], None, "lengths has shape (1, 2); allowed: [N]."),
        ([1, 2], ["q"], "groups has 1 entries for 2 responses"),
    ],
)
def test_weights_of_responses_are_refused(lengths, groups, message):
    refuses(message, gv.row_weights, "dapo,aggregation=prompt_mean", lengths, None, groups)


# Rewards and what comes with them


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": 2}, "groups=2 is no list of ids; give one hashable id per response, such as its prompt's index"),
        ({"groups": "qq"}, "groups='qq' is no list of ids"),
        ({"groups": {0: 1, 1: 1}}, "is no list of ids"),
        ({"rewards": [{"math": 1.0}, 0.0]}, "rewards holds {'math': 1.0} of type dict; allowed: numbers, and None or"),
        ({"rewards": {"a": 1.0, "b": 0.0}}, "rewards holds {'a': 1.0, 'b': 0.0} of type dict"),
        ({"rewards": ["1", "0"]}, "rewards holds the text '1'"),
        ({"rewards": [object(), 1.0]}, "rewards is no table of numbers"),
        ({"rewards": [[1.0, 2.0], [1.0]]}, "rewards is no table of numbers"),
        ({"rewards": [10**400, 1.0]}, "rewards is no table of numbers"),
        ({"rewards": torch.tensor([1j, 0.0])}, "rewards is of dtype torch.complex64; allowed: real numbers."),
        ({"valid": [0.5, 1.0]}, "valid holds 0.5 at [0]; allowed: 0 and 1, or True and False."),
        ({"lengths": [3, -1]}, "lengths holds -1 at [1]"),
        ({"lengths": [3, 1.5]}, "lengths holds 1.5 at [1]"),
        ({"mask": MASK * 0.5}, "mask holds 0.5 at [0, 0]"),
        ({"mask": MASK.tolist()}, "mask is of type list; allowed: a tensor"),
        ({"mask": MASK, "old_logp": -LOGP}, "old_logp holds 1 at [0, 0]; allowed: log-probabilities"),
        ({"rewards": torch.tensor([1.0, 0.0]), "mask": MASK.to("meta")}, "rewards is on cpu and mask on meta"),
    ],
)
def test_advantages_are_not_computed_of(given, message):
    for spec in ("grpo", "rloo", "lite_ppo"):
        refuses(message, gv.advantages, spec, **(TWO | given))


@pytest.mark.parametrize("spec", ["passk_analytic", "qae", "mc_grpo"])
def test_rewards_that_are_nowhere_cannot_be_ranked(spec):
    message = "rewards is on the meta device, which holds no numbers, and"
    refuses(f"{message} {spec} has to look at them", gv.advantages, spec, torch.zeros(4, device="meta"), [0, 0, 0, 0])


def test_a_matrix_of_prompts_by_responses_is_no_table_of_reward_functions():
    """Two prompts with three responses each: as [N, K] no response would have a sibling, and every advantage were 0."""
    rewards = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    for spec in ("grpo", "rloo", "opo"):
        given = {"lengths": [1, 1]} if spec == "opo" else {}
        refuses("rewards is [2, 3] and each row has a group of its own", gv.advantages, spec, rewards, [0, 1], **given)
    refuses(
        "rewards is [1, 3] and each row has a group of its own: one response without a sib",
        gv.advantages,
        "grpo",
        [[1.0, 0, 0]],
        ["q"],
    )
    message = "groups has 6 entries and rewards is [2, 3], which reads as 2 responses with 3 reward functions; for one"
    refuses(message, gv.advantages, "grpo", rewards, [0, 0, 0, 1, 1, 1])
    refuses(message, gv.keep_groups, rewards, [0, 0, 0, 1, 1, 1])
    refuses(message, gv.group_signal, rewards, [0, 0, 0, 1, 1, 1])
    as_advised = gv.advantages("rloo", rewards.flatten(), [p for p in range(2) for _ in range(3)])
    assert_close(as_advised, torch.tensor([1.0, -0.5, -0.5, 0.5, 0.5, -1.0]))
    # Three reward functions of two responses are what the shape says; so they are where weights name them.
    assert_close(gv.advantages("rloo", rewards, ["q", "q"]), torch.tensor([-1.0, 1.0]))
    assert gv.advantages("rloo", rewards, [0, 1], reward_weights=[1, 1, 1]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gv.kl("k3", [[-1.0]], LOGP), "logp is of type list; allowed: a tensor"),
        (lambda: gv.kl("k3", LOGP, None), "ref_logp is missing; allowed: a tensor"),
        (lambda: gv.kl("k3", LOGP, LOGP[:1]), "ref_logp has shape [1, 3]; allowed: logp's, [2, 3]."),
        (lambda: gv.soft_overlong_penalty([3, -1], 10, 5), "lengths holds -1 at [1]; allowed: a number of tokens"),
        (lambda: gv.soft_overlong_penalty([math.inf, 1], 10, 5), "lengths holds inf at [0]"),
        (lambda: gv.soft_overlong_penalty([3], math.nan, 5), "max_length=nan is out of range"),
        (lambda: gv.soft_overlong_penalty([3], "10", 5), "max_length='10' is not a number"),
        (lambda: gv.Counts.of(MASK * 0.5), "mask holds 0.5 at [0, 0]; allowed: 0 and 1, or True and False."),
    ],
)
def test_the_small_functions_refuse(call, message):
    refuses(message, call)


# Options


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("passk_analytic,transform.k=" + "9" * 400, "transform.k=(a whole number of 1329 bits) is out of range"),
        ("grpo,surrogate.low=" + "9" * 400, "surrogate.low"),
        ("grpo,surrogate.low=" + "x" * 400, "surrogate.low='xxxxxxxxxxxxxxxxxxx...xxxxxxx' (402 characters) is not a"),
    ],
)
def test_an_option_that_no_number_holds_is_refused_in_a_line(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        gv.get(spec)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("module", ["../x", "a/b", "pkg.", "1x"])
def test_modules_to_import_are_named_with_dots(monkeypatch, module):
    monkeypatch.setenv("GRPO_VARIANTS_MODULES", module)
    with pytest.raises(ImportError, match=re.escape(f"GRPO_VARIANTS_MODULES names {module!r}, which is no module's")):
        gv.names()
