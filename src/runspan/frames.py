"""A frame: all that a display shows of a run at one moment, wherever the run is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from runspan.records import AlertLevel, ResourceSnapshot, RunStatus, Trend

if TYPE_CHECKING:
    from pathlib import Path

    from runspan._clock import Clock

__all__ = [
    "INTERRUPTED",
    "SHOWN_POINTS",
    "Frame",
    "FrameAlert",
    "FrameMetric",
    "FramePoint",
    "FrameRank",
    "FrameSource",
    "RunIdentity",
    "frame_of",
]

#: The status of a run or a rank that was killed: no :class:`RunStatus`, since nobody was left to record one.
INTERRUPTED = "interrupted"
#: How many of a metric's newest points a frame has at most.
SHOWN_POINTS = 64


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which run it is.

    Attributes:
        run_id: the run's id.
        experiment_id: the id of its experiment.
        experiment: the experiment's name.
        name: a display name.
        group: a name that several runs share.
        trace_id: the run's trace id, lower-case hex; None where tracing is off.
        world_size: how many ranks it has.
    """

    run_id: str
    experiment_id: str
    experiment: str
    name: str | None = None
    group: str | None = None
    trace_id: str | None = None
    world_size: int = 1


class FramePoint(msgspec.Struct, frozen=True, gc=False):
    """One value of a metric; NaN and infinities are kept."""

    step: int
    time_unix_nano: int
    value: float


class FrameMetric(msgspec.Struct, frozen=True):
    """The newest points of one metric.

    Attributes:
        key: the metric's name.
        rank: whose points they are: rank 0's, or those of the first rank that logs the key.
        count: how many points the rank has logged of it, over all its attempts.
        points: at most :data:`SHOWN_POINTS`, oldest first.
        trend: which way these points move.
    """

    key: str
    rank: int
    count: int
    points: tuple[FramePoint, ...]
    trend: Trend

    @property
    def latest(self) -> float | None:
        """The newest value; None without points."""
        return self.points[-1].value if self.points else None


class FrameRank(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank stands, by its newest attempt.

    Attributes:
        rank: which one.
        status: running, success, failed, cancelled, interrupted, or pending before its first line is whole.
        reason: why it ended as it did.
        attempt: the attempt, from 0.
        host: its machine.
        last_seen_unix_nano: time of the newest line that tells one, ns since the epoch.
        steps: how many steps have ended.
        last_step: the number of the newest step; None before the first.
        loop_done: how many steps of the present loop over ``run.steps(...)`` have ended.
        loop_total: how many that loop has; None where it is not known.
        step_rate_hz: steps a second over the newest ones; None with fewer than two.
        step_ns: median duration of the newest steps, ns; None before the first.
        own_step_ns: the same without the phases in which the rank waits for others, ns.
        usage: the newest sample of what its machine and device are busy with.
    """

    rank: int
    status: str
    reason: str | None = None
    attempt: int = 0
    host: str | None = None
    last_seen_unix_nano: int | None = None
    steps: int = 0
    last_step: int | None = None
    loop_done: int = 0
    loop_total: int | None = None
    step_rate_hz: float | None = None
    step_ns: float | None = None
    own_step_ns: float | None = None
    usage: ResourceSnapshot = ResourceSnapshot()


class FrameAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert that a rank raised.

    Attributes:
        rank: which one.
        time_unix_nano: when, ns since the epoch.
        level: how bad it is.
        title: one line.
        text: more, for who reads on.
        rule: the rule that fired; ``user`` when the training program raised it.
    """

    rank: int
    time_unix_nano: int
    level: AlertLevel
    title: str
    text: str = ""
    rule: str = "user"


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """All that a display shows of a run. It holds no present time: the same files give the same frame.

    Attributes:
        run: which run.
        status: running, pending, success, failed, cancelled or interrupted, over all ranks.
        reason: why it ended as it did.
        start_unix_nano: when it started, ns since the epoch; None before.
        end_unix_nano: when it ended, ns since the epoch; None while it has not.
        last_seen_unix_nano: time of the newest line of any rank, ns since the epoch.
        ranks: the ranks that are known here, by number.
        slow_rank: the rank that the others wait for; None when there is none.
        metrics: in first-logged order.
        metrics_left_out: how many metrics there are beyond those.
        alerts: the newest ones, oldest first.
        problems: what could not be read, a line each.
    """

    run: RunIdentity
    status: str
    reason: str | None = None
    start_unix_nano: int | None = None
    end_unix_nano: int | None = None
    last_seen_unix_nano: int | None = None
    ranks: tuple[FrameRank, ...] = ()
    slow_rank: int | None = None
    metrics: tuple[FrameMetric, ...] = ()
    metrics_left_out: int = 0
    alerts: tuple[FrameAlert, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether nothing more is to come: the run has ended, or was killed."""
        return self.status == INTERRUPTED or RunStatus(self.status).is_final

    @property
    def lead(self) -> FrameRank | None:
        """The rank that stands for the run's progress: the first that has ended a step, else the first."""
        return next((rank for rank in self.ranks if rank.steps), self.ranks[0] if self.ranks else None)

    @property
    def step_rate_hz(self) -> float | None:
        """Steps a second of the lead; None where it is not known."""
        return None if self.lead is None else self.lead.step_rate_hz

    @property
    def eta_s(self) -> float | None:
        """Seconds until the lead's present loop has ended at the present rate; None where that is not known."""
        lead = self.lead
        if self.is_final or lead is None or lead.loop_total is None or not lead.step_rate_hz:
            return None
        return max(0, lead.loop_total - lead.loop_done) / lead.step_rate_hz

    @property
    def usage(self) -> ResourceSnapshot:
        """The newest sample of the first rank that has one."""
        nothing = ResourceSnapshot()
        return next((rank.usage for rank in self.ranks if rank.usage != nothing), nothing)


@runtime_checkable
class FrameSource(Protocol):
    """Where frames come from."""

    def frame(self) -> Frame:
        """Return how the run stands now; thread-safe.

        Raises:
            RunspanError: the source cannot be read.
        """

    def close(self) -> None:
        """Let go of files and connections; may be called twice."""


def frame_of(directory: str | Path, *, clock: Clock | None = None) -> Frame:
    """Return how the run of a run directory stands.

    For one look. A display that looks again and again keeps a :class:`runspan.directory_frames.DirectoryFrames`, which
    reads only what is new.

    Args:
        directory: the run directory.
        clock: tells a running rank from an interrupted one; None: the system's.

    Raises:
        TraceFormatError: no trace in it can be read.
    """
    from runspan.directory_frames import DirectoryFrames  # noqa: PLC0415 - it imports this module

    frames = DirectoryFrames(directory, clock=clock)
    try:
        return frames.frame()
    finally:
        frames.close()
