"""What a repository says about its benchmarks: declarations, rules, bounds, and what git knows at the start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from runspan._git import Git, GitError
from runspan.errors import GateError
from runspan.gate.baseline import BOUNDS_PATH, CONFIG_PATH, Baseline, GateConfig, parse_baseline, parse_config
from runspan.gate.storing import FOLDER, read_limited

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GateFacts", "declared_benchmarks", "find_top", "gate_facts", "judging_bounds"]


class GateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of the working tree when a gate run starts.

    Attributes:
        git_sha: the commit that is checked out, abbreviated.
        dirty_paths: performance paths that are not what is committed.
        config: the rules at HEAD.
        baseline: the entries at HEAD.
    """

    git_sha: str
    dirty_paths: list[str]
    config: GateConfig
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
    text = git.show("HEAD", CONFIG_PATH)
    if text is None:
        raise GateError(f"{CONFIG_PATH} is not committed: a gate goes by the rules at HEAD (`runspan gate init`)")
    config = parse_config(text, f"HEAD:{CONFIG_PATH}")
    if not config.perf_paths:
        raise GateError(
            f"HEAD:{CONFIG_PATH}: perf_paths is empty: name the paths whose change may change a measurement"
        )
    dirty = [
        os.fsencode(path).decode("utf-8", "backslashreplace")
        for path in git.dirty_paths([*config.perf_paths, *config.boundary_paths, CONFIG_PATH])
        if not _is_excused(path, config, benchmark_id)
    ]
    return GateFacts(git_sha=git.short_sha(), dirty_paths=dirty, config=config, baseline=_committed_baseline(git))


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


def _is_excused(path: str, config: GateConfig, benchmark_id: str) -> bool:
    """Whether a dirty path says nothing about what is measured: the rules by which a change is judged, in their order.

    The benchmark's own records are what the run is about to write.
    """
    if _is_under(path, [*config.boundary_paths, CONFIG_PATH]):
        return False
    own = [*config.test_paths, *config.excluded.get(benchmark_id, []), f"{FOLDER}/{benchmark_id}"]
    return _is_under(path, own)


def _is_under(path: str, folders: list[str]) -> bool:
    parts = path.split("/")
    return any(folder == "." or parts[: len(wanted)] == wanted for folder in folders if (wanted := _parts(folder)))


def _parts(folder: str) -> list[str]:
    return folder.rstrip("/").split("/")
