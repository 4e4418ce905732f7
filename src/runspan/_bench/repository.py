"""What a repository says about its benchmarks: declarations, rules, bounds, and what git knows at the start."""

from __future__ import annotations

import os
from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING

import msgspec

from runspan._git import Git, GitError
from runspan.errors import GateError
from runspan.gate._sources import possible_sources
from runspan.gate._uncommitted import uncommitted_paths
from runspan.gate.baseline import BOUNDS_PATH, Baseline, GateConfig, parse_baseline
from runspan.gate.closure import TargetClosure, attest
from runspan.gate.standing import dirty_performance_paths, load_rules
from runspan.gate.storing import FOLDER, read_limited

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GateFacts", "declared_benchmarks", "find_top", "gate_facts", "judging_bounds"]


class GateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of the working tree when a gate run starts.

    Attributes:
        git_sha: the commit that is checked out, abbreviated.
        dirty_paths: performance paths, and files that the benchmark is run from, that are not what is committed.
        config: the rules at HEAD.
        closure: what the code at HEAD compiles to, and its git objects.
        baseline: the entries at HEAD.
    """

    git_sha: str
    dirty_paths: list[str]
    config: GateConfig
    closure: Mapping[str, TargetClosure]
    baseline: Baseline


def find_top(directory: Path) -> Path:
    """Return the nearest folder at or above a directory that has ``.benchmarks``.

    Raises:
        GateError: there is none.
    """
    for folder in (directory, *directory.parents):
        if (folder / FOLDER).is_dir():
            return folder
    raise GateError(f"no {FOLDER} in {directory} or above: run `runspan gate init` at the top of the repository")


def declared_benchmarks(top: Path) -> Baseline:
    """Read the declarations and entries as they stand in the working tree.

    Raises:
        GateError: the file is not there, or cannot be used.
    """
    return parse_baseline(read_limited(top / BOUNDS_PATH), str(top / BOUNDS_PATH))


def gate_facts(top: Path, benchmark_id: str) -> GateFacts:
    """Ask git what a gate run measures.

    Raises:
        GitError: git does not tell; the reason is the message.
        GateError: the rules are not committed, or cannot be used.
    """
    git = Git.at(top)
    config = load_rules(git)
    baseline = _committed_baseline(git)
    benchmark = baseline.benchmarks.get(benchmark_id)
    sources = [] if benchmark is None else [path for path in possible_sources(benchmark) if (top / path).is_file()]
    dirty = {*dirty_performance_paths(git, config), *uncommitted_paths(git, sources)}
    own_records = f"{FOLDER}/{benchmark_id}/"  # what the run is about to write
    return GateFacts(
        git_sha=git.short_sha(),
        dirty_paths=[
            os.fsencode(path).decode("utf-8", "backslashreplace")
            for path in sorted(dirty)
            if not path.startswith(own_records)
        ],
        config=config,
        closure=attest(git, config),
        baseline=baseline,
    )


def judging_bounds(top: Path) -> Baseline:
    """Return the entries at HEAD; none where there is no HEAD.

    Raises:
        GateError: they cannot be used.
    """
    try:
        return _committed_baseline(Git.at(top))
    except GitError:
        return Baseline()


def _committed_baseline(git: Git) -> Baseline:
    text = git.show("HEAD", BOUNDS_PATH)
    return Baseline() if text is None else parse_baseline(text, f"HEAD:{BOUNDS_PATH}")
