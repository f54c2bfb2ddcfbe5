"""The `grpo-variants` command."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from grpo_variants.cli.doctor import doctor
from grpo_variants.cli.show import list_variants, show
from grpo_variants.cli.translate import translate

app = typer.Typer(
    name="grpo-variants",
    help="Every member of the GRPO family, exactly as its paper defines it, in TRL and verl.",
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


@app.command("trl", context_settings=_PASS_ON)
def trl(context: typer.Context) -> None:
    """Run TRL's GRPO script with a variant: TRL's usual flags and YAML, and --loss_type gv_<spec>."""
    from grpo_variants_trl.launcher import main as launch

    try:
        launch(context.args)
    except (ValueError, ImportError) as error:
        # A run that fails is somebody's bug, and needs its traceback.
        traceback.print_exception(error)
        raise typer.Exit(1) from error


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
