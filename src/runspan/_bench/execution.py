"""One repeat of a benchmark: a Python callable in this process, or a command in its own."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runspan.errors import GateError
from runspan.gate.measuring import Report, parse_report, read_report
from runspan.gate.storing import read_limited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from runspan.gate.baseline import Benchmark
    from runspan.run import Run

__all__ = ["OUTPUT_VARIABLE", "PARAMS_VARIABLE", "Execution", "run_command"]

#: Names the file that a command writes its result to.
OUTPUT_VARIABLE = "RUNSPAN_BENCH_OUT"
#: Holds the command's parameters, a JSON object of strings.
PARAMS_VARIABLE = "RUNSPAN_BENCH_PARAMS"
_STDERR = 2


class Execution:
    """Runs a benchmark as often as it is asked to.

    What it prints goes to stderr, so that stdout is the answer's.

    Args:
        benchmark: what to run.
        top: the repository's top, where commands run and modules are found.
        arguments: the parameters; a callable gets them as keywords, a command as JSON in ``RUNSPAN_BENCH_PARAMS``.
        run: the Run that it is part of.
    """

    def __init__(self, benchmark: Benchmark, top: Path, arguments: Mapping[str, str], run: Run) -> None:
        self._benchmark = benchmark
        self._top = top
        self._arguments = dict(arguments)
        self._run = run
        self._callable: Callable[..., Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def once(self) -> Report:
        """Run it once.

        Raises:
            GateError: it cannot be found, ends with an error, or reports something that is no result.
        """
        if self._benchmark.command is not None:
            return self._command(self._benchmark.command)
        if self._callable is None:
            self._callable = _load(self._benchmark.callable or "", self._top)
        with contextlib.redirect_stdout(sys.stderr):
            returned = self._callable(self._run, **self._arguments)
        if returned is None:
            return Report(metrics={key: summary.last for key, summary in self._run.summary.items()})
        return parse_report(returned)

    def stop(self) -> None:
        """End a command that is still running; the run that it was part of has ended."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()

    def _command(self, command: list[str]) -> Report:
        environ = {**self._run.child_environ(os.environ), PARAMS_VARIABLE: json.dumps(self._arguments)}
        return run_command(command, self._top, environ, self._started)

    def _started(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process


def run_command(
    command: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    started: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Report:
    """Run a command that writes a result, and read it.

    Args:
        command: the command; what it prints goes to stderr.
        folder: where it runs.
        environ: its variables.
        started: told of the process.

    Raises:
        GateError: it cannot be run, ends with an error, or writes no result.
    """
    with tempfile.TemporaryDirectory(prefix="runspan-bench-") as scratch:
        output = Path(scratch) / "result.json"
        variables = {**environ, OUTPUT_VARIABLE: str(output)}
        try:
            process = subprocess.Popen(  # noqa: S603 - the command that the repository declares
                list(command), cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=_STDERR
            )
        except OSError as error:
            raise GateError(f"{command[0]} cannot be run: {error.strerror or error}") from error
        if started is not None:
            started(process)
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code != 0:
            raise GateError(f"{command[0]} ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}")
        if not output.exists():
            raise GateError(f"{command[0]} wrote no result to ${OUTPUT_VARIABLE}")
        return read_report(read_limited(output))


def _load(target: str, top: Path) -> Callable[..., Any]:
    """Find ``module:function``, the repository's modules first."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise GateError(f"callable {target!r}: expected module:function")
    if str(top) not in sys.path:
        sys.path.insert(0, str(top))
    found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise GateError(f"callable {target!r}: the module {module_name} has no function of this name")
    return found  # type: ignore[no-any-return] # what a repository declares has any type
