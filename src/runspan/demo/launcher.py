"""Starts the ranks of the demo as processes of their own, as torchrun or mpirun would, and waits for them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan import ids
from runspan._endpoints import endpoints, guess_protocol
from runspan._env import check_endpoint, parse_protocol
from runspan.config import TracingConfig
from runspan.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

__all__ = ["DemoOptions", "DemoResult", "check_demo", "run_demo"]

_MAX_RANKS = 32
_DEFAULT_SLOW_RANK = 2
_POLL_S = 0.02
#: What the others have to notice that a rank is gone, before they are stopped.
_GRACE_S = 5.0
#: The worker's exit code when it ended only because another rank did; worker.PEER_LOST, which loading numpy would cost.
_PEER_LOST = 70
#: Set by a launcher or run that this process is a part of: the demo's ranks are not.
_FOREIGN_VARIABLES = ("RUNSPAN_PARENT", "RUNSPAN_EXPERIMENT", "TRACEPARENT", "TRACESTATE")
#: Small matrices on as many processes as there are cores: a thread pool in each would only be in the way.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo is to do.

    Attributes:
        ranks: how many processes train.
        epochs: how often each image is seen.
        slow_rank: the rank that is made slow on purpose; None: rank 2, or the last one of fewer; -1: none.
        slow_ms: how much longer each of its steps takes, in milliseconds.
        seed: of weights and batches.
        otlp: base URL to ship spans and metrics to; None: as the environment says.
        otlp_protocol: ``grpc`` or ``http/protobuf``; None: as the URL looks.

    Raises:
        ConfigError: a value that cannot be used.
    """

    ranks: int = 4
    epochs: int = 3
    slow_rank: int | None = None
    slow_ms: float = 8.0
    seed: int = 0
    otlp: str | None = None
    otlp_protocol: str | None = None

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("--ranks", self.ranks, 1, _MAX_RANKS),
            ("--epochs", self.epochs, 1, 1_000),
            ("--slow-rank", self.chosen_slow_rank, -1, self.ranks - 1),
            ("--slow-ms", self.slow_ms, 0, 60_000),
            ("--seed", self.seed, 0, 2**32 - 1),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{name} {value} cannot be used: it takes a number from {low} to {high}")

    @property
    def chosen_slow_rank(self) -> int:
        """The rank that is made slow; -1: none."""
        if self.slow_rank is not None:
            return self.slow_rank
        return min(_DEFAULT_SLOW_RANK, self.ranks - 1) if self.ranks > 1 else -1


class DemoResult(msgspec.Struct, frozen=True):
    """What became of a demo.

    Attributes:
        run_id: the run.
        duration_s: from the first process's start to the last one's end, seconds.
        failure: which rank ended badly, and how, or that SIGTERM ended the demo; None when all ended well.
    """

    run_id: str
    duration_s: float
    failure: str | None


def check_demo(options: DemoOptions, environ: Mapping[str, str]) -> None:
    """Refuse what every rank would refuse; nothing is created or started.

    Args:
        options: what the demo is to do.
        environ: the variables that the ranks get.

    Raises:
        ConfigError: a variable or the OTLP endpoint cannot be used.
        MissingExtraError: numpy or scikit-learn is not installed.
    """
    if find_spec("numpy") is None or find_spec("sklearn") is None:
        raise MissingExtraError("the demo", "demo")
    if options.otlp is not None:
        check_endpoint("--otlp", options.otlp)
    if options.otlp_protocol is not None:
        parse_protocol("--otlp-protocol", options.otlp_protocol)
    endpoints(TracingConfig.from_env(_environ(options, environ, ids.uuid7())))


def run_demo(
    options: DemoOptions, environ: Mapping[str, str], *, started: Callable[[list[int]], None] | None = None
) -> DemoResult:
    """Train, and return when all ranks have ended; one that dies ends the others too.

    On the main thread SIGTERM ends the ranks first, and then does what it would have done.

    Args:
        options: what to do.
        environ: the variables that the ranks get, ``RUNSPAN_DIR`` and ``RUNSPAN_STORAGE`` among them.
        started: called with the processes' ids, by rank.

    Raises:
        ConfigError: a variable or the OTLP endpoint cannot be used.
        MissingExtraError: numpy or scikit-learn is not installed.
    """
    check_demo(options, environ)
    run_id = ids.uuid7()
    shared = _environ(options, environ, run_id)
    began_s = time.monotonic()
    with ExitStack() as cleanup:
        termination = cleanup.enter_context(_held_termination())
        folder = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="runspan-demo-"))
        processes = _start(options, shared, Path(folder) / "network.npz")
        cleanup.callback(_stop, processes)
        if started is not None:
            started([process.pid for process in processes])
        failed_rank = _wait(processes, termination)
    failure = None if failed_rank is None else _describe(failed_rank, processes[failed_rank].returncode)
    if termination.has_come:  # an earlier handler has let the program go on
        failure = "it was ended by SIGTERM"
    return DemoResult(run_id, time.monotonic() - began_s, failure)


def _environ(options: DemoOptions, environ: Mapping[str, str], run_id: str) -> dict[str, str]:
    shared = {name: value for name, value in environ.items() if name not in _FOREIGN_VARIABLES}
    shared |= {**_ONE_THREAD, "RUNSPAN_RUN_ID": run_id, "RUNSPAN_WORLD_SIZE": str(options.ranks)}
    if options.otlp is not None:
        shared["RUNSPAN_EXPORT_OTLP"] = "true"
        shared["RUNSPAN_OTLP_ENDPOINT"] = options.otlp
        shared["RUNSPAN_OTLP_PROTOCOL"] = options.otlp_protocol or guess_protocol(options.otlp)
    return shared


def _start(options: DemoOptions, environ: Mapping[str, str], checkpoint: Path) -> list[subprocess.Popen[bytes]]:
    """Start a process a rank, each with its ends of the sockets between rank 0 and the others."""
    command = [
        *(sys.executable, "-m", "runspan.demo.worker"),
        *("--epochs", str(options.epochs)),
        *("--slow-rank", str(options.chosen_slow_rank)),
        *("--slow-ms", str(options.slow_ms)),
        *("--seed", str(options.seed)),
        *("--checkpoint", str(checkpoint)),
        "--links",
    ]
    pairs = [socket.socketpair() for _ in range(1, options.ranks)]
    links = [[centre for centre, _ in pairs], *([outer] for _, outer in pairs)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, ends in enumerate(links):
            descriptors = [end.fileno() for end in ends]
            process = subprocess.Popen(  # noqa: S603 - this interpreter, with our own arguments
                [*command, *map(str, descriptors)],
                env={**environ, "RUNSPAN_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
            )
            processes.append(process)
    except BaseException:
        _stop(processes)
        raise
    finally:
        # Only the ranks hold the sockets from here on: when one dies, the one at the other end is told.
        for pair in pairs:
            for end in pair:
                end.close()
    return processes


class _Termination:
    """Takes note of SIGTERM."""

    def __init__(self) -> None:
        self.has_come = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Be the signal's handler."""
        self.has_come = True


@contextmanager
def _held_termination() -> Iterator[_Termination]:
    """Hold SIGTERM back while the ranks run, and send it again at the end; a host that ignores it goes on doing so."""
    termination = _Termination()
    previous = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or previous is None or previous == signal.SIG_IGN:
        yield termination
        return
    signal.signal(signal.SIGTERM, termination.note)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, previous)
        if termination.has_come:
            os.kill(os.getpid(), signal.SIGTERM)


def _wait(processes: Sequence[subprocess.Popen[bytes]], termination: _Termination) -> int | None:
    """Wait for all to end, or for SIGTERM; return the rank whose end was the first bad one, None when all were good.

    After a bad end the others have a few seconds to notice it.
    """
    failed_at_s: float | None = None
    while not termination.has_come and any(process.poll() is None for process in processes):
        if failed_at_s is None and any(process.returncode for process in processes):
            failed_at_s = time.monotonic()
        if failed_at_s is not None and time.monotonic() > failed_at_s + _GRACE_S:
            break
        time.sleep(_POLL_S)
    failed = [rank for rank, process in enumerate(processes) if process.returncode]
    return min(failed, key=lambda rank: (processes[rank].returncode == _PEER_LOST, rank), default=None)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what is still running, and wait for it."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _describe(rank: int, returncode: int) -> str:
    if returncode < 0:
        return f"rank {rank} was ended by {signal.Signals(-returncode).name}"
    return f"rank {rank} ended with exit code {returncode}"
