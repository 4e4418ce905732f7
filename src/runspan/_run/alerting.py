"""Watching a run from inside: a look a second on a thread of its own, the alert rules, the webhook.

The training's threads have no part in it: what a look needs is counted anyway, or read from the file system.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from runspan._alert_view import AlertView, MetricLook
from runspan._alert_webhook import PAYLOAD_SCHEMA, AlertPayload, Webhook, payload_text
from runspan.alerts import AlertWatch
from runspan.errors import TraceFormatError
from runspan.tracefile.steptimes import find_slow_rank, read_newest_step_times

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from runspan._run.session import Session
    from runspan.alerts import Alert
    from runspan.tracefile.layout import TraceName
    from runspan.tracefile.steptimes import SlowRank, StepTimes

__all__ = ["Alerting", "pause_s"]

_LOOK_S = 1.0
#: The share of a processor that looks take at most: with thousands of metrics they are taken more rarely.
_MAX_SHARE = 0.01
_NS_PER_S = 1_000_000_000
#: The disk and the other ranks' files are looked at more rarely: both ask a file system that may be far away.
_DISK_LOOK_NS = 10 * _NS_PER_S
_RANKS_LOOK_NS = 30 * _NS_PER_S
#: How many ranks' files one look reads, in turn.
_RANKS_A_LOOK = 64
#: The shortest period that a step rate is taken over, in time and in steps, and how many of them are kept.
_RATE_PERIOD_NS = 60 * _NS_PER_S
_RATE_STEPS = 10
_RATE_PERIODS = 60
#: How long a loss counts as a late one.
_LATELY_NS = 60 * _NS_PER_S
#: How long the end of a run waits for its last look, and which share of its bound that is at most: only a user's rule
#: that hangs takes as long.
_LAST_LOOK_S = 1.0
_LAST_LOOK_SHARE = 0.5
#: A look that has taken so long hangs.
_HANGING_NS = 30 * _NS_PER_S


class Alerting:
    """The alerts of one session.

    Args:
        session: the session, which has begun.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        config = session.spec.config
        self._webhook = None
        if config.alert_webhook is not None:
            self._webhook = Webhook(
                config.alert_webhook,
                lose=lambda reason, count: session.notices.lose("webhook", reason, count),
                warn=lambda message: session.notices.warn_once("webhook", message),
            )
        self._watch = AlertWatch(config.alert_rules, self._fire)
        self._steps = _StepWatch(session.clock.monotonic_ns())
        self._losses = _LossWatch()
        self._ranks = _RankWatch(session)
        self._metrics: dict[str, tuple[int, int]] = {}
        self._disk: tuple[int, int] | None = None
        self._next_disk_look_ns = session.clock.monotonic_ns()
        self._look_began_ns: int | None = None
        self._is_ending = threading.Event()
        self._has_ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look, where there are rules."""
        if self._session.spec.config.alert_rules:
            self._thread = threading.Thread(target=self._run, name="runspan-alerts", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Look once, and raise the alerts whose conditions have begun to hold."""
        self._watch.look(self._view())

    def post(self, alert: Alert, time_unix_nano: int) -> None:
        """Send an alert, a rule's or the training program's own, to the webhook if there is one."""
        if self._webhook is None:
            return
        session = self._session
        spec, context = session.spec, session.spec.context
        self._webhook.post(
            AlertPayload(
                schema=PAYLOAD_SCHEMA,
                text=payload_text(spec.run_id, context.rank, alert),
                title=alert.title,
                detail=alert.text,
                level=str(alert.level),
                rule=alert.rule,
                time_unix_nano=time_unix_nano,
                run_id=spec.run_id,
                experiment_id=spec.experiment_id,
                name=spec.name,
                trace_id=session.identity.trace_id,
                rank=context.rank,
                world_size=context.world_size,
                attempt=session.attempt,
                host=context.host,
            )
        )

    def end(self) -> float:
        """Look a last time, so that what a short run did is not missed, and end the thread.

        Returns:
            The seconds that are left of ``shutdown_timeout_s``.
        """
        bound_s = self._session.spec.config.shutdown_timeout_s
        began_s = time.monotonic()
        self._is_ending.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(min(_LAST_LOOK_S, _LAST_LOOK_SHARE * bound_s))
            if self._thread.is_alive():
                self._tell_of_hang()
        self._has_ended.set()
        return max(0.0, bound_s - (time.monotonic() - began_s))

    def check(self) -> None:
        """Tell people of a rule that does not return, since the thread that asks it cannot."""
        began_ns = self._look_began_ns
        if began_ns is not None and self._session.clock.monotonic_ns() - began_ns >= _HANGING_NS:
            self._tell_of_hang()

    def drain(self, deadline_monotonic_s: float) -> None:
        """Let the webhook post what waits, until a deadline of ``time.monotonic()``."""
        if self._webhook is not None:
            self._webhook.close(deadline_monotonic_s)

    def abandon(self) -> None:
        """Do nothing from now on, in a forked child: the parent looks and posts."""
        self._webhook = None
        self._thread = None

    def _run(self) -> None:
        is_last, cpu_s = False, 0.0
        while not is_last:
            is_last = self._is_ending.wait(pause_s(cpu_s))
            began_s = time.thread_time()
            self._look_began_ns = self._session.clock.monotonic_ns()
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - watching must not end, nor tell of it every second
                self._session.notices.warn_once("alerts", f"a look at the run failed: {error!r}")
            self._look_began_ns = None
            cpu_s = time.thread_time() - began_s

    def _tell_of_hang(self) -> None:
        rule = self._watch.asked
        if rule is not None:
            self._session.notices.warn_once(
                "alert rule", f"alert rule {rule} does not return: no rule is asked until it does"
            )

    def _fire(self, alert: Alert) -> None:
        if not self._has_ended.is_set():
            self._session.journal.alert(alert.title, alert.text, alert.level, rule=alert.rule)

    def _view(self) -> AlertView:
        session = self._session
        now_ns = session.clock.monotonic_ns()
        metrics, points = self._new_metrics()
        self._steps.look(now_ns, session.state.steps)
        lost = {key: count for key, count in session.dropped().items() if count}
        self._look_at_disk(now_ns)
        consumer = session.consumer
        return AlertView(
            time_unix_nano=session.clock.time_ns(),
            running_s=(now_ns - session.start.monotonic_ns) / _NS_PER_S,
            metrics=metrics,
            recent=(lambda _key, _limit: ()) if consumer is None else consumer.recent,
            points=points,
            steps=session.state.steps,
            step_age_s=self._steps.age_s(now_ns),
            longest_step_gap_s=self._steps.longest_gap_ns / _NS_PER_S,
            step_rates_hz=tuple(self._steps.rates_hz),
            slow_ranks=self._ranks.look(now_ns, is_ending=self._is_ending.is_set()),
            disk_free=None if self._disk is None else self._disk[0],
            disk_total=None if self._disk is None else self._disk[1],
            lost=lost,
            lost_lately=self._losses.look(now_ns, lost),
        )

    def _new_metrics(self) -> tuple[dict[str, MetricLook], int]:
        """Return the metrics with new points, and how many points all have."""
        consumer = self._session.consumer
        if consumer is None:
            return {}, 0
        found, points = {}, 0
        for key, (count, nonfinite, last) in consumer.tallies().items():
            known_count, known_nonfinite = self._metrics.get(key, (0, 0))
            points += count
            if count != known_count:
                self._metrics[key] = (count, nonfinite)
                found[key] = MetricLook(last, count, count - known_count, nonfinite - known_nonfinite)
        return found, points

    def _look_at_disk(self, now_ns: int) -> None:
        directory = self._session.place.directory
        if directory is None or now_ns < self._next_disk_look_ns:
            return
        self._next_disk_look_ns = now_ns + _DISK_LOOK_NS
        try:
            found = os.statvfs(directory.path)
        except OSError:  # removed, or out of reach: the writer tells of that
            self._disk = None
            return
        self._disk = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def pause_s(cpu_s: float) -> float:
    """Return how long to wait after a look that took so much processor time, both in seconds."""
    return max(_LOOK_S, cpu_s / _MAX_SHARE)


class _StepWatch:
    """When steps ended, as far as looks can tell.

    Args:
        now_ns: the monotonic time of the start.
    """

    def __init__(self, now_ns: int) -> None:
        self.longest_gap_ns = 0
        #: Steps a second of each period that is over.
        self.rates_hz: deque[float] = deque(maxlen=_RATE_PERIODS)
        self._steps = 0
        self._moved_ns: int | None = None
        self._period_began_ns = now_ns
        self._period_steps = 0

    def look(self, now_ns: int, steps: int) -> None:
        """See how many steps have ended by now."""
        if steps == self._steps:
            return
        if self._moved_ns is None:  # what came before the first step is no step's time
            self._period_began_ns, self._period_steps = now_ns, steps
        else:
            self.longest_gap_ns = max(self.longest_gap_ns, now_ns - self._moved_ns)
        self._steps, self._moved_ns = steps, now_ns
        elapsed_ns, ended = now_ns - self._period_began_ns, steps - self._period_steps
        if elapsed_ns >= _RATE_PERIOD_NS and ended >= _RATE_STEPS:
            self.rates_hz.append(ended * _NS_PER_S / elapsed_ns)
            self._period_began_ns, self._period_steps = now_ns, steps

    def age_s(self, now_ns: int) -> float | None:
        """Return how long ago the newest step was seen, None before the first."""
        return None if self._moved_ns is None else (now_ns - self._moved_ns) / _NS_PER_S


class _LossWatch:
    """What was lost of late."""

    def __init__(self) -> None:
        self._known: Counter[tuple[str, str]] = Counter()
        self._lately: deque[tuple[int, tuple[str, str], int]] = deque()

    def look(self, now_ns: int, lost: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        """Return what was lost within the last minute, given what was lost since the start."""
        for key, count in lost.items():
            if count > self._known[key]:
                self._lately.append((now_ns, key, count - self._known[key]))
                self._known[key] = count
        while self._lately and now_ns - self._lately[0][0] > _LATELY_NS:
            self._lately.popleft()
        lately: Counter[tuple[str, str]] = Counter()
        for _, key, count in self._lately:
            lately[key] += count
        return dict(lately)


class _RankWatch:
    """Which rank the others wait for, from the ends of their trace files; for rank 0."""

    def __init__(self, session: Session) -> None:
        context, directory = session.spec.context, session.place.directory
        is_watching = context.rank == 0 and context.world_size > 1
        self._directory = directory if is_watching else None
        self._next_look_ns = session.clock.monotonic_ns() + _RANKS_LOOK_NS
        self._times: dict[int, StepTimes] = {}
        self._next_rank = 0
        self._found: deque[SlowRank | None] = deque(maxlen=2)

    def look(self, now_ns: int, *, is_ending: bool) -> tuple[SlowRank | None, ...]:
        """Return what the newest looks have found; takes one where it is time and the run is not ending."""
        if self._directory is not None and now_ns >= self._next_look_ns and not is_ending:
            self._next_look_ns = now_ns + _RANKS_LOOK_NS
            newest: dict[int, tuple[Path, TraceName]] = {}
            for name, path in self._directory.trace_files():
                if name.child is None:
                    newest[name.rank] = (path.parent, name)  # they come in order of attempt and part
            for rank in self._in_turn(sorted(newest)):
                self._read(rank, *newest[rank])
            self._found.append(find_slow_rank(self._times))
        return tuple(self._found)

    def _in_turn(self, ranks: list[int]) -> list[int]:
        """Return the ranks whose turn it is."""
        later = [rank for rank in ranks if rank >= self._next_rank]
        turn = [*later, *(rank for rank in ranks if rank < self._next_rank)][:_RANKS_A_LOOK]
        self._next_rank = turn[-1] + 1 if turn else 0
        return turn

    def _read(self, rank: int, folder: Path, name: TraceName) -> None:
        try:
            times = read_newest_step_times(folder, name)
        except TraceFormatError:
            return  # as it was at the look before
        if times.count:
            self._times[rank] = times
