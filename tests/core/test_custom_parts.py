"""Parts of a user's own: examples/custom_parts.py, worked by hand; typed construction; what parts say of themselves."""

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import grpo_variants as gv
from grpo_variants import parts
from grpo_variants.advantage.inputs import Rollouts
from grpo_variants.axes import AXES
from grpo_variants.objective.inputs import Tokens

ROOT = Path(__file__).parents[2]


def test_the_documented_example_is_the_file():
    page = (ROOT / "docs" / "custom-parts.md").read_text("utf-8")
    code = (ROOT / "examples" / "custom_parts.py").read_text("utf-8")
    shown = code[code.index("from dataclasses") :].strip()
    assert f"```python\n{shown}\n```" in page


def test_its_advantages(custom_parts):
    """Rewards 0, 1 and 4 have the midrange 2 and the deviation sqrt(13/3)."""
    found = gv.advantages("tanh,scale.eps=0", torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64), groups=[0, 0, 0])
    deviation = math.sqrt(13 / 3)
    torch.testing.assert_close(found, torch.tensor([-2.0, -1.0, 2.0], dtype=torch.float64) / deviation)


def test_its_loss_and_gradient(custom_parts):
    """Two responses of 1 and 4 tokens with ratios 2 and 1: weights 1/2 and 1/4, and tanh'(x) = 1 - tanh(x)^2."""
    mask = torch.tensor([[True, False, False, False], [True] * 4])
    old = torch.full((2, 4), -1.0, dtype=torch.float64)
    logp = torch.tensor([[-1.0 + math.log(2), -1, -1, -1], [-1.0] * 4], dtype=torch.float64, requires_grad=True)
    x = gv.Tokens(logp=logp, old_logp=old, mask=mask, advantages=torch.tensor([1.0, -1.0], dtype=torch.float64))
    out = gv.policy_loss("tanh,surrogate.scale=0.5", x)
    out.loss.backward()
    assert out.loss.item() == pytest.approx(-0.5 * math.tanh(0.5) / 0.5)
    first = -0.5 * 2 * (1 - math.tanh(0.5) ** 2)
    torch.testing.assert_close(
        logp.grad, torch.tensor([[first, 0, 0, 0], [0.25] * 4], dtype=torch.float64), atol=1e-12, rtol=0
    )


def test_it_is_spelt_and_compared_like_any_other(custom_parts):
    assert str(gv.get("tanh,surrogate.scale=2")) == "tanh,surrogate.scale=2.0"
    assert gv.get("tanh").surrogate == custom_parts.Tanh()
    assert "tanh" in gv.names()


def test_typed_construction_is_the_spec_string():
    assert replace(gv.get("dapo"), surrogate=gv.parts.Clip(low=0.2, high=0.3)) == gv.get("dapo,surrogate.high=0.3")
    rule = replace(gv.get("grpo"), baseline=gv.parts.LeaveOneOut(), scale=gv.parts.NoScale())
    assert rule == gv.get("grpo,baseline=leave_one_out,scale=none")


def test_every_choice_is_public():
    choices = {cls for axis in AXES.values() for cls in axis.choices.values() if isinstance(cls, type)}
    assert {cls.__name__ for cls in choices} <= set(parts.__all__)
    assert all(getattr(parts, cls.__name__) is cls for cls in choices)
    assert all(issubclass(cls, parts.Part) for cls in choices)


INPUTS = {field.name for record in (Rollouts, Tokens) for field in fields(record)}


@pytest.mark.parametrize("name", gv.names())
def test_what_a_part_reads_is_an_input_by_its_name(name):
    variant = gv.get(name)
    assert variant.rollout_inputs | variant.token_inputs <= INPUTS
