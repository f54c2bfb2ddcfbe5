"""`grpo-variants list` and `grpo-variants show SPEC`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grpo_variants.axes import AXES
from grpo_variants.card import FILE_NAME, changed_since, former_spec, read_card, value_origins
from grpo_variants.options import read_options
from grpo_variants.registry import names, registered
from grpo_variants.spec import get
from grpo_variants.spelling import full_keys, resolved_values
from grpo_variants.tensors.checks import check_choice, unknown
from grpo_variants.trainers import verdicts_of
from grpo_variants.variant import UNCONFIRMED, Variant

COMPARED_WITH = ("grpo", "dapo")


def list_variants(context: typer.Context) -> None:
    """List the variants; `--AXIS CHOICE` keeps those with this choice, for example `--ratio sequence --kl none`."""
    wanted = _filters(context.args)
    found = [v for v in map(registered, names()) if all(_has(v, axis, choice) for axis, choice in wanted.items())]
    console = Console(highlight=False)
    if not found:
        asked = ", ".join(f"{axis}={choice}" for axis, choice in wanted.items())
        console.print(f"no variant has {asked}; any other takes it as an option: grpo-variants show grpo,...")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("variant", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("what it is")
    for variant in found:
        table.add_row(variant.name, "contrib" if variant.contrib else "", variant.summary)
    console.print(table)
    if any(variant.contrib for variant in found):
        console.print(f"\ncontrib: {UNCONFIRMED}.")
    console.print("\nMore about one: grpo-variants show NAME")


def _filters(words: list[str]) -> dict[str, str]:
    """Axis -> choice from `--axis choice` or `--axis=choice`; raises ValueError for what is no axis or choice."""
    pieces = [piece for word in words for piece in word.split("=", 1)]
    if len(pieces) % 2 or any(not piece.startswith("--") for piece in pieces[::2]):
        raise ValueError(f"{' '.join(words)!r} is not --AXIS CHOICE, as in --ratio sequence; axes: {', '.join(AXES)}.")
    wanted = {}
    for flag, choice in zip(pieces[::2], pieces[1::2], strict=True):
        axis = flag.removeprefix("--")
        if axis not in AXES:
            raise ValueError(unknown(f"{flag} is no axis", axis, AXES, "axes"))
        check_choice(flag, choice, AXES[axis].choices)
        wanted[axis] = choice
    return wanted


def _has(variant: Variant, axis: str, choice: str) -> bool:
    """Whether a variant has a choice on an axis, alone or joined with others."""
    return choice in resolved_values(variant)[axis].split("+")


def show(
    spec: Annotated[
        str,
        typer.Argument(help="A variant, a spec string such as 'dapo,kl=k3,kl.beta=0.01', or a run's folder."),
    ],
) -> None:
    """Show a variant: formula, values and where they come from, what differs from grpo and dapo, references, trainers.

    Of a folder in which a run has left its card, show the card.
    """
    if Path(spec).is_dir():
        _show_card(Path(spec))
        return
    variant = get(spec)
    values = resolved_values(variant)
    given = dict.fromkeys(full_keys(variant, read_options(spec.partition(",")[2])), "spec string")
    origins = value_origins(variant, given)
    console = Console(highlight=False)
    whose = "" if str(variant) == variant.name else f"{variant.name} as registered, without your changes: "
    console.print(f"[bold]{variant}[/bold]\n{whose}{variant.summary}\n\n{variant.formula}\n", soft_wrap=True)
    console.print(_values_table((key, value, origins[key]) for key, value in values.items()))
    console.print()
    for line in _about(variant):
        console.print(line, soft_wrap=True)


def _values_table(rows: Iterable[tuple[str, Any, str]]) -> Table:
    """Keys, values and where they come from."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("key", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for key, value, origin in rows:
        table.add_row(key, "none" if value is None else str(value), origin)
    return table


def _show_card(folder: Path) -> None:
    """Show what the run of a folder optimised, and whether its member has other defaults now."""
    card = read_card(folder)
    if card is None:
        raise ValueError(f"{folder} has no {FILE_NAME}; give a run's output folder or one of its checkpoints.")
    console = Console(highlight=False)
    console.print(
        f"[bold]{escape(card['spec'])}[/bold]  (objective hash {card['hash']}, {card['host']})", soft_wrap=True
    )
    former = former_spec(card)
    if former is not None:
        console.print(f"{changed_since(card, former)}.", soft_wrap=True)
    set_by = ((key, value, f"set by {card['host']}") for key, value in card.get("effective", {}).items())
    values = ((key, entry["value"], entry.get("origin", "")) for key, entry in card["values"].items())
    console.print(_values_table([*values, *set_by]))
    for note in card.get("notes", ()):
        console.print(f"note: {note}", soft_wrap=True, markup=False)


def _about(variant: Variant) -> Iterator[str]:
    for name in COMPARED_WITH:
        if name != variant.name:
            yield f"as {name}: {replace(variant, name=name)}"
    if variant.contrib:
        yield f"contrib: {UNCONFIRMED}. {variant.unconfirmed}"
    if variant.confirmed:
        yield f"confirmed: {variant.confirmed}"
    if variant.note:
        yield f"where the sources differ: {variant.note}"
    for reference in variant.references:
        yield f"source: {reference}"
    for trainer, verdict in verdicts_of(variant).items():
        yield f"{trainer}: {verdict}"
