"""What a run lost, by a scan over the ``dropped`` lines of its trace files alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from runspan.tracefile._parts import open_part
from runspan.tracefile.events import Dropped

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.tracefile.layout import TraceName

__all__ = ["read_losses"]

#: Begins every such line: the writer puts ``kind`` first.
_DROPPED_LINE = b'{"kind":"dropped",'
_decoder = msgspec.json.Decoder(Dropped)


def read_losses(folder: Path, name: TraceName) -> Counter[tuple[str, str]]:
    """Return how much one part of a trace says was lost, by (signal, reason); what is cut or unreadable is passed over.

    Args:
        folder: the folder of the trace's files.
        name: the part.

    Raises:
        TraceFormatError: the file is no regular file, or the operating system refuses.
    """
    losses: Counter[tuple[str, str]] = Counter()
    part = open_part(folder, name)
    if part is None:
        return losses
    with part:
        while lines := part.read_lines():
            for line in lines:
                if line.startswith(_DROPPED_LINE):
                    _add(line, losses)
    return losses


def _add(line: bytes, losses: Counter[tuple[str, str]]) -> None:
    try:
        dropped = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return  # cut by a crash
    losses[dropped.signal, dropped.reason] += dropped.count
