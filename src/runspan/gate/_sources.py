"""The files that a benchmark is run from, and which of them the rules leave out."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from runspan.errors import GateError
from runspan.gate._paths import is_under, normalized

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from runspan._git import Git
    from runspan.gate.baseline import Benchmark, GateConfig

__all__ = ["possible_sources", "unwatched_sources"]

#: Where a repository's modules lie.
_ROOTS = ("", "src/")
_PLAIN_FILE = "100"


def unwatched_sources(git: Git, rules: GateConfig, benchmarks: Mapping[str, Benchmark]) -> dict[str, list[str]]:
    """Return by benchmark the files at HEAD that it is run from although their change invalidates no record.

    Raises:
        GitError: git gives no answer.
    """
    named = {benchmark_id: possible_sources(benchmark) for benchmark_id, benchmark in benchmarks.items()}
    watched = [*rules.perf_paths, *rules.boundary_paths]
    paths = sorted({path for candidates in named.values() for path in candidates if not is_under(path, watched)})
    entries = git.entries("HEAD", paths)
    files = {path for path, entry in entries.items() if entry.mode.startswith(_PLAIN_FILE)}
    return {benchmark_id: sorted(files.intersection(candidates)) for benchmark_id, candidates in named.items()}


def possible_sources(benchmark: Benchmark) -> list[str]:
    """Return the paths of the files that a declaration may mean: a module, or arguments of a command."""
    return sorted(set(_candidates(benchmark)))


def _candidates(benchmark: Benchmark) -> Iterable[str]:
    if benchmark.callable is not None:
        yield from _modules(benchmark.callable.partition(":")[0])
    command: Sequence[str] = benchmark.command or ()
    for before, argument in pairwise(["", *command]):
        if before == "-m":
            yield from _modules(argument)
        try:
            yield normalized(argument)
        except GateError:  # no path of the repository
            continue


def _modules(name: str) -> Iterable[str]:
    path = name.replace(".", "/")
    for root in _ROOTS:
        for ending in (".py", "/__init__.py", "/__main__.py"):
            yield f"{root}{path}{ending}"
