from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runspan.errors import ConfigError, TraceFormatError
from runspan.tracefile import read, read_run
from runspan.tracefile._merged_file import write_merged
from runspan.tracefile.events import (
    SCHEMA,
    DeviceInterval,
    Metric,
    SpanStart,
    Terminal,
    TraceEvent,
    Unknown,
    Usage,
    encode,
)
from runspan.tracefile.layout import TraceName
from support.captures import capture_meta, complete_capture, memory_event, span_events
from support.traces import START_UNIX_NANO, make_meta, make_metric, make_terminal, write_lines, write_parts

if TYPE_CHECKING:
    from pathlib import Path

_S = 1_000_000_000


def _write(
    run: Path, name: TraceName, *events: TraceEvent, start_s: float = 0.0, capture: str | None = None, **meta: Any
) -> Path:
    folder = run if capture is None else run / "captures" / capture
    began = START_UNIX_NANO + int(start_s * _S)
    write_lines(folder / name.filename, [make_meta(name.rank, name.attempt, time_unix_nano=began, **meta), *events])
    return folder / name.filename


def _merged(run: Path, name: str = "merged.jsonl", **options: Any) -> list[dict[str, Any]]:
    """Merge a run directory and return the lines, each read by a strict parser."""
    output = run.parent / name
    count = write_merged(read_run(run), output, **options)
    data = gzip.decompress(output.read_bytes()) if name.endswith(".gz") else output.read_bytes()
    lines = [json.loads(line) for line in data.splitlines()]
    assert len(lines) == count
    return lines


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return an empty run directory."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_the_events_of_all_ranks_stand_in_the_order_of_time(run: Path) -> None:
    """Two ranks' values alternate as they were logged, and each line says whose it is."""
    _write(run, TraceName(0), make_metric(0, at_s=1), make_metric(1, at_s=3), make_terminal(5))
    _write(run, TraceName(1), make_metric(0, at_s=2), make_metric(1, at_s=4), make_terminal(6))
    lines = _merged(run)
    assert [(line["source"]["rank"], line["step"]) for line in lines if line["kind"] == "metric"] == [
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
    ]
    assert [line["kind"] for line in lines] == [
        "meta",
        *["source_meta"] * 2,
        *["metric"] * 4,
        *["source_terminal"] * 2,
        "terminal",
    ]
    assert lines[1]["source"] == {"rank": 0, "attempt": 0}
    assert lines[2]["process"]["rank"] == 1


def test_the_file_is_a_trace_that_the_reader_takes(run: Path, tmp_path: Path) -> None:
    """`read` gives each event once, as it was; the terminal event is the last; merging again gives the same bytes."""
    events = [*span_events("a", None, 5, 9), make_metric(3), Unknown("new_kind", {"x": [1]})]
    _write(run, TraceName(0), *events, make_terminal(1))
    _merged(run)
    reader = read(tmp_path / "merged.jsonl")
    found = list(reader)
    assert found[0] == reader.meta == make_meta()
    source = {"source": {"rank": 0, "attempt": 0}}
    assert found[2:6] == [*events[:3], Unknown("new_kind", {"x": [1], **source})]
    assert found[-1] == reader.terminal == make_terminal(1)
    before = (tmp_path / "merged.jsonl").read_bytes()
    _merged(run)
    assert (tmp_path / "merged.jsonl").read_bytes() == before


def test_times_count_from_the_earliest_start(run: Path, tmp_path: Path) -> None:
    """A rank that started 2 s later has its times since the start moved by that; wall and device clocks stay."""
    interval = DeviceInterval(
        span_id="a", device="cuda:0", stream_id=1, clock_id="c", backend="cuda", start_ns=7, duration_ns=1
    )
    usage = Usage(timestamp_ns=30, time_unix_nano=START_UNIX_NANO + 2 * _S + 30)
    unknown = Unknown("later_kind", {"timestamp_ns": 40, "start_ns": "text"})
    later = [*span_events("a", None, 10, 20), memory_event("alloc", 1, timestamp_ns=25), interval, usage, unknown]
    _write(run, TraceName(0), *later, make_terminal(4), start_s=2)
    _write(run, TraceName(1), make_terminal(9), start_s=0)
    by_kind = {line["kind"]: line for line in _merged(run)}
    assert by_kind["meta"]["time_unix_nano"] == START_UNIX_NANO
    assert by_kind["meta"]["timestamp"] == "2023-11-14T22:13:20.000Z"
    assert by_kind["span_start"]["start_ns"] == 2 * _S + 10
    assert by_kind["span_start"]["time_unix_nano"] == START_UNIX_NANO + 10
    assert by_kind["span_end"]["duration_ns"] == 10
    assert by_kind["memory"]["timestamp_ns"] == 2 * _S + 25
    assert by_kind["usage"]["timestamp_ns"] == 2 * _S + 30
    assert by_kind["later_kind"]["timestamp_ns"] == 2 * _S + 40
    assert by_kind["later_kind"]["start_ns"] == "text"
    assert by_kind["device_interval"]["start_ns"] == 7
    assert by_kind["source_meta"]["time_unix_nano"] == START_UNIX_NANO + 2 * _S
    assert by_kind["terminal"]["timestamp_ns"] == 9 * _S
    starts = [event for event in read(tmp_path / "merged.jsonl") if isinstance(event, SpanStart)]
    assert [start.start_ns for start in starts] == [2 * _S + 10]


def test_attempts_stay_apart_and_nothing_is_dropped(run: Path) -> None:
    """Cases 19 and 34: steps 201 to 212, recorded by both attempts, are there twice, each with its attempt."""
    _write(run, TraceName(0), *(make_metric(step, at_s=step) for step in range(213)))
    again = [make_metric(step, at_s=300 + step) for step in range(200, 301)]
    _write(run, TraceName(0, attempt=1), *again, make_terminal(700), start_s=300)
    metrics = [line for line in _merged(run) if line["kind"] == "metric"]
    assert [(line["source"]["attempt"], line["step"]) for line in metrics] == [
        *((0, step) for step in range(213)),
        *((1, step) for step in range(200, 301)),
    ]


def test_a_clock_that_steps_back_reorders_no_trace(run: Path) -> None:
    """Case 14: after a step back of an hour a trace's lines keep their order, and no time is negative."""
    values = [make_metric(0, at_s=10), make_metric(1, at_s=-3590), make_metric(2, at_s=-3580)]
    _write(run, TraceName(0), *values, make_terminal(30))
    _write(run, TraceName(0, attempt=1), *span_events("a", None, 0, 5), make_terminal(5), start_s=-3600)
    lines = _merged(run)
    assert [line["step"] for line in lines if line["kind"] == "metric"] == [0, 1, 2]
    assert lines[0]["time_unix_nano"] == START_UNIX_NANO - 3600 * _S
    assert min(line[name] for line in lines for name in ("start_ns", "timestamp_ns") if name in line) == 0


def test_parts_children_and_captures_are_in_it(run: Path) -> None:
    """All parts of a trace are one source; a child's and a captured step's lines say that they are."""
    write_parts(run, TraceName(0), [[make_metric(0)], [make_metric(1), make_terminal(1)]])
    _write(run, TraceName(0, child="77"), make_metric(7, key="child"))
    write_lines(run / "captures" / "update-000000101" / TraceName(0).filename, complete_capture())
    lines = _merged(run)
    sources = {json.dumps(line["source"]) for line in lines[1:-1]}
    assert sources == {
        '{"rank": 0, "attempt": 0}',
        '{"rank": 0, "attempt": 0, "child": "77"}',
        '{"rank": 0, "attempt": 0, "capture": "update-000000101"}',
    }
    assert [line["step"] for line in lines if line["kind"] == "metric"] == [0, 1, 7]
    assert sum(line["kind"] == "source_meta" for line in lines) == 3
    (capture,) = [line for line in lines if line["kind"] == "source_meta" and "capture" in line["source"]]
    assert capture["correlation_id"] == capture_meta().correlation_id
    assert "segment_end" not in {line["kind"] for line in lines}


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([make_terminal(3), make_terminal(2)], ("complete", "success", 3 * _S)),
        ([make_terminal(1), Terminal("failed", 2 * _S, "failed", "boom")], ("failed", "failed", 2 * _S)),
        ([Terminal("failed", 4 * _S, "cancelled", "SIGTERM"), make_terminal(9)], ("failed", "cancelled", 9 * _S)),
        ([make_terminal(1), None], None),
    ],
    ids=["all complete", "one failed", "one cancelled", "one killed"],
)
def test_the_end_is_what_all_ranks_come_to(
    run: Path, ends: list[Terminal | None], expected: tuple[str, str, int] | None
) -> None:
    """Complete when every rank is, failed when one did; a run that was cut off has no terminal event, as its files."""
    for rank, end in enumerate(ends):
        _write(run, TraceName(rank), *([] if end is None else [end]))
    last = _merged(run)[-1]
    found = (last["outcome"], last["status"], last["timestamp_ns"]) if last["kind"] == "terminal" else None
    assert found == expected


def test_the_newest_attempt_tells_the_end(run: Path) -> None:
    """A killed first attempt does not matter where the second one succeeded, nor does a child's or a capture's end."""
    _write(run, TraceName(0), make_metric(0))
    _write(run, TraceName(0, attempt=1), make_terminal(2), start_s=5)
    _write(run, TraceName(0, child="77"), make_metric(7))
    _write(run, TraceName(0), Terminal("failed", 1, "failed", "slow"), capture="update-000000002")
    assert _merged(run)[-1]["outcome"] == "complete"


def test_a_file_that_is_no_trace_is_left_out(run: Path) -> None:
    """Case 34: an empty file costs its own rank; the others are merged, and the end is not taken for a success."""
    _write(run, TraceName(0), make_metric(0), make_terminal(1))
    (run / TraceName(1).filename).touch()
    lines = _merged(run)
    assert [line["kind"] for line in lines] == ["meta", "source_meta", "metric", "source_terminal"]
    (run / TraceName(0).filename).write_bytes(b"")
    with pytest.raises(TraceFormatError, match=r"rank-00000\.jsonl: empty"):
        write_merged(read_run(run), run.parent / "nothing.jsonl")
    assert not (run.parent / "nothing.jsonl").exists()


def test_a_broken_line_is_an_error_or_is_skipped(run: Path, tmp_path: Path) -> None:
    """A line in the middle that is none is told with its place, and no file appears; lenient merging goes on."""
    path = _write(run, TraceName(0), make_metric(0))
    path.write_bytes(path.read_bytes() + b'{"kind":"metric"}\n' + encode(make_metric(1)) + encode(make_terminal(1)))
    with pytest.raises(TraceFormatError, match=r"rank-00000\.jsonl:3: "):
        _merged(run)
    assert [each.name for each in tmp_path.iterdir()] == ["run"]
    assert [line["step"] for line in _merged(run, lenient=True) if line["kind"] == "metric"] == [0, 1]


def test_a_name_that_ends_with_gz_makes_a_gzip_file(run: Path, tmp_path: Path) -> None:
    """The gzipped file holds the same lines, and the reader takes it as well."""
    _write(run, TraceName(0), make_metric(0), make_terminal(1))
    assert _merged(run, "merged.jsonl.gz") == _merged(run)
    assert list(read(tmp_path / "merged.jsonl.gz")) == list(read(tmp_path / "merged.jsonl"))


def test_the_run_directory_is_not_written_over(run: Path, tmp_path: Path) -> None:
    """A name that a rank's file could have is refused inside the run directory: it would become a part of the run."""
    path = _write(run, TraceName(0), make_terminal(1))
    before = path.read_bytes()
    for name in (TraceName(0), TraceName(9), TraceName(0, part=1, compressed=True)):
        with pytest.raises(ConfigError, match="would be taken for one of the run's own files"):
            write_merged(read_run(run), run / name.filename)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ConfigError, match="would be taken for one of the run's own files"):
        write_merged(read_run(run), tmp_path / "link")
    assert path.read_bytes() == before
    write_merged(read_run(run), tmp_path / TraceName(0).filename)
    write_merged(read_run(run), run / "merged.jsonl")
    assert len(read_run(run).traces) == 1


def test_progress_counts_events(run: Path) -> None:
    """Whoever watches is told of thousands of events while they are written."""
    _write(run, TraceName(0), *(make_metric(step) for step in range(10_000)), make_terminal(1))
    told: list[int] = []
    lines = _merged(run, progress=told.append)
    assert len(lines) - 5_000 < sum(told) <= len(lines)


def test_texts_and_floats_come_through_exactly(run: Path, tmp_path: Path) -> None:
    """Infinity, 2^64 - 1 and a user's names that are the file's own are what they were, in strict JSON."""
    values: list[float | int] = [float("inf"), 2**64 - 1, 0.1]
    events = [msgspec.structs.replace(make_metric(step), value=value) for step, value in enumerate(values)]
    named, _ = span_events("a", None, 0, 1, attributes={"source": {"rank": "mine"}, "kind": "meta"})
    unknown = Unknown("later_kind", {"source": "disk"})
    _write(run, TraceName(3), *events, named, unknown, make_terminal(1))
    lines = _merged(run)
    assert lines[-3]["source_"] == "disk"
    read_back = list(read(tmp_path / "merged.jsonl"))
    assert [event.value for event in read_back if isinstance(event, Metric)] == values
    assert named in read_back
    assert all(line["source"]["rank"] == 3 for line in lines[1:-1])
    assert lines[0]["schema"] == SCHEMA
