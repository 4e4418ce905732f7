from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

from runspan.errors import ConfigError, MissingExtraError, RunNotFoundError
from runspan.records import MetricPoint
from runspan.storage import InMemoryStorage, SqlStorage, read_metrics

if TYPE_CHECKING:
    from pathlib import Path

TIME = 1_700_000_000_123_456_789
POINTS = [
    MetricPoint("b", 1, 0.5, TIME),
    MetricPoint("b", 0, math.nan, TIME),
    MetricPoint("a", 0, math.inf, TIME, rank=1),
    MetricPoint("b", 1, 0.25, TIME + 1, attempt=1),
]
ROWS = [("b", 0, None, 0, 0), ("b", 1, 0.25, 0, 1), ("a", 0, math.inf, 1, 0)]


@pytest.fixture
def storage() -> InMemoryStorage:
    """Store a small run."""
    opened = InMemoryStorage()
    opened.create_run(opened.create_experiment("e"), "r", 2)
    opened.log_metrics("r", POINTS)
    return opened


def test_data_frame_has_typed_columns(storage: InMemoryStorage) -> None:
    """Rows come by key and step, superseded points left out, with exact UTC times and NaN kept."""
    frame = read_metrics("r", storage=storage)
    assert list(frame.columns) == ["key", "step", "value", "time", "rank", "attempt"]
    types = {name: str(frame[name].dtype) for name in ("step", "value", "time", "rank", "attempt")}
    integers = dict.fromkeys(("step", "rank", "attempt"), "int64")
    assert types == {**integers, "value": "float64", "time": "datetime64[ns, UTC]"}
    columns = [frame[name].tolist() for name in ("key", "step", "value", "rank", "attempt")]
    assert math.isnan(columns[2][0])
    columns[2][0] = None
    assert list(zip(*columns, strict=True)) == ROWS
    assert frame["time"][1] == pd.Timestamp(TIME + 1, tz="UTC")


def test_arrow_table_has_typed_columns(storage: InMemoryStorage) -> None:
    """The Arrow table has the same rows; NaN is a value and not a null."""
    table = read_metrics("r", as_="arrow", storage=storage)
    types = [str(field.type) for field in table.schema]
    assert types == ["string", "int64", "double", "timestamp[ns, tz=UTC]", "int64", "int64"]
    assert table.column("key").to_pylist() == ["b", "b", "a"]
    assert table.column("value").null_count == 0
    assert table.column("time").cast(pa.int64()).to_pylist() == [TIME, TIME + 1, TIME]


@pytest.mark.parametrize("as_", ["pandas", "arrow"])
def test_keys_choose_and_order_rows(as_: Any, storage: InMemoryStorage) -> None:
    """Keys come in the order asked for, one key may be a plain string, and an unknown one adds no rows."""
    for keys, expected in [(["a", "x", "b"], ["a", "b", "b"]), ("a", ["a"]), ([], []), ("nope", [])]:
        assert list(map(str, read_metrics("r", keys, as_, storage=storage)["key"])) == expected


def test_run_may_be_anything_with_a_run_id(storage: InMemoryStorage) -> None:
    """A Run or a RunInfo stands for its id; an unknown run is an error."""
    assert len(read_metrics(SimpleNamespace(run_id="r"), storage=storage)) == 3
    assert len(read_metrics(storage.get_run("r"), storage=storage)) == 3
    with pytest.raises(RunNotFoundError, match="'x'"):
        read_metrics("x", storage=storage)


def test_default_storage_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a storage the default database is read."""
    monkeypatch.setenv("RUNSPAN_STORAGE", str(tmp_path / "x.db"))
    default = SqlStorage()
    default.create_run(default.create_experiment("e"), "r")
    default.log_metrics("r", POINTS)
    default.close()
    assert len(read_metrics("r")) == 3


@pytest.mark.parametrize(("as_", "module"), [("pandas", "pandas"), ("arrow", "pyarrow")])
def test_missing_library_names_the_extra(
    as_: Any, module: str, storage: InMemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the library the error says what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"runspan\[{as_}\]"):
        read_metrics("r", as_=as_, storage=storage)


def test_unknown_form_is_refused(storage: InMemoryStorage) -> None:
    """A form that does not exist is a ConfigError naming those that do."""
    form: Any = "polars"
    with pytest.raises(ConfigError, match="'pandas' or 'arrow'"):
        read_metrics("r", as_=form, storage=storage)
