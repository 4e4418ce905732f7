"""The state of a run that its exported metrics are read from."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runspan.records import RunStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.trace import SpanContext

    from runspan.tracefile.events import Step
    from runspan.usage import UsageSampler

__all__ = ["RunMetrics"]


@dataclass(slots=True)
class RunMetrics:
    """What recording code updates and the collector reads: plain fields, so that recording makes no SDK call.

    Any thread may update it; the collector takes copies of dicts and pops from deques, which are single calls.

    Attributes:
        latest: newest value of each metric key, non-finite ones too.
        nonfinite: how many NaN and infinite values each key has had.
        counts: user counters, by (key, unit).
        observations: (key, unit, value), taken out by the collector.
        ended_steps: the uncaptured steps that ended, taken out likewise; the events themselves, which each step makes
            anyway: a tuple more for each costs a tenth of a step in garbage collection.
        captured_steps: the captured ones, each with its ``step`` span.
        checkpoint_durations: ns, taken out likewise.
        steps: steps ended.
        samples: samples processed.
        tokens: tokens processed.
        last_step: number of the last step that ended, None before the first.
        last_step_time_unix_nano: when it ended.
        heartbeat_time_unix_nano: when the run last showed that it lives.
        start_time_unix_nano: when the run started, in its first attempt.
        checkpoint_last_time_unix_nano: when the last checkpoint ended.
        status: the run's status, as this process sees it.
        alerts: alerts fired, by (level, rule).
        gate_metrics: a gate record's metrics, by (benchmark id, key).
        gate_passed: whether the gate of a benchmark passed, by its id.
        golden_score: how alike the run is to its golden trace, once it was compared.
        dropped: returns what was lost so far, by (signal, reason).
        refresh: called before each collection, to bring the fields up to date.
        usage: measures process, machine and device; None: they are not exported.
    """

    latest: Mapping[str, float] = field(default_factory=dict)
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    counts: dict[tuple[str, str], int | float] = field(default_factory=dict)
    observations: deque[tuple[str, str, int | float]] = field(default_factory=deque)
    ended_steps: deque[Step] = field(default_factory=deque)
    captured_steps: deque[tuple[Step, SpanContext]] = field(default_factory=deque)
    checkpoint_durations: deque[int] = field(default_factory=deque)
    steps: int = 0
    samples: int = 0
    tokens: int = 0
    last_step: int | None = None
    last_step_time_unix_nano: int | None = None
    heartbeat_time_unix_nano: int | None = None
    start_time_unix_nano: int | None = None
    checkpoint_last_time_unix_nano: int | None = None
    status: RunStatus = RunStatus.PENDING
    alerts: dict[tuple[str, str], int] = field(default_factory=dict)
    gate_metrics: dict[tuple[str, str], float] = field(default_factory=dict)
    gate_passed: dict[str, bool] = field(default_factory=dict)
    golden_score: float | None = None
    dropped: Callable[[], Mapping[tuple[str, str], int]] = dict
    refresh: Callable[[], None] = lambda: None
    usage: UsageSampler | None = None
