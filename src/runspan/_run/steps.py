"""Steps and their phases: timed on the training's thread with as little work as it takes, one file line a step."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from runspan._run.values import InvalidValueError, metric_step
from runspan.errors import ConfigError, InvalidStateError
from runspan.tracefile.events import Step, encode, encode_plain, jsonable
from runspan.tracefile.writer import ClosedWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from runspan._clock import Clock
    from runspan._run.notices import Notices
    from runspan.telemetry.instruments import RunMetrics
    from runspan.tracefile.writer import TraceWriter

__all__ = ["PhaseScope", "StepRecorder", "StepScope"]

T = TypeVar("T")

_active_step: ContextVar[StepScope | None] = ContextVar("runspan_step", default=None)


class StepScope:
    """One training step as a context manager.

    ``samples`` and ``tokens`` may be set until the step ends, for loops that know them late.

    Attributes:
        step: the step's number, from 0.
        samples: how many samples it processed.
        tokens: how many tokens it processed.
    """

    __slots__ = ("_began_ns", "_outer", "_recorder", "data_ns", "phases", "samples", "step", "tokens", "total")

    def __init__(self, recorder: StepRecorder, step: int, samples: int, tokens: int) -> None:
        self._recorder = recorder
        self.step = step
        self.samples = samples
        self.tokens = tokens
        self.phases: dict[str, int] | None = None
        self.data_ns: int | None = None
        self.total: int | None = None
        self._began_ns = 0
        self._outer: StepScope | None = None

    def __enter__(self) -> StepScope:  # noqa: PYI034 - the class is final in fact
        self._outer = _active_step.get()
        _active_step.set(self)
        if not self._began_ns:
            self._began_ns = self._recorder.monotonic_ns()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        recorder = self._recorder
        duration_ns = recorder.monotonic_ns() - self._began_ns
        _active_step.set(self._outer)
        recorder.record(self, duration_ns)

    def start_at(self, monotonic_ns: int, data_ns: int) -> None:
        """Let the step begin earlier than it is entered: when the wait for its data began."""
        self._began_ns = monotonic_ns
        self.data_ns = data_ns


class PhaseScope:
    """A phase inside a step; its time is added to the step's line."""

    __slots__ = ("_began_ns", "_name", "_step")

    def __init__(self, step: StepScope, name: str) -> None:
        self._step = step
        self._name = name

    def __enter__(self) -> None:
        self._began_ns = self._step._recorder.monotonic_ns()  # noqa: SLF001 - the two classes are one mechanism

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        step, name = self._step, self._name
        duration_ns = step._recorder.monotonic_ns() - self._began_ns  # noqa: SLF001 - as above
        phases = step.phases
        if phases is None:
            step.phases = {name: duration_ns}
        elif name in phases:
            phases[name] += duration_ns
        else:
            phases[name] = duration_ns


class StepRecorder:
    """Numbers steps, writes their lines and keeps their totals.

    Args:
        writer: the trace file.
        clock: the clocks.
        notices: told of steps that are no steps.
        run_id: named in errors.
        metrics: where totals go.
        keep_durations: whether somebody takes the durations out of ``metrics`` again.
    """

    def __init__(
        self,
        writer: TraceWriter,
        clock: Clock,
        notices: Notices,
        run_id: str,
        metrics: RunMetrics,
        *,
        keep_durations: bool,
    ) -> None:
        self._writer = writer
        self.monotonic_ns = clock.monotonic_ns
        self._time_ns = clock.time_ns
        self._notices = notices
        self._run_id = run_id
        self._metrics = metrics
        self._keep_durations = keep_durations
        self._next_step = 0

    def close(self) -> None:
        """Refuse what comes from now on."""
        self._writer = ClosedWriter(self._refuse_late)

    def active(self) -> StepScope | None:
        """Return the step of this run that the calling context is inside of."""
        step = _active_step.get()
        return step if step is not None and step._recorder is self else None  # noqa: SLF001 - as above

    def begin(self, number: Any, samples: Any, tokens: Any) -> StepScope:
        """Return the next step, or the one with this number; a number that is none is told of and replaced."""
        step = self._next_step if number is None else self._checked("step", number, self._next_step)
        self._next_step = step + 1
        if type(samples) is not int or samples < 0:
            samples = self._checked("samples", samples, 0)
        if type(tokens) is not int or tokens < 0:
            tokens = self._checked("tokens", tokens, 0)
        return StepScope(self, step, samples, tokens)

    def record(self, scope: StepScope, duration_ns: int) -> None:
        """Write the line of a step that ended, and count it."""
        time_unix_nano = self._time_ns()
        samples, tokens = scope.samples, scope.tokens
        if type(samples) is not int or type(tokens) is not int:  # set by the caller while the step ran
            samples, tokens = self._checked("samples", samples, 0), self._checked("tokens", tokens, 0)
        event = Step(
            step=scope.step,
            duration_ns=duration_ns,
            data_ns=scope.data_ns,
            phases=scope.phases,
            samples=samples or None,
            tokens=tokens or None,
            total=scope.total,
            time_unix_nano=time_unix_nano,
        )
        try:
            line = encode_plain(event)
        except (UnicodeEncodeError, TypeError):  # a phase's name with a lone surrogate, or one that is no string
            phases = {str(jsonable(name)): duration for name, duration in (scope.phases or {}).items()}
            line = encode(msgspec.structs.replace(event, phases=phases))
        writer, metrics = self._writer, self._metrics
        with writer.lock:
            if writer.append(line):
                metrics.steps += 1
                metrics.samples += samples
                metrics.tokens += tokens
                metrics.last_step = scope.step
                metrics.last_step_time_unix_nano = time_unix_nano
                if self._keep_durations:
                    self._keep(scope, duration_ns)
        if writer.deferred is not None:
            writer.run_deferred()

    def _refuse_late(self) -> None:
        error = InvalidStateError(f"cannot log to finished run {self._run_id}")
        self._notices.refuse("step", "after_finish", "late", error)

    def _keep(self, scope: StepScope, duration_ns: int) -> None:
        keep = self._metrics.durations.append
        keep((None, duration_ns, None))
        for name, phase_ns in (scope.phases or {}).items():
            keep((name, phase_ns, None))
        if scope.data_ns is not None:
            keep(("data", scope.data_ns, None))

    def each(self, iterable: Iterable[Any], total: int | None, advance: Any) -> Iterator[Any]:
        """Yield the items of an iterable, one step an item, the wait for each timed."""
        items = iter(iterable)
        if total is not None and type(total) is not int:
            total = self._checked("total", total, None)
        while True:
            began_ns = self.monotonic_ns()
            try:
                item = next(items)
            except StopIteration:
                return
            scope = self.begin(None, 0, 0)
            scope.start_at(began_ns, self.monotonic_ns() - began_ns)
            scope.total = total
            with scope:
                yield item
            advance()

    def _checked(self, name: str, value: Any, instead: T) -> int | T:
        try:
            return metric_step(value)
        except InvalidValueError as error:
            self._notices.refuse("step", "invalid_value", name, ConfigError(f"{name}: {error}; {instead} is used"))
            return instead
