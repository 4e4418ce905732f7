"""Steps and their phases: timed on the training's thread with as little work as it takes, one file line a step."""

from __future__ import annotations

from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from runspan._run.recorder import EvidenceRecorder
from runspan._run.values import STEP_MAX, InvalidValueError, metric_step
from runspan.errors import ConfigError, InvalidStateError
from runspan.semconv import SpanName
from runspan.tracefile.events import Step, encode, encode_plain, jsonable
from runspan.tracefile.writer import ClosedWriter, NullWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from opentelemetry import trace
    from opentelemetry.trace import SpanContext

    from runspan._clock import Clock
    from runspan._run.captured_step import Capture
    from runspan._run.captures import StepCaptures
    from runspan._run.notices import Notices
    from runspan.telemetry.instruments import RunMetrics
    from runspan.tracefile.writer import TraceWriter

__all__ = ["CapturedPhaseScope", "PhaseScope", "StepRecorder", "StepScope", "active_step"]

T = TypeVar("T")

_STEP_BITS = STEP_MAX.bit_length()

#: The innermost step of the calling context, of whatever run.
active_step: ContextVar[StepScope | None] = ContextVar("runspan_step", default=None)


class StepScope:
    """One training step as a context manager.

    ``samples`` and ``tokens`` may be set until the step ends, for loops that know them late.

    Attributes:
        recorder: records what a captured step holds beside its spans; does nothing on an uncaptured one.
        made_by: who made it.
        step: the step's number, from 0.
        samples: how many samples it processed.
        tokens: how many tokens it processed.
    """

    # What most steps leave as it is stands on the class: a step must not pay for it.
    #: The trace and file of its own that a captured step has.
    capture: Capture | None = None
    recorder = EvidenceRecorder()
    data_ns: int | None = None
    total: int | None = None
    _began_ns = -1
    _outer: StepScope | None = None

    def __init__(self, made_by: StepRecorder, step: int, samples: int, tokens: int) -> None:
        self.made_by = made_by
        self.monotonic_ns = made_by.monotonic_ns
        self.step = step
        self.samples = samples
        self.tokens = tokens
        #: Name, beginning and duration of each phase that is over, ns.
        self.phases: list[tuple[str, int, int]] = []

    def __enter__(self) -> StepScope:  # noqa: PYI034 - the class is final in fact
        self._outer = active_step.get()
        active_step.set(self)
        if self.capture is not None:
            self.capture.enter()
        if self._began_ns < 0:
            self._began_ns = self.monotonic_ns()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        duration_ns = self.monotonic_ns() - self._began_ns
        active_step.set(self._outer)
        self.made_by.record(self, self._began_ns, duration_ns, None if exception_type is GeneratorExit else exception)

    def begin_captured(self, capture: Capture | None) -> None:
        """Let the step be a captured one, from the capture's start on; None: it is not."""
        if capture is not None:
            self.capture = capture
            self.recorder = capture.recorder
            self._began_ns = capture.start.monotonic_ns

    def start_at(self, monotonic_ns: int, data_ns: int) -> None:
        """Let the step begin earlier than it is entered: when the wait for its data began."""
        self._began_ns = monotonic_ns
        self.data_ns = data_ns
        if self.capture is not None:
            self.capture.add_phase(SpanName.DATA, monotonic_ns, data_ns)


class PhaseScope:
    """A phase inside a step; its time is added to the step's line."""

    __slots__ = ("_began_ns", "_name", "_step")

    def __init__(self, step: StepScope, name: str) -> None:
        self._step = step
        self._name = name

    def __enter__(self) -> None:
        self._began_ns = self._step.monotonic_ns()

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        step, began_ns = self._step, self._began_ns
        step.phases.append((self._name, began_ns, step.monotonic_ns() - began_ns))


class CapturedPhaseScope(PhaseScope):
    """A phase inside a captured step: a span too.

    Args:
        step: the step.
        name: the phase's name.
        span: the span's scope.
    """

    __slots__ = ("_span",)

    def __init__(self, step: StepScope, name: str, span: AbstractContextManager[trace.Span]) -> None:
        super().__init__(step, name)
        self._span = span

    def __enter__(self) -> None:
        self._span.__enter__()
        super().__enter__()

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(exception_type, exception, traceback)
        self._span.__exit__(exception_type, exception, traceback)


class StepRecorder:
    """Numbers steps, writes their lines and keeps their totals.

    Args:
        writer: the trace file.
        clock: the clocks.
        notices: told of steps that are no steps.
        run_id: named in errors.
        metrics: where totals go.
        keep_durations: whether somebody takes the durations out of ``metrics`` again.
        captures: says which steps are captured; None: none is.
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
        captures: StepCaptures | None,
    ) -> None:
        self._writer = writer
        self.monotonic_ns = clock.monotonic_ns
        self._time_ns = clock.time_ns
        self._notices = notices
        self._run_id = run_id
        self._metrics = metrics
        self._keep_durations = keep_durations
        self._captures = captures
        #: Numbers the steps; taking the next one is atomic.
        self._numbers = count()

    def close(self) -> None:
        """Refuse what comes from now on."""
        self._writer = ClosedWriter(self._refuse_late)

    def abandon(self) -> None:
        """Record nothing from now on, in a forked child: the steps that are open are the parent process's."""
        self._writer = NullWriter()
        self._captures = None

    def active(self) -> StepScope | None:
        """Return the step of this run that the calling context is inside of."""
        step = active_step.get()
        return step if step is not None and step.made_by is self else None

    def begin(self, number: Any, samples: Any, tokens: Any, began_ns: int | None = None) -> StepScope:
        """Return the next step, or the one with this number; a number that is none is told of and replaced.

        Args:
            number: the step's number, None for the next one.
            samples: how many samples it processes.
            tokens: how many tokens it processes.
            began_ns: when it began, monotonic; None: it begins when it is entered.
        """
        step = next(self._numbers) if number is None else self._explicit(number)
        scope = StepScope(self, step, samples, tokens)
        captures = self._captures
        if captures is not None and step >= captures.next_step:
            scope.begin_captured(captures.scheduled(step, began_ns))
        return scope

    def record(  # noqa: C901, PLR0912 - the hot path: a call more costs what it tidies
        self, scope: StepScope, began_ns: int, duration_ns: int, error: BaseException | None
    ) -> None:
        """Write the line of a step that ended, count it, and end or make its capture.

        Args:
            scope: the step.
            began_ns: when it began, monotonic.
            duration_ns: how long it took.
            error: the exception that left it.
        """
        captures, metrics, captured = self._captures, self._metrics, None
        if captures is not None:
            if duration_ns > captures.slow_above_ns or error is not None or scope.capture is not None:
                captured = self._capture(captures, scope, began_ns, duration_ns, error)
            if not metrics.steps & 3:  # every fourth step says as much of what is usual
                captures.sample(duration_ns)
        phases = {name: phase_ns for name, _, phase_ns in scope.phases}
        if len(phases) != len(scope.phases):
            phases = _summed(scope.phases)
        time_unix_nano = self._time_ns()
        samples, tokens = scope.samples, scope.tokens
        # The caller may have set them while the step ran; the shift leaves 0 of numbers from 0 up to 63 bits.
        if type(samples) is not int or type(tokens) is not int or (samples | tokens) >> _STEP_BITS:
            samples, tokens = self._amount("samples", samples), self._amount("tokens", tokens)
        number, phases_or_none = scope.step, phases or None
        if samples or tokens or scope.data_ns is not None or scope.total is not None:
            event = Step(
                step=number,
                duration_ns=duration_ns,
                data_ns=scope.data_ns,
                phases=phases_or_none,
                samples=samples or None,
                tokens=tokens or None,
                total=scope.total,
                time_unix_nano=time_unix_nano,
            )
        else:
            event = Step(step=number, duration_ns=duration_ns, phases=phases_or_none, time_unix_nano=time_unix_nano)
        try:
            line = encode_plain(event)
        except (UnicodeEncodeError, TypeError):  # a phase's name with a lone surrogate, or one that is no string
            named = {str(jsonable(name)): phase_ns for name, phase_ns in phases.items()}
            line = encode(msgspec.structs.replace(event, phases=named))
        writer = self._writer
        with writer.lock:
            if writer.append(line):
                metrics.steps += 1
                if samples or tokens:
                    metrics.samples += samples
                    metrics.tokens += tokens
                metrics.last_step = number
                metrics.last_step_time_unix_nano = time_unix_nano
                if self._keep_durations:
                    if scope.data_ns is not None:
                        phases = {**phases, SpanName.DATA: scope.data_ns}
                    metrics.ended_steps.append((duration_ns, phases, captured))
        if writer.deferred is not None:
            writer.run_deferred()

    def _amount(self, name: str, value: Any) -> int:
        """Return how many samples or tokens there were; what is no number of them is told of, and 0."""
        if type(value) is int and 0 <= value <= STEP_MAX:
            return value
        return self._checked(name, value, 0)

    def _explicit(self, number: Any) -> int:
        """Return a step number that the caller gave, and go on behind it; one that is none is replaced."""
        try:
            step = metric_step(number)
        except InvalidValueError as error:
            step = next(self._numbers)
            self._notices.refuse("step", "invalid_value", "step", ConfigError(f"step: {error}; {step} is used"))
            return step
        self._numbers = count(step + 1)
        return step

    def _refuse_late(self) -> None:
        error = InvalidStateError(f"cannot log to finished run {self._run_id}")
        self._notices.refuse("step", "after_finish", "late", error)

    @staticmethod
    def _capture(
        captures: StepCaptures, scope: StepScope, began_ns: int, duration_ns: int, error: BaseException | None
    ) -> SpanContext | None:
        """End the step's capture, or make one of a slow or failed step; return the context of its ``step`` span."""
        capture = scope.capture
        if capture is None:
            phases = scope.phases
            if scope.data_ns is not None:
                phases = [(SpanName.DATA, began_ns, scope.data_ns), *phases]
            return captures.afterwards(scope.step, began_ns, duration_ns, phases, error)
        capture.leave()
        capture.close(duration_ns, error)
        return capture.context

    def each(self, iterable: Iterable[Any], total: int | None, advance: Any) -> Iterator[Any]:
        """Yield the items of an iterable, one step an item, the wait for each timed."""
        items = iter(iterable)
        if total is not None and (type(total) is not int or not 0 <= total <= STEP_MAX):
            total = self._checked("total", total, None)
        while True:
            began_ns = self.monotonic_ns()
            try:
                item = next(items)
            except StopIteration:
                return
            data_ns = self.monotonic_ns() - began_ns
            scope = self.begin(None, 0, 0, began_ns)
            scope.start_at(began_ns, data_ns)
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


def _summed(phases: list[tuple[str, int, int]]) -> dict[str, int]:
    """Return the time of each phase, ns; one that was entered several times counts as a whole."""
    total: dict[str, int] = {}
    for name, _, phase_ns in phases:
        total[name] = total.get(name, 0) + phase_ns
    return total
