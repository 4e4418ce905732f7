"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EXIT_CODES", "DirOption", "JsonOption", "RunArgument", "StorageOption"]

EXIT_CODES = (
    "Exit codes: 0 done; 1 a negative or partial answer; 2 bad usage or configuration, or no such run; 130 Ctrl-C;"
    " 141 the reader closed the pipe."
)

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run id, the beginning of one, `latest`, or a run directory.")
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Experiment database: a file or postgresql:// URL; `none` for none  [env: RUNSPAN_STORAGE; default:"
        " experiments.db in the root folder]",
    ),
]
DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="ROOT",
        help="Root folder, which has the run directories in runs/  [env: RUNSPAN_DIR; default: the nearest .runspan]",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
