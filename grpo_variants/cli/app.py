"""The `grpo-variants` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from grpo_variants.cli.show import list_variants, show

app = typer.Typer(
    name="grpo-variants",
    help="Every member of the GRPO family, exactly as its paper defines it, in TRL and verl.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("list")(list_variants)
app.command("show")(show)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("trl", context_settings=_PASS_ON)
def trl(context: typer.Context) -> None:
    """Run TRL's GRPO script with a variant: TRL's usual flags and YAML, and --loss_type gv_<spec>."""
    try:
        from grpo_variants_trl.launcher import main as launch
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"{error}. The command needs: pip install 'grpo-variants[trl]'") from error
    launch(context.args)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from grpo_variants import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point: a wrong option or spec ends with its message and exit status 2, not with a traceback."""
    try:
        app()
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
