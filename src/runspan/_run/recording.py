"""The members of a Run that record: metrics, parameters, artifacts, events, spans and steps."""

from __future__ import annotations

from collections.abc import Sized
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import trace

from runspan._plain import text_of
from runspan._run.checkpoints import CheckpointScope
from runspan._run.progress import step_progress
from runspan._run.steps import NO_RECORDER, CapturedPhaseScope, PhaseScope, StepScope, active_step
from runspan.errors import InvalidStateError
from runspan.records import AlertLevel
from runspan.semconv import Attr, SpanName

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from runspan._run.recorder import EvidenceRecorder
    from runspan._run.session import Session
    from runspan.records import MetricSummary

__all__ = ["Recording"]

T = TypeVar("T")


class Recording:
    """What training code calls; no member raises, unless the run is strict.

    Args:
        session: what records.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    # metrics

    def log_metric(self, key: str, value: Any) -> None:
        """Record a value at the key's own next step.

        Args:
            key: any non-empty string.
            value: a number, or a one-element array or tensor; NaN and infinities are kept.
        """
        self._session.metrics.log(key, value)

    def log_metric_at(self, key: str, step: Any, value: Any) -> None:
        """Record a value at a step; the key's own counter stays."""
        self._session.metrics.log_at(key, step, value)

    def log_metrics(self, values: Mapping[str, Any], step: Any = None) -> None:
        """Record several values in one line: at ``step``, or each at its key's own next one."""
        self._session.metrics.log_many(values, step)

    def current_step(self, key: str) -> int:
        """Return the key's next automatic step: 3 after three ``log_metric`` calls, 0 for an unknown key."""
        return self._session.metrics.current_step(key)

    def metric_keys(self) -> list[str]:
        """Return every key logged, in first-logged order."""
        return self._session.metrics.keys

    @property
    def summary(self) -> dict[str, MetricSummary]:
        """Last, min, max and count of each key."""
        return self._session.summary()

    def count(self, key: str, n: float = 1) -> None:
        """Add to a counter of this run."""
        if self._is_open("count"):
            self._session.journal.count(key, n)

    def observe(self, key: str, value: Any, unit: str = "") -> None:
        """Add an observation to a distribution; the first unit of a key holds."""
        if self._is_open("observe"):
            self._session.journal.observe(key, value, unit)

    # what the run is

    def log_params(self, params: Any) -> None:
        """Record parameters: a mapping, a Namespace or a dataclass. The last value of a key holds."""
        if self._is_open("log_params"):
            self._session.journal.log_params(params)

    def log_param(self, key: str, value: Any) -> None:
        """Record one parameter."""
        self.log_params({text_of(key): value})

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags."""
        if self._is_open("set_tags"):
            self._session.journal.set_tags(tags)

    def set_tag(self, key: str, value: Any) -> None:
        """Set one tag."""
        self.set_tags({text_of(key): value})

    def log_artifact(
        self,
        name: str,
        content: str | os.PathLike[str] | bytes,
        *,
        step: Any = None,
        by_reference: bool = False,
    ) -> str | None:
        """Keep a file, a directory or bytes in the run directory, the same content once.

        Args:
            name: what it is called.
            content: a path, or the bytes themselves.
            step: the step it belongs to.
            by_reference: only hash it where it is.

        Returns:
            ``sha256-<64 hex digits>``: of the bytes, or of a directory's sorted manifest. None when it could not be
            read or kept, which is told of.
        """
        if not self._is_open("log_artifact"):
            return None
        return self._session.journal.log_artifact(name, content, step=step, by_reference=by_reference)

    def event(self, name: str, level: str = "info", **attributes: Any) -> None:
        """Write a line about something that happened; the attribute ``message`` becomes its text."""
        if self._is_open("event"):
            message = text_of(attributes.pop("message", name))
            self._session.journal.event(name, level=text_of(level), message=message, attributes=attributes)

    def alert(self, title: str, text: str = "", level: AlertLevel | str = AlertLevel.WARNING) -> None:
        """Raise an alert: to log, file, trace (exported at once) and counter.

        Raises:
            ConfigError: the level is none of :class:`~runspan.AlertLevel`, and the run is strict.
        """
        if self._is_open("alert"):
            self._session.journal.alert(title, text, level, rule="user")

    @property
    def should_stop(self) -> bool:
        """Whether an alert asks the training to stop, see ``stop_on_error`` and ``stop_on_critical``."""
        return self._session.journal.should_stop

    # spans and steps

    def span(self, name: str, **attributes: Any) -> AbstractContextManager[trace.Span]:
        """Time a block as a span; inside an uncaptured step it stands in the file alone.

        The parent is the current span if it is of this run, else this process's ``rank`` span. Entering returns the
        span, whose attributes may be any Python values.
        """
        session = self._session
        if session.ending.status is not None and not self._is_open("span"):
            return nullcontext(trace.INVALID_SPAN)
        step = session.steps.active()
        if step is None:
            return session.otel.scope(name, attributes)
        if step.capture is not None:
            return step.capture.scope(name, attributes)
        return session.otel.hidden_scope(name, attributes)

    def epoch(self, n: int) -> AbstractContextManager[trace.Span]:
        """Time an epoch."""
        return self._long_span(SpanName.EPOCH, {Attr.EPOCH: n})

    def evaluate(self) -> AbstractContextManager[trace.Span]:
        """Time an evaluation."""
        return self._long_span(SpanName.EVALUATE, {})

    def checkpoint(self, path: str | os.PathLike[str] | None = None) -> AbstractContextManager[trace.Span]:
        """Time the writing of a checkpoint; its size is read from ``path`` at the end."""
        if not self._is_open("checkpoint"):
            return nullcontext(trace.INVALID_SPAN)
        return CheckpointScope(self._session, path)

    def step(self, n: Any = None, *, samples: int = 0, tokens: int = 0) -> AbstractContextManager[StepScope | None]:
        """Time a training step; ``n`` counts from 0, None: the next one."""
        session = self._session
        if session.ending.status is not None and not self._is_open("step"):
            return nullcontext()
        return session.steps.begin(n, samples, tokens)

    @property
    def recorder(self) -> EvidenceRecorder:
        """The recorder of the step that the calling context is inside of; it does nothing outside a captured step."""
        step = self._session.steps.active()
        return NO_RECORDER if step is None else step.recorder

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Time a phase of the current step (forward, backward, …); outside a step a span of the file."""
        step = active_step.get()
        if step is not None and step.uncaptured_by is self._session.steps and type(name) is str:
            return PhaseScope(step, name, step.monotonic_ns())
        return self._unusual_phase(name)

    def steps(self, iterable: Iterable[T], total: int | None = None, progress: bool | None = None) -> Iterator[T]:
        """Yield the items of a loop, one step an item, the wait for each item timed as data.

        Args:
            iterable: what to loop over.
            total: how many items there are; None: its length, where it has one.
            progress: show a progress bar on a terminal's stderr.
        """
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        if not self._is_open("steps"):
            yield from iterable
            return
        with step_progress(total, shown=bool(progress)) as advance:
            yield from self._session.steps.each(iterable, total, advance)

    def _unusual_phase(self, name: Any) -> AbstractContextManager[Any]:
        """Time a phase of a captured step, or outside any step."""
        session, text = self._session, text_of(name)
        step = session.steps.active()
        if step is not None:
            if step.capture is None:
                return PhaseScope(step, text, step.monotonic_ns())
            return CapturedPhaseScope(PhaseScope(step, text, step.monotonic_ns()), step.capture.scope(text, {}))
        return session.otel.hidden_scope(text, {}) if self._is_open("phase") else nullcontext(trace.INVALID_SPAN)

    def _long_span(self, name: str, attributes: dict[str, Any]) -> AbstractContextManager[trace.Span]:
        if not self._is_open(name):
            return nullcontext(trace.INVALID_SPAN)
        return self._session.otel.long_scope(name, attributes)

    def _is_open(self, member: str) -> bool:
        """Whether the run still records; tells of a late call, or raises when strict."""
        if not self._session.is_finished():
            return True
        error = InvalidStateError(f"cannot log to finished run {self._session.spec.run_id} ({member})")
        self._session.notices.refuse(member, "after_finish", "late", error)
        return False
