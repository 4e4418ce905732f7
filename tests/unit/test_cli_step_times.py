from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from runspan.tracefile.layout import TraceName
from runspan.tracefile.steptimes import StepTimes, find_slow_rank, read_step_times
from support.cli import make_step
from support.traces import make_meta, make_metric, write_lines

if TYPE_CHECKING:
    from pathlib import Path

_MS = 1_000_000


def _times(own_ms: float, **phases_ms: float) -> StepTimes:
    phases = {name: duration_ms * _MS for name, duration_ms in phases_ms.items()}
    return StepTimes(count=10, median_ns=20 * _MS, own_median_ns=own_ms * _MS, phase_medians_ns=phases)


def test_the_time_spent_waiting_for_others_is_not_a_ranks_own(tmp_path: Path) -> None:
    """The median of a step counts everything, that of its own work leaves the all-reduce out."""
    steps = [make_step(number, forward=2, all_reduce=8 + number) for number in range(3)]
    write_lines(tmp_path / "rank-00000.jsonl", [make_meta(), make_metric(0), *steps])
    times = read_step_times(tmp_path, [TraceName(0)])
    assert (times.count, times.median_ns, times.own_median_ns) == (3, 11 * _MS, 2 * _MS)
    assert times.phase_medians_ns == {"forward": 2 * _MS, "all_reduce": 9 * _MS}


def test_a_cut_step_line_is_passed_over(tmp_path: Path) -> None:
    """What a crash cut off counts for nothing, and the steps before it count."""
    path = tmp_path / "rank-00000.jsonl"
    data = write_lines(path, [make_meta(), make_step(0, forward=2), make_step(1, forward=2)])
    path.write_bytes(data[:-20] + b"\n")
    assert read_step_times(tmp_path, [TraceName(0)]).count == 1


def test_durations_beyond_64_bits_count_as_the_longest(tmp_path: Path) -> None:
    """A broken writer's numbers do not stop the reading."""
    huge = msgspec.structs.replace(make_step(0, forward=1), duration_ns=2**64 - 1, phases={"forward": 2**64 - 1})
    write_lines(tmp_path / "rank-00000.jsonl", [make_meta(), huge])
    times = read_step_times(tmp_path, [TraceName(0)])
    assert (times.median_ns, times.phase_medians_ns) == (2**63 - 1, {"forward": 2**63 - 1})


def test_the_parts_of_a_trace_are_read_as_one(tmp_path: Path) -> None:
    """Steps of later parts count, a part that is gone does not stop the reading."""
    names = [TraceName(0), TraceName(0, part=1), TraceName(0, part=2)]
    for name in names[:2]:
        write_lines(tmp_path / name.filename, [make_meta(), make_step(0, forward=1)])
    assert read_step_times(tmp_path, names).count == 2


def test_a_trace_without_steps_has_no_median(tmp_path: Path) -> None:
    """No steps is not a step of zero seconds."""
    write_lines(tmp_path / "rank-00000.jsonl", [make_meta()])
    assert read_step_times(tmp_path, [TraceName(0)]) == StepTimes()


def test_the_slow_rank_is_named_by_its_own_work() -> None:
    """Of ranks in lockstep the one that works longest is slow, in the phase that differs most."""
    fast, slow = _times(2, forward=1, backward=1, all_reduce=18), _times(10, forward=9, backward=1, all_reduce=0)
    found = find_slow_rank({0: fast, 1: fast, 2: slow, 3: fast})
    assert found is not None
    assert (found.rank, found.phase) == (2, "forward")
    assert found.factor == pytest.approx(5)


@pytest.mark.parametrize(
    "times",
    [
        {0: _times(10)},
        {0: _times(10), 1: _times(11)},
        {0: _times(0.2), 1: _times(0.9)},
        {0: _times(10), 1: StepTimes()},
        {},
    ],
    ids=["one rank", "nearly as fast", "differs by less than a millisecond", "the other has no steps", "no ranks"],
)
def test_no_rank_is_slow_without_a_clear_difference(times: dict[int, StepTimes]) -> None:
    """A single rank, a small factor or a small difference names nobody."""
    assert find_slow_rank(times) is None
