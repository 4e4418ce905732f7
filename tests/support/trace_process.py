"""A process that writes a trace: ``python -m support.trace_process FOLDER COUNT MAX_FILE_BYTES``.

It writes so many metrics into parts of so many bytes, prints ``written`` after the first hundred, and ends with the
terminal event; with a negative count it writes until it is killed.
"""

from __future__ import annotations

import sys
import time
from itertools import count
from pathlib import Path

from runspan.tracefile.events import Metric, Terminal
from runspan.tracefile.layout import TraceName
from runspan.tracefile.writer import FileWriter
from support.traces import make_meta

_BURST = 100


def main(folder: Path, metric_count: int, max_file_bytes: int) -> None:
    """Write the trace, now and then with a pause."""
    start_unix_nano = time.time_ns()
    meta = make_meta(time_unix_nano=start_unix_nano, heartbeat_s=1.0)
    writer = FileWriter(folder, TraceName(0), meta, max_file_bytes=max_file_bytes)
    for step in count() if metric_count < 0 else range(metric_count):
        writer.write(Metric("loss", step, step / 4, time.time_ns()))
        if step == _BURST:
            sys.stdout.write("written\n")
            sys.stdout.flush()
        if step % _BURST == 0:
            time.sleep(0.001)
    writer.write(Terminal("complete", time.time_ns() - start_unix_nano, "success"))
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
