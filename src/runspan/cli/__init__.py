"""The command line: ``runspan``."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from runspan.errors import RunspanError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_USAGE_ERROR = 2
_INTERRUPTED = 130  # 128 + SIGINT, as a shell shows a program that Ctrl-C ended
_PIPE_CLOSED = 141  # 128 + SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 done, 1 a negative or partial answer, 2 bad usage or configuration.

    An error that runspan raises on purpose becomes one line on stderr. Ctrl-C ends quietly with 130, and a pipe that
    its reader closed with 141.

    Args:
        arguments: the command line without the program's name; None: the process's.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks, not a traceback
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer has no reader; the interpreter would complain about it at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    return code


def _run(arguments: Sequence[str] | None) -> int:
    from runspan.cli._app import PipeClosedError, app  # noqa: PLC0415 - typer loads when a command line is read
    from runspan.cli._output import note  # noqa: PLC0415

    try:
        app(arguments, prog_name="runspan")
    except RunspanError as error:
        note(" ".join(str(error).split()))
        return _USAGE_ERROR
    except PipeClosedError as closed:
        raise BrokenPipeError from closed
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0
