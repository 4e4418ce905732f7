"""What a killed process left open: its trace files ended, its run ended in storage, its spans exported.

SIGKILL, the kernel's OOM killer and a power loss run no hook. What was accepted until then stands in the trace files,
and from them everything else follows. All of it may be done again, after it was cut off too, and changes nothing then.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runspan._clock import SystemClock
from runspan._endpoints import endpoints
from runspan.errors import ConfigError, InvalidStateError, SchemaVersionError, TraceFormatError
from runspan.importer import ImportReport, import_run_directory
from runspan.replay import ReplayOutcome, ReplayReport, replay
from runspan.tracefile._closing import INTERRUPTED, ClosedTrace, close_trace
from runspan.tracefile.events import SCHEMA
from runspan.tracefile.layout import RunDirectory, TraceName, first_parts
from runspan.tracefile.reader import TraceStatus, peek

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runspan._clock import Clock
    from runspan.config import TracingConfig
    from runspan.storage.base import ExperimentStorage
    from runspan.tracefile.reader import TracePeek

__all__ = ["RecoveryReport", "recover"]

_HEARTBEATS = 3
#: More than a meta line has.
_FIRST_LINE_BYTES = 16 << 20


class RecoveryReport(msgspec.Struct, frozen=True):
    """What a recovery did.

    Attributes:
        path: the run directory.
        closed: the traces that were open, and what was done to each; none when there was nothing to do.
        stored: what storage was brought up to date with; None without a storage.
        exported: what was sent of the traces that were cut off; None without an endpoint, or without such a trace.
        empty: files of processes that were killed before their first line was whole; they hold nothing.
        warnings: what could not be recovered; each names its file.
    """

    path: str
    closed: tuple[ClosedTrace, ...]
    stored: ImportReport | None
    exported: ReplayReport | None
    empty: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_all_exported(self) -> bool:
        """Whether nothing that was to be exported was lost on the way."""
        return self.exported is None or self.exported.outcome is ReplayOutcome.COMPLETE


def recover(
    run_dir: str | Path, storage: ExperimentStorage | None, config: TracingConfig, *, clock: Clock | None = None
) -> RecoveryReport:
    """End what killed processes left open in a run directory.

    Each trace without an end gets one: its open spans end when it was last heard of, and it as ``failed`` with the
    reason ``interrupted``. A record that the kill cut in two is cut off and counted; whole ones all stay. Then storage
    is brought up to date, and the spans and metrics of the traces that were cut off are exported, where an endpoint is
    configured: what the run had exported itself is sent again with the same ids.

    Two recoveries at once wait for each other. A second one changes nothing.

    Args:
        run_dir: the run directory.
        storage: where the run is kept; one that does not know the run gets it. None: nowhere.
        config: where to export to, if to anywhere.
        clock: tells the present; None: the system's.

    Raises:
        InvalidStateError: a process of the run is alive, or was less than three heartbeats ago, and nothing has been
            changed; or the storage has the run under another experiment.
        TraceFormatError: it is no run directory, or one of its folders cannot be listed.
        ConfigError: it cannot be written, or the endpoint cannot be used.
        StorageError: the storage cannot be read or written; the files are ended.
    """
    directory = RunDirectory(Path(run_dir))
    directory.check_readable()
    recovery = _Recovery(directory, config, clock or SystemClock())
    if recovery.look():
        with _alone(directory):
            recovery.look()  # another recovery may have been at work
            recovery.close()
    stored = None if storage is None else import_run_directory(directory.path, storage)
    return RecoveryReport(
        path=str(directory.path),
        closed=tuple(recovery.closed),
        stored=stored,
        exported=recovery.export(),
        empty=tuple(recovery.empty),
        warnings=tuple(recovery.warnings),
    )


class _OpenTrace(msgspec.Struct, frozen=True):
    """A trace without an end."""

    name: TraceName
    path: Path

    @property
    def needs_terminal(self) -> bool:
        """Whether it must have one: a child process's need not."""
        return self.name.child is None


class _Recovery:
    """One recovery of a run directory."""

    def __init__(self, directory: RunDirectory, config: TracingConfig, clock: Clock) -> None:
        self.closed: list[ClosedTrace] = []
        self.empty: dict[str, None] = {}
        self.warnings: dict[str, None] = {}
        self._directory = directory
        self._config = config
        self._clock = clock
        #: Asked before anything is changed: a configuration that cannot be used raises.
        self._exports = bool(endpoints(config))
        self._open: list[_OpenTrace] = []

    def look(self) -> bool:
        """Find the traces without an end, and return whether there are any.

        Raises:
            InvalidStateError: one of them is still being written.
            TraceFormatError: there is no trace at all.
        """
        files = first_parts(self._directory.trace_files())
        if not files:
            raise TraceFormatError(
                "no run directory: expected rank-*.jsonl files in it", path=str(self._directory.path)
            )
        captures = [capture for found in self._directory.capture_files().values() for capture in first_parts(found)]
        # The rank's own trace last: once it has an end, all of its attempt has.
        self._open = [
            *self._without_end(captures),
            *self._without_end([file for file in files if file[0].child is not None]),
            *self._without_end([file for file in files if file[0].child is None]),
        ]
        return bool(self._open)

    def close(self) -> None:
        """End what was found."""
        for trace in self._open:
            try:
                closed = close_trace(
                    trace.path, needs_terminal=trace.needs_terminal, max_metric_keys=self._config.max_metric_keys
                )
            except TraceFormatError as error:
                self._warn(f"not recovered: {error}")
                continue
            _remove_half_packed(trace)
            if closed is not None:
                self.closed.append(closed)

    def export(self) -> ReplayReport | None:
        """Send the traces that were cut off, by this recovery or an earlier one."""
        if not self._exports:
            return None
        files = first_parts(self._directory.trace_files())
        attempts = {(name.rank, name.attempt) for name, path in files if name.child is None and self._was_cut_off(path)}
        traces = [path for name, path in files if (name.rank, name.attempt) in attempts]
        return replay(traces, self._config, clock=self._clock) if traces else None

    def _was_cut_off(self, path: Path) -> bool:
        found = self._peek(path)
        return found is not None and found.terminal is not None and found.terminal.reason == INTERRUPTED

    def _without_end(self, files: list[tuple[TraceName, Path]]) -> Iterator[_OpenTrace]:
        for name, path in files:
            found = self._peek(path)
            if found is None or found.terminal is not None:
                continue
            if found.meta.schema != SCHEMA:
                self._warn(
                    f"{path}: left as it is: a trace of {found.meta.schema}, which runspan reads and never writes"
                )
                continue
            if name.child is None:
                self._refuse_running(path, found)
            elif _is_held_open(found, path):
                self._warn(f"{path}: left as it is: process {found.meta.process.pid} is still writing it")
                continue
            yield _OpenTrace(name, path)

    def _refuse_running(self, path: Path, found: TracePeek) -> None:
        """Raise for a trace that may still be written."""
        meta = found.meta
        if found.state.status is TraceStatus.RUNNING:
            age_s = max(0, self._clock.time_ns() - found.state.last_seen_unix_nano) / 1e9
            limit_s = _HEARTBEATS * meta.heartbeat_s
            raise InvalidStateError(
                f"{path}: rank {meta.process.rank} of run {meta.run_id!r} was heard of {age_s:.0f} s ago, so it may be"
                f" running: recover the run {limit_s:.0f} s after its processes have ended"
            )
        if _is_held_open(found, path):
            raise InvalidStateError(
                f"{path}: process {meta.process.pid} of run {meta.run_id!r} is alive, although it has written nothing"
                " for a while: end it, then recover the run"
            )

    def _peek(self, path: Path) -> TracePeek | None:
        try:
            return peek(path, clock=self._clock)
        except SchemaVersionError as error:
            self._warn(f"left as it is: {error}")
        except TraceFormatError as error:
            if _has_no_line(path):
                self.empty.setdefault(str(path))
            else:
                self._warn(f"not recovered: {error}")
        return None

    def _warn(self, message: str) -> None:
        self.warnings.setdefault(message)


def _remove_half_packed(trace: _OpenTrace) -> None:
    """Remove what the killed process had begun to pack: the parts themselves are still there."""
    for path in trace.path.parent.glob(".rank-*.jsonl.gz.tmp"):
        name = TraceName.parse(path.name.removeprefix(".").removesuffix(".tmp"))
        if name is not None and name.stem == trace.name.stem:
            with suppress(OSError):
                path.unlink()


def _has_no_line(path: Path) -> bool:
    """Whether a file has not even one line that is whole."""
    try:
        with path.open("rb") as file:
            return b"\n" not in file.read(_FIRST_LINE_BYTES) and not file.read(1)
    except OSError:
        return False


def _is_held_open(found: TracePeek, path: Path) -> bool:
    """Whether the process that wrote a trace is alive on this machine and has a part of it open."""
    process = found.meta.process
    if process.host != socket.gethostname() or process.pid == os.getpid():
        return False
    import psutil  # noqa: PLC0415 - nothing but a trace without an end needs it

    try:
        held = [Path(file.path) for file in psutil.Process(process.pid).open_files()]
    except psutil.Error:  # it has ended, or is another user's
        return False
    name = TraceName.parse(path.name)
    folder = path.parent.resolve()
    for file in held:
        other = TraceName.parse(file.name)
        if other is not None and name is not None and other.stem == name.stem and file.parent.resolve() == folder:
            return True
    return False


@contextmanager
def _alone(directory: RunDirectory) -> Iterator[None]:
    """Keep other recoveries of a run directory out, by a lock on its first trace file.

    Raises:
        ConfigError: the file cannot be written, or its file system has no locks.
    """
    _, path = directory.trace_files()[0]
    descriptor = -1
    try:
        # For writing: over NFS an exclusive lock needs that.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise ConfigError(
            f"{path} cannot be locked for writing ({error.strerror}): recover a copy of the run directory that is"
            " yours, on a local disk"
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)
