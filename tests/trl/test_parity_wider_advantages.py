"""More advantage rules in TRL: equal to TRL where it has it, else by hand; memory and entropies."""

import json
from types import SimpleNamespace

import pytest
import torch
from grpo_variants_trl.checkpoint.state import STATE_FILE
from grpo_variants_trl.rollout.generation_batch import prompt_keys
from support import tiny_model
from support.parity import words
from support.trl.rewards import MISSING, MIXED, SEVERAL, given, own, rollouts, stock
from support.trl.runs import make
from torch.testing import assert_close
from trl import RLOOConfig, RLOOTrainer

import grpo_variants as gv

TABLES = {"one reward": MIXED, "two rewards": SEVERAL, "missing rewards": MISSING}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("spec", ["gdpo,conventions=trl", "grpo,kl=none,credit=decoupled,conventions=trl"])
def test_gdpo_equals_normalize_then_sum(parity, tmp_path, spec, table):
    weights, flags = [2.0, -0.5][: len(table[0])], {"multi_objective_aggregation": "normalize_then_sum"}
    theirs = stock(tmp_path, table, reward_weights=weights, **flags)
    mine = own(tmp_path, spec, table, reward_weights=weights)
    parity.equal(spec, words("", flags), rtol=1e-4, atol=1e-4, advantages=(mine, theirs))
    assert theirs.abs().max() > 0.5


def test_the_flag_turns_a_variant_into_gdpo(tmp_path):
    flags = {"multi_objective_aggregation": "normalize_then_sum"}
    theirs = stock(tmp_path, SEVERAL, **flags)
    assert_close(own(tmp_path, "grpo,kl=none,conventions=trl", SEVERAL, **flags), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_lite_ppo_equals_scale_rewards_batch(parity, tmp_path, table):
    theirs = stock(tmp_path, table, scale_rewards="batch")
    pair = (own(tmp_path, "lite_ppo,conventions=trl", table), theirs)
    parity.equal("lite_ppo,conventions=trl", "scale_rewards='batch'", rtol=1e-5, atol=1e-5, advantages=pair)
    assert theirs.abs().max() > 0.4


def test_normalize_then_sum_ignores_scale_rewards_in_the_trainer(parity, tmp_path):
    """Two functions, (1, 0, 0, 0) and (0, 10, 0, 0), in four groups alike.

    Normalised, each gives 1.5 and -0.5: sums of 1, 1, -1, -1 and a deviation of sqrt(16/15). Centred only: -1.75,
    7.25, -2.75, -2.75 and a deviation of sqrt(4 * 70.75/15).
    """
    table = [[1, 0], [0, 10], [0, 0], [0, 0]] * 4
    flags = {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none"}
    spec = "gdpo,scale=none,kl=none,conventions=trl"
    parity.differs(
        spec,
        words("", flags),
        "advantages of rewards (1, 0) and (0, 10) beside two of (0, 0)",
        here=(own(tmp_path, spec, table)[:2].tolist(), [-0.4029, 1.6691]),
        there=(stock(tmp_path, table, **flags)[:2].tolist(), [0.9682, 0.9682]),
        cause="scale_rewards is not read there",
        rel=1e-3,
    )


class _RLOOConfig(RLOOConfig):
    """Without the field that RLOO has no use for."""

    def __init__(self, *args, loss_type=None, **flags):
        super().__init__(*args, **flags)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_rloo_equals_the_trainers_trainer(parity, tmp_path, table):
    flags = {"normalize_advantages": False, "beta": 0.0}
    _, out = rollouts(tmp_path, None, RLOOTrainer, _RLOOConfig, rewards=given(table), **flags)
    pair = (own(tmp_path, "rloo", table), out["advantages"])
    parity.equal("rloo", words("RLOOTrainer", flags), rtol=1e-5, atol=1e-5, advantages=pair)
    assert out["advantages"].abs().max() > 0.4


def test_the_shortest_responses_are_learnt_from(tmp_path):
    """Of each group of four the two shortest; a pair with rewards r, s has a population deviation of |r - s|/2."""
    table = [[float(i % 5)] for i in range(16)]
    _, out = rollouts(tmp_path, "gv_gfpo,selection.keep=2,kl=none,scale.eps=0", rewards=given(table))
    length, found = out["completion_mask"].sum(1).view(4, 4), out["advantages"].view(4, 4)
    rewards = torch.tensor(table).view(4, 4)
    for row in range(4):
        a, b = sorted(range(4), key=lambda i: (int(length[row, i]), i))[:2]
        wanted = [0.0] * 4
        wanted[a] = float(torch.sign(rewards[row, a] - rewards[row, b]))
        wanted[b] = -wanted[a]
        assert found[row].tolist() == pytest.approx(wanted)
    assert length.max() > length.min()


@pytest.mark.parametrize("spec", ["pods,selection.keep=2", "cppo", "cppo,selection.over=batch,selection.share=0.25"])
def test_responses_that_are_pruned_leave_the_loss_and_its_counts(tmp_path, spec):
    _, out = rollouts(tmp_path, f"gv_{spec}", rewards=given(MIXED))
    rewards, ids = torch.tensor(MIXED).squeeze(1), [i // 4 for i in range(16)]
    kept = gv.selected(spec, rewards, ids)
    assert kept.sum() == (4 if "batch" in spec else 8)
    assert out["gv_keep"].tolist() == kept.tolist()
    assert out["num_items_in_batch"] == out["completion_mask"][kept].sum()
    torch.testing.assert_close(out["advantages"], gv.advantages(spec, rewards, ids))


def test_log_probabilities_are_computed_where_a_reward_depends_on_them(tmp_path):
    """On policy TRL computes none before the loss."""
    _, out = rollouts(tmp_path, "gv_unlikeliness", rewards=given(MIXED))
    rewards, ids = torch.tensor(MIXED).squeeze(1), [i // 4 for i in range(16)]
    tokens = {"mask": out["completion_mask"].bool(), "old_logp": out["old_per_token_logps"]}
    torch.testing.assert_close(out["advantages"], gv.advantages("unlikeliness", rewards, ids, **tokens))
    assert (out["advantages"] - gv.advantages("grpo", rewards, ids)).abs().max() > 0.01


def test_entropies_are_computed_where_a_variant_reads_them(tmp_path):
    made, out = rollouts(tmp_path, "gv_gtpo_entropy", rewards=given(MIXED))
    mask, value = out["completion_mask"].bool(), out["advantages"]
    assert value.shape == mask.shape
    assert "entropy" not in out
    made.model.eval()
    with torch.no_grad():
        _, entropy, _ = made._score_tokens(made.model, out, batch_size=16, compute_entropy=True)
    wanted = gv.advantages(
        "gtpo_entropy",
        torch.tensor(MIXED).squeeze(1),
        [i // 4 for i in range(16)],
        mask=mask,
        entropy=entropy,
    )
    assert_close(value, wanted, rtol=1e-3, atol=1e-3)
    assert value.abs().max() > 0.5


def test_the_optimal_token_baseline_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"gv_otb' cannot be honoured by TRL: credit=optimal_token needs the sum of squ"
    ):
        make(tmp_path, "gv_otb")


# Memory


def test_prompts_are_remembered_by_their_text(tmp_path):
    """Eight prompts of the data set, each in its own group: as if their texts had been the groups' ids."""
    made = make(tmp_path, "gv_spo,scale=none", rewards=[tiny_model.exact], per_device_train_batch_size=16)
    inputs = [made.train_dataset[i // 4] for i in range(16)]
    made._generate_and_score_completions(inputs)
    assert made.memory.state_dict()["tracked"]["keys"] == list(dict.fromkeys(row["prompt"] for row in inputs))


def test_a_conversation_is_a_key_too():
    trainer = SimpleNamespace(environment_factories=None)
    rows = [
        {"prompt": [message]} for message in ({"role": "user", "content": "Why?"}, {"content": "Why?", "role": "user"})
    ]
    assert len(set(prompt_keys(trainer, rows, {}))) == 1
    with pytest.raises(ValueError, match=r"goes by their text, and these hold something else"):
        prompt_keys(trainer, [{"prompt": [{"role": "user", "content": object()}]}], {})


def test_evaluation_leaves_no_trace(tmp_path):
    made = make(tmp_path, "gv_dcpo", per_device_train_batch_size=16)
    made.model.eval()
    made._generate_and_score_completions([made.train_dataset[0]] * 16)
    assert len(made.memory) == 0


def test_a_checkpoint_holds_the_memory_and_a_resumed_run_goes_on_with_it(tmp_path):
    settings = {"rewards": [tiny_model.exact], "save_strategy": "steps", "save_steps": 1}
    first = make(tmp_path, "gv_dcpo", max_steps=2, **settings)
    first.train()
    saved = json.loads((tmp_path / "checkpoint-1" / STATE_FILE).read_text())["memory"]
    assert len(saved["smoothed_std"]["keys"]) > 0
    again = make(tmp_path / "again", "gv_dcpo", max_steps=2, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert again.memory == first.memory
    assert len(again.memory) > len(saved["smoothed_std"]["keys"]) - 1


def test_a_variant_without_memory_has_none(tmp_path):
    assert make(tmp_path, "gv_dapo").memory is None
