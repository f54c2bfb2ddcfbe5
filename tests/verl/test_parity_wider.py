"""The wider family against verl 0.9.1's own policy losses, and where the two disagree, both numbers."""

import math

import pytest
import torch
from grpo_variants_verl import builtins
from support.parity import words
from support.verl_stock_loss import AGGREGATIONS, actor, batch, equal, one, ours, verls_own

import grpo_variants as gv

OWN = "conventions=verl,ratio.anchor=old"
FREE = "ratio.bound_low=none,ratio.bound_high=none"
STEP = {"dp_size": 3, "batch_num_tokens": 47, "global_batch_size": 12, "loss_scale_factor": 9}
COUNTS = gv.Counts(tokens=47, sequences=12, length=9, grad_average=3)


# Losses with an aggregation of the user's; the fields of the actor's configuration on the right.
LOSSES = {
    "cispo,surrogate.cap=none,surrogate.low=0.2,surrogate.high=0.2": ("cispo", {}),
    "cispo": ("cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}),
    "dppo_tv,surrogate.cap=3": ("dppo_tv", {}),
    "dppo_tv": ("dppo_tv", {"clip_ratio_c": 1e9}),
    "dppo_tv,surrogate.cap=5,surrogate.low=0.02,surrogate.high=0.05": (
        "dppo_tv",
        {"clip_ratio_c": 5.0, "clip_ratio_low": 0.02, "clip_ratio_high": 0.05},
    ),
    "dppo_kl": ("dppo_kl", {"clip_ratio_c": 1e9, "clip_ratio_low": 0.05, "clip_ratio_high": 0.05}),
    "kl_cov": ("kl_cov", {"ppo_kl_coef": 1.0}),
    "kl_cov,surrogate.coef=0.1,surrogate.fraction=0.3": ("kl_cov", {"kl_cov_ratio": 0.3}),
    "kimi_k15,ratio=token,surrogate.tau=0.3": ("dro", {"dro_beta": 0.3}),
    "two_sided,kl=none,surrogate.dual=4": ("vanilla", {"clip_ratio_c": 4.0}),
    "grpo,kl=none": ("vanilla", {}),
    "dapo": ("vanilla", {"clip_ratio_high": 0.28}),
    "dr_grpo": ("vanilla", {}),
    "reinforce_pp,kl=none": ("vanilla", {}),
    "reinforce_pp_baseline,kl=none": ("vanilla", {}),
    "gspo_token": ("gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    "opo": ("gpg", {}),
    "gpg": ("gpg", {}),
}


def own(spec):
    """A spec under verl's numerics; a loss without a ratio has no anchor."""
    return f"{spec},{OWN}" if gv.get(spec).ratio.anchor else f"{spec},conventions=verl"


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("drift", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("spec", LOSSES)
def test_loss_and_gradient_equal_the_trainer(parity, spec, drift, mode):
    loss_mode, fields = LOSSES[spec]
    tensors = batch(drift)
    found = ours(f"{own(spec)},aggregation={AGGREGATIONS[mode]}", tensors, counts=COUNTS)
    builtin = f"{words(f'loss {loss_mode}', fields)}; every loss_agg_mode with counterpart"
    equal(parity, own(spec), builtin, found, verls_own(loss_mode, tensors, mode=mode, step=STEP, **fields))


# What the card of a run says of verl's own losses is what they compute. geo_mean knows no counts, clip_cov draws.
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("drift", [0.0, 0.5, 3.0, 30.0])
@pytest.mark.parametrize("name", sorted(builtins.LOSSES.keys() - {"clip_cov", "geo_mean", "bypass_mode, ppo_clip"}))
def test_what_the_card_says_is_what_the_trainer_computes(parity, name, drift, mode):
    tensors, given = batch(drift), {"dro_beta": 0.3} if name == "dro" else {}
    variant = described(name, mode, **given)
    found = ours(variant, tensors, counts=COUNTS)
    builtin = f"{words(f'loss {name}', given)}; as the card describes it"
    wanted = verls_own(name, tensors, mode=mode, step=STEP, **given)
    # dppo measures from the bounded log ratio: beyond e^-20 a token may count there that does not here, by as much.
    equal(parity, builtins.LOSSES[name].spec, builtin, found, wanted, atol=1e-7)


def described(name, mode, **fields):
    """The variant that a card has for a loss of verl's under a configuration."""
    config = actor(name, loss_agg_mode=mode, **fields)
    values = {"loss_agg_mode": mode, "loss_scale_factor": None}

    def get(key):
        key = key.removeprefix("actor_rollout_ref.actor.")
        if key in values:
            return values[key]
        section, _, field = key.rpartition(".")
        return getattr(config.policy_loss if section else config, field)

    return builtins.objective(builtins.LOSSES[name], get)


@pytest.mark.parametrize("drift", [0.0, 0.5, 3.0, 30.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_sapo_equals_the_trainer(parity, drift, weighted):
    tensors = batch(drift)
    weights = torch.rand(6, 7, dtype=torch.float64) * 2 if weighted else None
    found, wanted = ours(f"sapo,{OWN}", tensors, weights), verls_own("sapo", tensors, weights)
    equal(parity, f"sapo,{OWN}", "loss sapo", found, wanted)
    flags, spec = {"tau_pos": 2.0, "tau_neg": 0.5}, f"sapo,{OWN},surrogate.tau_pos=2,surrogate.tau_neg=0.5"
    found, wanted = ours(spec, tensors, weights), verls_own("sapo", tensors, weights, **flags)
    equal(parity, spec, words("loss sapo", flags), found, wanted)


def test_gpg_is_the_score_function_without_a_ratio(parity):
    tensors = batch()
    found, wanted = ours("reinforce,aggregation=token_mean", tensors), verls_own("gpg", tensors)
    equal(parity, "reinforce,aggregation=token_mean", "loss gpg, loss_agg_mode='token-mean'", found, wanted)


@pytest.mark.parametrize("drift", [0.5, 30.0])
@pytest.mark.parametrize("fraction", [2e-4, 0.3])
def test_clip_cov_equals_the_trainer_for_the_same_draws(parity, fraction, drift, monkeypatch):
    """verl permutes the candidates in row order and takes the first: the numbers of that permutation's places."""
    tensors = batch(drift)
    low, high = -0.2, 0.8
    mask, drawn = tensors["response_mask"], []

    def permutation(count):
        drawn.append(torch.arange(count - 1, -1, -1))  # from the last candidate backwards
        return drawn[-1]

    monkeypatch.setattr(torch, "randperm", permutation)
    fields = {"clip_cov_ratio": fraction, "clip_cov_lb": low, "clip_cov_ub": high}
    wanted = verls_own("clip_cov", tensors, **fields)
    assert len(drawn[0]) > 1
    places = torch.arange(mask.numel(), 0, -1).reshape(mask.shape) / mask.numel()
    variant = described("clip_cov", "token-mean", **fields)
    found = ours(variant, tensors, draws=places)
    builtin = f"{words('loss clip_cov', fields)}; the same draws"
    spec = f"clip_cov,conventions=verl,{FREE},surrogate.fraction={fraction},surrogate.cov_low={low}"
    spec += f",surrogate.cov_high={high}"
    assert variant.surrogate == gv.get(spec).surrogate
    assert variant.ratio == gv.get(spec).ratio
    equal(parity, spec, builtin, found, wanted)
    assert (found[1] == 0)[mask].sum() >= max(int(fraction * mask.sum()), 1)


@pytest.mark.parametrize("drift", [0.0, 0.5, 30.0])
def test_geo_mean_equals_the_trainer_where_the_micro_batch_is_the_step(parity, drift):
    tensors, fields = batch(drift), {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    builtin = f"{words('loss geo_mean', fields)}; the micro-batch is the step"
    spec = f"gmpo,conventions=verl,{FREE}"
    equal(parity, spec, builtin, ours(spec, tensors), verls_own("geo_mean", tensors, **fields))
    assert described("geo_mean", "token-mean", **fields) == gv.get(spec)


def test_geo_mean_in_the_trainer_ignores_the_steps_counts(parity):
    tensors = one(0.0, 1.0)
    step = {"dp_size": 1, "batch_num_tokens": 4, "global_batch_size": 4}
    parity.differs(
        "gmpo",
        "loss geo_mean",
        "loss of one response of a step of four, A = 1",
        here=(ours("gmpo", tensors, counts=gv.Counts(tokens=4, sequences=4))[0].item(), -0.25),
        there=(verls_own("geo_mean", tensors, step=step)[0].item(), -1),
        cause="a mean over the micro-batch, whatever the step's counts",
    )


def test_geo_mean_in_the_trainer_pools_rollout_weights(parity):
    """Two on-policy tokens of A = 1 with rollout weights 4 and 1: sqrt(4 * 1) = 2 there, their mean of 2.5 here."""
    tensors = {name: value.expand(1, 2) for name, value in one(0.0, 1.0).items()}
    weights = torch.tensor([[4.0, 1.0]], dtype=torch.float64)
    parity.differs(
        "gmpo",
        "loss geo_mean",
        "loss of two tokens with rollout weights 4 and 1, A = 1",
        here=(ours("gmpo", tensors, weights)[0].item(), -2.5),
        there=(verls_own("geo_mean", tensors, weights)[0].item(), -2),
        cause="the geometric mean of the weights is taken, too",
    )


def test_dppo_in_the_trainer_caps_weights_at_3_unless_it_is_told(parity):
    """Ratio e^2 = 7.389 and a probability that rises from 0.0025 to 0.018, A = 1."""
    tensors = one(2.0, 1.0, logp=-4.0)
    assert verls_own("dppo_tv", tensors, clip_ratio_c=1e9)[1].item() == pytest.approx(-math.exp(2))
    for name in ("dppo_tv", "dppo_kl"):
        parity.differs(
            name,
            f"loss {name}",
            "gradient at ratio e^2, p from 0.0025 to 0.018, A = 1",
            here=(ours(f"{name},ratio.anchor=old,aggregation=token_mean", tensors)[1].item(), -math.exp(2)),
            there=(verls_own(name, tensors)[1].item(), -3),
            cause="the cap is clip_ratio_c, 3 by default; the paper has none",
        )


def test_dppo_kl_in_the_trainer_has_a_range_of_0_2_unless_it_is_told(parity):
    """p from 0.5 to 0.75: binary KL 0.5 ln(2/3) + 0.5 ln(0.5/0.25) = 0.1438, past the paper's 0.05."""
    tensors = one(math.log(1.5), 1.0, logp=math.log(0.75))
    parity.differs(
        "dppo_kl",
        "loss dppo_kl",
        "gradient at p from 0.5 to 0.75, A = 1",
        here=(ours("dppo_kl,ratio.anchor=old,aggregation=token_mean", tensors)[1].item(), 0),
        there=(verls_own("dppo_kl", tensors)[1].item(), -1.5),
        cause="the range is clip_ratio_low and clip_ratio_high, 0.2 by default; the paper's is 0.05",
    )


def test_cispo_in_the_trainer_weighs_between_0_8_and_1_2_unless_it_is_told(parity):
    tensors = one(-2.0, 1.0, logp=-3.0)
    parity.differs(
        "cispo",
        "loss cispo",
        "gradient at ratio e^-2, A = 1",
        here=(ours("cispo", tensors)[1].item(), -0.1353352832366127),
        there=(verls_own("cispo", tensors)[1].item(), -0.8),
        cause="weights lie between 0.8 and 1.2 by default; the paper has no floor",
    )


def test_kl_cov_in_the_trainer_penalises_by_0_1_unless_it_is_told(parity):
    """Two responses; the first token has the highest covariance, ratio e^-1: its gradient is -e^-1 A less the "
    "coefficient."""
    tensors = {
        "old_log_prob": torch.tensor([[0.0], [-2.0]], dtype=torch.float64),
        "log_prob": torch.tensor([[-1.0], [-3.0]], dtype=torch.float64),
        "advantages": torch.tensor([[1.0], [-0.5]], dtype=torch.float64),
        "response_mask": torch.ones(2, 1, dtype=torch.bool),
    }
    parity.differs(
        "kl_cov",
        "loss kl_cov",
        "gradient of the penalised token of two, ratio e^-1, A = 1",
        here=(ours("kl_cov", tensors)[1][0].item(), (-math.exp(-1) - 1.0) / 2),
        there=(verls_own("kl_cov", tensors)[1][0].item(), (-math.exp(-1) - 0.1) / 2),
        cause="ppo_kl_coef is 0.1 in the configuration, and 1 in the paper",
    )


def test_an_empty_response_counts_in_verls_mean_and_adds_nothing_in_either():
    """verl: 1e-8 in the denominator, so the empty row's ratio is 1, but its advantage 0: the mean is over both rows."""
    tensors = {
        "old_log_prob": torch.zeros(2, 1, dtype=torch.float64) - 1,
        "log_prob": torch.zeros(2, 1, dtype=torch.float64) - 1,
        "advantages": torch.tensor([[1.0], [5.0]], dtype=torch.float64),
        "response_mask": torch.tensor([[True], [False]]),
    }
    assert verls_own("geo_mean", tensors)[0].item() == pytest.approx(-0.5, rel=1e-6)
    assert ours("gmpo", tensors)[0].item() == pytest.approx(-0.5)
