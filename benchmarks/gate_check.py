"""How long `runspan gate check` takes over a repository with many records.

Makes a repository of 20 benchmarks with 100 records each, which measured 20 commits, and prints how long the command
takes to check it, a process of its own each time, and how often it asks git for a difference. Fails when a benchmark
does not pass, when git is asked more than once about a commit, or when the median takes longer than the limit.

    python benchmarks/gate_check.py [--repeats 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.gate import TIME
from support.gated import GatedRepository, bounds_text

_BENCHMARKS, _COMMITS, _RECORDS_EACH = 20, 20, 100
_LIMIT_S = 2.0


def make_repository(top: Path) -> GatedRepository:
    """Make the repository; every second commit changes performance code, so that older records do not stand."""
    names = [f"benchmark-{number}" for number in range(_BENCHMARKS)]
    first, *others = (bounds_text(benchmark_id=name) for name in names)
    repository = GatedRepository.gated(top, bounds=first + "".join(others))
    shas = [repository.commit({f"{'src' if number % 2 else 'docs'}/file": str(number)}) for number in range(_COMMITS)]
    for name in names:
        for number in range(_RECORDS_EACH):
            # The newest measured the oldest commits: the check has to look at many before one stands.
            sha = shas[-1 - number * _COMMITS // _RECORDS_EACH]
            repository.measure(f"{number:03}", sha=sha, benchmark_id=name, recorded_at=TIME + number)
    repository.commit()
    repository.git("branch", "-f", "base")
    return repository


def check(repository: GatedRepository) -> tuple[float, int]:
    """Run the command once.

    Returns:
        Its seconds, and how many differences it asked git for.
    """
    trace = repository.top.parent / "git-commands"
    trace.unlink(missing_ok=True)
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "runspan.cli", "gate", "check", "--base", "base", "--format", "json"],
        cwd=repository.top,
        env=os.environ | {"GIT_TRACE2_EVENT": str(trace)},
        capture_output=True,
        check=False,
    )
    duration_s = time.perf_counter() - started
    report = json.loads(done.stdout)
    if done.returncode != 0 or len(report["results"]) != _BENCHMARKS:
        raise SystemExit(f"expected {_BENCHMARKS} benchmarks that pass: {done.stdout.decode()}{done.stderr.decode()}")
    commands = [json.loads(line) for line in trace.read_text().splitlines()]
    return duration_s, sum(command.get("name") == "diff" for command in commands if command["event"] == "cmd_name")


def main() -> int:
    """Make the repository, check it, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = make_repository(Path(folder) / "repository")
        runs = [check(repository) for _ in range(arguments.repeats)]
    median_s, diffs = statistics.median(duration_s for duration_s, _ in runs), max(count for _, count in runs)
    records = _BENCHMARKS * _RECORDS_EACH
    if arguments.json:
        print(json.dumps({"records": records, "median_s": median_s, "limit_s": _LIMIT_S, "git_diffs": diffs}))
    else:
        print(f"{records} records, {_BENCHMARKS} benchmarks, {_COMMITS} commits: {median_s:.2f} s (limit {_LIMIT_S} s)")
        print(f"git diff was asked {diffs} times (limit {_COMMITS + 1}: once a commit, once for the base)")
    return int(median_s > _LIMIT_S or diffs > _COMMITS + 1)


if __name__ == "__main__":
    sys.exit(main())
