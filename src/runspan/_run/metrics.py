"""The recording side of metrics: validate, take the key's next step, write one line, queue the point."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from runspan._run.values import InvalidValueError, describe, metric_key, metric_step, metric_value
from runspan.errors import ConfigError, InvalidStateError
from runspan.tracefile.events import Metric, Metrics, encode, encode_plain
from runspan.tracefile.writer import ClosedWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runspan._clock import Clock
    from runspan._run.notices import Notices
    from runspan.tracefile.writer import TraceWriter

__all__ = ["MetricRecorder"]

#: Points that may wait for the background consumer, about 50 MB; beyond it storage loses points, the file does not.
_QUEUE_BOUND = 262_144


class MetricRecorder:
    """Takes metric values on the training's threads.

    Each key has a counter of its own, which only accepted values without an explicit step move.

    Args:
        writer: the trace file.
        clock: gives the wall time of each point.
        notices: told of what cannot be recorded.
        run_id: named in errors.
        resumed_steps: the next step of each key, from earlier attempts.
        is_consumed: whether somebody takes the points out of the queue; else none is put there.
    """

    def __init__(
        self,
        writer: TraceWriter,
        clock: Clock,
        notices: Notices,
        run_id: str,
        resumed_steps: Mapping[str, int] | None = None,
        *,
        is_consumed: bool = True,
    ) -> None:
        self.queue: deque[Metric] = deque(maxlen=None if is_consumed else 0)
        self._writer = writer
        self._clock = clock
        self._time_ns = clock.time_ns
        self._notices = notices
        self._run_id = run_id
        self._resumed_steps = dict(resumed_steps or {})
        self._next_steps: dict[str, int] = {}

    def close(self) -> None:
        """Refuse what comes from now on."""
        self._writer = ClosedWriter(self._refuse_late)

    @property
    def keys(self) -> list[str]:
        """Every key with an accepted value, in first-logged order."""
        return list(self._next_steps)

    def current_step(self, key: str) -> int:
        """Return the next automatic step of a key, 0 for what is no key."""
        if not isinstance(key, str):
            return 0
        return self._next_steps.get(key, self._resumed_steps.get(key, 0))

    def log(self, key: str, value: Any) -> None:
        """Record a value at the key's own next step."""
        # `value - value` is 0.0 for finite floats alone: cheaper than a call, and this is the hot path.
        if type(value) is not float or value - value != 0.0 or type(key) is not str or not key:
            self._log_any(key, value)
            return
        writer, next_steps, queue = self._writer, self._next_steps, self.queue
        with writer.lock:
            step = next_steps.get(key)
            if step is None:
                step = self._resumed_steps.get(key, 0)
            point = Metric(key, step, value, self._time_ns())
            try:
                line = encode_plain(point)
            except UnicodeEncodeError:  # a key with a lone surrogate
                line = encode(point)
            if writer.append(line):
                next_steps[key] = step + 1
                if len(queue) < _QUEUE_BOUND:
                    queue.append(point)
                else:
                    self._notices.lose("storage", "queue_full", 1)
        if writer.deferred is not None:
            writer.run_deferred()

    def log_at(self, key: str, step: Any, value: Any) -> None:
        """Record a value at an explicit step; the key's counter stays."""
        try:
            point = Metric(metric_key(key), metric_step(step), metric_value(value), self._time_ns(), explicit=True)
        except InvalidValueError as error:
            self._refuse(key, error)
            return
        writer = self._writer
        line = encode(point)
        with writer.lock:
            if writer.append(line):
                self._next_steps.setdefault(point.key, self._resumed_steps.get(point.key, 0))
                self._enqueue(point)
        if writer.deferred is not None:
            writer.run_deferred()

    def log_many(self, values: Mapping[str, Any], step: Any = None) -> None:
        """Record several values in one line, at an explicit step or each at its key's own next one.

        What cannot be recorded is left out; the rest is recorded.
        """
        try:
            explicit = None if step is None else metric_step(step)
        except InvalidValueError as error:
            self._refuse("step", error)
            return
        try:
            items = list(values.items())
        except Exception:  # noqa: BLE001 - anything may have been given
            self._refuse("values", InvalidValueError(f"{describe(values)} is no mapping of metrics"))
            return
        accepted: dict[str, int | float] = {}
        for key, value in items:
            try:
                accepted[metric_key(key)] = metric_value(value)
            except InvalidValueError as error:
                self._refuse(key, error)
        if accepted:
            self._append_many(accepted, explicit)

    def _append_many(self, values: dict[str, int | float], explicit: int | None) -> None:
        writer, next_steps = self._writer, self._next_steps
        with writer.lock:
            time_unix_nano = self._time_ns()
            steps = {key: self.current_step(key) for key in values}
            line = encode(
                Metrics(
                    step=explicit,
                    values=values,
                    steps=steps if explicit is None else None,
                    time_unix_nano=time_unix_nano,
                )
            )
            if writer.append(line):
                for key, value in values.items():
                    next_steps[key] = steps[key] + (explicit is None)
                    point_step = steps[key] if explicit is None else explicit
                    self._enqueue(Metric(key, point_step, value, time_unix_nano, explicit=explicit is not None))
        if writer.deferred is not None:
            writer.run_deferred()

    def _log_any(self, key: Any, value: Any) -> None:
        """Record what is not an ordinary float under an ordinary key."""
        try:
            checked_key, checked_value = metric_key(key), metric_value(value)
        except InvalidValueError as error:
            self._refuse(key, error)
            return
        writer = self._writer
        with writer.lock:
            step = self.current_step(checked_key)
            point = Metric(checked_key, step, checked_value, self._time_ns())
            if writer.append(encode(point)):
                self._next_steps[checked_key] = step + 1
                self._enqueue(point)
        if writer.deferred is not None:
            writer.run_deferred()

    def _enqueue(self, point: Metric) -> None:
        if len(self.queue) < _QUEUE_BOUND:
            self.queue.append(point)
        else:
            self._notices.lose("storage", "queue_full", 1)

    def _refuse_late(self) -> None:
        error = InvalidStateError(f"cannot log to finished run {self._run_id}")
        self._notices.refuse("metric", "after_finish", "late", error)

    def _refuse(self, key: Any, error: InvalidValueError) -> None:
        name = describe(key)
        self._notices.refuse("metric", "invalid_value", name, ConfigError(f"metric {name} not recorded: {error}"))
