"""Two real processes over gloo: step rewards of both, and a reference that moves on both at once."""

import pytest
from support import torchrun


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return torchrun.ranks("trl_process_rewards.py", tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
def test_step_rewards_of_both_ranks_are_one_batch(ranks):
    for found in (rank["process"] for rank in ranks):
        assert max(found["advantages"]) < 1e-5
        assert min(found["size"]) > 1
        assert found["moved"] > 1e-3
        assert found["apart"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adapter", "full"])
def test_the_reference_moves_on_both_ranks(ranks, kind):
    for found in (rank[kind] for rank in ranks):
        kl = found["kl"]
        # Optimizer steps 1, 3 and 5 train on the first rollouts after a reset, steps 2 and 4 one step later.
        assert [kl[0], kl[2], kl[4]] == pytest.approx([0, 0, 0], abs=1e-9)
        assert min(kl[1], kl[3]) > 1e-6
        assert found["resets"] == 2
        assert found["apart"] == 0
        assert found["behind"] > 1e-3
