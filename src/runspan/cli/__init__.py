"""The command line: ``runspan``."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
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

    An error that runspan raises on purpose becomes one line on stderr, as does what the operating system refuses, such
    as to write to a full disk. Ctrl-C ends quietly with 130, and a pipe that its reader closed with 141.

    Args:
        arguments: the command line without the program's name; None: the process's.
    """
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode gets question marks, not a traceback
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return _PIPE_CLOSED
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        return _refused(error)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        from runspan.cli._app import PipeClosedError, app  # noqa: PLC0415 - typer loads when a command line is read
        from runspan.cli._output import note  # noqa: PLC0415
    except KeyboardInterrupt:
        return _INTERRUPTED
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


def _open_missing_streams() -> None:
    """Open what a process was started without (``>&-``): no file that is opened later may get what is printed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good


def _discard_output() -> None:
    """Let what is left in stdout's buffer go: nothing takes it, and the interpreter would complain at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(error: OSError) -> int:
    """Tell what the operating system refuses."""
    from runspan.cli._output import note  # noqa: PLC0415

    reason = error.strerror or str(error) or type(error).__name__
    note(f"{reason}: the answer is not whole" if error.filename is None else f"{error.filename}: {reason}")
    return _USAGE_ERROR
