from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runspan.errors import ConfigError, MissingExtraError, TraceFormatError
from runspan.export.parquet import export_parquet
from runspan.tracefile.events import Usage
from support.cli import make_step
from support.export_traces import CAPTURE, make_exported_run, span_events, write_trace
from support.traces import START_UNIX_NANO, make_metric

if TYPE_CHECKING:
    from pathlib import Path

_OWNER: dict[str, Any] = {"run_id": pa.string(), "rank": pa.int64(), "attempt": pa.int64(), "child": pa.string()}


def test_each_table_is_a_file_with_the_documented_types(tmp_path: Path) -> None:
    """Another program than the one that wrote them reads four files, whose columns have one type each."""
    export_parquet(make_exported_run(tmp_path / "run"), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "metrics.parquet",
        "spans.parquet",
        "steps.parquet",
        "usage.parquet",
    ]
    schema = pq.read_schema(tmp_path / "out" / "metrics.parquet")
    assert dict(zip(schema.names, schema.types, strict=True)) == {
        **_OWNER,
        "key": pa.string(),
        "step": pa.int64(),
        "value": pa.float64(),
        "time_unix_nano": pa.int64(),
        "superseded": pa.bool_(),
    }
    for table in ("spans", "steps", "usage"):
        schema = pq.read_schema(tmp_path / "out" / f"{table}.parquet")
        types = dict(zip(schema.names, schema.types, strict=True))
        assert types.items() >= _OWNER.items()
        assert pa.null() not in types.values()


def test_the_rows_are_those_of_the_traces(tmp_path: Path) -> None:
    """Values, NaN among them, phases and captured spans arrive; what was not measured is null."""
    usage = Usage(cpu_util=5.0, timestamp_ns=1, time_unix_nano=START_UNIX_NANO)
    start, end = span_events("aa", "train", 5, 100)
    step = make_step(7, forward=2, all_reduce=3)
    trace = write_trace(tmp_path / "run", start, make_metric(3, value=float("nan")), step, usage, end)
    captured, captured_end = span_events("bb", "step", 0, 9)
    write_trace(tmp_path / "run" / "captures" / CAPTURE, captured, captured_end)
    export_parquet([trace], tmp_path / "out")
    tables = {name: pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() for name in ("metrics", "steps")}
    (metric,) = tables["metrics"]
    assert (metric["run_id"], metric["rank"], metric["step"]) == ("run-a", 0, 3)
    assert math.isnan(metric["value"])
    (row,) = tables["steps"]
    assert dict(row["phases"]) == {"forward": 2_000_000, "all_reduce": 3_000_000}
    assert (row["step"], row["own_ns"], row["tokens"]) == (7, 2_000_000, None)
    spans = pq.read_table(tmp_path / "out" / "spans.parquet").to_pylist()
    assert {(span["name"], span["capture"], span["duration_ns"]) for span in spans} == {
        ("train", None, 95),
        ("step", CAPTURE, 9),
    }
    (sample,) = pq.read_table(tmp_path / "out" / "usage.parquet").to_pylist()
    assert (sample["cpu_util"], sample["gpu_util"]) == (5.0, None)


def test_many_rows_are_several_row_groups(tmp_path: Path) -> None:
    """A long table is written group by group, none larger than what a reader holds at once."""
    trace = write_trace(tmp_path / "run", *(make_metric(step) for step in range(130_000)))
    output = tmp_path / 'all of it\'s "rows"'
    export_parquet([trace], output)
    file = pq.ParquetFile(output / "metrics.parquet")
    assert file.metadata.num_rows == 130_000
    assert file.metadata.num_row_groups > 1
    assert pq.read_table(output / "metrics.parquet")["step"].to_pylist() == list(range(130_000))


def test_an_earlier_export_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    """A folder of an export gives way to the next one; a folder with anything else in it stays, and so does a file."""
    trace = write_trace(tmp_path / "run", make_metric(0))
    export_parquet([trace], tmp_path / "out")
    write_trace(tmp_path / "run", make_metric(0), make_metric(1))
    export_parquet([trace], tmp_path / "out")
    assert pq.read_metadata(tmp_path / "out" / "metrics.parquet").num_rows == 2
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "file").touch()
    for taken in (tmp_path / "out", tmp_path / "file"):
        with pytest.raises(ConfigError, match="is there and is no earlier Parquet export"):
            export_parquet([trace], taken)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out", "run"]


def test_a_line_that_cannot_be_read_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """An export that lacks rows is not written; a cut last line is no error."""
    trace = write_trace(tmp_path / "run", make_metric(0), make_metric(1))
    whole = trace.read_bytes()
    trace.write_bytes(whole[:-10])
    export_parquet([trace], tmp_path / "out")
    trace.write_bytes(whole.replace(b'"step":0', b'"step":"x"'))
    with pytest.raises(TraceFormatError, match=r"cannot be read: `runspan trace health`"):
        export_parquet([trace], tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_without_duckdb_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base installation says what to install."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'runspan\[sql\]'"):
        export_parquet([write_trace(tmp_path / "run", make_metric(0))], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """A missing parent is named with the output."""
    with pytest.raises(ConfigError, match=r"absent/out cannot be written \(No such file or directory\)"):
        export_parquet([write_trace(tmp_path / "run", make_metric(0))], tmp_path / "absent" / "out")
