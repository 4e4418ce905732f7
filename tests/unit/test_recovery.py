from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import runspan
from runspan.errors import ConfigError, InvalidStateError, TraceFormatError
from runspan.records import RunStatus
from runspan.recovery import RecoveryReport, recover
from runspan.storage import InMemoryStorage
from runspan.tracefile.events import (
    Dropped,
    Metric,
    Param,
    SegmentEnd,
    SpanEnd,
    SpanStart,
    Step,
    Tag,
    Terminal,
    TraceEvent,
    Usage,
    encode,
)
from runspan.tracefile.layout import TraceName
from runspan.tracefile.reader import TraceStatus, read
from support.traces import START_UNIX_NANO, FixedClock, make_meta, make_metric, make_span, make_terminal, write_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONG_AFTER = FixedClock(3600.0)
_RUN, _RANK, _USER = "aa" * 8, "bb" * 8, "cc" * 8
_META = make_meta(run_span_id=_RUN, span_id=_RANK, trace_id="ab" * 16, resource={"runspan.experiment.name": "mnist"})
_FAILED = Terminal("failed", 9_000_000_000, "failed", "interrupted")
#: What a killed process leaves: three open spans and one that has ended.
_EVENTS: list[TraceEvent] = [
    msgspec.structs.replace(make_span(_RUN)[0], name="run"),
    msgspec.structs.replace(make_span(_RANK, start_s=1.0)[0], name="rank"),
    make_metric(0, at_s=2.0),
    *make_span("dd" * 8, start_s=2.0, duration_s=3.0),
    make_span(_USER, start_s=4.0)[0],
    Param("lr", 0.5),
    Tag("team", "vision"),
    make_metric(1, at_s=9.0, value=float("nan")),
]


def _config() -> runspan.TracingConfig:
    return runspan.TracingConfig.from_env({})


def _recover(directory: Path, storage: InMemoryStorage | None = None) -> RecoveryReport:
    return recover(directory, storage, _config(), clock=_LONG_AFTER)


def _shown(path: Path) -> list[str]:
    """Return a trace's events, strictly read, as text: NaN is not equal to itself."""
    with read(path, clock=_LONG_AFTER) as reader:
        events = [repr(event) for event in reader]
    assert reader.torn == ()
    return events


def _contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Name the run directory."""
    return tmp_path / "run-a"


@pytest.fixture
def trace(run_dir: Path) -> Path:
    """Write the trace of a killed process and return its path."""
    path = run_dir / TraceName(0).filename
    write_lines(path, [_META, *_EVENTS])
    return path


def test_open_spans_end_when_the_trace_was_last_heard_of(trace: Path, run_dir: Path) -> None:
    """The spans that were open end innermost first, as errors with the reason, at the time of the last line."""
    report = _recover(run_dir)
    with read(trace) as reader:
        added = list(reader)[1 + len(_EVENTS) :]
    ends = [event for event in added if isinstance(event, SpanEnd)]
    assert [(end.id, end.duration_ns) for end in ends] == [
        (_USER, 5_000_000_000),
        (_RANK, 8_000_000_000),
        (_RUN, 9_000_000_000),
    ]
    assert {(end.status and end.status.code, end.status and end.status.message) for end in ends} == {
        ("error", "interrupted")
    }
    assert added[-1] == _FAILED
    (closed,) = report.closed
    assert (closed.spans_ended, closed.torn_bytes) == (3, 0)
    assert closed.last_seen_unix_nano == START_UNIX_NANO + 9_000_000_000


def test_the_run_span_says_what_a_finish_says(trace: Path, run_dir: Path) -> None:
    """Status, reason, parameters, tags and last values stand on the run span alone."""
    _recover(run_dir)
    with read(trace) as reader:
        ends = {event.id: event.attributes for event in reader if isinstance(event, SpanEnd)}
    assert ends[_RANK] is None
    told = dict(ends[_RUN] or {})
    assert str(told.pop("runspan.metric.loss")) == "nan"
    assert told == {
        "runspan.param.lr": 0.5,
        "runspan.tag.team": "vision",
        "runspan.run.status": "failed",
        "runspan.run.end_reason": "interrupted",
    }


def test_a_second_recovery_changes_nothing(trace: Path, run_dir: Path) -> None:
    """The files are the same bytes after a second recovery, which has nothing to report."""
    assert _recover(run_dir).closed
    once = _contents(run_dir)
    assert _recover(run_dir).closed == ()
    assert _contents(run_dir) == once
    assert trace.name in once


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the data with the kernel: hundreds of recoveries in a row would wait for the disk alone."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.usefixtures("no_sync")
def test_a_cut_at_every_byte_is_recovered(run_dir: Path) -> None:
    """Wherever the file ends in its last records, every whole line stays, and the trace has its end after one call."""
    lines = [encode(event) for event in (_META, *_EVENTS)]
    data = b"".join(lines)
    path = run_dir / TraceName(0).filename
    run_dir.mkdir()
    for cut in (len(lines[0]) - 1, *range(len(data) - sum(map(len, lines[-4:])), len(data) + 1)):
        path.write_bytes(data[:cut])
        with read(path, clock=_LONG_AFTER) as reader:
            whole = [repr(event) for event in reader]
            torn = sum(tail.byte_count for tail in reader.torn)
        (closed,) = _recover(run_dir).closed
        after = _shown(path)
        assert after[: len(whole)] == whole
        assert closed.torn_bytes == torn
        assert path.read_bytes()[: cut - torn] == data[: cut - torn]
        assert ("Dropped" in "".join(after)) == bool(torn)
        assert "reason='interrupted'" in after[-1]


@pytest.mark.usefixtures("no_sync")
def test_a_cut_recovery_is_recovered(run_dir: Path) -> None:
    """A recovery that was itself cut off at any byte is completed by the next one: each span ends once."""
    path = run_dir / TraceName(0).filename
    before = len(write_lines(path, [_META, *_EVENTS]))
    _recover(run_dir)
    whole, expected = path.read_bytes(), _shown(path)
    for cut in range(before, len(whole)):
        path.write_bytes(whole[:cut])
        _recover(run_dir)
        with read(path) as reader:
            events = [repr(event) for event in reader if not isinstance(event, Dropped)]
        assert events == expected


@pytest.mark.parametrize("padding", [b"\0" * 5, b"\0" * 100_000, b"\n\0\0\n", b"  "])
def test_what_a_power_loss_leaves_of_unwritten_data_is_cut(trace: Path, run_dir: Path, padding: bytes) -> None:
    """NUL bytes and blanks behind the last line go; a line that lacked only its newline counts."""
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-1] + padding)
    (closed,) = _recover(run_dir).closed
    assert closed.torn_bytes == 0
    assert trace.read_bytes().startswith(whole)
    assert len(_shown(trace)) == 1 + len(_EVENTS) + 4


@pytest.mark.usefixtures("no_sync")
@given(cut=st.integers(0, 400), padding=st.binary(max_size=40))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_garbage_behind_a_cut_is_survived(tmp_path: Path, cut: int, padding: bytes) -> None:
    """Whatever stands behind a cut, what the reader read before stays, and the trace reads strictly afterwards."""
    data = b"".join(encode(event) for event in (_META, *_EVENTS))
    path = tmp_path / TraceName(0).filename
    path.write_bytes(data[: len(data) - cut] + padding)
    try:
        with read(path) as reader:
            whole = [repr(event) for event in reader]
    except TraceFormatError:
        return  # whole lines that are none of ours stand there: as before, that is for people to look at
    _recover(tmp_path)
    after = _shown(path)
    assert after[: len(whole)] == whole
    assert "reason='interrupted'" in after[-1]


def test_parts_end_in_the_last_one(run_dir: Path) -> None:
    """Of a trace in parts the last one gets the end; spans that an earlier part left open end too."""
    first, second = TraceName(0), TraceName(0).next_part()
    write_lines(run_dir / first.filename, [_META, *_EVENTS, SegmentEnd(second.filename)])
    write_lines(run_dir / second.filename, [msgspec.structs.replace(_META, part=1), make_metric(2, at_s=10.0)])
    before = (run_dir / first.filename).read_bytes()
    (closed,) = _recover(run_dir).closed
    assert closed.spans_ended == 3
    assert (run_dir / first.filename).read_bytes() == before
    assert "timestamp_ns=10000000000" in _shown(run_dir / first.filename)[-1]


@pytest.mark.parametrize("left", [b"", b'{"kind":"me'])
def test_a_part_that_had_just_begun_gets_its_meta_line(run_dir: Path, left: bytes) -> None:
    """A last part without a whole line becomes a part like any other."""
    first, second = TraceName(0), TraceName(0).next_part()
    write_lines(run_dir / first.filename, [_META, *_EVENTS, SegmentEnd(second.filename)])
    (run_dir / second.filename).write_bytes(left)
    _recover(run_dir)
    assert "reason='interrupted'" in _shown(run_dir / first.filename)[-1]
    assert b'"part":1' in (run_dir / second.filename).read_bytes().splitlines()[0]


@pytest.mark.parametrize("lost_bytes", [0, 5])
def test_a_compressed_last_part_is_followed_by_another(run_dir: Path, lost_bytes: int) -> None:
    """Case 36: a gzipped last part, cut or whole, stays as it is, and the end becomes the part behind it."""
    packed = gzip.compress(b"".join(encode(event) for event in (_META, *_EVENTS)))
    path = run_dir / TraceName(0, compressed=True).filename
    run_dir.mkdir()
    path.write_bytes(packed[: len(packed) - lost_bytes])
    (closed,) = _recover(run_dir).closed
    assert closed.spans_ended == 3
    assert path.read_bytes() == packed[: len(packed) - lost_bytes]
    with read(path) as reader:
        *_, last = reader
    assert last == _FAILED
    once = _contents(run_dir)
    _recover(run_dir)
    assert _contents(run_dir) == once


def test_a_segment_end_without_the_next_part_gets_one(run_dir: Path) -> None:
    """Where the part that is announced is missing, the end becomes that part."""
    following = TraceName(0).next_part().filename
    write_lines(run_dir / TraceName(0).filename, [_META, *_EVENTS, SegmentEnd(following)])
    _recover(run_dir)
    assert "reason='interrupted'" in _shown(run_dir / TraceName(0).filename)[-1]
    assert (run_dir / following).exists()


def test_captures_get_an_end_and_children_need_none(trace: Path, run_dir: Path) -> None:
    """A captured step ends as failed; a child's open spans end, its file has no terminal event; whole ones stay."""
    capture = run_dir / "captures" / "update-000000003" / TraceName(0).filename
    write_lines(capture, [_META, make_span(_USER)[0], make_metric(0, at_s=2.0)])
    child = run_dir / TraceName(0, child="77").filename
    write_lines(child, [_META, make_span(_USER)[0], make_metric(0, at_s=3.0)])
    whole_child = run_dir / TraceName(0, child="78").filename
    untouched = write_lines(whole_child, [_META, *make_span(_USER)])
    report = _recover(run_dir)
    assert [closed.path for closed in report.closed] == [str(capture), str(child), str(trace)]
    assert "Terminal(outcome='failed', timestamp_ns=2000000000" in _shown(capture)[-1]
    assert "SpanEnd" in _shown(child)[-1]
    assert whole_child.read_bytes() == untouched


@pytest.mark.usefixtures("trace")
def test_what_was_being_packed_is_removed(run_dir: Path) -> None:
    """A kill while a part is packed leaves half of it under a temporary name, which goes; other traces' stay."""
    own, other = run_dir / ".rank-00000.part-0001.jsonl.gz.tmp", run_dir / ".rank-00001.jsonl.gz.tmp"
    own.touch()
    other.touch()
    assert _recover(run_dir).closed
    assert (own.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("torn", [b'{"kind":"metric","ke', b"\0" * 40])
@pytest.mark.usefixtures("trace")
def test_a_child_s_cut_record_is_cut_off(run_dir: Path, torn: bytes) -> None:
    """A child's file whose spans all have ended loses its torn line all the same, once; what a text had is counted."""
    child = run_dir / TraceName(0, child="77").filename
    whole = write_lines(child, [_META, *make_span(_USER)])
    child.write_bytes(whole + torn)
    (closed,) = [closed for closed in _recover(run_dir).closed if closed.path == str(child)]
    assert (closed.spans_ended, closed.torn_bytes) == (0, len(torn.strip(b"\0")))
    with read(child) as reader:
        kinds = _kinds(list(reader))
    assert reader.torn == ()
    assert kinds[3:] == ([Dropped] if closed.torn_bytes else [])
    assert child.read_bytes().startswith(whole)
    assert _recover(run_dir).closed == ()


@pytest.mark.usefixtures("trace")
def test_a_compressed_child_s_cut_end_stays(run_dir: Path) -> None:
    """Readers pass over what a gzipped part lacks; nothing is changed, however often it is recovered."""
    child = run_dir / TraceName(0, child="77", compressed=True).filename
    lines = write_lines(child, [_META, *make_span(_USER)])
    child.write_bytes(gzip.compress(lines)[:-4])
    before = child.read_bytes()
    for _ in range(2):
        assert str(child) not in {closed.path for closed in _recover(run_dir).closed}
    assert child.read_bytes() == before
    assert [path.name for path in run_dir.glob("*child*")] == [child.name]


def test_a_resumed_run_s_span_counts_from_its_first_attempt(run_dir: Path) -> None:
    """The run span of a second attempt, which the first one began, ends when the second was last heard of."""
    path = run_dir / TraceName(0, attempt=1).filename
    late = START_UNIX_NANO + 100_000_000_000
    started = msgspec.structs.replace(make_span(_RUN)[0], time_unix_nano=START_UNIX_NANO)
    meta = msgspec.structs.replace(_META, time_unix_nano=late)
    write_lines(path, [meta, started, make_metric(0, at_s=107.0)])
    _recover(run_dir)
    with read(path) as reader:
        (end,) = [event for event in reader if isinstance(event, SpanEnd)]
    assert end.duration_ns == 107_000_000_000
    assert reader.terminal is not None
    assert reader.terminal.timestamp_ns == 7_000_000_000


def test_a_wall_clock_that_was_set_back_makes_nothing_negative(run_dir: Path) -> None:
    """Case 14: after the wall clock stepped back an hour, ends still lie behind what the file says happened before."""
    path = run_dir / TraceName(0).filename
    behind = START_UNIX_NANO - 3600 * 10**9
    events: list[TraceEvent] = [
        make_span(_RANK)[0],
        *make_span(_USER, start_s=1.0, duration_s=6.0),
        Usage(timestamp_ns=10 * 10**9, time_unix_nano=behind + 10 * 10**9),
        Metric("loss", 0, 0.5, behind + 12 * 10**9),
    ]
    write_lines(path, [_META, *events])
    _recover(run_dir)
    with read(path) as reader:
        ends = [event for event in reader if isinstance(event, SpanEnd)]
    assert (ends[-1].id, ends[-1].duration_ns) == (_RANK, 12 * 10**9)


def test_a_running_run_is_refused(trace: Path, run_dir: Path) -> None:
    """A run that was heard of within three heartbeats is refused, with what to do, and nothing is changed."""
    write_lines(run_dir / TraceName(1).filename, [make_meta(1), make_metric(0, at_s=100.0)])
    before = _contents(run_dir)
    with pytest.raises(InvalidStateError, match=r"rank 1 of run 'run-a' was heard of 29 s ago.*recover the run 30 s"):
        recover(run_dir, None, _config(), clock=FixedClock(129.0))
    assert _contents(run_dir) == before
    assert trace.exists()


def test_a_finished_run_is_left_alone(run_dir: Path) -> None:
    """A run whose ranks have all ended stays as it is, also where its directory cannot be written."""
    path = run_dir / TraceName(0).filename
    data = write_lines(path, [_META, *make_span(_RUN), make_terminal(2.0)])
    path.chmod(0o444)
    storage = InMemoryStorage()
    report = recover(run_dir, storage, _config(), clock=FixedClock(2.5))
    assert (report.closed, report.exported) == ((), None)
    assert path.read_bytes() == data
    assert storage.get_run_status("run-a") is RunStatus.SUCCESS


def test_storage_gets_the_run_and_its_failure(trace: Path, run_dir: Path) -> None:
    """A storage that does not know the run gets it: failed, interrupted, with its values; twice adds nothing."""
    storage = InMemoryStorage()
    first, second = (_recover(run_dir, storage) for _ in range(2))
    run = storage.get_run("run-a")
    assert (run.status, run.reason) == (RunStatus.FAILED, "interrupted")
    assert storage.attempts("run-a", 0) == [0]
    assert [point.step for point in storage.get_metrics("run-a", "loss")] == [0, 1]
    assert first.stored is not None
    assert second.stored is not None
    assert (first.stored.points_added, second.stored.points_added) == (2, 0)
    assert trace.exists()


def test_a_run_that_storage_thinks_running_becomes_failed(run_dir: Path) -> None:
    """What a live run began in storage is ended there as failed, with the reason and when it was last heard of."""
    storage = InMemoryStorage()
    experiment = storage.create_experiment("mnist")
    storage.create_run(experiment, "run-a")
    storage.start_run("run-a", time_unix_nano=START_UNIX_NANO)
    meta = msgspec.structs.replace(_META, process=msgspec.structs.replace(_META.process, world_size=1))
    write_lines(run_dir / TraceName(0).filename, [meta, *_EVENTS])
    _recover(run_dir, storage)
    run = storage.get_run("run-a")
    assert (run.status, run.reason) == (RunStatus.FAILED, "interrupted")
    assert run.end_time == START_UNIX_NANO + 9_000_000_000


def test_steps_before_the_kill_and_after_the_resume_add_up(run_dir: Path) -> None:
    """Case 53: 1,000 tokens, a kill, 500 more in a second attempt: the recovered run has 1,500 in storage."""
    meta = msgspec.structs.replace(_META, process=msgspec.structs.replace(_META.process, world_size=1))
    tokens = Step(step=0, duration_ns=1, tokens=1000, time_unix_nano=START_UNIX_NANO)
    write_lines(run_dir / TraceName(0).filename, [meta, tokens])
    later = msgspec.structs.replace(meta, process=msgspec.structs.replace(meta.process, attempt=1))
    more = msgspec.structs.replace(tokens, step=1, tokens=500)
    write_lines(run_dir / TraceName(0, attempt=1).filename, [later, more, make_terminal()])
    storage = InMemoryStorage()
    _recover(run_dir, storage)
    run = storage.get_run("run-a")
    assert run.counts["tokens"] == 1500
    assert run.status is RunStatus.SUCCESS


def test_traces_without_a_meta_line_are_told_of(trace: Path, run_dir: Path) -> None:
    """Case 34: files that are empty, torn in their meta line or without one first stay; the others are recovered."""
    broken = {1: b"", 2: b'{"kind":"meta","sch', 3: encode(make_metric(0)) + encode(_META)}
    paths = {rank: run_dir / TraceName(rank).filename for rank in broken}
    for rank, data in broken.items():
        paths[rank].write_bytes(data)
    report = _recover(run_dir)
    assert [closed.path for closed in report.closed] == [str(trace)]
    assert {rank: path.read_bytes() for rank, path in paths.items()} == broken
    assert report.empty == (str(paths[1]), str(paths[2]))
    (warning,) = report.warnings
    assert warning.startswith(f"not recovered: {paths[3]}:1: the first line must be the meta event")


def test_a_newer_schema_is_left_as_it_is(trace: Path, run_dir: Path) -> None:
    """A trace that a newer runspan wrote is told of and not touched."""
    newer = encode(_META).replace(b"runspan/trace/1", b"runspan/trace/2")
    (run_dir / TraceName(1).filename).write_bytes(newer)
    report = _recover(run_dir)
    assert any("newer runspan" in warning for warning in report.warnings)
    assert (run_dir / TraceName(1).filename).read_bytes() == newer
    assert trace.exists()


def test_another_program_s_trace_is_left_as_it_is(run_dir: Path) -> None:
    """A trace of candle-graph without its end is told of and not touched: its schema is not ours to write."""
    golden = Path(__file__).resolve().parents[1] / "golden" / "candle-graph-10.jsonl"
    run_dir.mkdir()
    path = run_dir / TraceName(0).filename
    path.write_bytes(b"".join(golden.read_bytes().splitlines(keepends=True)[:-1]))
    before = path.read_bytes()
    report = recover(run_dir, None, _config())
    assert (report.closed, path.read_bytes()) == ((), before)
    assert "candle-graph/trace/10" in report.warnings[0]


def test_what_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    """A folder without traces, or none at all, is one clear error."""
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(TraceFormatError, match="no run directory"):
            _recover(folder)


def test_a_full_disk_leaves_the_trace_as_it_was(trace: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the end cannot be written whole, nothing of it stays; the error names the file, and later it works."""
    before = trace.read_bytes()
    write, sizes = os.write, [20]

    def write_until_full(descriptor: int, data: bytes) -> int:
        if not sizes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: sizes.pop()])

    with monkeypatch.context() as patched:
        patched.setattr("os.write", write_until_full)
        with pytest.raises(ConfigError, match=r"rank-00000\.jsonl cannot be written \(No space left on device\)"):
            _recover(run_dir)
    assert trace.read_bytes() == before
    assert _recover(run_dir).closed


def test_many_ranks_in_folders_are_recovered(run_dir: Path) -> None:
    """Above 256 ranks, where a level of folders stands between, each rank's trace and capture is found."""
    folder = run_dir / "ranks" / "00001"
    path, capture = folder / TraceName(300).filename, run_dir / "captures" / "update-000000001" / "ranks" / "00001"
    write_lines(path, [make_meta(300), make_span(_RANK)[0]])
    write_lines(capture / TraceName(300).filename, [make_meta(300), make_span(_USER)[0]])
    assert len(_recover(run_dir).closed) == 2
    with read(path, clock=_LONG_AFTER) as reader:
        list(reader)
    assert reader.state.status is TraceStatus.FINISHED


def _kinds(events: Sequence[TraceEvent]) -> list[type]:
    return [type(event) for event in events]


def test_an_id_that_is_open_twice_ends_twice(run_dir: Path) -> None:
    """A trace whose fault is a doubled span id reads strictly after its recovery."""
    path = run_dir / TraceName(0).filename
    start = make_span(_USER)[0]
    write_lines(path, [_META, start, start])
    _recover(run_dir)
    with read(path) as reader:
        assert _kinds(list(reader)[1:]) == [SpanStart, SpanStart, SpanEnd, SpanEnd, Terminal]
