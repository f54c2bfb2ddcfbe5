"""Two real processes over gloo have, together, the advantages, loss and gradient of one batch."""

import pytest
import torch
from support.torchrun import ranks
from support.trl.resume import prompts_of

SPECS = [
    "grpo,kl=none",
    "dapo,overlong=keep",
    "dr_grpo",
    "dapo,aggregation=prompt_mean,overlong=keep,filter=none",
    "reinforce_pp,kl=none",
    "forking_tokens,filter=none,overlong=keep",
    "clip_cov,surrogate.fraction=0.2,surrogate.cov_low=-10",
    "kl_cov,surrogate.fraction=0.2",
    "delta_l",
]


@pytest.mark.slow
def test_two_processes_equal_one_batch(tmp_path):
    for results in ranks("trl_two.py", tmp_path, *SPECS):
        for spec, steps in results.items():
            for step in steps:
                assert step["size"] > 1e-3, spec
                assert step["loss"] < 1e-5, spec
                assert step["gradient"] < 1e-6, spec
                assert step["advantages"] < 1e-5, spec
            assert steps[0]["parameters"] == 0, spec


@pytest.mark.slow
def test_two_processes_have_trls_own_entropy_mask(tmp_path):
    """Where an optimizer step is one micro-batch per process, as TRL takes its quantile."""
    for found in ranks("trl_entropy.py", tmp_path):
        assert found["kept"] > 0
        assert found["different"] == 0
        assert found["of_one_rank"] > 0, "each rank's own quantile would have done"


@pytest.mark.slow
def test_two_processes_fill_one_batch(tmp_path):
    """Both ranks draw the same prompts in the same rounds, and a response that moves to another rank stays whole."""
    results = ranks("trl_dynamic_sampling.py", tmp_path)
    for found in results:
        assert len(found["batches"]) == 2
        for batch in found["batches"]:
            assert batch["advantages"] < 1e-5
            assert batch["old_logp"] < 1e-5
            assert (batch["keep"], batch["split"], batch["tokens"]) == (0, 0, 0)
            assert batch["effective"] >= 3
        assert found["gradient"] > 0.1
        assert found["rounds"][0] == found["rounds"][1]
        assert max(found["rounds"][0]) >= 2
        assert found["drawn"][0] == found["drawn"][1] > 0


@pytest.mark.slow
def test_two_processes_leave_rows_without_gradient_out(tmp_path):
    """Rank 1 has no gradient at all: it runs stand-ins, and the parameters are those of the dense run on both."""
    for found in ranks("trl_packing.py", tmp_path):
        assert found["moved"] > 1e-3
        assert found["difference"] < 1e-3 * found["moved"]
        assert found["ranks"] == 0
        assert found["scored"] == [0.5] * 4
        for low, mean, high in zip(*found["ratios"], strict=True):
            assert 0.5 < low <= mean <= high < 2


@pytest.mark.slow
def test_two_processes_share_the_rollout_rules(tmp_path):
    """One greedy response per prompt over both ranks; masks, statistics and diagnostics of the whole step."""
    results = ranks("trl_rollout.py", tmp_path)
    for found in results:
        greedy, mismatch = found.pop("greedy"), found.pop("mismatch")
        assert max(greedy["advantages"], greedy["logged"]) < 1e-5
        assert greedy["size"] > 0.1
        # Ten sampled responses per rank, then three greedy ones: five prompts, and one answered twice to keep step.
        assert greedy["asked"] == [10, 3]
        assert mismatch.pop("spread") > 0.5
        assert max(mismatch.values()) < 1e-4, mismatch
        for rule, values in found.items():
            assert values["advantages"] < 1e-5, rule
            assert values["gradient"] < 1e-6, rule
            assert min(values["cut"]) > 0, rule
            assert values["masked"] == (values["cut"] if "mask" in rule else [0, 0]), rule


@pytest.mark.slow
def test_two_processes_agree_on_what_is_missing_and_on_what_a_callback_sets(tmp_path):
    """The second rank's first response is row 8 of all; its reward is said by the first rank, which has the log."""
    first, second = ranks("trl_border.py", tmp_path)
    assert [text.split(", prompt")[0] for text in first["warnings"]] == [
        "reward function varied gave inf for response 8"
    ]
    assert second["warnings"] == []
    for found in (first, second):
        assert found["finite"]
        assert found["ranks"] == 0
        assert found["scored"] == [15 / 16, 1]
        assert found["history"] == ["kl", "kl.beta"]


@pytest.mark.slow
def test_one_process_goes_on_where_two_stopped(tmp_path):
    """The next prompts, each step counted exactly, whatever the new split of the eight responses per step."""
    spec = "gv_dapo,filter=none,overlong=keep"
    whole, _, _ = prompts_of(tmp_path / "whole", spec, per_device_train_batch_size=8)
    ranks("trl_resume.py", tmp_path, spec)
    for name, batch, accumulation in (("one", 8, 1), ("two", 4, 2)):
        going, trainer, steps = prompts_of(
            tmp_path / name,
            spec,
            str(tmp_path / "checkpoint-3"),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
        )
        assert going == {step: whole[step] for step in (3, 4, 5)}
        assert (trainer._step, [len(micro) for micro in steps]) == (6 * accumulation, [accumulation] * 3)
        for micro in steps:
            tokens = sum(int(m["inputs"]["completion_mask"].sum()) for m in micro)
            for m in micro:
                expected = -m["inputs"]["advantages"] / tokens
                torch.testing.assert_close(m["logp"].grad[:, 0], expected, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_two_processes_count_a_step_over_two_generations_by_trls_rule(tmp_path):
    for found in ranks("trl_spanning.py", tmp_path):
        assert found["generations"] > 1
        assert found["size"] > 1e-2
        assert found["off"] < 1e-6
        assert found["entropy"] < 1e-5
