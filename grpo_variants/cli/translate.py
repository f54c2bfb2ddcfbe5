"""`grpo-variants translate SPEC --to TRAINER`: the settings that make a trainer run a variant."""

from __future__ import annotations

from typing import Annotated

import typer

from grpo_variants.spec import get
from grpo_variants.tensors.checks import check_choice
from grpo_variants.trainers import TRAINERS


def translate(
    spec: Annotated[str, typer.Argument(help="A variant, or a spec string such as 'dapo,kl=k3,kl.beta=0.01'.")],
    to: Annotated[str, typer.Option("--to", help=f"The trainer: {', '.join(TRAINERS)}.")],
) -> None:
    """Print the settings of a trainer that run a variant."""
    check_choice("--to", to, TRAINERS)
    typer.echo("\n".join(TRAINERS[to].translate(get(spec))))
