"""Training programs as processes of their own, and what they left behind.

A program is a script in a folder of its own; ``RUNSPAN_DIR`` is the folder ``runspan`` beside it. None of the calling
process's ``RUNSPAN_*``, ``OTEL_*`` and launcher variables reach it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from runspan.tracefile.layout import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Finished", "Workplace", "events_of", "kinds_of", "lines_of", "wait_for"]

_TESTS = Path(__file__).resolve().parents[1]
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Finished:
    """How a program ended; ``elapsed_s`` counts from its start."""

    returncode: int
    stdout: str
    stderr: str
    elapsed_s: float


class Workplace:
    """A folder with a program and with what its runs left.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "runspan"

    def environ(self, **variables: str) -> dict[str, str]:
        """Return the variables that a program starts with, and these."""
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        return {**kept, "PYTHONPATH": str(_TESTS), "RUNSPAN_DIR": str(self.root), **variables}

    def start(
        self, source: str, *arguments: str, name: str = "train", pass_fds: Sequence[int] = (), **variables: str
    ) -> subprocess.Popen[str]:
        """Start a script with its output piped.

        Args:
            source: the script; common indentation is taken off.
            arguments: its arguments.
            name: its stem.
            pass_fds: descriptors that it inherits.
            variables: what its environment has beside the basics.
        """
        script = self.folder / f"{name}.py"
        text = textwrap.dedent(source)
        if not script.exists() or script.read_text() != text:  # a process that is starting may be reading it
            script.write_text(text)
        return subprocess.Popen(
            [sys.executable, str(script), *arguments],
            cwd=self.folder,
            env=self.environ(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            text=True,
        )

    def run(self, source: str, *arguments: str, name: str = "train", **variables: str) -> Finished:
        """Run a script to its end."""
        began_s = time.monotonic()
        process = self.start(source, *arguments, name=name, pass_fds=(), **variables)
        return wait_for(process, began_s)

    @property
    def runs(self) -> list[Path]:
        """The run directories."""
        return sorted((self.root / "runs").iterdir())

    @property
    def only_run(self) -> Path:
        """The only run's directory."""
        (found,) = self.runs
        return found

    def trace(self, name: str = "rank-00000.jsonl") -> list[dict[str, Any]]:
        """Return the lines of a trace file of the only run."""
        return lines_of(self.only_run / name)

    @property
    def child_traces(self) -> list[Path]:
        """The first parts of the only run's child traces."""
        files = RunDirectory(self.only_run).trace_files()
        return [path for name, path in files if name.child is not None and name.part == 0]


def wait_for(process: subprocess.Popen[str], began_s: float | None = None) -> Finished:
    """Wait for a program's end; one that hangs is killed, and fails the test."""
    began_s = time.monotonic() if began_s is None else began_s
    try:
        stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _kill_with_descendants(process.pid)
        stdout, stderr = process.communicate()
        raise AssertionError(f"the program did not end in {_TIMEOUT_S} s: {stdout}\n{stderr}") from None
    return Finished(process.returncode, stdout, stderr, time.monotonic() - began_s)


def _kill_with_descendants(pid: int) -> None:
    """Kill a program and the processes that it left, which would hold its output open for ever."""
    program = psutil.Process(pid)
    for process in [*program.children(recursive=True), program]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a trace file, by a parser that takes strict JSON alone."""
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        raise AssertionError(f"{path} ends in half a line: {data[-200:]!r}")
    return [json.loads(line, parse_constant=_refuse_constant) for line in data.splitlines()]


def kinds_of(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the kind of each line."""
    return [line["kind"] for line in lines]


def events_of(lines: Sequence[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the lines of a kind whose fields have these values."""
    return [line for line in lines if line["kind"] == kind and fields.items() <= line.items()]


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")
