from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from runspan.tracefile.events import encode
from support.cli import clean_environ, make_step
from support.traces import make_meta, make_metric, make_span, make_terminal

if TYPE_CHECKING:
    from pathlib import Path

#: Two lines of a span, one step and two metrics, so many times.
_ROUNDS = 200_000
_LIMIT_MIB = 200

#: Runs a command in its own process, as a shell does, and prints its answer's events and its peak memory, MiB.
_PROGRAM = """
import json, resource, subprocess, sys
command = [sys.executable, "-m", "runspan.cli", "trace", "summary", sys.argv[1], "--json"]
answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(json.dumps({"events": answer["events"], "findings": answer["traces"][0]["findings"], "peak_mib": peak_mib}))
"""


def test_a_million_events_are_summed_up_in_bounded_memory(tmp_path: Path) -> None:
    """`trace summary` of a file of 1,000,000 events, 400,000 of them spans', stays below 200 MB."""
    path = tmp_path / "rank-00000.jsonl"
    start, end = (encode(event) for event in make_span("THE-ID"))
    rest = encode(make_metric(1)) + encode(make_metric(1, key="accuracy")) + encode(make_step(1, forward=2, backward=3))
    with path.open("wb") as file:
        file.write(encode(make_meta()))
        for number in range(_ROUNDS):
            span_id = b"%016x" % number
            file.write(start.replace(b"THE-ID", span_id) + end.replace(b"THE-ID", span_id) + rest)
        file.write(encode(make_terminal()))
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path)],
        env=clean_environ(tmp_path),
        capture_output=True,
        check=True,
        timeout=120,
    )
    seen = json.loads(done.stdout)
    assert seen["events"] == {
        "metric": 2 * _ROUNDS,
        "span_start": _ROUNDS,
        "span_end": _ROUNDS,
        "step": _ROUNDS,
        "meta": 1,
        "terminal": 1,
    }
    assert seen["findings"] == []
    assert seen["peak_mib"] < _LIMIT_MIB
