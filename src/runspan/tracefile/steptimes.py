"""How long a rank's steps take, by a scan over its ``step`` lines alone; and which rank the others wait for."""

from __future__ import annotations

from array import array
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from runspan.tracefile._parts import open_part
from runspan.tracefile.events import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from runspan.tracefile.layout import TraceName

__all__ = [
    "COLLECTIVE_PHASES",
    "SlowRank",
    "StepTally",
    "StepTimes",
    "find_slow_rank",
    "own_work_ns",
    "read_newest_step_times",
    "read_step_times",
]

#: Phases in which a rank waits for the others: their time says nothing about the rank itself.
COLLECTIVE_PHASES = frozenset({"all_gather", "all_reduce", "barrier", "broadcast", "reduce_scatter"})
#: A rank is slow when its own work takes so many times what the others' does...
_SLOW_FACTOR = 1.2
#: ...and so much longer: below that it is the scheduler that differs, not the rank.
_SLOW_EXCESS_NS = 1_000_000

#: How much of a file's end :func:`read_newest_step_times` looks at: a hundred steps or more.
_NEWEST_BYTES = 1 << 15

#: Longer durations, which only a broken writer has, count as this long.
_MAX_NS = 2**63 - 1

#: Begins every step line: the writer puts ``kind`` first.
_STEP_LINE = b'{"kind":"step",'
_decoder = msgspec.json.Decoder(Step)


class StepTimes(msgspec.Struct, frozen=True):
    """The steps of one attempt of a rank.

    Attributes:
        count: how many steps ended.
        median_ns: median duration of a step; None without steps.
        own_median_ns: the same without the phases in which the rank waits for others.
        phase_medians_ns: median of each phase, over the steps that have it; ``data`` is the wait for data.
    """

    count: int = 0
    median_ns: float | None = None
    own_median_ns: float | None = None
    phase_medians_ns: dict[str, float] = {}


class SlowRank(msgspec.Struct, frozen=True):
    """The rank that the others wait for.

    Attributes:
        rank: which one.
        own_median_ns: how long its own work of a step takes.
        others_median_ns: how long the other ranks' does, their median.
        phase: the phase that is longer than the others' by most; None when no phases were timed.
    """

    rank: int
    own_median_ns: float
    others_median_ns: float
    phase: str | None

    @property
    def factor(self) -> float:
        """How many times the others' time it takes."""
        return self.own_median_ns / self.others_median_ns


class StepTally:
    """Collects the steps of one attempt of a rank, eight bytes a duration.

    Attributes:
        durations_ns: how long each step took.
    """

    def __init__(self) -> None:
        self.durations_ns = array("q")
        self._own_ns = array("q")
        self._phases_ns: dict[str, array[int]] = {}

    def add(self, step: Step) -> None:
        """Add a step."""
        timed = dict(step.phases or {})
        if step.data_ns is not None:
            timed["data"] = timed.get("data", 0) + step.data_ns
        for name, duration_ns in timed.items():
            self._phases_ns.setdefault(name, array("q")).append(_clamped(duration_ns))
        self.durations_ns.append(_clamped(step.duration_ns))
        self._own_ns.append(_clamped(own_work_ns(step)))

    def times(self) -> StepTimes:
        """Return what they come to."""
        return StepTimes(
            len(self.durations_ns),
            _median(self.durations_ns),
            _median(self._own_ns),
            {name: median(durations_ns) for name, durations_ns in self._phases_ns.items()},
        )


def own_work_ns(step: Step) -> int:
    """Return how long a rank worked on a step itself, ns: without the phases in which it waits for the others."""
    waited_ns = sum(ns for name, ns in (step.phases or {}).items() if name in COLLECTIVE_PHASES)
    return max(0, step.duration_ns - waited_ns)


def read_step_times(folder: Path, parts: Iterable[TraceName]) -> StepTimes:
    """Read the step lines of one trace; what is cut or unreadable is passed over.

    Args:
        folder: the folder of the trace's files.
        parts: the trace's parts.

    Raises:
        TraceFormatError: a file is no regular file, or the operating system refuses.
    """
    tally = StepTally()
    for name in parts:
        part = open_part(folder, name)
        if part is None:
            continue
        with part:
            while lines := part.read_lines():
                for line in lines:
                    _add_line(line, tally)
    return tally.times()


def read_newest_step_times(folder: Path, name: TraceName) -> StepTimes:
    """Read the step lines at the end of one part of a trace, whatever its size; what is cut is passed over.

    Args:
        folder: the folder of the trace's files.
        name: the part, usually the newest.

    Raises:
        TraceFormatError: the file is no regular file, or the operating system refuses.
    """
    tally = StepTally()
    part = open_part(folder, name)
    if part is not None:
        with part:
            for line in part.read_tail(_NEWEST_BYTES).data.split(b"\n"):
                _add_line(line, tally)
    return tally.times()


def find_slow_rank(times: Mapping[int, StepTimes]) -> SlowRank | None:
    """Name the rank whose own work takes clearly longer than that of the others; None when there is none.

    Totals cannot tell: in lockstep every rank takes as long as the slowest, which the others wait for in
    their collective phases. So those phases are left out.

    Args:
        times: by rank.
    """
    own = {rank: each.own_median_ns for rank, each in times.items() if each.own_median_ns is not None}
    if len(own) < 2:  # noqa: PLR2004 - slow is slower than another
        return None
    slowest = max(own, key=lambda rank: own[rank])
    others = median(value for rank, value in own.items() if rank != slowest)
    if own[slowest] < others * _SLOW_FACTOR or own[slowest] - others < _SLOW_EXCESS_NS:
        return None
    return SlowRank(slowest, own[slowest], max(others, 1.0), _longest_excess(slowest, times))


def _longest_excess(slowest: int, times: Mapping[int, StepTimes]) -> str | None:
    def excess(phase: str) -> float:
        others = [each.phase_medians_ns.get(phase, 0.0) for rank, each in times.items() if rank != slowest]
        return times[slowest].phase_medians_ns[phase] - median(others)

    return max(times[slowest].phase_medians_ns.keys() - COLLECTIVE_PHASES, key=excess, default=None)


def _add_line(line: bytes, tally: StepTally) -> None:
    if not line.startswith(_STEP_LINE):
        return
    try:
        step = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return  # cut by a crash
    tally.add(step)


def _clamped(duration_ns: int) -> int:
    return min(max(0, duration_ns), _MAX_NS)


def _median(durations: array[int]) -> float | None:
    return median(durations) if durations else None
