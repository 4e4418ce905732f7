"""How long `runspan trace query --kind stragglers` takes over a run of many ranks.

Writes the files of a run (256 ranks of 4,000 steps each unless told), one rank of which is slow, asks the command which
one it is, and prints how long that took and how much memory: a process of its own each time, files in the page cache.
Fails when the answer is wrong or takes longer than the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from runspan.tracefile.events import Step
from runspan.tracefile.layout import RunDirectory, TraceName
from support.traces import START_UNIX_NANO, make_meta, make_terminal, write_lines

_SLOW_RANK = 77
_STEP_NS = 40_000_000
_OWN_NS, _OWN_SPREAD_NS, _SLOWER_BY_NS = 20_000_000, 1_000_000, 8_000_000
#: "Seconds, not minutes".
_LIMIT_S = 30.0
_KIB = 1024


def write_run(directory: Path, ranks: int, steps: int) -> int:
    """Write a run's files; every step takes all ranks equally long, the slow one waits less for the others.

    Returns:
        How many bytes they have.
    """
    rng = random.Random(0)  # noqa: S311 - durations, no secrets
    byte_count = 0
    for rank in range(ranks):
        meta = make_meta(rank, run_id="stragglers")
        process = msgspec.structs.replace(meta.process, world_size=ranks)
        slower_ns = _SLOWER_BY_NS if rank == min(_SLOW_RANK, ranks - 1) else 0
        events = [msgspec.structs.replace(meta, process=process)]
        lines = [_step(number, int(rng.gauss(_OWN_NS, _OWN_SPREAD_NS)) + slower_ns) for number in range(steps)]
        folder = RunDirectory(directory).rank_folder(rank, ranks)
        byte_count += len(write_lines(folder / TraceName(rank).filename, [*events, *lines, make_terminal()]))
    return byte_count


def _step(number: int, own_ns: int) -> Step:
    phases = {"forward": own_ns // 3, "backward": own_ns - own_ns // 3, "all_reduce": _STEP_NS - own_ns}
    time_unix_nano = START_UNIX_NANO + number * _STEP_NS
    return Step(step=number, duration_ns=_STEP_NS, phases=phases, samples=32, time_unix_nano=time_unix_nano)


def ask(directory: Path) -> tuple[float, int | None]:
    """Ask the command; return how many seconds it took, and which rank it names."""
    command = [sys.executable, "-m", "runspan.cli", "trace", "query", str(directory), "--kind", "stragglers", "--json"]
    environ = {**os.environ, "RUNSPAN_DIR": str(directory.parent)}
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, env=environ)
    took_s = time.perf_counter() - began
    slow = json.loads(done.stdout)["slow_rank"]
    return took_s, None if slow is None else slow["rank"]


def main() -> int:
    """Measure, print, and say whether the answer is right and in time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=256, metavar="N", help="rank files (default: 256)")
    parser.add_argument("--steps", type=int, default=4_000, metavar="N", help="steps a rank (default: 4000)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timed calls (default: 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "stragglers"
        byte_count = write_run(directory, arguments.ranks, arguments.steps)
        answers = [ask(directory) for _ in range(arguments.repeats)]
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / _KIB
    took_s = statistics.median(took for took, _ in answers)
    expected = min(_SLOW_RANK, arguments.ranks - 1)
    is_right = all(rank == expected for _, rank in answers)
    line_count = arguments.ranks * arguments.steps
    verdict = "ok" if is_right and took_s <= _LIMIT_S else "WRONG" if not is_right else "OVER"
    print(
        f"query stragglers, {arguments.ranks} ranks x {arguments.steps} steps ({byte_count / 1e6:.0f} MB):"
        f" {took_s:.2f} s (at most {_LIMIT_S:g}), {line_count / took_s:,.0f} steps/s, {peak_mib:.0f} MiB at most"
        f" {verdict}"
    )
    return int(verdict != "ok")


if __name__ == "__main__":
    sys.exit(main())
