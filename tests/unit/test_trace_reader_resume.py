from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from runspan.errors import SchemaVersionError, TraceFormatError
from runspan.tracefile.events import Metric, Metrics, Tag, TraceEvent, encode
from runspan.tracefile.layout import RunDirectory, TraceName
from runspan.tracefile.resume import first_start, next_automatic_steps
from support.traces import START_UNIX_NANO, make_meta, make_metric, write_lines, write_parts

if TYPE_CHECKING:
    from pathlib import Path


def _write(folder: Path, name: TraceName, *events: TraceEvent) -> Path:
    path = folder / name.filename
    write_lines(path, [make_meta(name.rank, name.attempt), *events])
    return path


def _at_once(*, step: int | None = None, **steps: int) -> Metrics:
    """Return a log_metrics line: automatic steps by key, or all at one explicit step."""
    values: dict[str, int | float] = dict.fromkeys(steps, 0.5)
    return Metrics(step=step, values=values, steps=None if step is not None else steps, time_unix_nano=1)


def test_each_key_goes_on_behind_its_last_automatic_step(tmp_path: Path) -> None:
    """Single and joint values move a key's counter, NaN too, whatever order threads wrote them in."""
    _write(
        tmp_path,
        TraceName(0),
        *(make_metric(step) for step in (0, 2, 1)),
        make_metric(3, value=float("nan")),
        _at_once(loss=4, accuracy=0),
        Tag("kind", '{"kind":"metric"}'),
    )
    assert next_automatic_steps(RunDirectory(tmp_path), 0, 1) == {"loss": 5, "accuracy": 1}


def test_explicit_steps_move_no_counter(tmp_path: Path) -> None:
    """Case 20: a value at a given step leaves the counter alone; a key with only such values is absent."""
    _write(
        tmp_path,
        TraceName(0),
        make_metric(0),
        make_metric(8073, explicit=True),
        make_metric(5, key="eval", explicit=True),
        _at_once(step=700, loss=0, both=0),
    )
    assert next_automatic_steps(RunDirectory(tmp_path), 0, 1) == {"loss": 1}


def test_counters_accumulate_over_attempts_and_parts(tmp_path: Path) -> None:
    """A key that the last attempt did not log goes on from an older one; other ranks and children do not count."""
    paths = write_parts(tmp_path, TraceName(1), [[make_metric(0), make_metric(0, key="early")], [make_metric(1)]])
    paths[0].with_name(f"{paths[0].name}.gz").write_bytes(gzip.compress(paths[0].read_bytes()))
    paths[0].unlink()
    _write(tmp_path, TraceName(1, attempt=1), make_metric(2))
    _write(tmp_path, TraceName(1, attempt=2), make_metric(50))
    _write(tmp_path, TraceName(0), make_metric(60))
    _write(tmp_path, TraceName(1, child="7"), make_metric(70))
    directory = RunDirectory(tmp_path)
    assert next_automatic_steps(directory, 1, 2) == {"loss": 3, "early": 1}
    assert next_automatic_steps(directory, 1, 1) == {"loss": 2, "early": 1}
    assert next_automatic_steps(directory, 1, 0) == {}


def test_torn_and_broken_lines_are_passed_over(tmp_path: Path) -> None:
    """A file cut at any byte gives the counters of its whole lines; a broken line in the middle costs only itself."""
    path = _write(tmp_path, TraceName(0))
    meta = path.read_bytes()
    broken = b'{"kind":"metric","key":1}\n{"kind":"metrics_later"}\n{"kind":"metric\n'
    lines = [encode(make_metric(0)), broken, encode(make_metric(1))]
    directory = RunDirectory(tmp_path)
    for cut in range(len(lines[2])):
        path.write_bytes(meta + b"".join(lines[:2]) + lines[2][:cut])
        whole = cut >= len(lines[2]) - 1
        assert next_automatic_steps(directory, 0, 1) == {"loss": 2 if whole else 1}
    for cut in (0, 20, len(meta) - 1):
        path.write_bytes(meta[:cut])
        assert next_automatic_steps(directory, 0, 1) == {}


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A newer schema, and a file that is none, are errors: counters are never guessed."""
    path = _write(tmp_path, TraceName(0))
    write_lines(path, [make_meta(schema="runspan/trace/2"), make_metric(0)])
    with pytest.raises(SchemaVersionError):
        next_automatic_steps(RunDirectory(tmp_path), 0, 1)
    path.unlink()
    path.mkdir()
    with pytest.raises(TraceFormatError, match=r"rank-00000\.jsonl"):
        next_automatic_steps(RunDirectory(tmp_path), 0, 1)


def test_a_run_without_files_has_no_counters_and_no_start(tmp_path: Path) -> None:
    """Nothing there, nothing known."""
    assert next_automatic_steps(RunDirectory(tmp_path / "none"), 0, 3) == {}
    assert first_start(RunDirectory(tmp_path / "none")) is None


def test_the_first_start_is_rank_0s_first_attempt(tmp_path: Path) -> None:
    """The start is in the meta line of rank 0's oldest attempt that has one; other ranks and children do not count."""
    for name, offset in ((TraceName(0, attempt=1), 100), (TraceName(1), 1), (TraceName(0, child="7"), 2)):
        time_unix_nano = START_UNIX_NANO + offset
        write_lines(tmp_path / name.filename, [make_meta(name.rank, time_unix_nano=time_unix_nano)])
    write_lines(tmp_path / "rank-00000.jsonl", [])
    directory = RunDirectory(tmp_path)
    assert first_start(directory) == START_UNIX_NANO + 100
    _write(tmp_path, TraceName(0))
    assert first_start(directory) == START_UNIX_NANO
    write_lines(tmp_path / "rank-00000.jsonl", [make_meta(schema="runspan/trace/2")])
    with pytest.raises(SchemaVersionError):
        first_start(directory)


def test_a_metric_line_keeps_its_kind_first() -> None:
    """The quick scan relies on it: both metric kinds begin with the same bytes."""
    for event in (Metric("a", 0, 1.0, 1), _at_once(a=0), Metric("a", 0, float("nan"), 1)):
        assert encode(event).startswith(b'{"kind":"metric')
