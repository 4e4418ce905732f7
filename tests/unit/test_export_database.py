from __future__ import annotations

import gzip
import json
import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runspan.errors import ConfigError
from runspan.export import _rows
from runspan.export._sources import find_sources
from runspan.export.database import create_database
from runspan.export.ready_made import READY_MADE
from runspan.tracefile.events import Metrics, SpanStatus, Step, TraceEvent, Usage, encode
from runspan.tracefile.layout import TraceName
from support.cli import make_step
from support.export_traces import CAPTURE, make_exported_run, span_events, trace_files, write_trace
from support.traces import START_UNIX_NANO, make_meta, make_metric, make_terminal, write_lines, write_parts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def _ask(directory: Path, sql: str, *, unreadable: int = 0) -> list[tuple[Any, ...]]:
    with create_database(find_sources(trace_files(directory))) as database:
        rows = list(database.ask(sql).rows)
        assert database.unreadable == unreadable
    return rows


def _columns(directory: Path, table: str) -> dict[str, str]:
    rows = _ask(directory, f"DESCRIBE {table}")
    return {row[0]: row[1] for row in rows}


def test_every_column_has_one_type_and_tells_whose_it_is(tmp_path: Path) -> None:
    """The tables have the documented columns, whether or not the run has such rows."""
    directory = tmp_path / "run"
    write_trace(directory, make_metric(0))
    owner = {"run_id": "VARCHAR", "rank": "BIGINT", "attempt": "BIGINT", "child": "VARCHAR"}
    for table in ("metrics", "steps", "spans", "usage", "traces"):
        columns = _columns(directory, table)
        assert list(columns.items())[:4] == list(owner.items())
    assert _columns(directory, "metrics") == {
        **owner,
        "key": "VARCHAR",
        "step": "BIGINT",
        "value": "DOUBLE",
        "time_unix_nano": "BIGINT",
        "superseded": "BOOLEAN",
    }
    steps = _columns(directory, "steps")
    assert (steps["phases"], steps["own_ns"]) == ("MAP(VARCHAR, BIGINT)", "BIGINT")


def test_metrics_of_all_lines_and_non_finite_values_are_floats(tmp_path: Path) -> None:
    """Case 35: NaN and infinite values arrive as such; each value of a line of several is a row."""
    directory = tmp_path / "run"
    events: list[TraceEvent] = [
        make_metric(0, value=float("nan")),
        make_metric(1, value=float("-inf")),
        make_metric(2, value=3),
        Metrics(step=3, values={"a": 1, "b": float("inf")}, time_unix_nano=START_UNIX_NANO),
        Metrics(values={"a": 2.5}, steps={"a": 7}, time_unix_nano=START_UNIX_NANO),
    ]
    write_trace(directory, *events)
    rows = _ask(directory, "SELECT key, step, value FROM metrics ORDER BY key, step")
    assert [row[:2] for row in rows] == [("a", 3), ("a", 7), ("b", 3), ("loss", 0), ("loss", 1), ("loss", 2)]
    assert [row[2] for row in rows[:3]] == [1.0, 2.5, math.inf]
    assert math.isnan(rows[3][2])
    assert [row[2] for row in rows[4:]] == [-math.inf, 3.0]


def test_ranks_attempts_and_children_are_told_apart(tmp_path: Path) -> None:
    """Rows of every rank, attempt and child process are there, marked with whose they are."""
    directory = tmp_path / "run"
    write_trace(directory, make_metric(0))
    write_trace(directory, make_metric(1), attempt=1)
    write_trace(directory, make_metric(2), rank=1)
    write_trace(directory, make_metric(3), child="4711")
    rows = _ask(directory, "SELECT rank, attempt, child, step FROM metrics ORDER BY step")
    assert rows == [(0, 0, None, 0), (0, 1, None, 1), (1, 0, None, 2), (0, 0, "4711", 3)]


def test_above_256_ranks_the_folders_of_ranks_are_read(tmp_path: Path) -> None:
    """A rank's files below ``ranks/<n>/`` and the steps that it captured are found."""
    directory = tmp_path / "run"
    write_trace(directory / "ranks" / "00001", make_metric(0), rank=300)
    start, end = span_events("aa", "step", 0, 10)
    write_trace(directory / "captures" / CAPTURE / "ranks" / "00001", start, end, rank=300)
    assert _ask(directory, "SELECT rank, step FROM metrics") == [(300, 0)]
    assert _ask(directory, "SELECT rank, capture, name FROM spans") == [(300, CAPTURE, "step")]


def test_parts_gzipped_or_not_are_one_trace(tmp_path: Path) -> None:
    """Case 36: closed parts in several gzip members are read, a cut one up to its cut."""
    directory = tmp_path / "run"
    paths = write_parts(
        directory, TraceName(0), [[make_metric(0), make_metric(1)], [make_metric(2)], [make_metric(3), make_metric(4)]]
    )
    lines = paths[0].read_bytes().splitlines(keepends=True)
    paths[0].with_name(f"{paths[0].name}.gz").write_bytes(b"".join(map(gzip.compress, lines)))
    paths[0].unlink()
    assert _ask(directory, "SELECT step FROM metrics ORDER BY step") == [(0,), (1,), (2,), (3,), (4,)]
    cut = gzip.compress(paths[2].read_bytes(), compresslevel=0)
    paths[2].with_name(f"{paths[2].name}.gz").write_bytes(cut[:-60])
    paths[2].unlink()
    assert _ask(directory, "SELECT step FROM metrics ORDER BY step") == [(0,), (1,), (2,), (3,)]


def test_damaged_gzip_data_is_told(tmp_path: Path) -> None:
    """Case 36: a damaged part gives the rows before the damage, and is named."""
    directory = tmp_path / "run"
    paths = write_parts(directory, TraceName(0), [[make_metric(0)], [make_metric(1)]])
    packed = bytearray(gzip.compress(paths[0].read_bytes(), compresslevel=0))
    packed[-8] ^= 0xFF  # in the checksum behind the data
    paths[0].with_name(f"{paths[0].name}.gz").write_bytes(packed)
    paths[0].unlink()
    with create_database(find_sources(trace_files(directory))) as database:
        assert sorted(database.ask("SELECT step FROM metrics").rows) == [(0,), (1,)]
        (problem,) = database.problems
    assert "rank-00000.jsonl.gz: gzip data damaged" in problem


def test_a_cut_anywhere_leaves_the_rows_before_it(tmp_path: Path) -> None:
    """Case 4: of a file that ends at any byte of its last line, the lines before are rows, and none is lost."""
    directory = tmp_path / "run"
    path = directory / "rank-00000.jsonl"
    whole = write_lines(path, [make_meta(), make_metric(0)])
    last = encode(make_metric(1))
    for kept in (1, len(last) // 2, len(last) - 2):
        path.write_bytes(whole + last[:kept])
        assert _ask(directory, "SELECT step FROM metrics") == [(0,)]
    path.write_bytes(whole + last[:-1])  # all but the newline
    assert _ask(directory, "SELECT step FROM metrics ORDER BY step") == [(0,), (1,)]


def test_unreadable_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    """What is no JSON, of another type, or too large for its column costs its own row and no other."""
    directory = tmp_path / "run"
    path = directory / "rank-00000.jsonl"
    bad = [
        b'{"kind":"metric","key":"loss","st' + encode(make_metric(5)),
        encode(make_metric(0)).replace(b'"step":0', b'"step":"x"'),
        encode(make_metric(0)).replace(b'"step":0', b'"step":18446744073709551615'),
        encode(make_metric(0)).replace(b'"value":0.0', b'"value":"nan"'),
        encode(make_metric(0)).replace(b"loss", b"\xff\xfe"),
    ]
    lines = [encode(make_meta()), *bad, b"\0\0\n", encode(make_metric(1)), encode(make_terminal())]
    write_lines(path, [])
    path.write_bytes(b"".join(lines))
    assert _ask(directory, "SELECT step FROM metrics", unreadable=len(bad)) == [(1,)]


def test_lines_that_another_program_has_written_are_rows_too(tmp_path: Path) -> None:
    """Spaces, another order of the fields, and NUL bytes in front cost no row; what is no JSON is counted."""
    directory = tmp_path / "run"
    path = write_trace(directory, *(make_metric(step) for step in range(3)))
    meta, *rest = path.read_bytes().splitlines()
    spaced = [json.dumps(json.loads(line)).encode() for line in rest]
    turned = json.dumps(dict(reversed(json.loads(rest[0]).items())) | {"step": 7}).encode()
    path.write_bytes(b"\n".join([meta, *spaced[:-1], turned, b"", b"\0\0" + rest[1], b"garbage", spaced[-1], b""]))
    assert _ask(directory, "SELECT step FROM metrics ORDER BY step", unreadable=1) == [(0,), (1,), (1,), (2,), (7,)]


def test_fields_of_a_newer_runspan_do_no_harm(tmp_path: Path) -> None:
    """A field that this version does not know is skipped, whatever it is called and holds."""
    directory = tmp_path / "run"
    path = directory / "rank-00000.jsonl"
    newer = encode(make_metric(0)).replace(b"}\n", b',"trace":"x","rank":{"a":[1]},"explicit":true}\n')
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(make_meta()) + newer)
    assert _ask(directory, "SELECT rank, step FROM metrics") == [(0, 0)]


def test_names_of_any_kind_arrive_as_they_are(tmp_path: Path) -> None:
    """Quotes, line breaks, NUL and emoji in keys and phases are data and nothing else."""
    directory = tmp_path / "run"
    name = "a'b\"c\n;\0é🙂"
    step = Step(step=0, duration_ns=5, phases={name: 1}, time_unix_nano=START_UNIX_NANO)
    write_trace(directory, make_metric(0, key=name), step)
    assert _ask(directory, "SELECT key FROM metrics") == [(name,)]
    assert _ask(directory, "SELECT phases FROM steps") == [({name: 1},)]


def test_spans_are_joined_and_open_ones_have_no_duration(tmp_path: Path) -> None:
    """A span's row has both of its lines; what is still open is NULL and not zero."""
    directory = tmp_path / "run"
    start, end = span_events("aa", "train", 5, 100)
    child, _ = span_events("ab", "load", 10, 0, "aa")
    end = msgspec.structs.replace(end, status=SpanStatus("error", "boom"), attributes={"lr": 0.5})
    write_trace(directory, start, child, end)
    rows = _ask(
        directory,
        "SELECT name, parent_id, start_ns, duration_ns, status, attributes->>'$.lr', trace_id FROM spans ORDER BY name",
    )
    assert rows == [
        ("load", "aa", 10, None, None, None, "ab" * 16),
        ("train", None, 5, 95, "error", "0.5", "ab" * 16),
    ]


def test_usage_that_was_not_measured_is_null(tmp_path: Path) -> None:
    """Missing is not zero."""
    directory = tmp_path / "run"
    write_trace(directory, Usage(cpu_util=12.5, memory_used=7, timestamp_ns=1, time_unix_nano=START_UNIX_NANO))
    assert _ask(directory, "SELECT cpu_util, gpu_util, memory_used, gpu_memory_used FROM usage") == [
        (12.5, None, 7, None)
    ]


def test_own_time_leaves_out_what_a_rank_waits_for_the_others(tmp_path: Path) -> None:
    """A step's own time is its duration without its collective phases."""
    directory = tmp_path / "run"
    write_trace(directory, make_step(0, forward=2, all_reduce=5, barrier=1), make_step(1, forward=3))
    assert _ask(directory, "SELECT step, own_ns FROM steps ORDER BY step") == [(0, 2_000_000), (1, 3_000_000)]


def test_batches_lose_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows a trace has, each arrives once."""
    monkeypatch.setattr(_rows, "_BATCH", 4)
    directory = tmp_path / "run"
    several = Metrics(step=9, values={str(number): number for number in range(7)}, time_unix_nano=START_UNIX_NANO)
    write_trace(directory, *(make_metric(step) for step in range(11)), several)
    assert _ask(directory, "SELECT count(*), count(DISTINCT (key, step)) FROM metrics") == [(18, 18)]


@pytest.mark.parametrize(
    "sql",
    [
        "COPY metrics TO 'out.csv'",
        "ATTACH 'other.db'",
        "DROP TABLE metrics",
        "INSERT INTO metrics SELECT * FROM metrics",
        "SET enable_external_access = true",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
    ],
)
def test_what_does_not_ask_is_refused(tmp_path: Path, sql: str) -> None:
    """A query is one statement that asks; nothing is changed, and nothing written."""
    write_trace(tmp_path / "run", make_metric(0))
    with pytest.raises(ConfigError, match="give one statement that asks"):
        _ask(tmp_path / "run", sql)


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{}')",
        "read_text('{}')",
        "'{}'",
        "read_json('{}')",
        "glob('/*')",
        "read_blob('{}')",
    ],
)
def test_no_other_file_is_reached(tmp_path: Path, source: str) -> None:
    """A query reads the run's tables and no file, whichever way it asks for one."""
    write_trace(tmp_path / "run", make_metric(0))
    secret = tmp_path / "secret.json"
    secret.write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="the query cannot be answered: Permission Error"):
        _ask(tmp_path / "run", f"FROM {source.format(secret)}")


@pytest.mark.parametrize("sql", ["FROM '/absent.csv'", "EXPLAIN ANALYZE FROM read_csv('{}')"])
def test_whether_a_file_exists_is_not_told_either(tmp_path: Path, sql: str) -> None:
    """Neither the check before loading nor what only runs afterwards looks at a file."""
    write_trace(tmp_path / "run", make_metric(0))
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with pytest.raises(ConfigError, match="the query cannot be answered: Permission Error"):
        _ask(tmp_path / "run", sql.format(secret))


def test_span_lines_that_no_table_can_hold_are_counted(tmp_path: Path) -> None:
    """A broken span line, and times beyond 64 bits with a sign, cost their own span and no other."""
    start, end = span_events("aa", "train", 0, 10)
    late = span_events("ab", "late", 2**63, 2**63 + 1)
    path = write_trace(tmp_path / "run", start, end, *late)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b'{"kind":"span_start","id":5}\n', *lines[3:]]))
    assert _ask(tmp_path / "run", "SELECT name FROM spans", unreadable=2) == [("train",)]


def test_a_mistake_is_told_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong column is named with what was likely meant, without the time that loading takes."""
    write_trace(tmp_path / "run", make_metric(0))
    monkeypatch.delattr(_rows.RowWriter, "add")
    with pytest.raises(ConfigError, match=r'(?s)column "valeu" not found.*value".*; its tables are metrics, steps,'):
        _ask(tmp_path / "run", "SELECT valeu FROM metrics")


def test_an_error_while_it_runs_is_clear(tmp_path: Path) -> None:
    """What only the data shows to be wrong is the same kind of error."""
    write_trace(tmp_path / "run", make_metric(0))
    with pytest.raises(ConfigError, match="the query cannot be answered: Conversion Error"):
        _ask(tmp_path / "run", "SELECT CAST(key AS BIGINT) FROM metrics")


def test_a_table_that_is_named_by_a_function_is_loaded(tmp_path: Path) -> None:
    """A query that puts a table's name together has the table's rows, not an empty table."""
    write_trace(tmp_path / "run", make_metric(0))
    assert _ask(tmp_path / "run", "FROM query_table('met' || 'rics') SELECT step") == [(0,)]


def test_traces_tell_where_rows_come_from(tmp_path: Path) -> None:
    """The table of the traces has the host and the file of each, those of captured steps too."""
    traces = make_exported_run(tmp_path / "run", ranks=1)
    rows = _ask(tmp_path / "run", "SELECT host, capture, path FROM traces ORDER BY capture NULLS FIRST")
    captured = tmp_path / "run" / "captures" / CAPTURE / traces[0].name
    assert rows == [("node-1", None, str(traces[0])), ("node-1", CAPTURE, str(captured))]


def test_stragglers_names_the_slow_rank_first(tmp_path: Path) -> None:
    """Of ranks in lockstep the one whose own work is longest comes first, with its phase; older attempts aside."""
    directory = tmp_path / "run"
    for rank in range(3):
        forward = 9.0 if rank == 1 else 2.0
        _write_steps(directory, rank, (make_step(n, forward=forward, all_reduce=10 - forward) for n in range(4)))
    write_trace(directory, make_step(0, forward=90), rank=2, attempt=0)
    _write_steps(directory, 2, (make_step(n, forward=2, all_reduce=8) for n in range(4)), attempt=1)
    rows = _ask(directory, READY_MADE["stragglers"])
    assert rows == [
        (1, 4, 10.0, 9.0, 4.5, 4, "forward"),
        (0, 4, 10.0, 2.0, 0.364, 0, "forward"),
        (2, 4, 10.0, 2.0, 0.364, 0, "forward"),
    ]


def test_steps_leaves_out_what_a_later_attempt_superseded(tmp_path: Path) -> None:
    """Case 19: of a step that two attempts have, the newer one's duration counts; from there on the older has none."""
    directory = tmp_path / "run"
    _write_steps(directory, 0, [make_step(0, forward=1), make_step(1, forward=50), make_step(2, forward=60)])
    _write_steps(directory, 0, [make_step(1, forward=2)], attempt=1)
    _write_steps(directory, 1, [make_step(0, forward=3)])
    assert _ask(directory, READY_MADE["steps"]) == [
        (0, 2, 2.0, 3.0, 3.0, 1, None, None),
        (1, 1, 2.0, 2.0, 2.0, 0, None, None),
    ]


def test_points_that_a_later_attempt_superseded_are_marked(tmp_path: Path) -> None:
    """Case 19: per rank and key an attempt takes the place of earlier ones from its first step on; none is lost."""
    directory = tmp_path / "run"
    write_trace(directory, *(make_metric(step) for step in range(4)), make_metric(9, key="eval"))
    write_trace(directory, *(make_metric(step) for step in (2, 3)), attempt=1)
    write_trace(directory, make_metric(3), attempt=2)
    write_trace(directory, *(make_metric(step) for step in range(4)), rank=1)
    rows = _ask(
        directory, "SELECT rank, key, attempt, list(step ORDER BY step) FROM metrics WHERE NOT superseded GROUP BY ALL"
    )
    assert sorted(rows) == [
        (0, "eval", 0, [9]),
        (0, "loss", 0, [0, 1]),
        (0, "loss", 1, [2]),
        (0, "loss", 2, [3]),
        (1, "loss", 0, [0, 1, 2, 3]),
    ]
    assert _ask(directory, "SELECT count(*) FROM metrics") == [(12,)]


def test_a_single_rank_is_no_straggler(tmp_path: Path) -> None:
    """Without others there is nothing to compare with, and no error."""
    directory = tmp_path / "run"
    _write_steps(directory, 0, [make_step(0, forward=1)])
    assert _ask(directory, READY_MADE["stragglers"]) == [(0, 1, 1.0, 1.0, None, 0, "forward")]


def _write_steps(directory: Path, rank: int, steps: Iterable[Step], **name: Any) -> None:
    write_trace(directory, *steps, rank=rank, **name)
