"""Steps and their phases: timed on the training's thread with as little work as it takes, one file line a step."""

from __future__ import annotations

from contextvars import ContextVar
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from runspan._run.recorder import EvidenceRecorder
from runspan._run.values import STEP_MAX, InvalidValueError, metric_step
from runspan.errors import ConfigError, InvalidStateError
from runspan.semconv import SpanName
from runspan.tracefile.events import Step, encode, encode_lines, jsonable
from runspan.tracefile.writer import ClosedWriter, NullWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
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

__all__ = ["NONE_TOLD", "NO_RECORDER", "CapturedPhaseScope", "PhaseScope", "StepRecorder", "StepScope", "active_step"]

T = TypeVar("T")

#: How many samples and tokens a step has of which nobody told: this very 0, whose identity is quick to check.
NONE_TOLD = 0
#: The recorder of every step that is not captured.
NO_RECORDER = EvidenceRecorder()
#: The innermost step of the calling context, of whatever run.
active_step: ContextVar[StepScope | None] = ContextVar("runspan_step", default=None)


# The scopes are Structs because those are made in C: a step makes several.
class StepScope(msgspec.Struct, eq=False, gc=False):
    """One training step as a context manager.

    ``samples`` and ``tokens`` may be set until the step ends, for loops that know them late.

    Attributes:
        made_by: who made it.
        uncaptured_by: the same while it is not captured, else None: one question for those who only time its phases.
        monotonic_ns: reads the monotonic clock.
        step: the step's number, from 0.
        samples: how many samples it processed.
        tokens: how many tokens it processed.
        phases: how long each phase took, by name, ns; one that was entered several times counts as a whole.
        begins: when each began first, by name, monotonic ns.
        repeats: name, beginning and duration of each further time that a phase was entered.
        recorder: records what a captured step holds beside its spans; does nothing on an uncaptured one.
        capture: the trace and file of its own that a captured step has.
        data_ns: how long it has waited for its data.
        total: how many steps the loop around it will make.
    """

    made_by: StepRecorder
    uncaptured_by: StepRecorder | None
    monotonic_ns: Callable[[], int]
    step: int
    samples: int
    tokens: int
    phases: dict[str, int] = {}
    begins: dict[str, int] = {}
    repeats: tuple[tuple[str, int, int], ...] = ()
    recorder: EvidenceRecorder = NO_RECORDER
    capture: Capture | None = None
    data_ns: int | None = None
    total: int | None = None
    _began_ns: int = -1
    _outer: StepScope | None = None

    def __enter__(self) -> StepScope:  # noqa: PYI034 - the class is final in fact
        self._outer = active_step.get()
        active_step.set(self)
        if self.capture is not None:
            self.capture.enter()
        if self._began_ns < 0:
            self._began_ns = self.monotonic_ns()
        return self

    def __exit__(  # noqa: C901 - a call more costs what it tidies
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write the step's line, count it, and end or make its capture: the hot path, all in one call."""
        began_ns, made_by = self._began_ns, self.made_by
        duration_ns = self.monotonic_ns() - began_ns
        active_step.set(self._outer)
        captures, metrics, captured = made_by.captures, made_by.metrics, None
        if captures is not None:
            if duration_ns > captures.slow_above_ns or exception is not None or self.capture is not None:
                error = None if exception_type is GeneratorExit else exception
                captured = self._end_capture(captures, began_ns, duration_ns, error)
            if not metrics.steps & 3:  # every fourth step says as much of what is usual
                captures.sample(duration_ns)
        time_unix_nano = made_by.time_ns()
        number, phases = self.step, self.phases
        samples, tokens = self.samples, self.tokens
        if samples is NONE_TOLD and tokens is NONE_TOLD and self.data_ns is None and self.total is None:
            event = Step(step=number, duration_ns=duration_ns, phases=phases or None, time_unix_nano=time_unix_nano)
        else:
            # The caller may have set them while the step ran.
            samples, tokens = made_by.amount("samples", samples), made_by.amount("tokens", tokens)
            event = Step(
                step=number,
                duration_ns=duration_ns,
                data_ns=self.data_ns,
                phases=phases or None,
                samples=samples or None,
                tokens=tokens or None,
                total=self.total,
                time_unix_nano=time_unix_nano,
            )
        try:
            line = encode_lines((event,))
        except (UnicodeEncodeError, TypeError):  # a phase's name with a lone surrogate, or one that is no string
            named = {str(jsonable(name)): phase_ns for name, phase_ns in phases.items()}
            event = msgspec.structs.replace(event, phases=named)
            line = encode(event)
        writer = made_by.writer
        with writer.lock:
            if writer.append(line):
                metrics.steps += 1
                if samples or tokens:
                    metrics.samples += samples
                    metrics.tokens += tokens
                metrics.last_step = number
                metrics.last_step_time_unix_nano = time_unix_nano
                if made_by.keeps_durations:
                    if captured is None:
                        metrics.ended_steps.append(event)
                    else:
                        metrics.captured_steps.append((event, captured))
        if writer.deferred is not None:
            writer.run_deferred()

    def _end_capture(
        self, captures: StepCaptures, began_ns: int, duration_ns: int, error: BaseException | None
    ) -> SpanContext | None:
        """End the step's capture, or make one of a slow or failed step; return the context of its ``step`` span."""
        capture = self.capture
        if capture is not None:
            capture.leave()
            capture.close(duration_ns, error)
            return capture.context
        if error is None and duration_ns <= captures.slow_above_ns:
            return None  # a generator that was closed inside the step
        phases = self.timed_phases()
        if self.data_ns is not None:
            phases = [(SpanName.DATA, began_ns, self.data_ns), *phases]
        return captures.afterwards(self.step, began_ns, duration_ns, phases, error)

    def timed_phases(self) -> list[tuple[str, int, int]]:
        """Return name, beginning and duration of each time that a phase was entered, in the order of the beginnings."""
        durations = dict(self.phases)
        for name, _, repeat_ns in self.repeats:
            durations[name] -= repeat_ns
        timed = [(name, began_ns, durations[name]) for name, began_ns in self.begins.items()]
        return sorted([*timed, *self.repeats], key=itemgetter(1))

    def begin_captured(self, capture: Capture | None) -> None:
        """Let the step be a captured one, from the capture's start on; None: it is not."""
        if capture is not None:
            self.capture = capture
            self.uncaptured_by = None
            self.recorder = capture.recorder
            self._began_ns = capture.start.monotonic_ns

    def start_at(self, monotonic_ns: int, data_ns: int) -> None:
        """Let the step begin earlier than it is entered: when the wait for its data began."""
        self._began_ns = monotonic_ns
        self.data_ns = data_ns
        if self.capture is not None:
            self.capture.add_phase(SpanName.DATA, monotonic_ns, data_ns)


class PhaseScope(msgspec.Struct, eq=False, gc=False):
    """A phase inside a step, from when it is made on; its time is added to the step's line."""

    _step: StepScope
    _name: str
    _began_ns: int

    #: Does nothing, in C.
    __enter__ = object.__init__

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        step, name, began_ns = self._step, self._name, self._began_ns
        duration_ns, phases = step.monotonic_ns() - began_ns, step.phases
        if name in phases:
            phases[name] += duration_ns
            step.repeats += ((name, began_ns, duration_ns),)
        else:
            phases[name] = duration_ns
            step.begins[name] = began_ns


class CapturedPhaseScope:
    """A phase inside a captured step: a span too.

    Args:
        phase: the phase.
        span: the span's scope.
    """

    def __init__(self, phase: PhaseScope, span: AbstractContextManager[trace.Span]) -> None:
        self._phase = phase
        self._span = span

    def __enter__(self) -> None:
        self._span.__enter__()
        self._phase.__enter__()

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._phase.__exit__(exception_type, exception, traceback)
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
        self.writer = writer
        self.monotonic_ns = clock.monotonic_ns
        self.time_ns = clock.time_ns
        self._notices = notices
        self._run_id = run_id
        self.metrics = metrics
        self.keeps_durations = keep_durations
        self.captures = captures
        #: Numbers the steps; taking the next one is atomic.
        self._numbers = count()

    def close(self) -> None:
        """Refuse what comes from now on."""
        self.writer = ClosedWriter(self._refuse_late)

    def abandon(self) -> None:
        """Record nothing from now on, in a forked child: the steps that are open are the parent process's."""
        self.writer = NullWriter()
        self.captures = None

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
        scope = StepScope(self, self, self.monotonic_ns, step, samples, tokens)
        captures = self.captures
        if captures is not None and step >= captures.next_step:
            scope.begin_captured(captures.scheduled(step, began_ns))
        return scope

    def amount(self, name: str, value: Any) -> int:
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
            scope = self.begin(None, NONE_TOLD, NONE_TOLD, began_ns)
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
