"""Many recording processes, each sent a signal at a random moment: ``python -m support.termination``.

The processes are forked from one that has imported runspan and has no Run and no thread of its own, so that hundreds
start in seconds. Prints one JSON object a process: how it ended, how long after the signal, and how often the handler
that stood there before the Run's was called.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import runspan
import runspan.run
from runspan.storage.memory import InMemoryStorage

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: Processes at once.
_BATCH = 4
#: The longest that the signal waits after the process has said that its loop runs.
_SPREAD_S = 0.03
_HUNG_S = 15.0
_HANDLER_EXIT, _LOOP_EXIT, _INTERRUPTED_EXIT = 43, 44, 45


class _Handlers:
    """The handler that a program had before the Run's: how often it was called, and what it does."""

    def __init__(self, kind: str, report: int) -> None:
        self.stop = False
        self._kind = kind
        self._report = report
        if kind != "default":
            signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        os.write(self._report, b"h")
        self.stop = True
        if self._kind == "raises":
            sys.exit(_HANDLER_EXIT)


def _metrics(run: runspan.Run) -> None:
    run.log_metric("loss", 0.5)
    run.log_metrics({"a": 1.0, "b": float("nan")})
    run.log_metric("refused", "no number")


def _spans(run: runspan.Run) -> None:
    with run.span("outer", index=1) as outer:
        outer.set_attribute("later", 2)
        with run.span("inner", text="x"):
            pass


def _steps(run: runspan.Run) -> None:
    with run.step(samples=1), run.phase("forward"), run.span("in a step"):
        pass
    run.count("images", 2)


def _journal(run: runspan.Run) -> None:
    run.log_params({"lr": 0.1, "nested": {"a": [1, 2]}})
    run.set_tag("tag", "value")
    run.event("note", text="x")
    run.observe("seconds", 0.1)
    _ = run.summary


def _captures(run: runspan.Run) -> None:
    with run.step(), run.phase("forward"), run.recorder.span("linear", "op"):
        run.recorder.tensor(1, shape=[2], dtype="float32", device="cpu")
        run.recorder.gradient("w", float("nan"), root=1)


_WORK: dict[str, Callable[[runspan.Run], None]] = {
    "metrics": _metrics,
    "spans": _spans,
    "steps": _steps,
    "journal": _journal,
    "captures": _captures,
}


def _train(work: str, handlers: _Handlers, report: int, run_id: str) -> None:
    config = runspan.TracingConfig.from_env()
    with runspan.start_run("termination", run_id=run_id, storage=InMemoryStorage(), config=config) as run:
        once = _WORK.get(work)
        if work == "finish":
            os.write(report, b"r")
            run.finish()
        elif work == "threads":
            for other in (_metrics, _spans, _steps):
                threading.Thread(target=_forever, args=(other, run), daemon=True).start()
            once = _metrics
        for index in itertools.count():
            if handlers.stop:
                break
            if once is None:
                time.sleep(0.001)
            else:
                once(run)
            if index == 0 and work != "finish":
                os.write(report, b"r")
    sys.exit(_LOOP_EXIT)


def _forever(once: Callable[[runspan.Run], None], run: runspan.Run) -> None:
    while True:
        once(run)


def _child(arguments: argparse.Namespace, report: int, index: int) -> None:
    code = 99
    try:
        handlers = _Handlers(arguments.handler, report)
        _train(arguments.work, handlers, report, f"{arguments.work}-{arguments.handler}-{index}")
    except SystemExit as ending:
        code = int(ending.code or 0)
    except KeyboardInterrupt:
        code = _INTERRUPTED_EXIT
    finally:
        os._exit(code)


class _Watched:
    """One of the processes, from its fork to its end."""

    def __init__(self, arguments: argparse.Namespace, index: int) -> None:
        self.index = index
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._read)
            _child(arguments, write, index)
        os.close(write)

    def send(self, number: signal.Signals, delay_s: float) -> None:
        """Wait until its loop runs, and then as long as told, and send a signal."""
        ready, _, _ = select.select([self._read], [], [], _HUNG_S)
        if not ready or os.read(self._read, 1) != b"r":
            raise AssertionError(f"process {self.index} did not start to record")
        time.sleep(delay_s)
        os.kill(self._pid, number)
        self._signalled_s = time.monotonic()

    def result(self) -> dict[str, object]:
        """Wait for the end; a process that hangs is killed and says so."""
        hung = False
        while (ended := os.waitpid(self._pid, os.WNOHANG))[0] == 0:
            time.sleep(0.002)
            if time.monotonic() > self._signalled_s + _HUNG_S:
                hung = True
                os.kill(self._pid, signal.SIGKILL)
        elapsed_s = time.monotonic() - self._signalled_s
        marks = b""
        while more := os.read(self._read, 64):
            marks += more
        os.close(self._read)
        return {
            "index": self.index,
            "exit": os.waitstatus_to_exitcode(ended[1]),
            "elapsed_s": elapsed_s,
            "handler_calls": marks.count(b"h"),
            "hung": hung,
        }


def main() -> None:
    """Start the processes in batches and print what became of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=[*_WORK, "threads", "finish"], required=True)
    parser.add_argument("--handler", choices=["default", "returns", "raises"], required=True)
    parser.add_argument("--signal", choices=["SIGTERM", "SIGINT"], default="SIGTERM")
    parser.add_argument("--count", type=int, required=True)
    arguments = parser.parse_args()
    delays = random.Random(0)  # noqa: S311 - the processes' own timing is random enough
    for first in range(0, arguments.count, _BATCH):
        batch = [_Watched(arguments, index) for index in range(first, min(first + _BATCH, arguments.count))]
        for watched in batch:
            watched.send(signal.Signals[arguments.signal], delays.uniform(0, _SPREAD_S))
        for watched in batch:
            sys.stdout.write(json.dumps(watched.result()) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    Path(os.environ["RUNSPAN_DIR"]).mkdir(parents=True, exist_ok=True)
    main()
