"""What the commands about benchmark records share."""

from __future__ import annotations

import os
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runspan._bench.repository import find_top
from runspan.cli._output import note
from runspan.errors import GateError, RunspanError
from runspan.gate._results import NO_VERDICT

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GATE_EXIT_CODES", "RecordsArgument", "failing_closed", "find_repository", "path_in"]

GATE_EXIT_CODES = (
    "Exit codes: 0 everything passes; 1 a failure; 2 bad usage or configuration; 3 no verdict (missing, unknown, no"
    " baseline, cancelled, crashed); 4 not comparable: measured on hardware that has no entry. Of several: 2, then 1,"
    " 3, 4."
)
RecordsArgument = Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Files of records.")]


def find_repository() -> Path:
    """Return the nearest folder at or above the working directory that has ``.benchmarks``.

    Raises:
        GateError: there is none.
    """
    return find_top(Path.cwd())


def path_in(top: Path, file: Path) -> str:
    """Return a file's path below the top of the repository.

    Raises:
        GateError: it lies elsewhere.
    """
    path = os.path.relpath(file.resolve(), top.resolve())
    if path.startswith(f"..{os.sep}"):
        raise GateError(f"{file} is not in {top}: give a record of this repository")
    return path


@contextmanager
def failing_closed() -> Iterator[None]:
    """Let nothing that goes wrong look like a pass, or like a failed benchmark: a crash or Ctrl-C is no verdict."""
    try:
        yield
    except (RunspanError, typer.Exit, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        note("cancelled: no verdict")
        raise typer.Exit(NO_VERDICT) from None
    except Exception as error:
        traceback.print_exc()
        note(f"crashed: no verdict: {type(error).__name__}: {error}")
        raise typer.Exit(NO_VERDICT) from error
