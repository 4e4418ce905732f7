"""A copy of what the process prints, in the rank's log file."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["OutputCopy"]


class _Tee:
    """A text stream that also writes to a file; everything else is the stream's own."""

    def __init__(self, stream: TextIO, copy: TextIO) -> None:
        self._stream = stream
        self._copy = copy

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        with suppress(OSError, ValueError):  # a full disk or a closed copy must not stop printing
            self._copy.write(text)
        return written

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class OutputCopy:
    """Copies ``sys.stdout`` and ``sys.stderr`` into a file until it is closed.

    What a C library or a child process writes to the descriptors is not copied.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", errors="replace", buffering=1)
        self._tees = {name: _Tee(getattr(sys, name), self._file) for name in ("stdout", "stderr")}
        for name, tee in self._tees.items():
            setattr(sys, name, tee)

    def close(self) -> None:
        """Stop copying; a stream that somebody replaced meanwhile is left alone."""
        for name, tee in self._tees.items():
            if getattr(sys, name) is tee:
                setattr(sys, name, tee._stream)  # noqa: SLF001 - the pair is one mechanism
        self._file.close()
