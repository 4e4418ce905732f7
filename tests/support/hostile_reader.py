"""A process that reads a trace file in every way there is: ``python -m support.hostile_reader PATH``.

It prints one JSON document: for strict and lenient reading and for a look at the ends how many events there were, or
the text of the error, and the peak of the process's memory. Any other error than the format's own ends it with a
traceback.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runspan.errors import TraceFormatError
from runspan.tracefile.reader import peek, read

if TYPE_CHECKING:
    from collections.abc import Callable

#: What no reading may come near: the process is refused more, instead of the machine's memory.
_ADDRESS_SPACE_BYTES = 2 << 30


def main(path: str) -> None:
    """Read the file and print what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    answer = {
        "strict": _outcome(lambda: _count(path, lenient=False)),
        "lenient": _outcome(lambda: _count(path, lenient=True)),
        "peek": _outcome(lambda: str(peek(path).state)),
    }
    json.dump({**answer, "peak_bytes": _peak_bytes()}, sys.stdout)


def _count(path: str, *, lenient: bool) -> dict[str, int]:
    reader = read(path, lenient=lenient)
    events = sum(1 for _ in reader)
    _ = str(reader.state)
    return {"events": events, "torn": len(reader.torn), "skipped": reader.skipped}


def _outcome(action: Callable[[], object]) -> object:
    try:
        return action()
    except TraceFormatError as error:
        return {"error": str(error)}


def _peak_bytes() -> int:
    # Not getrusage(): its maximum includes the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


if __name__ == "__main__":
    main(sys.argv[1])
