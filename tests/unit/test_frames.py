"""Frames of run directories: what they show, and that looking often shows the same as looking once."""

from __future__ import annotations

import gzip
import json
import math
import resource
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pytest

from runspan import directory_frames
from runspan.directory_frames import DirectoryFrames, allow_many_files
from runspan.errors import TraceFormatError
from runspan.frames import INTERRUPTED, SHOWN_POINTS, FrameSource, frame_of
from runspan.records import AlertLevel, ResourceSnapshot, RunStatus, Trend
from runspan.tracefile.events import SCHEMA, Event, Metrics, Step, Usage, encode
from runspan.tracefile.layout import TraceName
from support.cli import make_step
from support.traces import (
    START_UNIX_NANO,
    FixedClock,
    make_meta,
    make_metric,
    make_terminal,
    write_lines,
    write_parts,
)

if TYPE_CHECKING:
    from pathlib import Path

    from runspan._rank_tally import TakenPoints
    from runspan.tracefile.events import Meta, TraceEvent


def alone(rank: int = 0, attempt: int = 0, world_size: int = 1) -> Meta:
    """Return the meta event of a rank of a run of so many."""
    meta = make_meta(rank, attempt)
    return msgspec.structs.replace(meta, process=msgspec.structs.replace(meta.process, world_size=world_size))


def step(number: int, at_s: float, *, total: int | None = None, **phases_ms: float) -> Step:
    """Return a step that ended so many seconds after the start."""
    return msgspec.structs.replace(
        make_step(number, **(phases_ms or {"forward": 10.0})),
        total=total,
        time_unix_nano=START_UNIX_NANO + int(at_s * 1e9),
    )


def alert(title: str, at_s: float, level: str = "error") -> Event:
    """Return an alert's event."""
    return Event(
        name="alert",
        level=level,
        message=title,
        attributes={"text": "more", "rule": "loss_spike"},
        time_unix_nano=START_UNIX_NANO + int(at_s * 1e9),
    )


def test_a_frame_has_all_that_a_display_shows(tmp_path: Path) -> None:
    """Identity, status, steps, rate, ETA, metrics with trend, usage and alerts come from the files alone."""
    usage = Usage(cpu_util=0.5, memory_used=3, memory_total=4, timestamp_ns=0, time_unix_nano=START_UNIX_NANO)
    events: list[TraceEvent] = [usage]
    for number in range(10):
        events += [step(number, number / 2, total=40), make_metric(number, at_s=number / 2)]
    write_lines(tmp_path / "rank-00000.jsonl", [alone(), *events, alert("loss jumped", 4.5)])
    frame = frame_of(tmp_path, clock=FixedClock(6))
    assert (frame.run.run_id, frame.run.world_size, frame.status) == ("run-a", 1, "running")
    assert (frame.start_unix_nano, frame.end_unix_nano) == (START_UNIX_NANO, None)
    assert frame.last_seen_unix_nano == START_UNIX_NANO + 4_500_000_000
    (rank,) = frame.ranks
    assert (rank.steps, rank.last_step, rank.loop_done, rank.loop_total, rank.step_ns) == (10, 9, 10, 40, 10e6)
    assert (frame.step_rate_hz, frame.eta_s) == (2.0, 15.0)
    (metric,) = frame.metrics
    assert (metric.key, metric.rank, metric.count, metric.latest, metric.trend) == ("loss", 0, 10, 2.25, Trend.RISING)
    assert [point.step for point in metric.points] == list(range(10))
    assert frame.usage == ResourceSnapshot(cpu_util=0.5, memory_used=3, memory_total=4)
    (found,) = frame.alerts
    assert (found.title, found.text, found.rule, found.level) == (
        "loss jumped", "more", "loss_spike", AlertLevel.ERROR,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("endings", "seconds", "status"),
    [
        (("success", "failed"), 1, "failed"),
        (("success", None), 5, "running"),
        (("success", None), 500, INTERRUPTED),
        (("success",), 5, INTERRUPTED),
        (("success", "success"), 5, "success"),
    ],
)
def test_the_status_is_that_of_all_ranks(
    tmp_path: Path, endings: tuple[str | None, ...], seconds: float, status: str
) -> None:
    """A run runs while a rank does, ends with the worst of its ranks, and is interrupted where an end is missing."""
    for rank, ending in enumerate(endings):
        terminal = [] if ending is None else [msgspec.structs.replace(make_terminal(), status=ending, reason="r")]
        lines: list[TraceEvent] = [alone(rank, world_size=2), make_metric(0), *terminal]
        write_lines(tmp_path / TraceName(rank).filename, lines)
    frame = frame_of(tmp_path, clock=FixedClock(seconds))
    assert frame.status == status
    assert frame.is_final == (status != "running")
    assert (frame.end_unix_nano is None) == (status in {"running", INTERRUPTED})


def test_the_slow_rank_is_named_by_its_own_work(tmp_path: Path) -> None:
    """In lockstep all steps take as long; the rank that does not wait for the others is the slow one."""
    for rank, own_ms in enumerate((10.0, 40.0, 10.0)):
        steps = [step(number, number, forward=own_ms, all_reduce=50.0 - own_ms) for number in range(8)]
        write_lines(tmp_path / TraceName(rank).filename, [alone(rank, world_size=3), *steps])
    frame = frame_of(tmp_path, clock=FixedClock(9))
    assert frame.slow_rank == 1
    assert [(rank.step_ns, rank.own_step_ns) for rank in frame.ranks] == [(50e6, 10e6), (50e6, 40e6), (50e6, 10e6)]


def test_looking_often_shows_what_looking_once_does(tmp_path: Path) -> None:
    """Frames of a growing run, cut at any byte, end in the frame of the whole one; each point is taken once."""
    path = tmp_path / "rank-00000.jsonl"
    events: list[TraceEvent] = [alone()]
    for number in range(40):
        several = Metrics(values={"a": 1.0, "é": math.nan}, steps={"a": number}, time_unix_nano=START_UNIX_NANO)
        events += [step(number, number / 4, total=16), make_metric(number, at_s=number), several]
    data = b"".join(map(encode, [*events, alert("late", 40), make_terminal(50)]))
    whole_line = len(encode(events[0]))
    path.write_bytes(data[:whole_line])
    taken: list[TakenPoints] = []
    frames = DirectoryFrames(tmp_path, clock=FixedClock(60), taken=taken.append)
    assert isinstance(frames, FrameSource)
    for cut in range(whole_line, len(data) + 97, 97):
        path.write_bytes(data[:cut])
        frames.frame()
    assert [point.step for each in taken for point in each.points if point.key == "loss"] == list(range(40))
    assert [point.step for each in taken for point in each.points if point.key == "a"] == list(range(40))
    frame = frames.frame()
    frames.close()
    once = frame_of(tmp_path, clock=FixedClock(60))
    assert msgspec.json.encode(frame) == msgspec.json.encode(once)
    assert (frame.ranks[0].loop_done, frame.ranks[0].steps, frame.status) == (8, 40, "success")


def test_parts_are_read_as_one_even_when_they_are_packed_meanwhile(tmp_path: Path) -> None:
    """A trace goes on in its next part; a part that was gzipped in between is neither lost nor read twice."""
    name = TraceName(0)
    parts = [[make_metric(number) for number in range(first, first + 5)] for first in (0, 5, 10)]
    paths = write_parts(tmp_path, name, parts)
    last = paths[2].read_bytes()
    paths[2].unlink()
    taken: list[TakenPoints] = []
    frames = DirectoryFrames(tmp_path, clock=FixedClock(1), taken=taken.append)
    frames.look()
    for path in paths[:2]:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    paths[2].write_bytes(last)
    frames.look()
    frames.close()
    assert [point.step for each in taken for point in each.points] == list(range(15))
    assert all(former.after == latter.before for former, latter in pairwise(taken))


def test_a_line_that_the_writer_took_back_hides_no_other(tmp_path: Path) -> None:
    """Half a line that was seen, and then cut off because the disk was full, does not spoil the line that follows."""
    path = tmp_path / "rank-00000.jsonl"
    whole = encode(alone()) + encode(make_metric(0))
    path.write_bytes(whole + encode(make_metric(1))[:40])
    taken: list[TakenPoints] = []
    frames = DirectoryFrames(tmp_path, clock=FixedClock(1), taken=taken.append)
    frames.look()
    path.write_bytes(whole + encode(step(0, 1)) + encode(make_metric(2)))
    frames.look()
    path.write_bytes(whole + encode(step(0, 1)) + encode(make_metric(2)) + encode(make_metric(3)))
    frames.close()  # and goes on behind it
    assert frames.frame().ranks[0].steps == 1
    frames.close()
    assert [point.step for each in taken for point in each.points] == [0, 2, 3]


def test_a_later_attempt_supersedes_what_it_repeats(tmp_path: Path) -> None:
    """After a resume the curve has one point a step: those of the older attempt up to the newer's first step."""
    older: list[TraceEvent] = [alone(), *(make_metric(number) for number in range(10))]
    newer: list[TraceEvent] = [
        alone(attempt=1),
        *(make_metric(number, value=9.0) for number in range(6, 12)),
        step(6, 1),
    ]
    write_lines(tmp_path / "rank-00000.jsonl", older)
    write_lines(tmp_path / "rank-00000.attempt-1.jsonl", newer)
    frame = frame_of(tmp_path, clock=FixedClock(1))
    (metric,) = frame.metrics
    assert [(point.step, point.value == 9.0) for point in metric.points] == [(n, n >= 6) for n in range(12)]
    assert (frame.ranks[0].attempt, frame.ranks[0].steps, metric.count) == (1, 1, 16)


def test_a_frame_is_bounded(tmp_path: Path) -> None:
    """Points, alerts and metrics beyond what a display takes are left out; the metrics that are, are counted."""
    many = [Metrics(step=0, values={f"m{n}": 0.5 for n in range(520)}, time_unix_nano=START_UNIX_NANO)]
    points = [make_metric(number) for number in range(200)]
    alerts = [alert(f"a{number}", number) for number in range(30)]
    write_lines(tmp_path / "rank-00000.jsonl", [alone(), *points, *many, *alerts])
    frame = frame_of(tmp_path, clock=FixedClock(1))
    assert (len(frame.metrics), frame.metrics_left_out) == (500, 21)
    assert [point.step for point in frame.metrics[0].points] == list(range(200 - SHOWN_POINTS, 200))
    assert [each.title for each in frame.alerts] == [f"a{number}" for number in range(10, 30)]


def test_broken_lines_and_traces_do_not_hide_the_rest(tmp_path: Path) -> None:
    """A line that is no event is passed over, and a trace of a newer schema is named among the problems."""
    good = encode(alone(world_size=2)) + encode(make_metric(0))
    (tmp_path / "rank-00000.jsonl").write_bytes(
        good + b'{"kind":"metric","key":3}\n{"kind":"step",\n' + encode(make_metric(1))
    )
    newer = encode(alone(1, world_size=2)).replace(SCHEMA.encode(), b"runspan/trace/99")
    (tmp_path / "rank-00001.jsonl").write_bytes(newer + encode(make_metric(0)))
    frame = frame_of(tmp_path, clock=FixedClock(1))
    assert [point.step for point in frame.metrics[0].points] == [0, 1]
    (problem,) = frame.problems
    assert "rank-00001.jsonl" in problem
    assert "newer" in problem
    assert [rank.status for rank in frame.ranks] == ["running", "pending"]


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    """A folder that is no run directory, and a run whose only trace is empty, are clear errors."""
    with pytest.raises(TraceFormatError, match="no run directory"):
        frame_of(tmp_path)
    (tmp_path / "rank-00000.jsonl").write_bytes(b"")
    with pytest.raises(TraceFormatError, match="no trace can be read"):
        frame_of(tmp_path)


def test_more_ranks_than_files_may_be_open_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fewer files may be open than there are ranks, the rest are read anew, and nothing is counted twice."""
    monkeypatch.setattr(directory_frames, "_most_open_files", lambda: 2)
    for rank in range(5):
        write_lines(tmp_path / f"rank-{rank:05d}.jsonl", [alone(rank, world_size=5), step(0, 1), make_metric(0)])
    frames = DirectoryFrames(tmp_path, clock=FixedClock(2))
    frames.frame()
    assert sum(trace.tail.is_open for trace in frames._traces.values()) == 2
    for rank in range(5):
        with (tmp_path / f"rank-{rank:05d}.jsonl").open("ab") as file:
            file.write(encode(step(1, 1.5)))
    frame = frames.frame()
    frames.close()
    assert [rank.steps for rank in frame.ranks] == [2] * 5
    assert [metric.count for metric in frame.metrics] == [1]
    assert frame == frame_of(tmp_path, clock=FixedClock(2))


def test_many_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's own limit is raised as far as the system lets it, and never beyond, nor lowered."""
    asked: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: asked.append((what, limits)))
    for soft, hard, wanted in [
        (256, resource.RLIM_INFINITY, 65_536),
        (1_024, 4_096, 4_096),
        (4_096, 4_096, None),
        (100_000, 500_000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ]:
        asked.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=(soft, hard): limits)
        allow_many_files()
        assert asked == ([] if wanted is None else [(resource.RLIMIT_NOFILE, (wanted, hard))])


def test_a_run_that_was_deleted_while_it_is_watched_is_told(tmp_path: Path) -> None:
    """The last frame stays, and says that the files are gone."""
    path = tmp_path / "rank-00000.jsonl"
    write_lines(path, [alone(), step(0, 1), make_metric(0)])
    frames = DirectoryFrames(tmp_path, clock=FixedClock(2))
    assert frames.frame().problems == ()
    path.unlink()
    frame = frames.frame()
    frames.close()
    assert frame.problems == (f"{tmp_path}: the files of the run are gone",)
    assert [metric.key for metric in frame.metrics] == ["loss"]


def test_metrics_beyond_what_is_kept_are_told(tmp_path: Path) -> None:
    """With more than 10,000 metrics the first ones are shown, and a line says that there are more."""
    values = {f"m{index}": 1.0 for index in range(10_001)}
    line = Metrics(values=values, steps=dict.fromkeys(values, 0), time_unix_nano=START_UNIX_NANO)
    write_lines(tmp_path / "rank-00000.jsonl", [alone(), line])
    frame = frame_of(tmp_path, clock=FixedClock(1))
    assert len(frame.metrics) + frame.metrics_left_out == 10_000
    assert frame.problems == ("the run has more than 10,000 metrics: the others are left out",)


@pytest.mark.parametrize("world_size", [0, -1, 2**63])
def test_a_world_size_that_is_none_is_shown_all_the_same(tmp_path: Path, world_size: int) -> None:
    """A damaged file's number of ranks keeps nobody from seeing the run."""
    write_lines(tmp_path / "rank-00000.jsonl", [alone(world_size=world_size), make_metric(0), make_terminal()])
    frame = frame_of(tmp_path, clock=FixedClock(1))
    assert frame.run.world_size == max(1, world_size)
    assert frame.status == (INTERRUPTED if world_size > 1 else RunStatus.SUCCESS)


def test_a_trace_that_another_program_wrote_anew_is_shown(tmp_path: Path) -> None:
    """Lines with other blanks and another order of their members have the same metrics and steps."""
    events: list[TraceEvent] = [alone(), step(0, 1), make_metric(0), make_terminal()]
    write_lines(tmp_path / "rank-00000.jsonl", events)
    expected = frame_of(tmp_path, clock=FixedClock(2))
    lines = [json.loads(line) for line in (tmp_path / "rank-00000.jsonl").read_text("utf-8").splitlines()]
    anew = [json.dumps(dict(reversed(line.items()))) for line in lines]
    (tmp_path / "rank-00000.jsonl").write_text("\n".join(anew) + "\n", encoding="utf-8")
    assert expected.metrics
    assert frame_of(tmp_path, clock=FixedClock(2)) == expected


def test_a_file_that_is_named_like_a_rank_beyond_all_is_left_aside(tmp_path: Path) -> None:
    """A rank of eleven digits is none, and the run is shown without it."""
    for name in ("rank-00000.jsonl", "rank-99999999999.jsonl"):
        write_lines(tmp_path / name, [alone(), make_metric(0)])
    assert [rank.rank for rank in frame_of(tmp_path, clock=FixedClock(1)).ranks] == [0]
