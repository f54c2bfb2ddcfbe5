"""Resuming: our part of a checkpoint is whole before TRL's, each fault of it is named, and any schedule goes on."""

import json
import os
import shutil

import pytest
import torch
import transformers
from grpo_variants_trl.checkpoint.state import STATE_FILE, micro_batches_done
from support import tiny_model
from support.trl.resume import prompts_of
from support.trl.runs import logged, make, weights
from transformers import TrainerCallback

from grpo_variants.files import FileError, read_json, write_json

SAVING = dict(save_strategy="steps", save_steps=1)
ANEW = "resume from another checkpoint, or start a new run from its weights."


def checkpoint_of(folder, loss_type="gv_spo", steps=1, **flags):
    """A run's last checkpoint."""
    make(folder, loss_type, max_steps=steps, rewards=[tiny_model.ones], **{**SAVING, **flags}).train()
    return folder / f"checkpoint-{steps}"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return checkpoint_of(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def checkpoint(saved, tmp_path):
    """A checkpoint of spo after one step, to be damaged."""
    return shutil.copytree(saved, tmp_path / "run" / "checkpoint-1")


def resumed(checkpoint, loss_type="gv_spo", steps=2, **flags):
    trainer = make(checkpoint.parent, loss_type, max_steps=steps, rewards=[tiny_model.ones], **flags)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return trainer


def refusal(checkpoint, loss_type="gv_spo", **flags):
    with pytest.raises(FileError) as caught:
        resumed(checkpoint, loss_type, **flags)
    return str(caught.value)


def killed(*args, **kwargs):
    raise KeyboardInterrupt


def test_a_checkpoint_that_trl_has_finished_has_the_state_and_the_card(tmp_path, monkeypatch):
    """The run is killed between TRL's last file and what comes behind it: nothing of ours is missing."""
    whole = make(tmp_path / "whole", "gv_spo", rewards=[tiny_model.ones])
    whole.train()
    trainer = make(tmp_path, "gv_spo", rewards=[tiny_model.ones], **SAVING)
    monkeypatch.setattr(transformers.trainer, "rotate_checkpoints", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    monkeypatch.undo()
    checkpoint = tmp_path / "checkpoint-1"
    assert {STATE_FILE, "grpo_variant.json", "trainer_state.json"} <= set(os.listdir(checkpoint))
    again = resumed(checkpoint)
    assert again.memory == whole.memory
    torch.testing.assert_close(weights(again), weights(whole), rtol=0, atol=0)


def test_older_checkpoints_are_there_until_a_newer_one_is_whole(tmp_path, monkeypatch):
    trainer = make(tmp_path, "gv_spo", save_total_limit=1, rewards=[tiny_model.ones], **SAVING)
    write, calls = os.fsync, []

    def full_at_second_checkpoint(handle):
        calls.append(handle)
        if trainer.state.global_step == 2:
            raise OSError(28, "No space left on device")
        write(handle)

    monkeypatch.setattr(os, "fsync", full_at_second_checkpoint)
    with pytest.raises(FileError) as caught:
        trainer.train()
    monkeypatch.undo()
    path = tmp_path / "checkpoint-2" / STATE_FILE
    assert str(caught.value) == (
        f"{path} cannot be written (No space left on device): free space on that disk, or choose a folder that can be "
        "written to."
    )
    assert os.listdir(tmp_path / "checkpoint-2") == []
    assert resumed(tmp_path / "checkpoint-1").state.global_step == 2


def test_a_checkpoint_holds_what_the_run_goes_on_with(checkpoint):
    kept = read_json(checkpoint / STATE_FILE, ANEW)
    assert (kept["optimizer_step"], len(kept["memory"]["tracked"]["keys"])) == (1, 2)
    assert set(kept) == {"optimizer_step", "memory"}


@pytest.mark.parametrize(
    ("loss_type", "flags", "what"),
    [
        ("gv_spo", {}, "what was remembered of the prompts"),
        ("gv_dapo,overlong=keep", {}, "the place in the data set from which groups are drawn again"),
        ("gv_grpo", {"reset_reference_every": 1}, "when the reference last moved"),
    ],
)
def test_a_state_that_is_needed_and_not_there_is_refused_by_name(tmp_path, loss_type, flags, what):
    checkpoint = checkpoint_of(tmp_path, loss_type, **flags)
    path = checkpoint / STATE_FILE
    write_json(path, {"optimizer_step": 1})
    assert refusal(checkpoint, loss_type, **flags) == f"{path} does not hold {what}: {ANEW}"
    path.unlink()
    expected = f"{checkpoint} has no {STATE_FILE}, from which loss_type={loss_type!r} takes {what}: {ANEW}"
    assert refusal(checkpoint, loss_type, **flags) == expected


def test_a_run_that_needs_nothing_goes_on_without_a_state_and_says_so_of_a_damaged_one(tmp_path):
    checkpoint = checkpoint_of(tmp_path, "gv_dr_grpo")
    path = checkpoint / STATE_FILE
    path.write_text("")
    assert refusal(checkpoint, "gv_dr_grpo") == (
        f"{path} is truncated or damaged, since it is not valid JSON (line 1, column 1): resume from another "
        "checkpoint, or delete it, since gv_dr_grpo goes on without it."
    )
    path.unlink()
    assert resumed(checkpoint, "gv_dr_grpo").state.global_step == 2


# (what is done to the bytes of the file, what is said of it)
DAMAGE = {
    "truncated": (lambda raw: raw[:20], "is truncated or damaged, since it is not valid JSON (line 3, column 3)"),
    "other type": (lambda raw: b"[1]", "holds a list where an object of names and values is expected"),
    "other encoding": (lambda raw: raw.decode().encode("utf-16"), "is not UTF-8 text (byte 0)"),
    "other values": (
        lambda raw: raw.replace(b'"optimizer_step": 1', b'"optimizer_step": 2'),
        "does not agree with its checksum, so it was changed by hand or damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_is_named(checkpoint, damage):
    change, fault = DAMAGE[damage]
    path = checkpoint / STATE_FILE
    path.write_bytes(change(path.read_bytes()))
    assert refusal(checkpoint) == f"{path} {fault}: {ANEW}"


def test_a_state_of_a_newer_version_is_named(checkpoint):
    path = checkpoint / STATE_FILE
    path.write_text('{"format": 3}')
    assert refusal(checkpoint) == (
        f"{path} has format 3, which a newer grpo-variants wrote and this one (format 2) does not know: upgrade "
        f"grpo-variants, or {ANEW}"
    )


MEMORY = {"tracked": {"keys": ["a"], "rows": [[0.5, 8.0, 1.0]]}}
# (content of a file that is whole, what is said of it)
VALUES = [
    ({"optimizer_step": 400000, "memory": MEMORY}, "optimizer_step=400000, and trainer_state.json has 1"),
    ({"optimizer_step": "1", "memory": MEMORY}, "optimizer_step='1', and trainer_state.json has 1"),
    (
        {"memory": {"tracked": 3}},
        'a memory is {table: {"keys": [...], "rows": [[...], ...]}} with a row of numbers for each key, as '
        "state_dict() gives it; got {'tracked': 3}",
    ),
]


@pytest.mark.parametrize(("content", "fault"), VALUES)
def test_values_that_do_not_fit_are_named(checkpoint, content, fault):
    path = write_json(checkpoint / STATE_FILE, content)
    assert refusal(checkpoint) == f"{path} cannot be used ({fault}): {ANEW}"


def test_a_place_in_the_data_that_is_no_number_is_named(tmp_path):
    checkpoint = checkpoint_of(tmp_path, "gv_dapo,overlong=keep")
    path = write_json(checkpoint / STATE_FILE, {"prompts_drawn": -1})
    fault = "prompts_drawn=-1; allowed: a whole number of at least 0"
    assert refusal(checkpoint, "gv_dapo,overlong=keep") == f"{path} cannot be used ({fault}): {ANEW}"


def test_a_state_of_version_0_1_0_is_read(checkpoint):
    path = checkpoint / STATE_FILE
    memory = read_json(path, ANEW)["memory"]
    path.write_text(json.dumps({"step": 1, "memory": memory}))
    again = resumed(checkpoint)
    assert set(memory["tracked"]["keys"]) < set(again.memory.state_dict()["tracked"]["keys"])


def test_the_entropy_controller_is_part_of_the_state(tmp_path):
    flags = dict(use_adaptive_entropy=True, entropy_coef=0.1, entropy_coef_delta=0.01, entropy_target=5.0)
    checkpoint = checkpoint_of(tmp_path, "gv_dr_grpo", steps=2, **flags)
    (checkpoint / "entropy_ctrl_state.json").unlink()  # TRL writes it last
    again = resumed(checkpoint, "gv_dr_grpo", steps=3, **flags)
    assert logged(again, "entropy_coef") == pytest.approx([0.11, 0.12, 0.13])


# Another schedule


TOKEN_MEAN = "gv_dapo,filter=none,overlong=keep"

# (settings of a run that is stopped after three steps, settings of the one that goes on): eight responses per step.
SCHEDULES = [
    (dict(per_device_train_batch_size=8), dict(per_device_train_batch_size=4, gradient_accumulation_steps=2)),
    (dict(per_device_train_batch_size=4, gradient_accumulation_steps=2), dict(per_device_train_batch_size=8)),
    (
        dict(per_device_train_batch_size=4, gradient_accumulation_steps=2),
        dict(per_device_train_batch_size=2, gradient_accumulation_steps=4, num_generations=4),
    ),
]


@pytest.mark.parametrize(("before", "after"), SCHEDULES)
@pytest.mark.parametrize("loss_type", [TOKEN_MEAN, "gv_grpo,aggregation=prompt_mean"])
def test_a_run_goes_on_with_the_next_prompts_under_another_schedule(tmp_path, loss_type, before, after):
    """The same prompts a step as without the break, each step counted exactly."""
    stopped, _, _ = prompts_of(tmp_path, loss_type, save_strategy="steps", save_steps=3, **before)
    going, trainer, steps = prompts_of(tmp_path / "on", loss_type, str(tmp_path / "checkpoint-3"), **after)
    assert going == {step: stopped[step] for step in (3, 4, 5)}
    size = after.get("gradient_accumulation_steps", 1)
    assert (trainer._step, [len(micro) for micro in steps]) == (6 * size, [size] * 3)
    if "dapo" in loss_type:
        for micro in steps:  # on policy each token's gradient is -A_i / (tokens of the step)
            tokens = sum(int(m["inputs"]["completion_mask"].sum()) for m in micro)
            for m in micro:
                expected = -m["inputs"]["advantages"] / tokens
                torch.testing.assert_close(m["logp"].grad[:, 0], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (dict(steps_per_generation=1), dict(steps_per_generation=2)),
        (dict(steps_per_generation=2), dict(steps_per_generation=1)),
        (dict(num_iterations=1), dict(num_iterations=3)),
    ],
)
def test_other_generations_are_in_step_with_the_data(tmp_path, before, after):
    """The counter says which part of a generation is next: every later generation begins where the data's does."""
    prompts_of(tmp_path, TOKEN_MEAN, save_strategy="steps", save_steps=3, max_steps=3, **before)
    going, trainer, _ = prompts_of(
        tmp_path / "on", TOKEN_MEAN, resume=str(tmp_path / "checkpoint-3"), max_steps=7, **after
    )
    fresh, _, _ = prompts_of(tmp_path / "fresh", TOKEN_MEAN, max_steps=7, **after)
    assert trainer._step == 7
    assert {step: rows for step, rows in going.items() if step > 3} == {
        step: rows for step, rows in fresh.items() if step > 3
    }


@pytest.mark.parametrize(
    ("steps", "accumulation", "in_epoch", "skips", "done"),
    [
        (0, 4, 32, True, 0),
        (3, 1, 32, True, 3),
        (3, 2, 32, True, 6),
        (11, 3, 32, True, 32),  # ten steps of three micro-batches and one of two
        (12, 3, 32, True, 35),
        (12, 3, 32, False, 32),
        (5, 4, None, True, 20),
        (5, 4, None, False, 0),
        (3, 4, 2, True, 6),
    ],
)
def test_micro_batches_that_are_done(steps, accumulation, in_epoch, skips, done):
    assert micro_batches_done(steps, accumulation, in_epoch, skips=skips) == done


class Moved(TrainerCallback):
    """Puts TRL's counter out of step."""

    def on_step_begin(self, args, state, control, **kwargs):
        self.trainer._step += 1


@pytest.mark.parametrize("loss_type", [TOKEN_MEAN, "gv_grpo,aggregation=prompt_mean"])
def test_an_optimizer_step_is_never_counted_approximately_unasked(tmp_path, loss_type):
    moved = Moved()
    trainer = make(tmp_path, loss_type, gradient_accumulation_steps=2, callbacks=[moved])
    moved.trainer = trainer
    with pytest.raises(RuntimeError) as caught:
        trainer.train()
    name = loss_type[3:].partition(",")[0]
    assert str(caught.value) == (
        "optimizer step 1 begins with micro-batch 1 and has 2 of them, so it spans two generations of 2, and the "
        f"lengths that {name}'s loss needs are not known yet. Begin each optimizer step at a multiple of "
        "gradient_accumulation_steps, which the trainer does by itself: something has changed its schedule or its "
        "counter of micro-batches."
    )
