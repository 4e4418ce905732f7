from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runspan.tracefile.events import Event, Metric, Terminal
from runspan.tracefile.layout import RunDirectory, TraceName
from runspan.tracefile.reader import read
from runspan.tracefile.writer import ClosedWriter, FileWriter, NullWriter
from support.programs import Workplace, events_of, kinds_of, lines_of
from support.traces import START_UNIX_NANO, make_meta, make_metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAME = TraceName(0)


@pytest.fixture
def open_writer(tmp_path: Path) -> Iterator[Callable[..., FileWriter]]:
    """Open writers on rank 0's file, closed afterwards."""
    opened: list[FileWriter] = []

    def make(max_file_bytes: int = 1 << 30) -> FileWriter:
        writer = FileWriter(tmp_path, _NAME, make_meta(), max_file_bytes=max_file_bytes)
        opened.append(writer)
        return writer

    yield make
    for writer in opened:
        writer.close()


class _Disk:
    """A disk that fails on demand, in the place of ``os.write``: how many bytes fit, and what happens then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.error = errno.ENOSPC
        #: At most so many bytes a call are written, as a signal or a quota may have it.
        self.most: int | None = None
        self._write = os.write
        monkeypatch.setattr("runspan.tracefile.writer.os.write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        """Write what fits."""
        fitting = data if self.most is None else data[: self.most]
        if self.room is not None:
            if self.room <= 0:
                raise OSError(self.error, os.strerror(self.error))
            fitting = fitting[: self.room]
            self.room -= len(fitting)
        return self._write(descriptor, fitting)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> _Disk:
    """Return a disk that can be made to fail."""
    return _Disk(monkeypatch)


def _steps(lines: list[dict[str, Any]]) -> list[int]:
    return [line["step"] for line in events_of(lines, "metric")]


def test_the_file_begins_with_meta_and_is_opened_once(tmp_path: Path, open_writer: Callable[..., FileWriter]) -> None:
    """The first line is meta, synced before anything else, and the name is taken for good."""
    writer = open_writer()
    assert writer.path == tmp_path / "rank-00000.jsonl"
    assert kinds_of(lines_of(writer.path)) == ["meta"]
    with pytest.raises(FileExistsError):
        open_writer()


def test_one_write_a_record_on_an_appending_descriptor(
    open_writer: Callable[..., FileWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is one os.write of a whole line: what has returned is the kernel's."""
    writer = open_writer()
    written: list[bytes] = []
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        written.append(data)
        return real(descriptor, data)

    monkeypatch.setattr("runspan.tracefile.writer.os.write", write)
    for step in range(5):
        assert writer.write(make_metric(step))
    assert [data.count(b"\n") for data in written] == [1] * 5
    assert all(data.endswith(b"\n") for data in written)


def test_a_closed_writer_refuses_and_leaves_the_file_alone(open_writer: Callable[..., FileWriter]) -> None:
    """After close nothing is accepted, counted or written, and closing twice is harmless."""
    writer = open_writer()
    writer.write(make_metric(0))
    writer.close()
    before = writer.path.read_bytes()
    assert not writer.write(make_metric(1))
    writer.close()
    assert writer.path.read_bytes() == before
    assert writer.lost() == {}


def test_short_writes_are_completed(open_writer: Callable[..., FileWriter], disk: _Disk) -> None:
    """A write that takes only a part of the line is gone on with until the line is whole."""
    writer = open_writer()
    disk.most = 7
    for step in range(20):
        assert writer.write(make_metric(step))
    assert _steps(lines_of(writer.path)) == list(range(20))
    assert writer.lost() == {}


@pytest.mark.parametrize("room", range(1, 90, 4))
def test_a_full_disk_costs_whole_lines_and_is_told_of_later(
    open_writer: Callable[..., FileWriter], disk: _Disk, room: int
) -> None:
    """Case 29: wherever the disk fills up, no half line, no duplicate, no exception; the loss is counted and told."""
    writer = open_writer()
    assert writer.write(make_metric(0))
    disk.room = room
    accepted = [step for step in range(1, 6) if writer.write(make_metric(step))]
    disk.room = None
    assert writer.write(make_metric(6))
    lines = lines_of(writer.path)
    assert _steps(lines) == [0, *accepted, 6]
    lost = 5 - len(accepted)
    assert lost > 0
    assert writer.lost() == {"ENOSPC": lost}
    (dropped,) = events_of(lines, "dropped")
    assert dropped == {"kind": "dropped", "signal": "file", "reason": "ENOSPC", "count": lost}
    assert lines.index(dropped) == len(lines) - 2


def test_losses_are_told_once_over_failing_tries(open_writer: Callable[..., FileWriter], disk: _Disk) -> None:
    """A dropped line that itself finds no room is told later, whole: no line twice, none lost."""
    writer = open_writer()
    disk.room = 0
    assert not writer.write(make_metric(0))
    for room in (3, 40, 80, 120):  # the first of two lines fits, but not both
        disk.room = room
        assert not writer.write(make_metric(1))
    disk.error = errno.EIO
    disk.room = 0
    assert not writer.write(make_metric(2))
    disk.room = None
    assert writer.write(make_metric(3))
    lines = lines_of(writer.path)
    assert [(line["reason"], line["count"]) for line in events_of(lines, "dropped")] == [("ENOSPC", 5), ("EIO", 1)]
    assert _steps(lines) == [3]
    assert writer.write(make_metric(4))
    assert len(events_of(lines_of(writer.path), "dropped")) == 2


def test_a_tail_that_cannot_be_cut_at_once_is_cut_later(
    open_writer: Callable[..., FileWriter], disk: _Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where even the roll-back fails, it is done before the next line is written."""
    writer = open_writer()
    truncate = os.ftruncate

    def refuse(_descriptor: int, _length: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr("runspan.tracefile.writer.os.ftruncate", refuse)
    disk.room = 10
    assert not writer.write(make_metric(0))
    disk.room = None
    assert not writer.write(make_metric(1))
    monkeypatch.setattr("runspan.tracefile.writer.os.ftruncate", truncate)
    assert writer.write(make_metric(2))
    lines = lines_of(writer.path)
    assert _steps(lines) == [2]
    assert {line["reason"]: line["count"] for line in events_of(lines, "dropped")} == {"ENOSPC": 1, "EIO": 1}


def test_the_first_loss_is_logged_and_no_other(
    open_writer: Callable[..., FileWriter], disk: _Disk, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning that names the file and the reason, after the lock was let go of."""
    writer = open_writer()
    held: list[bool] = []

    class Observer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - the base class's signature
            held.append(writer.is_inside())

    handler = Observer()
    logging.getLogger("runspan").addHandler(handler)
    try:
        disk.room = 0
        for step in range(3):
            writer.write(make_metric(step))
    finally:
        logging.getLogger("runspan").removeHandler(handler)
    (record,) = caplog.records
    assert str(writer.path) in record.getMessage()
    assert "No space left" in record.getMessage()
    assert held == [False]


def test_an_exception_behind_a_write_costs_no_accepted_line(
    open_writer: Callable[..., FileWriter], disk: _Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KeyboardInterrupt between a write and its bookkeeping does not make a later roll-back cut into whole lines."""
    writer = open_writer()
    real = disk.write

    def interrupted(descriptor: int, data: bytes) -> int:
        real(descriptor, data)
        raise KeyboardInterrupt

    monkeypatch.setattr("runspan.tracefile.writer.os.write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.write(make_metric(0))
    monkeypatch.setattr("runspan.tracefile.writer.os.write", real)
    writer.write(make_metric(1))
    disk.room = 5
    writer.write(make_metric(2))
    disk.room = None
    writer.write(make_metric(3))
    assert _steps(lines_of(writer.path)) == [0, 1, 3]


def test_a_file_size_limit_is_no_exception(tmp_path: Path) -> None:
    """Case 29: at a real limit of the system (RLIMIT_FSIZE) a process goes on, and its file has whole lines only."""
    done = Workplace(tmp_path).run(
        """
        import resource, signal, sys
        from pathlib import Path
        from runspan.tracefile.layout import TraceName
        from runspan.tracefile.writer import FileWriter
        from support.traces import make_meta, make_metric
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writer = FileWriter(Path(sys.argv[1]), TraceName(0), make_meta(), max_file_bytes=1 << 30)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        accepted = [step for step in range(100) if writer.write(make_metric(step))]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert writer.write(make_metric(100))
        print(len(accepted), dict(writer.lost()))
        """,
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    lines = lines_of(tmp_path / "rank-00000.jsonl")
    steps = _steps(lines)
    assert steps == [*range(len(steps) - 1), 100]
    assert done.stdout.split(maxsplit=1) == [str(len(steps) - 1), f"{{'EFBIG': {101 - len(steps)}}}\n"]


def _until_compressed(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while len(list(folder.glob("rank-*.jsonl.gz"))) < count or list(folder.glob(".*.tmp")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_rotation_makes_whole_parts_that_read_as_one_trace(
    tmp_path: Path, open_writer: Callable[..., FileWriter]
) -> None:
    """Case 36: at a megabyte a trace goes on in a part of its own; closed parts end in segment_end and are gzipped."""
    writer = open_writer(max_file_bytes=1_000_000)
    count = 40_000
    for step in range(count):
        assert writer.write(make_metric(step))
    writer.write(Terminal("complete", 5, "success"))
    writer.close()
    parts = [name for name, _ in RunDirectory(tmp_path).trace_files()]
    assert len(parts) > 2
    _until_compressed(tmp_path, len(parts) - 1)
    for name in parts[:-1]:
        data = gzip.decompress((tmp_path / f"{name.filename.removesuffix('.gz')}.gz").read_bytes())
        assert len(data) < 1_000_200
        lines = [json.loads(line) for line in data.splitlines()]
        assert lines[0]["kind"] == "meta"
        assert lines[0].get("part", 0) == name.part
        assert lines[-1] == {"kind": "segment_end", "next": name.next_part().filename}
    events = list(read(tmp_path / "rank-00000.jsonl.gz"))
    assert [event.step for event in events if isinstance(event, Metric)] == list(range(count))
    assert isinstance(events[-1], Terminal)


def test_a_record_larger_than_a_part_goes_into_one(open_writer: Callable[..., FileWriter], tmp_path: Path) -> None:
    """The part size is where to cut between lines, never a limit on a line."""
    writer = open_writer(max_file_bytes=4_096)
    big = Event(name="big", level="info", message="x" * 20_000, time_unix_nano=START_UNIX_NANO)
    for _ in range(3):
        assert writer.write(big)
    writer.close()
    events = [event for event in read(tmp_path / "rank-00000.jsonl") if isinstance(event, Event)]
    assert events == [big] * 3


def test_a_next_part_that_cannot_be_opened_leaves_the_trace_in_this_one(
    open_writer: Callable[..., FileWriter], tmp_path: Path
) -> None:
    """Rotation is tidiness: where the next name is taken, the part grows beyond its size and nothing is lost."""
    (tmp_path / "rank-00000.part-0001.jsonl").mkdir()
    writer = open_writer(max_file_bytes=4_096)
    for step in range(200):
        assert writer.write(make_metric(step))
    writer.close()
    assert _steps(lines_of(tmp_path / "rank-00000.jsonl")) == list(range(200))


def test_a_cut_segment_end_is_passed_over(open_writer: Callable[..., FileWriter], disk: _Disk, tmp_path: Path) -> None:
    """A full disk at the moment of rotation costs the segment_end line, and no other."""
    writer = open_writer(max_file_bytes=4_096)
    first = writer.path
    step = 0
    real = disk.write

    def cut(descriptor: int, data: bytes) -> int:
        return real(descriptor, data[:9] if b'"segment_end"' in data else data)

    disk_write = pytest.MonkeyPatch()
    disk_write.setattr("runspan.tracefile.writer.os.write", cut)
    try:
        while writer.path == first:
            assert writer.write(make_metric(step))
            step += 1
    finally:
        disk_write.undo()
    writer.write(Terminal("complete", 5, "success"))
    writer.close()
    _until_compressed(tmp_path, 1)
    reader = read(tmp_path / "rank-00000.jsonl")
    assert [event.step for event in reader if isinstance(event, Metric)] == list(range(step))


def test_threads_write_whole_lines(open_writer: Callable[..., FileWriter]) -> None:
    """Records of many threads, large ones too, never mix."""
    writer = open_writer(max_file_bytes=1 << 20)
    size = 30_000

    def log(number: int) -> None:
        for step in range(30):
            event = Event(name=f"{number}", level="info", message="x" * size, time_unix_nano=step)
            assert writer.write(event)

    threads = [threading.Thread(target=log, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    events = [event for event in read(writer.path) if isinstance(event, Event)]
    assert len(events) == 180
    for number in range(6):
        assert [event.time_unix_nano for event in events if event.name == str(number)] == list(range(30))


def test_a_handler_sees_whether_it_interrupted_a_recording_call(open_writer: Callable[..., FileWriter]) -> None:
    """The lock's holder and a marked thread are inside; another thread is not."""
    writer = open_writer()
    assert not writer.is_inside()
    with writer.lock:
        assert writer.is_inside()
        seen: list[bool] = []
        other = threading.Thread(target=lambda: seen.append(writer.is_inside()))
        other.start()
        other.join()
        assert seen == [False]
    with writer.inside():
        with writer.inside():
            assert writer.is_inside()
        assert writer.is_inside(), "the inner call's end is not the outer one's"
    assert not writer.is_inside()


def test_deferred_work_is_done_at_the_end_of_the_call_by_its_own_thread(
    open_writer: Callable[..., FileWriter],
) -> None:
    """What a signal handler left is done once, outside the lock, and never by a thread that was not interrupted."""
    writer = open_writer()
    done: list[tuple[int, bool]] = []
    with writer.lock:
        writer.defer(lambda: done.append((threading.get_ident(), writer.is_inside())))
        writer.write(make_metric(0))
        assert done == []
    other = threading.Thread(target=writer.write, args=(make_metric(1),))
    other.start()
    other.join()
    assert done == []
    writer.write(make_metric(2))
    writer.write(make_metric(3))
    assert done == [(threading.get_ident(), False)]


def test_what_deferred_work_raises_reaches_the_caller(open_writer: Callable[..., FileWriter]) -> None:
    """An earlier handler's SystemExit comes out of the recording call that it interrupted, whose line is written."""
    writer = open_writer()

    def interrupted_call() -> None:
        with writer.inside():
            writer.write(make_metric(0))
            writer.defer(lambda: sys.exit(3))

    with pytest.raises(SystemExit):
        interrupted_call()
    assert _steps(lines_of(writer.path)) == [0]
    assert writer.write(make_metric(1))


def test_a_null_writer_accepts_and_a_closed_one_tells_each_refusal() -> None:
    """Without a file everything is accepted; after the end each call is refused and told of."""
    assert NullWriter().write(make_metric(0))
    refusals: list[int] = []
    closed = ClosedWriter(lambda: refusals.append(1))
    assert not closed.write(make_metric(0))
    assert not closed.write(make_metric(1))
    assert refusals == [1, 1]


def test_abandoning_leaves_the_file_to_its_owner(open_writer: Callable[..., FileWriter]) -> None:
    """A forked child lets go of the parent's file without a byte in it."""
    writer = open_writer()
    before = writer.path.read_bytes()
    writer.abandon()
    assert not writer.write(make_metric(0))
    assert writer.path.read_bytes() == before


def test_a_writer_that_cannot_write_its_first_line_leaves_no_file(tmp_path: Path, disk: _Disk) -> None:
    """A disk that is full at the start is an error, and leaves no empty trace behind."""
    disk.room = 20
    with pytest.raises(OSError, match="No space left"):
        FileWriter(tmp_path, _NAME, make_meta(), max_file_bytes=1 << 30)
    assert list(tmp_path.iterdir()) == []


def _descriptor_of(path: Path) -> int:
    """Return the descriptor under which this process has a file open."""
    numbers = [entry for entry in Path("/proc/self/fd").iterdir() if entry.exists() and entry.samefile(path)]
    return int(numbers[0].name)


def _take_over(writer: FileWriter, path: Path) -> int:
    """Close the writer's descriptor, as os.closerange does, and open another file under its number."""
    descriptor = _descriptor_of(writer.path)
    other = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(other, descriptor)
    os.close(other)
    return descriptor


def test_a_closed_descriptor_is_opened_again_without_a_loss(open_writer: Callable[..., FileWriter]) -> None:
    """A program that closes every descriptor costs no line: the next write opens the file once more."""
    writer = open_writer()
    os.close(_descriptor_of(writer.path))
    assert writer.write(make_metric(0))
    writer.close()
    assert _steps(lines_of(writer.path)) == [0]
    assert writer.lost() == {}


def test_a_reused_descriptor_is_told_apart_and_never_closed(
    open_writer: Callable[..., FileWriter], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A look finds the program's file under the writer's number: it is left alone, and the loss is told and counted."""
    writer = open_writer()
    writer.write(make_metric(0))
    descriptor = _take_over(writer, tmp_path / "other")
    writer.write(make_metric(1))  # nobody has looked yet
    elsewhere = (tmp_path / "other").read_bytes()
    with caplog.at_level(logging.WARNING, logger="runspan"):
        writer.reclaim()
    writer.write(make_metric(2))
    writer.close()
    lines = lines_of(writer.path)
    assert _steps(lines) == [0, 2]
    assert [(line["reason"], line["count"]) for line in events_of(lines, "dropped")] == [("EBADF", 1)]
    assert f"{len(elsewhere)} bytes went elsewhere" in caplog.text
    assert (tmp_path / "other").read_bytes() == elsewhere
    os.close(descriptor)  # the program's own is still open


@pytest.mark.parametrize("let_go", [FileWriter.close, FileWriter.abandon])
def test_closing_spares_a_reused_descriptor(
    open_writer: Callable[..., FileWriter], tmp_path: Path, let_go: Callable[[FileWriter], None]
) -> None:
    """The end of the run, or of its copy in a forked child, closes no descriptor of the program's."""
    writer = open_writer()
    descriptor = _take_over(writer, tmp_path / "other")
    let_go(writer)
    os.write(descriptor, b"the program's")
    os.close(descriptor)
    assert (tmp_path / "other").read_bytes() == b"the program's"


def test_a_file_that_another_one_replaced_is_not_written_to(
    open_writer: Callable[..., FileWriter], tmp_path: Path
) -> None:
    """Where the descriptor is gone and another file stands at the path, lines are lost and counted."""
    writer = open_writer()
    _take_over(writer, tmp_path / "other")
    foreign = tmp_path / "foreign"
    foreign.write_text("foreign")
    foreign.replace(writer.path)
    writer.reclaim()
    assert not writer.write(make_metric(0))
    assert writer.path.read_text() == "foreign"
    assert (tmp_path / "other").read_bytes() == b""
    assert writer.lost() == {"ESTALE": 1}
