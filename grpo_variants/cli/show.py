"""`grpo-variants list` and `grpo-variants show SPEC`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from grpo_variants.card import value_origins
from grpo_variants.catalogue import names, registered
from grpo_variants.options import full_keys, get, read_options, resolved_values


def list_variants() -> None:
    """List every variant."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("variant", no_wrap=True)
    table.add_column("what it is")
    for name in names():
        table.add_row(name, registered(name).summary)
    console = Console(highlight=False)
    console.print(table)
    console.print("\nMore about one: grpo-variants show NAME")


def show(
    spec: Annotated[str, typer.Argument(help="A variant, or a spec string such as 'dapo,kl=k3,kl.beta=0.01'.")],
) -> None:
    """Show a variant: formula, every value and where it comes from, references, and what the hosts have."""
    variant = get(spec.removeprefix("gv_"))
    values = resolved_values(variant)
    given = dict.fromkeys(full_keys(variant, read_options(spec.partition(",")[2])), "spec string")
    origins = value_origins(variant, given)
    console = Console(highlight=False)
    console.print(f"[bold]{variant}[/bold]\n{variant.summary}\n\n{variant.formula}\n", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("key", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for key, value in values.items():
        table.add_row(key, "none" if value is None else str(value), origins[key])
    console.print(table)
    console.print()
    for reference in variant.references:
        console.print(f"source: {reference}", soft_wrap=True)
    for host, verdict in variant.hosts:
        console.print(f"{host}: {verdict}", soft_wrap=True)
