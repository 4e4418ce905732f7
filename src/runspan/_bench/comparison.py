"""Two variants of a benchmark measured in turns, so that what the machine does meanwhile hits both."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from runspan._bench.execution import run_command
from runspan._git import GitError
from runspan.errors import GateError
from runspan.gate.noise import PairedComparison, compare_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from runspan._git import Git

__all__ = ["CommandVariant", "RevisionVariant", "Variant", "checked_out", "compare_variants"]

#: How much of what a failed process said is told.
_MAX_SAID = 400


class Variant(Protocol):
    """One of the two sides of a comparison."""

    name: str

    def measure(self) -> Mapping[str, float]:
        """Measure once.

        Raises:
            GateError: there is no measurement.
        """


class CommandVariant:
    """A command that writes its result to ``RUNSPAN_BENCH_OUT``.

    Args:
        command: the command.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.name = " ".join(command)
        self._command = command

    def measure(self) -> Mapping[str, float]:
        """Run the command."""
        return run_command(self._command, Path.cwd(), os.environ).metrics


class RevisionVariant:
    """A benchmark as a revision has it: declaration, benchmark and code.

    The revision's folder, and ``src`` in it, come before every installed package.

    Args:
        revision: its name.
        folder: where the revision's files are.
        arguments: what follows ``runspan bench run``.
    """

    def __init__(self, revision: str, folder: Path, arguments: Sequence[str]) -> None:
        self.name = revision
        self._folder = folder
        self._arguments = arguments

    def measure(self) -> Mapping[str, float]:
        """Run the benchmark as a Run of its own, in a process of its own, and return its metrics."""
        modules = [str(self._folder / "src"), str(self._folder), os.environ.get("PYTHONPATH", "")]
        with tempfile.TemporaryDirectory(prefix="runspan-compare-") as root:
            done = subprocess.run(  # noqa: S603 - this program
                [sys.executable, "-m", "runspan.cli", "bench", "run", *self._arguments, "--json"],
                cwd=self._folder,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, modules)),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "RUNSPAN_DIR": root,
                    "RUNSPAN_STORAGE": "none",
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        return self._metrics_of(done)

    def _metrics_of(self, done: subprocess.CompletedProcess[bytes]) -> Mapping[str, float]:
        try:
            document: dict[str, Any] = json.loads(done.stdout)
            frame = document["frame"]
            if frame["status"] == "Completed":
                return msgspec.convert(frame["metrics"], dict[str, float])
            reason = str(document["reason"])
        except (ValueError, KeyError, TypeError):  # msgspec's error is a ValueError
            reason = " ".join(done.stderr.decode("utf-8", "replace").split())[-_MAX_SAID:]
        raise GateError(f"{self.name} was not measured: {reason or f'exit code {done.returncode}'}")


@contextmanager
def checked_out(git: Git, revision: str) -> Iterator[Path]:
    """Yield a folder with the files of a revision, which is removed afterwards; the working tree stays as it is.

    Raises:
        GateError: there is no such revision, or its files cannot be laid out.
        GitError: git gives no answer.
    """
    try:
        commit = git.commit(revision)
    except GitError as error:
        raise GateError(f"{revision!r} is no commit of this repository: {error}") from error
    archive = git.run("archive", "--format=tar", commit)
    with tempfile.TemporaryDirectory(prefix="runspan-revision-") as folder:
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(folder, filter="data")
        except (tarfile.TarError, OSError) as error:
            raise GateError(f"the files of {revision} cannot be laid out: {error}") from error
        yield Path(folder)


def compare_variants(
    baseline: Variant, candidate: Variant, rounds: int, advance: Callable[[], None]
) -> dict[str, PairedComparison]:
    """Measure two variants in turns and compare each metric that both have, pair by pair.

    Which one goes first changes from round to round, so that a drift of the machine cancels out.

    Args:
        baseline: the first variant.
        candidate: the second.
        rounds: how often each is measured.
        advance: called after each measurement.

    Raises:
        GateError: a measurement failed, or a metric is missing in a round or not finite.
    """
    measured: dict[str, list[Mapping[str, float]]] = {"baseline": [], "candidate": []}
    sides = (("baseline", baseline), ("candidate", candidate))
    for number in range(rounds):
        for side, variant in sides if number % 2 == 0 else reversed(sides):
            measured[side].append(variant.measure())
            advance()
    before, after = measured["baseline"], measured["candidate"]
    names = set().union(*before) & set().union(*after)
    if not names:
        raise GateError(f"{baseline.name} and {candidate.name} have no metric in common")
    compared = {}
    for name in sorted(names):
        if not all(name in values for values in (*before, *after)):
            raise GateError(f"metric {name!r} is missing in some rounds: expected it in each")
        compared[name] = compare_pairs([values[name] for values in before], [values[name] for values in after])
    return compared
