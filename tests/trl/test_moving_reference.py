"""Iterative GRPO's reference: it becomes the policy every N steps, stays put in between, and survives a resume."""

import math
import os
import re

import grpo_variants_trl as gvt
import pytest
import torch
from peft import AdaLoraConfig, LoraConfig, PeftModel, get_peft_model
from support import tiny_model
from support.trl.runs import logged, lora, make
from transformers import TrainerCallback

from grpo_variants.files import FileError

SPEC = "gv_grpo,kl.beta=0.1"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The tiny model in a folder, since TRL loads a full reference from where the policy came from."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.model().save_pretrained(folder)
    return str(folder)


def started(seed=3):
    """An adapter that has learnt something: TRL's reference is a copy of it, not the base model."""
    model = get_peft_model(tiny_model.model(), lora())
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    return model


def kinds(saved):
    return {
        "full": {"model": saved, "peft_config": None},
        "new adapter": {},
        "start adapter": {"model": started(), "peft_config": None},
        "with modules": {
            "peft_config": LoraConfig(
                r=4,
                target_modules=["q_proj", "embed_tokens"],
                modules_to_save=["norm"],
                use_dora=False,
                task_type="CAUSAL_LM",
            )
        },
    }


KINDS = ("full", "new adapter", "start adapter", "with modules")


def vector(parameters):
    return torch.cat([p.detach().flatten().clone() for p in parameters])


class Watch(TrainerCallback):
    """Policy and reference after every step, and the reference's at each generation."""

    def __init__(self):
        self.policy, self.reference = {}, {}

    def attach(self, trainer):
        self.trainer = trainer
        trainer.add_callback(self)
        return trainer

    def read(self, step):
        pairs = list(self.trainer._reference.pairs())
        self.reference[step] = vector(reference for reference, _ in pairs)
        self.policy[step] = vector(policy for _, policy in pairs)

    def on_step_begin(self, args, state, control, **kwargs):
        self.read((state.global_step, "before"))

    def on_step_end(self, args, state, control, **kwargs):
        self.read((state.global_step, "after"))


def run(folder, saved, kind, **flags):
    watch = Watch()
    flags = {"reset_reference_every": 2, "max_steps": 5, "learning_rate": 0.02, **kinds(saved)[kind], **flags}
    trainer = watch.attach(make(folder, SPEC, **flags))
    return trainer, watch


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_becomes_the_policy_every_two_steps(tmp_path, saved, kind):
    trainer, watch = run(tmp_path, saved, kind)
    watch.read("made")
    trainer.train()
    reference, policy = watch.reference, watch.policy
    assert torch.equal(reference["made"], policy["made"])
    # Optimizer steps are numbered from 1. The reset falls in front of the rollouts of steps 3 and 5.
    start, second, fourth = policy["made"], policy[(2, "after")], policy[(4, "after")]
    expected = {1: start, 2: start, 3: second, 4: second, 5: fourth}
    for step, wanted in expected.items():
        assert torch.equal(reference[(step, "after")], wanted), step
    assert (second - start).abs().max() > 1e-3
    assert (fourth - second).abs().max() > 1e-3
    assert logged(trainer, "gv/reference_resets") == [0, 0, 1, 1, 2]
    kl = logged(trainer, "kl")
    # On policy against itself: rounding alone, which k3 squares.
    assert [kl[0], kl[2], kl[4]] == pytest.approx([0, 0, 0], abs=1e-9)
    assert min(kl[1], kl[3]) > 1e-6


def test_a_start_adapter_as_reference_has_a_first_kl_of_exactly_zero(tmp_path, saved):
    """The user's trap: without the adapter's copy the reference would be the base model."""
    trainer, _ = run(tmp_path, saved, "start adapter", max_steps=1)
    with trainer.model.disable_adapter():
        base = trainer.model(torch.tensor([[1, 2, 1]])).logits
    assert (trainer.model(torch.tensor([[1, 2, 1]])).logits - base).abs().max() > 0.1
    trainer.train()
    assert logged(trainer, "kl") == [0.0]


def test_only_the_policys_adapter_is_trained(tmp_path, saved):
    trainer, _ = run(tmp_path, saved, "new adapter", max_steps=1)
    trainer.train()
    own = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    twins = [(reference, policy) for reference, policy in trainer._reference.pairs()]
    assert all(id(policy) in own and id(reference) not in own for reference, policy in twins)
    assert not any(reference.requires_grad for reference, _ in twins)
    assert all(policy.requires_grad for _, policy in twins)


def test_without_the_option_the_reference_stays(tmp_path, saved):
    """What the option changes: with a new adapter TRL's reference is the base model for good."""
    flags = {"max_steps": 5, "learning_rate": 0.02}
    stays = make(tmp_path / "stays", SPEC, **flags)
    stays.train()
    assert list(stays.model.peft_config) == ["default"]
    moves = make(tmp_path / "moves", SPEC, reset_reference_every=2, **flags)
    moves.train()
    before, after = logged(stays, "kl"), logged(moves, "kl")
    # The twin of a new adapter computes what the base model does, and its making draws no random number of the run's.
    assert before[:2] == after[:2]
    assert before[2] > 1e-6 > after[2]


@pytest.mark.parametrize("kind", ["full", "new adapter", "start adapter"])
@pytest.mark.parametrize("at", [3, 4])
def test_the_reference_survives_a_resume(tmp_path, saved, kind, at):
    """A run that stops after step 3 or 4 and goes on ends where an uninterrupted one ends."""
    flags = {"save_strategy": "steps", "save_steps": at, "max_steps": 6}
    whole, watched = run(tmp_path / "whole", saved, kind, **flags)
    whole.train()
    resumed, watch = run(tmp_path / "resumed", saved, kind, **flags)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
    # Before the first step that follows: the reference of the run, not that of a new trainer.
    assert torch.equal(watch.reference[(at, "before")], watched.reference[(at, "after")])
    assert torch.equal(watch.policy[(at, "before")], watched.policy[(at, "after")])
    for step in range(at + 1, 7):
        torch.testing.assert_close(watch.reference[(step, "after")], watched.reference[(step, "after")])
    assert logged(resumed, "gv/reference_resets") == logged(whole, "gv/reference_resets")
    assert resumed._reference.resets == 2


def test_a_checkpoint_without_its_reference_is_refused(tmp_path, saved):
    flags = {"save_strategy": "steps", "save_steps": 3, "max_steps": 4}
    run(tmp_path, saved, "full", **flags)[0].train()
    (tmp_path / "checkpoint-3" / "grpo_variants_reference.pt").unlink()
    again, _ = run(tmp_path, saved, "full", **flags)
    with pytest.raises(ValueError, match=r"has no grpo_variants_reference.pt, and the reference has moved 1 times"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:500]), "PytorchStreamReader failed"),
        (lambda path: path.write_bytes(b""), "EOFError"),
        (lambda path: torch.save([1], path), "Expected state_dict to be dict-like"),
        (lambda path: torch.save({}, path), "Error(s) in loading state_dict for LlamaForCausalLM"),
    ],
)
def test_a_damaged_reference_is_refused_by_name(tmp_path, saved, change, fault):
    flags = {"save_strategy": "steps", "save_steps": 3, "max_steps": 4}
    run(tmp_path, saved, "full", **flags)[0].train()
    path = tmp_path / "checkpoint-3" / "grpo_variants_reference.pt"
    change(path)
    again, _ = run(tmp_path, saved, "full", **flags)
    with pytest.raises(FileError) as caught:
        again.train(resume_from_checkpoint=str(path.parent))
    assert str(caught.value).startswith(f"{path} is damaged, or of another model ({fault}")
    assert str(caught.value).endswith("): resume from another checkpoint, or start a new run from its weights.")


def test_a_full_disk_while_the_reference_is_written_is_named(tmp_path, saved, monkeypatch):
    save = torch.save

    def on_a_full_disk(value, file):
        with open("/dev/full", "wb") as full:
            save(value, full if getattr(file, "name", "").endswith(".tmp") else file)

    trainer, _ = run(tmp_path, saved, "full", save_strategy="steps", save_steps=3, max_steps=4)
    monkeypatch.setattr(torch, "save", on_a_full_disk)
    with pytest.raises(FileError) as caught:
        trainer.train()
    path = tmp_path / "checkpoint-3" / "grpo_variants_reference.pt"
    assert str(caught.value).startswith(f"{path} cannot be written (No space left on device): ")
    assert os.listdir(path.parent) == []


def test_the_card_says_it(tmp_path, saved):
    trainer, _ = run(tmp_path, saved, "new adapter")
    assert trainer.variant_card.effective["reset_reference_every"] == 2
    assert make(tmp_path, SPEC).variant_card.hash != trainer.variant_card.hash


CONFIGS = {
    "zero": ({"reset_reference_every": 0}, "reset_reference_every=0 is out of range; allowed: a number of optimizer"),
    "a fraction": ({"reset_reference_every": 1.5}, "reset_reference_every=1.5 is out of range"),
    "no KL term": (
        {"reset_reference_every": 2, "loss_type": "gv_dapo"},
        "reset_reference_every=2 has no effect: loss_type='gv_dapo' has no KL term and so no reference.",
    ),
    "a KL term of 0": ({"reset_reference_every": 2, "beta": 0.0}, "has no KL term and so no reference."),
    "a built-in loss": (
        {"reset_reference_every": 2, "loss_type": "dapo"},
        "reset_reference_every=2 has no effect with the built-in loss_type='dapo'. Remove it.",
    ),
    "TRL's own mixture": (
        {"reset_reference_every": 2, "sync_ref_model": True},
        "reset_reference_every=2 and sync_ref_model=True both move the reference. Set one of them.",
    ),
    "within a generation": (
        {"reset_reference_every": 3, "steps_per_generation": 4, "num_iterations": 1},
        "falls between two optimizer steps of one generation, whose reference log-probabilities are known already. Set "
        "reset_reference_every=4.",
    ),
    "within several iterations": (
        {"reset_reference_every": 5, "steps_per_generation": 1, "num_iterations": 2},
        "Set reset_reference_every=4 or reset_reference_every=6.",
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_what_has_no_effect_or_no_meaning_is_refused(tmp_path, case):
    flags, text = CONFIGS[case]
    with pytest.raises(ValueError, match=re.escape(text)):
        gvt.VariantGRPOConfig(str(tmp_path), **{"loss_type": "gv_grpo", "use_cpu": True, "bf16": False, **flags})


def test_biases_cannot_have_a_twin(tmp_path):
    config = LoraConfig(r=4, target_modules=["q_proj"], bias="lora_only", task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match=re.escape("LoraConfig(bias='lora_only') does not allow")):
        make(tmp_path, SPEC, reset_reference_every=2, peft_config=config)


def test_adapters_without_a_second_one_are_refused_by_name(tmp_path):
    config = AdaLoraConfig(
        init_r=6, target_r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", total_step=100, tinit=1, tfinal=1
    )
    text = "reset_reference_every needs a second adapter as the reference, which AdaLoraConfig does not allow. Use an"
    with pytest.raises(ValueError, match=re.escape(text)):
        make(tmp_path, SPEC, reset_reference_every=2, peft_config=config)


def test_with_dropout_a_reset_leaves_a_kl(tmp_path, saved):
    """Policy and reference draw their own random numbers."""
    config = LoraConfig(
        r=4, target_modules="all-linear", task_type="CAUSAL_LM", exclude_modules=["lm_head"], lora_dropout=0.1
    )
    trainer, _ = run(tmp_path, saved, "new adapter", peft_config=config, max_steps=3)
    trainer.train()
    assert logged(trainer, "gv/reference_resets") == [0, 0, 1]
    assert 1e-6 < logged(trainer, "kl")[2] < 1e-1


SPLITTING = ("pissa", "pissa_niter_4", "olora")


def splitting(init):
    """LoRA whose initialisation takes something out of the model's weights."""
    return LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=init)


def base_weights(model):
    return vector(p for name, p in model.named_parameters() if "lora_" not in name)


@pytest.mark.parametrize("init", SPLITTING)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("every", [None, 2])
def test_the_reference_of_an_adapter_that_splits_the_weights_is_the_start(tmp_path, init, own, every):
    """Made by the trainer or beforehand: one split, so the policy starts as the model that was given."""
    ids = torch.tensor([[1, 2, 1, 1]])
    torch.manual_seed(0)
    alone = get_peft_model(tiny_model.model(), splitting(init))
    torch.manual_seed(0)
    flags = {"model": get_peft_model(tiny_model.model(), splitting(init)), "peft_config": None}
    flags = flags if own else {"peft_config": splitting(init)}
    trainer = make(tmp_path, SPEC, reset_reference_every=every, max_steps=1, **flags)
    with torch.no_grad():
        torch.testing.assert_close(trainer.model(ids).logits, tiny_model.model()(ids).logits, rtol=1e-5, atol=1e-6)
    if init != "pissa_niter_4":  # drawn at random
        torch.testing.assert_close(base_weights(trainer.model), base_weights(alone), rtol=1e-5, atol=1e-6)
    assert trainer.model.peft_config["default"].init_lora_weights == init
    assert list(trainer.model.peft_config) == ["default", "ref"]
    trainer.train()
    assert logged(trainer, "kl") == [0.0]


def test_a_plain_adapter_keeps_the_model_without_it_as_the_reference(tmp_path):
    assert list(make(tmp_path, SPEC).model.peft_config) == ["default"]
    assert list(make(tmp_path, "gv_dapo", peft_config=splitting("pissa")).model.peft_config) == ["default"]


def test_an_adapter_that_changes_the_model_when_it_is_made_is_refused(tmp_path, monkeypatch):
    own = PeftModel.add_adapter

    def shifting(model, name, config, **options):
        own(model, name, config, **options)
        with torch.no_grad():
            model.get_input_embeddings().weight += 0.1

    monkeypatch.setattr(PeftModel, "add_adapter", shifting)
    with pytest.raises(ValueError, match="LoraConfig, which changes the model's own weights when it is made, does not"):
        make(tmp_path, SPEC, reset_reference_every=2)


def test_a_reset_with_several_iterations_waits_for_the_next_generation(tmp_path, saved):
    """Two optimizer steps per generation: both read the log-probabilities of one reference."""
    trainer, watch = run(tmp_path, saved, "new adapter", num_iterations=2, max_steps=6)
    trainer.train()
    for step, wanted in {3: 2, 4: 2, 5: 4, 6: 4}.items():
        assert torch.equal(watch.reference[(step, "after")], watch.policy[(wanted, "after")]), step
    kl = logged(trainer, "kl")
    assert [kl[0], kl[2], kl[4]] == pytest.approx([0, 0, 0], abs=1e-9)
    assert all(math.isfinite(value) and value > 1e-7 for value in (kl[1], kl[3], kl[5]))
