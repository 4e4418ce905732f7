"""The background thread that exports one signal: batches, retries with back-off, a bounded end."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from runspan._clock import SystemClock
from runspan.telemetry._senders import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from runspan.telemetry._ledger import Ledger
    from runspan.telemetry._parcels import Parcel
    from runspan.telemetry._senders import Answer, Sender

__all__ = ["ExportWorker", "WarnOnce"]

logger = logging.getLogger("runspan")

#: Largest request at first, bytes: below the 4 MiB that receivers take by default, with room for framing.
_MAX_REQUEST_BYTES = 3_600_000
#: Seconds to wait after the first failure, doubled up to the second figure: while the run goes on, and at its end.
_BACKOFF_S, _DRAIN_BACKOFF_S = (0.5, 30.0), (0.05, 0.5)
_MAX_DOUBLINGS = 16
#: How long the bookkeeping may keep an abandoning thread waiting; it never holds the lock for longer.
_LOCK_TIMEOUT_S = 0.05
_NS_A_SECOND = 1_000_000_000


class WarnOnce:
    """Logs the first warning of each subject and no other.

    Args:
        label: what each message begins with; empty: nothing.
    """

    def __init__(self, label: str = "") -> None:
        self._prefix = f"{label}: " if label else ""
        self._told: dict[str, object] = {}

    def __call__(self, subject: str, message: str) -> None:
        """Log the message if it is the subject's first."""
        mine = object()
        if self._told.setdefault(subject, mine) is mine:  # one call, because both signals' workers may fail at once
            logger.warning("%s%s", self._prefix, message)


class ExportWorker:
    """Sends one signal's parcels, on a daemon thread that starts with it.

    The thread starts at construction and no other is needed later, because none can be started while the interpreter
    exits. Everything another thread does here is a put into a ``SimpleQueue``, which may interrupt itself.

    Args:
        signal: ``traces`` or ``metrics``.
        sender: how to reach the receiver.
        timeout_s: bound on one request.
        period_s: how often ``refill`` is asked for more without being woken.
        refill: returns the next parcel, or None when there is none now; its argument tells whether the run is ending.
            Called under the worker's lock: whatever it takes is in the worker's hand at once.
        sweep: empties the signal's queue and returns how many items there were, when the end came too early for them.
        tend: called every period, also while a parcel waits for a retry: keeps small what piles up meanwhile.
        ledger: counts what became of the items.
        warn: called with a subject and a message for a person; may be called often.
        place: the endpoint, for the warning; free of credentials.
    """

    def __init__(
        self,
        signal: str,
        sender: Sender,
        *,
        timeout_s: float,
        period_s: float,
        refill: Callable[[bool], Parcel | None],
        sweep: Callable[[], int],
        tend: Callable[[], None],
        ledger: Ledger,
        warn: Callable[[str, str], None],
        place: str,
    ) -> None:
        self._signal = signal
        self._sender = sender
        self._timeout_s = timeout_s
        self._period_s = period_s
        self._refill = refill
        self._sweep = sweep
        self._tend = tend
        self._ledger = ledger
        self._warn = warn
        self._subject = f"{signal} export to {place}"
        self._hand: deque[Parcel] = deque()
        self._lock = threading.Lock()  # between the worker and whoever abandons it; never taken by recording threads
        self._abandoned = self._finished = self._woken = False
        self._deadline_ns: int | None = None
        self._failures = 0
        self._retry_at_ns = 0
        self._max_request_bytes = _MAX_REQUEST_BYTES
        self._inbox: SimpleQueue[None] = SimpleQueue()
        self._end: SimpleQueue[None] = SimpleQueue()
        threading.Thread(target=self._main, name=f"runspan-export-{signal}", daemon=True).start()

    def wake(self) -> None:
        """Export soon, from any thread or signal handler."""
        if not self._woken:
            self._woken = True
            self._inbox.put(None)

    def start_drain(self, deadline_ns: int) -> None:
        """Export what is left until a deadline on the monotonic clock, then end; the first deadline holds."""
        if self._deadline_ns is None:
            self._deadline_ns = deadline_ns
        self._inbox.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of a drain; any number of threads may, and a signal handler within one that does."""
        if self._finished:
            return True
        try:
            self._end.get(timeout=max(0.0, timeout_s))
        except Empty:
            return self._finished
        self._end.put(None)  # for the next one who waits
        return True

    def abandon(self) -> None:
        """Cut the call in flight and count what is not exported as lost."""
        self._sender.abort()
        locked = self._lock.acquire(timeout=_LOCK_TIMEOUT_S)
        try:
            self._give_up()
        finally:
            self._finished = True
            if locked:
                self._lock.release()

    def reinit_in_child(self) -> None:
        """Forget everything in a forked child, where the thread does not exist."""
        self._lock = threading.Lock()
        self._inbox, self._end = SimpleQueue(), SimpleQueue()
        self._hand = deque()
        self._abandoned = self._finished = True
        self._sender.abandon_in_child()

    def _main(self) -> None:
        while not self._finished:
            with suppress(Empty):
                self._inbox.get(timeout=self._period_s)
            self._woken = False
            self._tend_guarded()
            draining = self._deadline_ns is not None
            if draining or SystemClock.monotonic_ns() >= self._retry_at_ns:
                self._export_guarded()
            if draining:
                with self._lock:
                    self._give_up()
                self._finished = True
        self._sender.abort()
        self._end.put(None)

    def _seconds_left(self) -> float:
        """Time until the drain's deadline; endless without one."""
        if self._deadline_ns is None:
            return math.inf
        return (self._deadline_ns - SystemClock.monotonic_ns()) / _NS_A_SECOND

    def _give_up(self) -> None:
        """Count what is in hand and queued as lost; the worker touches nothing afterwards."""
        if self._abandoned:
            return
        self._abandoned = True
        lost = sum(parcel.count for parcel in self._hand) + self._sweep()
        self._hand.clear()
        self._ledger.drop(self._signal, "shutdown_timeout", lost)
        if lost:
            self._tell(f"{lost} items were not exported before the time was up")

    def _tend_guarded(self) -> None:
        try:
            self._tend()
        except Exception as error:  # noqa: BLE001 - as for an export
            self._tell(f"unexpected {error!r}")

    def _export_guarded(self) -> None:
        """Export; an error of ours costs the parcel at hand and a warning, never the thread."""
        try:
            self._export()
        except Exception as error:  # noqa: BLE001 - the thread must live on, whatever a foreign object did
            self._tell(f"unexpected {error!r}")
            self._settle(dropped_as="internal_error")

    def _export(self) -> None:
        """Send parcel after parcel until there is none, one must wait, or the drain's time is up."""
        while True:
            with self._lock:
                if self._abandoned:
                    return
                if not self._hand:
                    refill = self._refill(self._deadline_ns is not None)
                    if refill is None:
                        return
                    self._hand.append(refill)
                parcel = self._hand[0]
            timeout_s = min(self._timeout_s, self._seconds_left())
            if timeout_s <= 0:
                return
            answer = self._send(parcel, timeout_s)
            if answer is not None and not self._wait_for_retry(answer):
                return

    def _wait_for_retry(self, answer: Answer) -> bool:
        """Note when to try again; in a drain also wait for it, and tell whether there is time left."""
        self._failures += 1
        self._tell(f"{answer.detail}; it is tried again while there is room and time")
        draining = self._deadline_ns is not None
        first_s, most_s = _DRAIN_BACKOFF_S if draining else _BACKOFF_S
        wait_s = min(most_s, first_s * 2.0 ** min(self._failures - 1, _MAX_DOUBLINGS))
        wait_s = max(wait_s, answer.retry_after_s or 0.0)
        if draining and wait_s < self._seconds_left():
            time.sleep(wait_s)
            return True
        self._retry_at_ns = SystemClock.monotonic_ns() + int(wait_s * _NS_A_SECOND)
        return False

    def _send(self, parcel: Parcel, timeout_s: float) -> Answer | None:
        """Send the parcel in hand and settle it; return the answer if it has to be sent again later."""
        try:
            request = parcel.request()
        except Exception:  # noqa: BLE001 - a value the encoder cannot take: halves tell which item holds it
            self._divide(parcel, "encode_error")
            return None
        size = request.ByteSize()
        if size > self._max_request_bytes:
            self._divide(parcel, "too_large")
            return None
        answer = self._sender.send(request, timeout_s)
        if answer.verdict is Verdict.RETRY:
            return answer
        self._failures = 0
        if answer.verdict is Verdict.TOO_LARGE:
            self._max_request_bytes = size - 1  # no larger one need be tried: a refusal takes gRPC a tenth of a second
            self._divide(parcel, "too_large")
            return None
        refused = answer.verdict is Verdict.REFUSED
        if (refused or answer.rejected) and not self._abandoned:
            self._tell(f"{answer.detail}; what is lost is counted")
        self._settle(rejected=answer.rejected, dropped_as="refused" if refused else None)
        return None

    def _tell(self, message: str) -> None:
        self._warn("export", f"{self._subject}: {message}")

    def _divide(self, parcel: Parcel, reason: str) -> None:
        """Put halves in the parcel's place; a single item is lost."""
        halves = parcel.halves()
        if not halves:
            self._warn(reason, f"{self._subject}: an item was left out ({reason})")
            self._settle(dropped_as=reason)
            return
        with self._lock:
            if not self._abandoned:
                self._hand.popleft()
                self._hand.extendleft(reversed(halves))

    def _settle(self, *, rejected: int = 0, dropped_as: str | None = None) -> None:
        """Take the first parcel out of the hand and count it."""
        with self._lock:
            if self._abandoned or not self._hand:
                return
            count = self._hand.popleft().count
            lost = count if dropped_as is not None else min(rejected, count)
            self._ledger.drop(self._signal, dropped_as or "rejected", lost)
            self._ledger.export(self._signal, count - lost)
