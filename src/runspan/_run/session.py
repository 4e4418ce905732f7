"""Session: the parts of one Run in one process, put together at its start and taken apart by :mod:`._run.finish`."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from runspan._clock import SystemClock
from runspan._run.alerting import Alerting
from runspan._run.consumer import PointConsumer
from runspan._run.environment import collect_environment, git_state
from runspan._run.finish import Finish
from runspan._run.heartbeat import ClockWatch, Heartbeat
from runspan._run.identity import Identity, run_resource
from runspan._run.journal import Journal
from runspan._run.metrics import MetricRecorder
from runspan._run.notices import Notices
from runspan._run.otel import OtelSide
from runspan._run.output import OutputCopy
from runspan._run.place import ChildFileWriter, find_place, open_attempt
from runspan._run.steps import StepRecorder
from runspan._run.store import StorageLink
from runspan.dashboard import SubscriptionHub
from runspan.distributed import RankContext, format_parent
from runspan.errors import ConfigError, TraceFormatError
from runspan.records import RunStatus
from runspan.telemetry.instruments import RunMetrics
from runspan.telemetry.processor import TraceStart, file_parent
from runspan.tracefile.events import SCHEMA, Meta, ProcessInfo
from runspan.tracefile.meta import iso_timestamp
from runspan.tracefile.resume import first_start, next_automatic_steps
from runspan.usage import UsageSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runspan._clock import Clock
    from runspan._run.spec import RunSpec
    from runspan.records import MetricSnapshot, MetricSummary
    from runspan.storage.base import ExperimentStorage
    from runspan.tracefile.layout import RunDirectory
    from runspan.tracefile.writer import TraceWriter

__all__ = ["Session"]

logger = logging.getLogger("runspan")


class Session:
    """One process's part of a run, from its first line to its terminal event.

    Args:
        spec: what the run is to be.
        storage: where rows go, None for nowhere.
        open_default_storage: open the default database where ``storage`` is None.
        clock: the clocks.
    """

    def __init__(
        self,
        spec: RunSpec,
        storage: ExperimentStorage | None,
        *,
        open_default_storage: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.spec = spec
        self.clock: Clock = SystemClock() if clock is None else clock
        self.notices = Notices(spec.run_id, strict=spec.config.strict)
        self.git = git_state(spec.redactor)
        self.store = StorageLink.open(spec, storage, self.notices, open_default=open_default_storage)
        self.place = find_place(spec, self.store.storage)
        self.start = TraceStart.now(self.clock)
        self.identity = Identity.of(spec)
        self.state = RunMetrics()
        self.writer, self.attempt = self._open_writer()
        self.meta = self._meta(self.attempt)
        self.resource = run_resource(spec, self.git, self.attempt)
        self.usage = UsageSampler(
            spec.context.local_rank, spec.device, visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES")
        )
        self.heartbeat: Heartbeat | None = None
        self.consumer: PointConsumer | None = None
        self.alerting: Alerting | None = None
        self.output: OutputCopy | None = None
        self.hub = SubscriptionHub()
        self.clock_watch = ClockWatch(self.writer, self.clock, self.start)
        self.ending = Finish(self)
        #: The public object that stands for this session.
        self.owner: object = None
        try:
            self._begin()
        except BaseException as error:
            self.ending.abort(error)
            raise

    def _open_writer(self) -> tuple[TraceWriter, int]:
        spec = self.spec
        if spec.parent is None:
            return open_attempt(self.place, spec.context.rank, self._meta, spec.config.max_file_bytes)
        return self._child_writer(spec.parent.attempt), spec.parent.attempt

    def _child_writer(self, attempt: int) -> TraceWriter:
        folder = self.place.folder
        if folder is None:
            return open_attempt(self.place, self.spec.context.rank, self._meta, 0)[0]
        meta = self._meta(attempt)
        return ChildFileWriter(folder, self.spec.context.rank, attempt, meta, self.spec.config.max_file_bytes)

    def _meta(self, attempt: int) -> Meta:
        spec, identity = self.spec, self.identity
        context = spec.context
        return Meta(
            schema=SCHEMA,
            run_id=spec.run_id,
            correlation_id=spec.correlation_id,
            entrypoint=spec.entrypoint,
            phase=spec.phase,
            timestamp=iso_timestamp(self.start.time_unix_nano),
            capture_step=1,
            warmup_steps=0,
            device=spec.device,
            timing_mode=spec.timing_mode,
            tags=dict(sorted(spec.tags.items())),
            candle_version=spec.candle_version,
            time_unix_nano=self.start.time_unix_nano,
            experiment_id=spec.experiment_id,
            trace_id=identity.trace_id,
            run_span_id=identity.run_span_id,
            span_id=identity.rank_span_id,
            process=ProcessInfo(
                context.rank, context.world_size, context.local_rank, attempt, context.host, os.getpid()
            ),
            heartbeat_s=spec.config.heartbeat_s,
            resource=dict(run_resource(spec, self.git, attempt).attributes),
        )

    def _begin(self) -> None:
        """Start everything that records."""
        spec, start = self.spec, self.start
        directory = self.place.directory
        is_rank = spec.parent is None
        self.store.begin(
            self.attempt,
            trace_id=self.identity.trace_id,
            span_id=self.identity.run_span_id,
            time_unix_nano=start.time_unix_nano,
        )
        began_first = start.time_unix_nano
        resumed: dict[str, int] = {}
        if is_rank and directory is not None:
            began_first = self._first_start(directory) or began_first
        if is_rank and self.place.earlier_attempts:
            resumed = self._resumed_steps()
        self._connect_state(began_unix_nano=began_first)
        self.otel = OtelSide(self, export=is_rank, began_unix_nano=began_first)
        self.metrics = MetricRecorder(self.writer, self.clock, self.notices, spec.run_id, resumed)
        self.steps = StepRecorder(
            self.writer,
            self.clock,
            self.notices,
            spec.run_id,
            self.state,
            keep_durations=self.otel.exports_metrics,
            captures=self.otel.captures,
        )
        self.journal = Journal(self)
        self.consumer = PointConsumer(
            self.metrics.queue,
            run_id=spec.run_id,
            rank=spec.context.rank,
            attempt=self.attempt,
            storage=self.store.storage,
            publish=self.hub.publish,
            notices=self.notices,
        )
        self.alerting = Alerting(self)
        if is_rank and self.place.earlier_attempts:
            self.consumer.submit(lambda storage: self.store.catch_up(storage, self.place, self.attempt))
        if is_rank:
            self.otel.begin()
            self.writer.write(collect_environment(self.git, spec.redactor))
            self.heartbeat = Heartbeat(
                self.writer,
                self.clock,
                start,
                interval_s=spec.config.heartbeat_s,
                fsync_interval_s=spec.config.fsync_interval_s,
                sample=self.usage.sample,
                beaten=self._beaten,
            )
            self.alerting.start()
        if spec.params:
            self.journal.log_params(spec.params)
        if spec.tags:
            self.journal.set_tags(spec.tags)
        if spec.config.capture_output and self.place.directory is not None and is_rank:
            log_file = self.place.directory.log_file(spec.context.rank, spec.context.world_size)
            try:
                self.output = OutputCopy(log_file)
            except OSError as error:
                raise ConfigError(
                    f"{log_file} cannot be written ({error.strerror}): set capture_output=False, or free the path"
                ) from error

    def _first_start(self, directory: RunDirectory) -> int | None:
        """Return when the run began in its first attempt, None where no older file tells."""
        try:
            return first_start(directory)
        except (OSError, TraceFormatError) as error:
            self.notices.warn_once("resume", f"the first attempt cannot be read ({error}); this one counts as it")
            return None

    def _resumed_steps(self) -> dict[str, int]:
        """Return where each key's counter goes on, from the rank's older files or the storage."""
        rank, directory, storage = self.spec.context.rank, self.place.directory, self.store.storage
        sources: list[Callable[[], dict[str, int]]] = []
        if directory is not None and any(attempt < self.attempt for attempt in directory.attempts_of(rank)):
            sources.append(lambda: next_automatic_steps(directory, rank, self.attempt))
        if storage is not None:
            sources.append(lambda: storage.next_steps(self.spec.run_id, rank))
        for source in sources:
            try:
                return source()
            except Exception as error:  # noqa: BLE001 - resuming must not fail over history
                self.notices.warn_once("resume", f"earlier steps cannot be read ({error}): counters may start at 0")
        return {}

    @property
    def rank_context(self) -> RankContext:
        """This process's place among the ranks, with the attempt that it makes."""
        context = self.spec.context
        return RankContext(
            context.rank,
            context.world_size,
            local_rank=context.local_rank,
            node_rank=context.node_rank,
            attempt=self.attempt,
            launcher=context.launcher,
            host=context.host,
        )

    def summary(self) -> dict[str, MetricSummary]:
        """Return last, min, max and count of each key."""
        if self.consumer is None:
            return {}
        with self.writer.inside():
            return self.consumer.summary()

    def recent_metrics(self, limit: int) -> dict[str, MetricSnapshot]:
        """Return the last points of each key.

        Raises:
            ValueError: the limit is negative.
        """
        if limit < 0:
            raise ValueError(f"limit={limit} cannot be used: it takes a number from 0 up")
        if self.consumer is None:
            return {}
        with self.writer.inside():
            return self.consumer.snapshots(limit)

    def child_environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return a copy of an environment with what a child process needs to join the run."""
        environ = dict(base)
        environ["RUNSPAN_RUN_ID"] = self.spec.run_id
        trace_dir = self.spec.config.trace_dir
        environ["RUNSPAN_TRACE_DIR"] = "none" if trace_dir is None else str(trace_dir)
        environ["RUNSPAN_PARENT"] = format_parent(self.spec.context, self.attempt)
        traceparent = self.otel.traceparent()
        if traceparent is not None:
            environ["TRACEPARENT"] = traceparent
        return environ

    def counts(self) -> dict[str, float]:
        """Return this attempt's totals: steps, samples, tokens and the user's counters."""
        state = self.state
        totals: dict[str, float] = {"steps": state.steps, "samples": state.samples, "tokens": state.tokens}
        for (key, _unit), total in list(state.counts.items()):
            totals[key] = totals.get(key, 0) + total
        return totals

    def dropped(self) -> dict[tuple[str, str], int]:
        """Return what was lost so far, by (signal, reason)."""
        file_losses = {("file", reason): count for reason, count in self.writer.lost().items()}
        otel: OtelSide | None = getattr(self, "otel", None)  # None where the start failed before it
        return {**self.notices.dropped(), **({} if otel is None else otel.dropped()), **file_losses}

    def _connect_state(self, *, began_unix_nano: int) -> None:
        """Let the exported metrics be read from this session."""
        state = self.state
        state.status = RunStatus.RUNNING
        state.start_time_unix_nano = began_unix_nano
        state.heartbeat_time_unix_nano = self.start.time_unix_nano
        state.usage = self.usage
        state.dropped = self.dropped
        state.refresh = self._refresh_state

    def _refresh_state(self) -> None:
        if self.consumer is not None:
            self.state.latest, self.state.nonfinite = self.consumer.latest()

    def _beaten(self, time_unix_nano: int) -> None:
        self.state.heartbeat_time_unix_nano = time_unix_nano
        self.clock_watch.look()
        if self.alerting is not None:
            self.alerting.check()
        if self.consumer is not None:
            counts = self.counts()
            self.consumer.submit(lambda storage: self.store.set_counts(storage, self.attempt, counts))

    # What the process's hooks ask of a run, see lifecycle.OpenRun.

    def is_finished(self) -> bool:
        """Whether the run has ended in this process."""
        return self.ending.status is not None

    def is_inside(self) -> bool:
        """Whether the calling thread is inside a recording call or inside finish."""
        return self.writer.is_inside() or self.ending.is_ending_here()

    def defer(self, work: Callable[[], None]) -> None:
        """Have the interrupted recording call or finish do this at its end."""
        self.writer.defer(work)

    def note_signal(self, name: str) -> None:
        """Remember that the process was asked to end, and flush."""
        self.ending.noted_signal = name
        if self.ending.forked:
            return
        self.journal.event(name, level="warning", message=f"{name} received", attributes={})
        self.otel.flush_soon()

    def finish_bounded(self, status: RunStatus, reason: str) -> None:
        """End the run from a signal handler, waiting no longer than the configuration allows."""
        self.ending.finish_bounded(status, reason)

    def finish_implicitly(
        self, status: RunStatus, reason: str | None = None, error: BaseException | None = None
    ) -> None:
        """End the run as the program's course has it, unless a signal has asked the process to end."""
        self.ending.finish_implicitly(status, reason, error)

    def after_fork_in_child(self) -> None:
        """Become the run of a child process: a file of its own, counters of its own, no threads, no export."""
        self.ending = Finish(self, forked=True, status=self.ending.status)
        if self.is_finished():
            return
        self.writer.abandon()
        self.steps.abandon()
        self.notices.after_fork()
        self.store.after_fork_in_child()
        self.heartbeat = None
        self.consumer = None
        if self.alerting is not None:
            self.alerting.abandon()
        self.hub = SubscriptionHub()
        self.output = None
        self.start = TraceStart.now(self.clock)
        self.state = RunMetrics()
        self.writer = self._child_writer(self.attempt)
        self.clock_watch = ClockWatch(self.writer, self.clock, self.start)
        self.metrics = MetricRecorder(self.writer, self.clock, self.notices, self.spec.run_id, is_consumed=False)
        self.steps = StepRecorder(
            self.writer,
            self.clock,
            self.notices,
            self.spec.run_id,
            self.state,
            keep_durations=False,
            captures=None,
        )
        self.otel.after_fork_in_child()
        self.journal = Journal(self)
        file_parent.set(None)
