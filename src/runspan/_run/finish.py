"""How a session ends: once, and in a bounded time."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from runspan._run.failures import describe_error
from runspan._run.golden import record_golden_score
from runspan._run.lifecycle import open_runs
from runspan.errors import InvalidStateError
from runspan.records import RunStatus
from runspan.tracefile.events import Dropped, Terminal

if TYPE_CHECKING:
    from runspan._run.session import Session

__all__ = ["Finish"]

logger = logging.getLogger("runspan")

#: What the end may take on another thread beyond the export's bound: writing the last lines, and being scheduled.
_GRACE_S = 0.15
#: How often a signal handler looks whether the other thread is through.
_POLL_S = 0.002


class _Claim:
    """Which thread ends a session, and whether it is through."""

    __slots__ = ("is_over", "thread_id")

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()
        self.is_over = False


class Finish:
    """The end of one session.

    Args:
        session: what ends.
        forked: whether the process is a forked child, whose end is nobody else's.
        status: the status of a session that has ended already.

    Attributes:
        status: the final status, None while the session goes on.
        noted_signal: the signal that asked the process to end while an earlier handler let it go on.
    """

    def __init__(self, session: Session, *, forked: bool = False, status: RunStatus | None = None) -> None:
        self._session = session
        self.forked = forked
        self.status = status
        self.noted_signal: str | None = None
        self._claims: dict[str, _Claim] = {}
        self._ended = threading.Event()

    def finish_implicitly(
        self, status: RunStatus, reason: str | None = None, error: BaseException | None = None
    ) -> None:
        """End the session as the program's course has it, unless a signal has asked the process to end.

        Args:
            status: the final status without such a signal.
            reason: why; None: a default that names the status, or the exception.
            error: the exception that ended it.
        """
        if self.noted_signal is not None:
            status, reason = RunStatus.CANCELLED, self.noted_signal
        self.finish(status, reason, error)

    def finish(self, status: RunStatus, reason: str | None = None, error: BaseException | None = None) -> None:
        """End the session.

        Args:
            status: the final status.
            reason: why; None: a default that names the status, or the exception.
            error: the exception that ended it.

        Raises:
            InvalidStateError: the status is not final.
        """
        if not status.is_final:
            raise InvalidStateError(f"a run cannot finish as {status}: use success, failed or cancelled")
        if not self._claim():
            self._join(status)
            return
        writer = self._session.writer
        try:
            writer.held_back_thread = threading.get_ident()
            self.status = status
            self._end(status, reason, error)
        finally:
            self._ended.set()
            open_runs.remove(self._session)
            self._claims["end"].is_over = True
            writer.held_back_thread = None
            writer.run_deferred()

    def finish_bounded(self, status: RunStatus, reason: str) -> None:
        """End the session from a signal handler: on its heartbeat's thread, and in a bounded time.

        The handler may have interrupted any code, with any lock in its hands. So what takes locks is done elsewhere,
        and if it is not through in time, or there is no such thread (in a child process), the file alone is closed.
        """
        session = self._session
        if session.heartbeat is not None:
            timeout_s = session.spec.config.shutdown_timeout_s + _GRACE_S
            deadline_s = time.monotonic() + timeout_s
            session.heartbeat.do(lambda: self.finish(status, reason))
            while not self._ended.is_set() and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
        if not self._ended.is_set():
            self.status = self.status or status
            self._close_file(status, reason, patience_s=_GRACE_S)

    def is_ending_here(self) -> bool:
        """Whether the calling thread is ending the session."""
        claim = self._claims.get("end")
        return claim is not None and claim.thread_id == threading.get_ident() and not claim.is_over

    def abort(self, error: BaseException) -> None:
        """End a session that could not start: failed, with what exists of it. Never raises: the error is the news."""
        session = self._session
        if not self._claim():
            return
        self.status = RunStatus.FAILED
        reason = describe_error(error, session.spec.redactor)
        try:
            self._hand_over_failed_start(reason, error)
            self._close_file(RunStatus.FAILED, reason)
            session.store.close()
        except Exception:
            logger.exception("run %s: its failed start was not recorded in full", session.spec.run_id)
        finally:
            self._ended.set()

    def _hand_over_failed_start(self, reason: str, error: BaseException) -> None:
        """Give storage and export what exists of a session that could not start."""
        session = self._session
        bound_s = session.spec.config.shutdown_timeout_s
        if session.alerting is not None:
            bound_s = session.alerting.end()
        deadline_s = time.monotonic() + bound_s
        otel = getattr(session, "otel", None)
        if otel is not None:
            otel.end(RunStatus.FAILED, reason, error, {}, {})
            otel.drain(bound_s)
        if session.alerting is not None:
            session.alerting.drain(deadline_s)
        if session.heartbeat is not None:
            session.heartbeat.stop()
        consumer = session.consumer
        storage = session.store.storage
        if consumer is not None:
            consumer.finish(session.spec.config.shutdown_timeout_s)
        if storage is not None and session.store.has_begun:
            try:
                session.store.complete(
                    storage,
                    session.attempt,
                    status=RunStatus.FAILED,
                    reason=reason,
                    summary={},
                    counts={},
                    time_unix_nano=session.clock.time_ns(),
                )
            except Exception as storage_error:  # noqa: BLE001 - the first error is the one to raise
                session.notices.warn_once("storage", f"the run's failure could not be stored: {storage_error}")

    def _claim(self) -> bool:
        """Claim the end for the calling thread; False for whoever comes later.

        One atomic step, so that a signal handler finds it either not begun or begun by this thread.
        """
        claim = _Claim()
        return self._claims.setdefault("end", claim) is claim

    def _join(self, status: RunStatus) -> None:
        """Leave a second finish: wait for the first one's end, and tell when it asked for something else."""
        if not self.is_ending_here():
            self._ended.wait(self._session.spec.config.shutdown_timeout_s + _GRACE_S)
        if status != self.status:
            self._session.notices.warn_once(
                "finish", f"already finished as {self.status}; finish({status}) changes nothing"
            )

    def _end(self, status: RunStatus, reason: str | None, error: BaseException | None) -> None:
        session = self._session
        if reason is None and status is not RunStatus.SUCCESS:
            reason = f"finish({status})" if error is None else describe_error(error, session.spec.redactor)
        session.metrics.close()
        session.steps.close()
        bound_s = session.spec.config.shutdown_timeout_s
        if session.alerting is not None:
            bound_s = session.alerting.end()
        try:
            if error is not None:
                session.journal.exception(error)
            session.clock_watch.look()
            self._hand_over(status, reason, error, bound_s)
        except Exception:
            # The end of a run is no place to raise what only concerns its copies.
            logger.exception("run %s: the end of the run was not exported or stored", session.spec.run_id)
        finally:
            consumer = session.consumer
            if consumer is not None and consumer.is_failing:
                session.notices.lose("storage", "unavailable", consumer.unstored())
            self._close_file(status, reason)
            if session.output is not None:
                session.output.close()
        self._wait_for_storage()

    def _hand_over(self, status: RunStatus, reason: str | None, error: BaseException | None, bound_s: float) -> None:
        """Give the last values to storage and export, and let the export and the alerts drain within a bound, in s."""
        session = self._session
        if session.heartbeat is not None:
            session.heartbeat.stop()
        state, store, consumer = session.state, session.store, session.consumer
        summary = consumer.summary() if consumer is not None else {}
        if consumer is not None and store.storage is not None:
            counts = session.counts()
            end_time = session.clock.time_ns()
            attempt = session.attempt
            consumer.submit(
                lambda storage: store.complete(
                    storage,
                    attempt,
                    status=status,
                    reason=reason,
                    summary=summary,
                    counts=counts,
                    time_unix_nano=end_time,
                )
            )
            consumer.close()
        if status is RunStatus.SUCCESS:  # where another one stopped says nothing about what it did
            record_golden_score(session)
        state.status = status
        # The webhook posts while the export drains: both together have the one bound.
        deadline_s = time.monotonic() + bound_s
        session.otel.end(status, reason, error, summary, session.dropped())
        session.otel.drain(bound_s)
        if session.alerting is not None:
            session.alerting.drain(deadline_s)

    def _close_file(self, status: RunStatus, reason: str | None, patience_s: float = -1.0) -> None:
        """Write what was lost and the terminal event, and close; nothing when it is closed.

        Args:
            status: the final status.
            reason: why.
            patience_s: how long to wait for another thread's write; negative: until it is through.
        """
        session = self._session
        writer = session.writer
        if not writer.lock.acquire(timeout=patience_s):
            return
        try:
            writer.reclaim()
            if self.forked or writer.path is None:  # a child's file, or none
                writer.close()
                return
            for (signal, why), count in sorted(session.dropped().items()):
                if signal != "file":  # the writer tells its own losses
                    writer.write(Dropped(signal, why, count))
            writer.write(
                Terminal(
                    outcome="complete" if status is RunStatus.SUCCESS else "failed",
                    timestamp_ns=session.clock.monotonic_ns() - session.start.monotonic_ns,
                    status=status,
                    reason=reason,
                )
            )
            writer.close()
        finally:
            writer.lock.release()

    def _wait_for_storage(self) -> None:
        session = self._session
        consumer, store = session.consumer, session.store
        if consumer is not None and not consumer.finish(session.spec.config.shutdown_timeout_s):
            session.notices.warn_once(
                "storage",
                f"{consumer.unstored()} points and the end of the run are not in storage: run `runspan import"
                f" {session.place.directory.path if session.place.directory else '<run directory>'}`",
            )
        session.hub.close(_GRACE_S)
        store.close()
