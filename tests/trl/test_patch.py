"""The patch that gives the stock trainer the gv_ loss types: explicit, reversible, and no effect on anything else."""

import re

import grpo_variants_trl as gvt
import pytest
import torch
from support import tiny_model
from support.trl.runs import logged, lora, make, weights
from trl import GRPOConfig, GRPOTrainer

import grpo_variants as gv

STOCK_INIT = GRPOTrainer.__init__


@pytest.fixture(autouse=True)
def _unpatched():
    assert GRPOTrainer.__init__ is STOCK_INIT
    yield
    left = GRPOTrainer.__init__
    gvt.unregister()
    assert left is STOCK_INIT, "the test left the patch in place"


def trained(folder, loss_type, trainer=GRPOTrainer, config=GRPOConfig, **flags):
    made = make(folder, loss_type, trainer=trainer, config=config, **flags)
    made.train()
    return made


def test_the_stock_trainer_trains_a_variant_as_the_variant_trainer_does(tmp_path):
    ours = trained(tmp_path / "a", "gv_dr_grpo", gvt.VariantGRPOTrainer, gvt.VariantGRPOConfig)
    with gvt.registered():
        stock = trained(tmp_path / "b", "gv_dr_grpo")
    assert (stock.variant, type(stock).__name__) == (gv.get("dr_grpo"), "GRPOTrainer")
    assert isinstance(stock, GRPOTrainer)
    assert logged(stock, "loss") == logged(ours, "loss")
    torch.testing.assert_close(weights(stock), weights(ours), rtol=0, atol=0)
    assert (tmp_path / "b" / "grpo_variant.json").exists()


def test_the_stock_trainer_takes_the_variant_config_and_its_spec_string(tmp_path):
    with gvt.registered():
        made = make(tmp_path, "gv_dapo,surrogate.high=0.3", GRPOTrainer, gvt.VariantGRPOConfig, beta=0.1)
    assert made.variant == gv.get("dapo,surrogate.high=0.3,kl=k3,kl.beta=0.1")


def test_config_by_position_is_found(tmp_path):
    config = GRPOConfig(str(tmp_path), loss_type="gv_dr_grpo", use_cpu=True, bf16=False, report_to="none")
    with gvt.registered():
        made = GRPOTrainer(
            tiny_model.model(),
            tiny_model.ones,
            config,
            tiny_model.dataset(),
            processing_class=tiny_model.tokenizer(),
        )
    assert made.variant == gv.get("dr_grpo")


class Doubled(GRPOTrainer):
    """A user's trainer: its own constructor, twice the rewards, a record of the losses it hands on."""

    def __init__(self, factor, **kwargs):
        self.made = getattr(self, "made", 0) + 1
        self.factor, self.seen = factor, []
        super().__init__(**kwargs)

    def _calculate_rewards(self, *args):
        return self.factor * super()._calculate_rewards(*args)

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self.seen.append((loss.item(), inputs["advantages"].clone()))
        return loss


def doubled(folder, factor, loss_type="gv_dr_grpo"):
    made = trained(folder, loss_type, lambda **kwargs: Doubled(factor, **kwargs), max_steps=1)
    assert made.made == 1
    return made


def test_a_users_trainer_keeps_its_overrides(tmp_path):
    with gvt.registered():
        once, twice = doubled(tmp_path / "a", 1), doubled(tmp_path / "b", 2)
    assert (type(twice).__name__, twice.variant) == ("Doubled", gv.get("dr_grpo"))
    assert isinstance(twice, Doubled)
    # Without a division by a deviation the advantages, and the on-policy loss, carry the factor.
    torch.testing.assert_close(twice.seen[0][1], 2 * once.seen[0][1])
    assert twice.seen[0][0] == pytest.approx(2 * once.seen[0][0], rel=1e-5)
    assert abs(once.seen[0][0]) > 1e-3


class OwnLoss(GRPOTrainer):
    """Replaces the loss, and with it the variant's."""

    def _compute_loss(self, model, inputs):
        return sum(p.sum() for p in model.parameters() if p.requires_grad)


class OwnWayToTheLoss(GRPOTrainer):
    """Replaces what asks for the loss."""

    def compute_loss(self, model, inputs, **options):
        return sum(p.sum() for p in model.parameters() if p.requires_grad)


class OwnStep(GRPOTrainer):
    """Replaces the micro-batch."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = sum(p.sum() for p in model.parameters() if p.requires_grad)
        loss.backward()
        return loss.detach()


class OwnBatches(GRPOTrainer):
    """Replaces what makes batches of rollouts."""

    def _prepare_inputs(self, inputs):
        return OwnRollouts._generate_and_score_completions(self, inputs)


class OwnRollouts(GRPOTrainer):
    """Replaces the rollouts, and with them the variant's advantages."""

    def _generate_and_score_completions(self, inputs):
        ids = torch.ones(len(inputs), 2, dtype=torch.long)
        masks = {"prompt_mask": ids, "completion_mask": ids}
        return {"prompt_ids": ids, "completion_ids": ids, **masks, "advantages": torch.ones(len(inputs))}


@pytest.mark.parametrize(
    ("trainer", "method"),
    [
        (OwnLoss, "_compute_loss"),
        (OwnWayToTheLoss, "compute_loss"),
        (OwnStep, "training_step"),
        (OwnRollouts, "_generate_and_score_completions"),
        (OwnBatches, "_prepare_inputs"),
    ],
)
def test_a_users_trainer_that_replaces_the_variant_is_refused_before_it_moves(tmp_path, trainer, method):
    text = (
        f"loss_type='gv_dr_grpo' has no effect: {trainer.__name__}.{method} does not call super().{method}, which "
        "trains the variant. Call it there, or choose a built-in loss type."
    )
    with gvt.registered():
        made = make(tmp_path, "gv_dr_grpo", trainer, GRPOConfig)
        before = weights(made)
        with pytest.raises(RuntimeError, match=f"^{re.escape(text)}$"):
            made.train()
    assert torch.equal(weights(made), before)


def test_every_method_that_was_replaced_is_named(tmp_path):
    both = type("Both", (OwnStep, OwnLoss), {})
    with gvt.registered(), pytest.raises(RuntimeError, match=r"has no effect: Both\.training_step or Both\._comp"):
        trained(tmp_path, "gv_dr_grpo", both)


def test_a_users_trainer_without_a_variant_is_not_touched(tmp_path):
    plain = doubled(tmp_path / "a", 2, "dr_grpo")
    with gvt.registered():
        inside = doubled(tmp_path / "b", 2, "dr_grpo")
    assert type(inside) is Doubled
    assert inside.seen[0][0] == plain.seen[0][0]


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_a_built_in_loss_type_gives_the_same_numbers(tmp_path, loss_type):
    before = trained(tmp_path / "a", loss_type)
    with gvt.registered():
        inside = trained(tmp_path / "b", loss_type)
    assert type(inside) is GRPOTrainer
    assert logged(inside, "loss") == logged(before, "loss")
    assert logged(inside, "grad_norm") == logged(before, "grad_norm")
    torch.testing.assert_close(weights(inside), weights(before), rtol=0, atol=0)


def test_the_variant_trainer_is_the_same_inside_and_outside(tmp_path):
    outside = trained(tmp_path / "a", "gv_dapo", gvt.VariantGRPOTrainer, gvt.VariantGRPOConfig)
    with gvt.registered():
        inside = trained(tmp_path / "b", "gv_dapo", gvt.VariantGRPOTrainer, gvt.VariantGRPOConfig)
    assert type(inside) is gvt.VariantGRPOTrainer
    assert logged(inside, "loss") == logged(outside, "loss")


def test_registration_is_idempotent_and_reversible(tmp_path):
    gvt.register()
    patched = GRPOTrainer.__init__
    gvt.register()
    assert GRPOTrainer.__init__ is patched
    gvt.unregister()
    gvt.unregister()
    assert GRPOTrainer.__init__ is STOCK_INIT
    assert not hasattr(make(tmp_path, "gv_dr_grpo", GRPOTrainer, GRPOConfig), "variant")


def test_a_block_puts_back_what_was_there_before():
    with gvt.registered():
        with gvt.registered():
            pass
        assert GRPOTrainer.__init__ is not STOCK_INIT
    with pytest.raises(RuntimeError, match="inside"), gvt.registered():
        raise RuntimeError("inside")
    assert GRPOTrainer.__init__ is STOCK_INIT
    gvt.register()
    with gvt.registered():
        pass
    assert GRPOTrainer.__init__ is not STOCK_INIT
    gvt.unregister()


def test_what_is_refused_is_refused_in_the_stock_trainer_too(tmp_path):
    with gvt.registered(), pytest.raises(ValueError, match="sum of squared probabilities at each token"):
        make(tmp_path, "gv_otb", GRPOTrainer, GRPOConfig)
    with gvt.registered(), pytest.raises(ValueError, match="unknown variant 'gv_nope'"):
        make(tmp_path, "gv_nope", GRPOTrainer, GRPOConfig)


def test_a_lora_reference_is_built_from_the_plain_configs_beta(tmp_path):
    with gvt.registered():
        made = trained(tmp_path, "gv_grpo", beta=0.04, num_iterations=2, learning_rate=0.1, peft_config=lora())
    assert made.variant == gv.get("grpo")
    assert max(logged(made, "kl")) > 1e-5
