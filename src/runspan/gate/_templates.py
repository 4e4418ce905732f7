"""The files that a repository starts to gate its benchmarks with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from runspan.gate.baseline import BOUNDS_PATH, CONFIG_PATH

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WORKFLOW_PATH", "starting_files"]

WORKFLOW_PATH = ".github/workflows/benchmark-gate.yml"

_CONFIG = """\
# The rules by which `runspan gate check` tells whether a benchmark's record stands for the commit at hand.
# A change of this file, but for comments and layout, invalidates every record.

# Files and folders whose change may change a measurement, the benchmarks' own too; each must exist in the commit.
perf_paths = {perf_paths}

# Among them, those that never do.
test_paths = []

# Whose change invalidates every record, such as a lock file.
boundary_paths = []

# Variables that change a measurement, with their defaults; a record tells their values.
# perf_controls = {{ OMP_NUM_THREADS = "1" }}

# Public keys (Ed25519, base64) of those who may sign records; with one, a record without a signature does not pass.
# signers = []

# By benchmark, performance paths that do not concern it.
# [excluded]
# startup = ["src/kernels"]

# Code whose records stay valid while it compiles to the same: "files" (their bytes), "python-ast" (comments and layout
# do not count), or a table with the key `command` (what that prints).
# [targets.library]
# paths = ["src"]
# hash = "python-ast"
"""

_BOUNDS = """\
# The benchmarks, and what their records must keep. Edited freely: records are judged by this file as HEAD has it.

# What to run: a Python callable `def step(run, **params) -> Mapping[str, float]`, or a command that writes
# {"metrics": {...}} as JSON to the file that RUNSPAN_BENCH_OUT names. Try it with `runspan bench run step`.
# [benchmarks.step]
# callable = "benchmarks.gate:step"   # or command = ["python", "benchmarks/step.py"]
# repeats = 7                         # a metric is the median of these
# warmups = 1

# What it must keep, by hardware and model; `runspan gate baseline step --max seconds` proposes it from records, which
# `runspan bench run step --gate` makes. An entry is `unmeasured` until it has bounds, and does not pass before.
# [hardware.cpu-xeon-8480.default.benchmarks.step]
# status = "measured"
# params = { batch = "8" }            # pinned: a record with others does not count
# bounds = { seconds = { max = 0.5, noise = 0.02 } }
"""

_WORKFLOW = """\
# Fails a pull request whose benchmarks have no record that stands and keeps its bounds. Nothing is measured here:
# records are made on the hardware that they are about, by `runspan bench run <benchmark> --gate`, and committed.
name: benchmark gate
on:
  pull_request:
permissions:
  contents: read
jobs:
  gate:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
        with:
          fetch-depth: 0  # whether a record stands is asked of the history, which a shallow clone lacks
          ref: ${{ github.event.pull_request.head.sha }}  # what was measured, not a merge that nobody measured
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install 'runspan[signing]'
      - run: runspan gate check --base "origin/$BASE" --format github
        env:
          BASE: ${{ github.base_ref }}
"""


def starting_files(perf_paths: Sequence[str]) -> dict[str, str]:
    """Return the text of each file by its path below the repository's top.

    Args:
        perf_paths: what the rules start with.
    """
    listed = json.dumps(list(perf_paths), ensure_ascii=False)
    return {CONFIG_PATH: _CONFIG.format(perf_paths=listed), BOUNDS_PATH: _BOUNDS, WORKFLOW_PATH: _WORKFLOW}
