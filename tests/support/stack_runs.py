"""Training programs of several ranks that ship to a stack, and what became of them there."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.programs import Workplace, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from support.stack import Stack
    from support.stack_clients import JaegerSpan

__all__ = ["EndedRank", "Training"]

#: Before each program: what it trains with, and what it says at its end.
_PRELUDE = """
import json, math, os, sys, time
import runspan

def train(run):
    pass

"""
_END = """
with runspan.start_run(os.environ["EXPERIMENT"]) as run:
    print(json.dumps({"trace_id": run.trace_id}), flush=True)
    train(run)
print(json.dumps({"exported": run._session.otel.exported().get("traces"), "dropped": {
    f"{signal}/{reason}": count for (signal, reason), count in run._session.otel.dropped().items()
}}), flush=True)
"""


@dataclass(frozen=True, slots=True)
class EndedRank:
    """How a rank ended.

    Attributes:
        returncode: its exit code.
        exported: spans that the collector accepted; None where the program did not come to its end.
        dropped: what the export lost, by ``signal/reason``.
        stderr: what it complained of.
        elapsed_s: how long it ran.
    """

    returncode: int
    exported: int | None
    dropped: dict[str, int]
    stderr: str
    elapsed_s: float


class Training:
    """One run of several ranks, each a process.

    Args:
        folder: its folder.
        stack: where it ships to.
        source: defines ``train(run)``, which every rank calls.
        ranks: how many.
        experiment: the experiment's name, which is the service's in Jaeger; None: one of its own.
        run_id: the run's id; None: a new one.
        variables: more variables for the ranks.
    """

    def __init__(
        self,
        folder: Path,
        stack: Stack,
        source: str,
        *,
        ranks: int = 4,
        experiment: str | None = None,
        run_id: str | None = None,
        **variables: str,
    ) -> None:
        self.run_id = run_id or f"run-{uuid.uuid4().hex[:12]}"
        self.experiment = experiment or f"experiment-{uuid.uuid4().hex[:8]}"
        self.ranks = ranks
        folder.mkdir(parents=True, exist_ok=True)
        self.workplace = Workplace(folder)
        self._stack = stack
        self._source = source
        self._variables = {
            **stack.otlp_environ,
            "EXPERIMENT": self.experiment,
            "RUNSPAN_RUN_ID": self.run_id,
            "RUNSPAN_WORLD_SIZE": str(ranks),
            "RUNSPAN_STORAGE": "none",
            "RUNSPAN_METRIC_INTERVAL_S": "1",
            "RUNSPAN_HEARTBEAT_S": "1",
            **variables,
        }
        self.processes: list[subprocess.Popen[str]] = []
        self._began_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all ranks for the length of the block; what has not ended by then is killed."""
        try:
            self.start()
            yield
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()

    def start(self) -> None:
        """Start all ranks, for :meth:`wait`; :meth:`running` ends them too."""
        self._began_s = time.monotonic()
        program = f"{_PRELUDE}{self._source}\n{_END}"
        self.processes = [
            self.workplace.start(program, name=f"rank_{rank}", pass_fds=(), **self._variables, RUNSPAN_RANK=str(rank))
            for rank in range(self.ranks)
        ]

    def wait(self) -> list[EndedRank]:
        """Wait for all ranks, and return how each ended."""
        return [self._ended(process) for process in self.processes]

    def run(self) -> list[EndedRank]:
        """Run all ranks to their end; each must end well and lose nothing."""
        with self.running():
            ended = self.wait()
        for rank in ended:
            if (rank.returncode, rank.dropped) != (0, {}):
                raise AssertionError(f"a rank did not end well: {rank}")
        return ended

    def spans(self) -> list[JaegerSpan]:
        """Return all spans of all its traces that Jaeger has, found by the run's id; without the pending ones."""
        client = self._stack.jaeger.client
        traces = client.find_trace_ids(self.experiment, {"runspan.run.id": self.run_id})
        return [span for trace_id in traces for span in client.trace(trace_id) if not span.is_pending]

    def select(self, metric: str, **labels: str) -> str:
        """Return a selector of this run's series of a metric."""
        matchers = ",".join(f'{name}="{value}"' for name, value in {"runspan_run_id": self.run_id, **labels}.items())
        return f"{metric}{{{matchers}}}"

    def _ended(self, process: subprocess.Popen[str]) -> EndedRank:
        done = wait_for(process, self._began_s)
        last = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
        return EndedRank(done.returncode, last.get("exported"), last.get("dropped", {}), done.stderr, done.elapsed_s)
