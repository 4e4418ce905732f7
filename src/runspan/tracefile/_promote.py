"""Makes a trace of a good run the golden one, which later runs are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runspan._output_file import whole_file
from runspan.errors import ConfigError, InvalidStateError
from runspan.records import RunStatus
from runspan.tracefile._health import HealthCheck, Severity
from runspan.tracefile.events import SCHEMA, encode
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.tracefile.reader import TraceReader

__all__ = ["promote"]


def promote(source: Path, target: Path, *, overwrite: bool = False) -> int:
    """Copy a trace to where golden traces are kept, all its parts as one file; return how many events it has.

    The target is written whole or not at all, and gzipped where its name ends with ``.gz``.

    Args:
        source: any file of the trace.
        target: the golden trace's path; its folder is there.
        overwrite: replace a file that is there.

    Raises:
        ConfigError: the target is there, or cannot be written.
        InvalidStateError: the trace is not one of a complete, successful run, or of another program, or health finds
            errors in it.
        TraceFormatError: the trace cannot be read.
    """
    if target.exists() and not overwrite:
        raise ConfigError(f"{target} is there already: give --force to replace it, or another path")
    check, count = HealthCheck(), 0
    with read(source) as reader, whole_file(target) as copy:
        if reader.meta.schema != SCHEMA:
            raise InvalidStateError(
                f"{source} cannot be a golden trace: its schema is {reader.meta.schema!r}, and only runs of runspan"
                f" ({SCHEMA!r}) are compared with one"
            )
        for event in reader:
            check.add(event)
            copy.write(encode(event))
            count += 1
        _require_success(source, reader)
        errors = [finding for finding in check.findings() if finding.severity is Severity.ERROR]
        if errors:
            raise InvalidStateError(
                f"{source} cannot be a golden trace: it has errors ({errors[0].code}: {errors[0].message});"
                " `runspan trace health` shows them"
            )
    return count


def _require_success(source: Path, reader: TraceReader) -> None:
    terminal = reader.terminal
    if terminal is None:
        found = f"it is {reader.state}"
    elif terminal.outcome != "complete" or terminal.final_status is not RunStatus.SUCCESS:
        found = f"it ended as {terminal.status}" + (f" ({terminal.reason})" if terminal.reason else "")
    elif reader.torn:
        found = f"line {reader.torn[0].line} of {reader.torn[0].path} is torn"
    else:
        return
    raise InvalidStateError(f"{source} cannot be a golden trace: {found}, and only a complete, successful one can")
