"""Run: one training or benchmark run, recorded as an OpenTelemetry span, a trace file, metrics and storage rows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn, cast

from runspan._plain import text_of
from runspan._run.failures import is_cancellation, is_normal_end
from runspan._run.lifecycle import innermost, open_runs
from runspan._run.recording import Recording
from runspan._run.session import Session
from runspan._run.spec import default_experiment, experiment_id_of, resolve_spec
from runspan.errors import InvalidStateError
from runspan.records import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from runspan.config import TracingConfig
    from runspan.dashboard import Subscription
    from runspan.distributed import RankContext
    from runspan.records import MetricPoint, MetricSnapshot, ResourceSnapshot
    from runspan.storage.base import ExperimentStorage
    from runspan.telemetry.processor import RunTraceProcessor

__all__ = ["Run", "current_run", "start_run"]


class Run(Recording):
    """A training or benchmark run of one process.

    Constructing it starts it: the trace file has its first line, and the ``run`` span (rank 0) and the ``rank`` span
    are open. Entering it as a context manager makes it the current run and its ``rank`` span the current span; leaving
    finishes it. Nothing that records raises, unless ``config.strict``: what cannot be recorded is left out, counted,
    and told once through the logger ``runspan``. Every method may be called from any thread.

    Args:
        experiment_id: the experiment's id, which ``storage`` must know.
        storage: where rows go; None: nowhere but the trace file.
        config: None: ``TracingConfig.from_env()``.
        rank_context: this process's place among the ranks; None: as the launcher's environment says.
        name: a display name.
        group: a name that several runs share.
        run_id: the run's id, equal on all ranks; None: ``RUNSPAN_RUN_ID``, the launcher's job id, or a new one.
        resume: ``never``, ``allow`` or ``must``: what to do where this rank has earlier attempts.
        params: parameters: a mapping, a Namespace or a dataclass.
        tags: provenance, strings by name.
        entrypoint: what is analysed, such as ``train:main``; None: ``<script>:__main__``.
        phase: train or infer.
        device: as the caller asks for it, such as ``cuda:0``.
        correlation_id: a stable key shared with outside artifacts; None: the run id.
        timing_mode: host or device_synchronized.
        candle_version: the version of candle, where that is what runs.

    Raises:
        ConfigError: an argument or an environment variable cannot be used, or the trace directory cannot be written.
        ExperimentNotFoundError: the storage does not know the experiment.
        InvalidStateError: ``resume`` does not allow what is there.
    """

    def __init__(
        self,
        experiment_id: str,
        storage: ExperimentStorage | None = None,
        config: TracingConfig | None = None,
        *,
        rank_context: RankContext | None = None,
        name: str | None = None,
        group: str | None = None,
        run_id: str | None = None,
        resume: str = "allow",
        params: Any = None,
        tags: Mapping[str, Any] | None = None,
        entrypoint: str | None = None,
        phase: str = "train",
        device: str = "cpu",
        correlation_id: str | None = None,
        timing_mode: str = "host",
        candle_version: str | None = None,
    ) -> None:
        spec = resolve_spec(
            experiment_id=experiment_id,
            experiment_name=None,
            config=config,
            rank_context=rank_context,
            name=name,
            group=group,
            run_id=run_id,
            resume=resume,
            params=params,
            tags=tags,
            entrypoint=entrypoint,
            phase=phase,
            device=device,
            correlation_id=correlation_id,
            timing_mode=timing_mode,
            candle_version=candle_version,
        )
        self._begin(Session(spec, storage))

    @classmethod
    def _of_session(cls, session: Session) -> Run:
        run = cls.__new__(cls)
        run._begin(session)  # noqa: SLF001 - the class's own
        return run

    def _begin(self, session: Session) -> None:
        super().__init__(session)
        self._outer: Any = None
        self._leave_rank: Callable[[], None] = lambda: None
        session.owner = self
        open_runs.add(session)

    def __enter__(self) -> Run:  # noqa: PYI034 - Run is not made to be subclassed
        self._outer = innermost.get()
        innermost.set(self._session)
        self._leave_rank = self._session.otel.enter_rank()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave_rank()
        if innermost.get() is self._session:
            innermost.set(self._outer)
        ending = self._session.ending
        if ending.status is not None:
            return
        if exception is None or is_normal_end(exception):
            ending.finish_implicitly(RunStatus.SUCCESS)
        elif is_cancellation(exception):
            ending.finish_implicitly(RunStatus.CANCELLED, type(exception).__name__)
        else:
            ending.finish_implicitly(RunStatus.FAILED, error=exception)

    def __repr__(self) -> str:
        return (
            f"<Run {self.id!r} experiment={self.experiment_id!r} "
            f"span={'yes' if self.span_id is not None else 'no'} {'finished' if self.is_finished() else 'open'}>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"Run {self.id!r} cannot be pickled: it holds threads and an open file. Start child processes with"
            " env=run.child_environ() and call runspan.start_run() there; in a forked child use runspan.current_run()"
        )

    # identity

    @property
    def id(self) -> str:
        """The run's id, equal on all ranks."""
        return self._session.spec.run_id

    @property
    def run_id(self) -> str:
        """The run's id, equal on all ranks."""
        return self._session.spec.run_id

    @property
    def experiment_id(self) -> str:
        """The experiment's id."""
        return self._session.spec.experiment_id

    @property
    def name(self) -> str | None:
        """The display name."""
        return self._session.spec.name

    @property
    def span_id(self) -> str | None:
        """The ``run`` span's id, lower-case hex; None when tracing is off."""
        return self._session.identity.run_span_id

    @property
    def trace_id(self) -> str | None:
        """The run's trace id, equal on all ranks, lower-case hex; None when tracing is off."""
        return self._session.identity.trace_id

    @property
    def tracing_config(self) -> TracingConfig:
        """The configuration."""
        return self._session.spec.config

    @property
    def rank_context(self) -> RankContext:
        """This process's place among the ranks, with the attempt it makes."""
        return self._session.rank_context

    @property
    def directory(self) -> Path | None:
        """The run directory, None without a file."""
        directory = self._session.place.directory
        return None if directory is None else directory.path

    @property
    def span_processor(self) -> RunTraceProcessor:
        """A span processor for the host program's own tracer provider: spans of this run's trace go to its file."""
        return self._session.otel.processor

    def child_environ(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return a copy of an environment by which a child process joins this run; nothing else in it changes.

        ``start_run()`` in the child opens a child file of this rank; a child that is given a rank of its own
        (``RUNSPAN_RANK`` and ``RUNSPAN_WORLD_SIZE``) is that rank of the run.

        Args:
            base: the environment to copy; None: this process's.
        """
        return self._session.child_environ(os.environ if base is None else base)

    # the end

    def finish(self, status: RunStatus | str = RunStatus.SUCCESS, reason: str | None = None) -> None:
        """End the run: storage, spans, export, and the file's terminal event.

        Waits for the export no longer than ``shutdown_timeout_s``. A second finish with the same status does nothing,
        one with another status warns.

        Raises:
            InvalidStateError: the status is not final.
        """
        try:
            final = RunStatus(status)
        except ValueError:
            raise InvalidStateError(f"{status!r} is no status: use success, failed or cancelled") from None
        self._session.ending.finish(final, None if reason is None else text_of(reason))

    def is_finished(self) -> bool:
        """Whether the run has ended in this process."""
        return self._session.is_finished()

    # DashboardSource

    def status(self) -> RunStatus:
        """Return the status of this process's part of the run."""
        return self._session.ending.status or RunStatus.RUNNING

    def recent_metrics(self, limit: int) -> dict[str, MetricSnapshot]:
        """Return the last ``limit`` points of each key; 0: none of each.

        Raises:
            ValueError: the limit is negative.
        """
        return self._session.recent_metrics(limit)

    def subscribe(self, callback: Callable[[MetricPoint], None]) -> Subscription:
        """Call back with each point after it was written, on a thread of its own."""
        return self._session.hub.subscribe(callback)

    def resource_usage(self) -> ResourceSnapshot:
        """Sample what this process's machine and device are busy with."""
        return self._session.usage.sample()


def start_run(
    experiment: str | None = None,
    *,
    rank_context: RankContext | None = None,
    name: str | None = None,
    group: str | None = None,
    run_id: str | None = None,
    resume: str = "allow",
    params: Any = None,
    tags: Mapping[str, Any] | None = None,
    entrypoint: str | None = None,
    phase: str = "train",
    device: str = "cpu",
    correlation_id: str | None = None,
    timing_mode: str = "host",
    candle_version: str | None = None,
    storage: ExperimentStorage | None = None,
    config: TracingConfig | None = None,
) -> Run:
    """Start a run; use it as a context manager.

    Args:
        experiment: the experiment's name; None: ``RUNSPAN_EXPERIMENT``, else the script's stem.
        rank_context: see :class:`Run`, as for all that follow.
        name: a display name.
        group: a name that several runs share.
        run_id: the run's id, equal on all ranks.
        resume: ``never``, ``allow`` or ``must``.
        params: parameters.
        tags: provenance.
        entrypoint: what is analysed.
        phase: train or infer.
        device: as the caller asks for it.
        correlation_id: a stable key shared with outside artifacts.
        timing_mode: host or device_synchronized.
        candle_version: the version of candle.
        storage: where rows go; None: ``RUNSPAN_STORAGE``, else SQLite in runspan's folder.
        config: None: ``TracingConfig.from_env()``.

    Raises:
        ConfigError: an argument or an environment variable cannot be used, or the trace directory cannot be written.
        InvalidStateError: ``resume`` does not allow what is there.
    """
    experiment_name = default_experiment(os.environ) if experiment is None else experiment
    spec = resolve_spec(
        experiment_id=experiment_id_of(experiment_name),
        experiment_name=experiment_name,
        config=config,
        rank_context=rank_context,
        name=name,
        group=group,
        run_id=run_id,
        resume=resume,
        params=params,
        tags=tags,
        entrypoint=entrypoint,
        phase=phase,
        device=device,
        correlation_id=correlation_id,
        timing_mode=timing_mode,
        candle_version=candle_version,
    )
    return Run._of_session(Session(spec, storage, open_default_storage=True))  # noqa: SLF001 - the same module


def current_run() -> Run | None:
    """Return the run that the calling context is inside of, else the process's innermost open one, else None."""
    session = cast("Session | None", open_runs.current())
    return None if session is None else cast("Run", session.owner)
