"""Workspaces with runs in them, and the program itself, for the tests of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from runspan import cli
from runspan.importer import import_run_directory
from runspan.storage import SqlStorage
from runspan.tracefile.events import Artifact, Param, Step, Tag, Terminal, TraceEvent
from runspan.tracefile.layout import RunDirectory, TraceName
from support.traces import START_UNIX_NANO, make_meta, make_metric, make_terminal, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import pytest


def make_step(number: int, **phases_ms: float) -> Step:
    """Return a step's event that consists of these phases, in milliseconds."""
    phases = {name: int(duration_ms * 1e6) for name, duration_ms in phases_ms.items()}
    return Step(step=number, duration_ns=sum(phases.values()), phases=phases, time_unix_nano=START_UNIX_NANO)


def make_run(
    root: Path,
    run_id: str,
    *,
    world_size: int = 1,
    start_s: float = 0.0,
    events: Iterable[TraceEvent] = (),
    terminal: Terminal | None = None,
) -> Path:
    """Write a run directory of ended ranks, each with three values of ``loss``, and return it."""
    directory = RunDirectory.of_run(root / "runs", run_id).path
    for rank in range(world_size):
        meta = make_meta(rank, run_id=run_id, time_unix_nano=START_UNIX_NANO + int(start_s * 1e9))
        process = msgspec.structs.replace(meta.process, world_size=world_size)
        meta = msgspec.structs.replace(meta, process=process, resource={"runspan.experiment.name": "mnist"})
        lines = [meta, *(make_metric(step) for step in range(3)), *events, terminal or make_terminal()]
        write_lines(directory / TraceName(rank).filename, lines)
    return directory


def described(lr: float) -> list[TraceEvent]:
    """Return the events of a parameter, a tag and an artifact."""
    return [Param("lr", lr), Tag("team", "vision"), Artifact("weights", f"sha256-{'0' * 64}", 2048, step=2)]


def cut_end(directory: Path, rank: int = 0) -> None:
    """Remove a rank's terminal line, as SIGKILL leaves it."""
    path = directory / TraceName(rank).filename
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def store(root: Path, directory: Path) -> None:
    """Import a run directory into the root folder's database."""
    storage = SqlStorage(root / "experiments.db")
    try:
        import_run_directory(directory, storage)
    finally:
        storage.close()


class Answer(msgspec.Struct, frozen=True):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on stdout, read by a parser that takes no bare NaN."""
        return json.loads(self.out, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


class Cli:
    """Runs commands in this process, on one root folder.

    Args:
        root: the root folder.
        capsys: takes what they print.
    """

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Answer:
        """Run a command that takes ``--dir``."""
        self._capsys.readouterr()
        code = cli.main([*arguments, "--dir", str(self.root)])
        printed = self._capsys.readouterr()
        return Answer(code, printed.out, printed.err)


def clean_environ(root: Path, **changes: str) -> dict[str, str]:
    """Return this process's environment without its settings of runspan and OpenTelemetry, for a root folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RUNSPAN_", "OTEL_"))}
    return {**kept, "RUNSPAN_DIR": str(root), **changes}


def run_program(arguments: Sequence[str], environ: Mapping[str, str], *, timeout_s: float = 60) -> Answer:
    """Run ``python -m runspan.cli`` as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "runspan.cli", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def read_terminal(leader: int) -> bytes:
    """Return what programs print on a pseudo-terminal until the last of them has left; close it then."""
    printed = b""
    try:
        while chunk := os.read(leader, 4096):
            printed += chunk
    except OSError:  # how Linux says that the last writer is gone
        pass
    finally:
        os.close(leader)
    return printed
