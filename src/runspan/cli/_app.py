"""The typer application, and the options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from runspan._version import __version__
from runspan.cli import (
    bench,
    demo,
    diff,
    doctor,
    gate,
    gc,
    importing,
    metrics,
    query,
    rm,
    runs,
    serve,
    show,
    stack,
    trace,
    watch,
)
from runspan.cli._options import EXIT_CODES
from runspan.cli._output import say

__all__ = ["PipeClosedError", "app"]


class PipeClosedError(Exception):
    """Nobody reads stdout any more."""


class _Commands(TyperGroup):
    """The commands; the library's own answer to a closed pipe would be exit code 1, like a negative answer."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the command line; what is printed of it at once, such as the help, goes into a pipe too."""
        try:
            return super().make_context(*arguments, **options)
        except BrokenPipeError as error:
            raise PipeClosedError from error

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override] # the base class is typer's copy of click's
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosedError from error


# Help is plain text: it loads no rich, and reads the same in a pipe and in 80 columns.
app = typer.Typer(
    name="runspan",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"runspan {__version__}")
        raise typer.Exit


@app.callback()
def _runspan(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Look at recorded training runs, and look after them.

    RUN is a run id, the beginning of one, `latest`, or a run directory. RUNSPAN_DIR and RUNSPAN_STORAGE stand in for
    --dir and --storage.
    """


for _module in (
    runs,
    show,
    watch,
    metrics,
    query,
    diff,
    importing,
    rm,
    gc,
    doctor,
    stack,
    trace,
    serve,
    bench,
    gate,
    demo,
):
    _module.register(app)
