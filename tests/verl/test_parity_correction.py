"""verl's rollout corrections and KL terms, by its own code, against the parts here: weights, loss and gradient."""

import inspect

import pytest
import torch
from support.parity import words
from support.verl_stock_loss import batch, equal, ours, verls_own
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos, rollout_corr_helper

import grpo_variants as gv
from grpo_variants.trainers.verl import words as verl_words

BAND = "correction.{0}low={1!r},correction.{0}high={2!r}"
GEOMETRIC = BAND.format("geometric_mask.", 1 / 1.01, 1 / 0.99)
PRESETS = dict(inspect.getmembers(RolloutCorrectionConfig, inspect.ismethod))
# The presets that have counterparts in decoupled mode, beside verl's loss vanilla. Their bands of 0.1 % keep no
# response of a random batch, so the geometric ones are given 1 %.
NARROW = {"rs_threshold": "0.99_1.01"}
DECOUPLED = {
    "disabled": ("correction=none", {}),
    "decoupled_token_is": ("correction=token_truncate,correction.cap=2", {}),
    "decoupled_seq_is": ("correction=sequence_truncate,correction.cap=2", {}),
    "decoupled_token_icepop": (f"correction=token_mask,{BAND.format('', 0.5, 5.0)}", {}),
    "decoupled_seq_is_rs": (f"correction=sequence_mask,{BAND.format('', 0.5, 2.0)}", {}),
    "decoupled_geo_rs": (f"correction=geometric_mask,{GEOMETRIC}", NARROW),
    "decoupled_geo_rs_seq_tis": (f"correction=geometric_mask+sequence_truncate,{GEOMETRIC}", NARROW),
    "decoupled_geo_rs_token_tis": (f"correction=geometric_mask+token_truncate,{GEOMETRIC}", NARROW),
}
# In bypass mode the weights compare the policy now with the engine, where the parts here compare the old policy with
# it: the same in a batch's first update, and after it where a ratio can say it.
BYPASS = {
    "bypass_ppo_clip": ("grpo,kl=none,ratio.anchor=rollout,conventions=verl", {}, False),
    "bypass_ppo_clip_geo_rs": (
        f"grpo,kl=none,ratio.anchor=rollout,conventions=verl,correction=geometric_mask,{GEOMETRIC}",
        NARROW,
        True,
    ),
    "bypass_pg_is": ("cispo,ratio=sequence_product,ratio.anchor=rollout,surrogate.cap=2", {}, False),
    "bypass_pg_token_icepop": (f"reinforce,correction=token_mask,{BAND.format('', 0.5, 5.0)}", {}, True),
    "bypass_pg_geo_rs": (f"reinforce,correction=geometric_mask,{GEOMETRIC}", NARROW, True),
    "bypass_pg_geo_rs_seq_tis": (f"reinforce,correction=geometric_mask+sequence_truncate,{GEOMETRIC}", NARROW, True),
    "bypass_pg_geo_rs_token_tis": (f"reinforce,correction=geometric_mask+token_truncate,{GEOMETRIC}", NARROW, True),
}


def mismatched():
    """The batch and what the engine reported: a third of the responses within 1 %, the others off by more."""
    tensors = batch()
    noise = torch.randn(tensors["old_log_prob"].shape, dtype=torch.float64) * 0.5
    noise[:2] *= 0.005
    return tensors, (tensors["old_log_prob"] + noise).clamp(max=-0.001)


def corrected(config, old, engine, mask):
    """verl's weights and the mask that its rejection leaves."""
    fields = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs", "rollout_rs_threshold")
    given = {name: getattr(config, name) for name in fields}
    proto, kept, _ = rollout_corr_helper.compute_rollout_correction_and_rejection_mask(
        old, engine, mask.long(), **given
    )
    return None if proto is None else proto.batch["rollout_is_weights"], kept


def compared(parity, spec, builtin, config, **fields):
    """Weights, loss and gradient of verl's loss vanilla with a correction, token mean over the step's tokens."""
    tensors, engine = mismatched()
    old, mask = tensors["old_log_prob"], tensors["response_mask"]
    weights, kept = corrected(config, old, engine, mask)
    step = {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask)}
    wanted = verls_own("vanilla", {**tensors, "response_mask": kept.bool()}, weights, step=step, **fields)
    found = ours(f"{spec},aggregation=token_mean", tensors, rollout_logp=engine)
    equal(parity, spec, builtin, found, wanted)
    theirs = kept * (1.0 if weights is None else weights)
    x = gv.Tokens(logp=old, mask=mask, advantages=tensors["advantages"], old_logp=old, rollout_logp=engine)
    own = gv.correction_weights(spec, x) if gv.get(spec).correction else torch.ones_like(old)
    parity.equal(spec, builtin, rtol=1e-6, atol=1e-9, weights=((own * mask)[mask], theirs[mask]))
    return theirs[mask]


@pytest.mark.parametrize("preset", DECOUPLED)
def test_a_preset_of_the_decoupled_mode_equals_the_trainer(parity, preset):
    correction, given = DECOUPLED[preset]
    spec = f"grpo,kl=none,conventions=verl,{correction}"
    weights = compared(parity, spec, f"rollout_correction preset {words(preset, given)}", PRESETS[preset](**given))
    assert preset == "disabled" or len(weights.unique()) > 1, "the correction has done nothing"


@pytest.mark.parametrize(
    ("spec", "settings", "fields"),
    [
        ("tis", {"rollout_is": "token", "rollout_is_threshold": 2.0}, {"clip_ratio_high": 0.28}),
        ("seq_mis", {"rollout_is": "sequence", "rollout_is_threshold": "1e-09_10.0"}, {}),
        ("icepop", {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}, {}),
        ("glm5", {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"}, {"clip_ratio_high": 0.28}),
    ],
)
def test_a_variant_with_a_correction_equals_the_trainer(parity, spec, settings, fields):
    builtin = words("loss vanilla", {**fields, **settings})
    compared(parity, f"{spec},conventions=verl", builtin, RolloutCorrectionConfig(**settings), **fields)


@pytest.mark.parametrize("preset", BYPASS)
def test_a_preset_of_the_bypass_mode_equals_the_trainer(parity, preset):
    spec, given, first = BYPASS[preset]
    tensors, engine = mismatched()
    old, mask = tensors["old_log_prob"], tensors["response_mask"]
    tensors = {**tensors, "log_prob": old} if first else tensors
    step = {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask)}
    bypassed = {**tensors, "old_log_prob": engine}
    wanted = verls_own("bypass_mode", bypassed, step=step, rollout_correction=PRESETS[preset](**given))
    found = ours(f"{spec},aggregation=token_mean", tensors, rollout_logp=engine)
    when = "; a batch's first update" if first else ""
    equal(parity, spec, f"rollout_correction preset {words(preset, given)}{when}", found, wanted)


REJECTIONS = sorted(rollout_corr_helper.SUPPORTED_ROLLOUT_RS_OPTIONS - {"seq_mean_k1"})


# The engine's log-probabilities, without which verl corrects nothing.
KEPT = {verl_words.ENGINE_LOGP: True}


@pytest.mark.parametrize("mode", REJECTIONS)
def test_a_rejection_without_counterpart_is_named(parity, mode):
    """Only the geometric mask rejects whole responses and leaves their weights at 1."""
    settings = {"rollout_rs": mode, "rollout_rs_threshold": "0.5_2.0"}
    found = {f"{verl_words.CORRECTION}.{name}": value for name, value in settings.items()} | KEPT
    with pytest.raises(ValueError, match=f"rollout_rs={mode} has no counterpart among the corrections here"):
        verl_words.read_correction(found.get)
    cause = "what rejects here is geometric_mask, seq_mean_k1 there, and bands of weights, which keep them inside"
    parity.missing(f"rollout_rs={mode!r}", cause)


@pytest.mark.parametrize("preset", [name for name in PRESETS if "k3_rs" in name])
def test_a_preset_without_counterpart_is_named(parity, preset):
    config = PRESETS[preset]()
    found = {
        f"{verl_words.CORRECTION}.{name}": getattr(config, name) for name in ("rollout_rs", "rollout_rs_threshold")
    } | KEPT
    with pytest.raises(ValueError, match="rollout_rs=seq_mean_k3 has no counterpart"):
        verl_words.read_correction(found.get)
    parity.missing(f"rollout_correction preset {preset}", "no part here rejects by k3")


def test_weights_of_mean_1_have_no_counterpart(parity):
    """Two tokens of weights 2 and 0.5: verl's are divided by their mean of 1.25."""
    log_ratio = torch.tensor([[2.0, 0.5]]).log()
    config = RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=2.0, rollout_is_batch_normalize=True)
    weights, _ = corrected(config, log_ratio, torch.zeros(1, 2), torch.ones(1, 2))
    x = gv.Tokens(
        logp=log_ratio - 1,
        mask=torch.ones(1, 2).bool(),
        advantages=torch.ones(1),
        old_logp=log_ratio - 1,
        rollout_logp=-torch.ones(1, 2),
    )
    parity.differs(
        "tis",
        "rollout_is='token', rollout_is_batch_normalize=True",
        "weights of two tokens with ratios 2 and 0.5",
        here=(gv.correction_weights("tis", x)[0].tolist(), [2, 0.5]),
        there=(weights[0].tolist(), [1.6, 0.4]),
        cause="weights are divided by their mean over the batch",
    )


# KL in the loss: verl's word, and ours.
KL = {
    "kl": "k1",
    "abs": "abs",
    "mse": "k2",
    "low_var_kl": "k3",
    "k1+": "k1,kl.gradient=k2",
    "k3+": "k3,kl.gradient=k2",
}


@pytest.mark.parametrize("drift", [0.5, 3.0])
@pytest.mark.parametrize("word", KL)
def test_kl_in_the_loss_equals_the_trainer(parity, word, drift):
    tensors = batch(drift)
    mask, ref = tensors["response_mask"], tensors["old_log_prob"]
    logp = tensors["log_prob"].clone().requires_grad_()
    wanted = core_algos.agg_loss(core_algos.kl_penalty(logp, ref, word), mask, "seq-mean-token-mean")
    wanted.backward()
    spec = f"grpo,conventions=verl,kl={KL[word]},kl.beta=1"
    silent = {**tensors, "advantages": torch.zeros_like(ref)}
    builtin = f"kl_loss_type={word!r}, loss_agg_mode='seq-mean-token-mean'"
    equal(parity, spec, builtin, ours(spec, silent, ref_logp=ref), (wanted.detach(), logp.grad))
