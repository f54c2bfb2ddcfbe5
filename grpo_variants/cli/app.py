"""The `grpo-variants` command."""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Annotated

import typer

from grpo_variants.cli.doctor import doctor
from grpo_variants.cli.show import list_variants, show
from grpo_variants.cli.translate import translate
from grpo_variants.trainers import TRAINERS

app = typer.Typer(
    name="grpo-variants",
    help="Every member of the GRPO family, exactly as its paper defines it, in the trainer that you use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_ANY_AXIS = {"allow_extra_args": True, "ignore_unknown_options": True}
_PASS_ON = {**_ANY_AXIS, "help_option_names": []}

app.command("list", context_settings=_ANY_AXIS)(list_variants)
app.command("show")(show)
app.command("translate")(translate)
app.command("doctor")(doctor)


def _launch(context: typer.Context) -> None:
    """Hand the arguments to the trainer's launcher."""
    adapter = TRAINERS[context.info_name or ""].adapter
    launcher = importlib.import_module(adapter.launcher)  # type: ignore[union-attr,arg-type]
    try:
        launcher.main(context.args)
    except (ValueError, ImportError) as error:
        # A run that fails is somebody's bug, and needs its traceback.
        traceback.print_exception(error)
        raise typer.Exit(1) from error


for _trainer in TRAINERS.values():
    if _trainer.adapter is not None and _trainer.adapter.launcher is not None:
        app.command(_trainer.name, context_settings=_PASS_ON, help=_trainer.adapter.launches)(_launch)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from grpo_variants import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point: a wrong spec or a missing package ends with its message and exit status 2, not with a traceback."""
    try:
        app()
    except (ValueError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
