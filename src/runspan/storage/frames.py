"""Metrics as a table for analysis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from runspan.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    import pandas as pd
    import pyarrow as pa

    from runspan.storage.base import ExperimentStorage

    class _HasRunId(Protocol):
        @property
        def run_id(self) -> str: ...


__all__ = ["read_metrics"]

_Columns = dict[str, list[Any]]


@overload
def read_metrics(
    run: str | _HasRunId,
    keys: str | Sequence[str] | None = None,
    as_: Literal["pandas"] = "pandas",
    *,
    storage: ExperimentStorage | None = None,
) -> pd.DataFrame: ...


@overload
def read_metrics(
    run: str | _HasRunId,
    keys: str | Sequence[str] | None = None,
    *,
    as_: Literal["arrow"],
    storage: ExperimentStorage | None = None,
) -> pa.Table: ...


def read_metrics(
    run: str | _HasRunId,
    keys: str | Sequence[str] | None = None,
    as_: Literal["pandas", "arrow"] = "pandas",
    *,
    storage: ExperimentStorage | None = None,
) -> Any:
    """Read a run's metrics as one table, a row a point.

    Its columns: ``key``, ``step`` (int64), ``value`` (float64), ``time`` (UTC timestamp, ns), ``rank`` and ``attempt``
    (int64). Rows stand by key in the order asked for (first-logged order for None), then by step. Points that a later
    attempt superseded are left out.

    Args:
        run: a run id, or anything with a ``run_id``.
        keys: the metrics' keys, or one key; None: all. A key that the run does not have adds no rows.
        as_: ``pandas`` for a DataFrame, ``arrow`` for a ``pyarrow.Table``.
        storage: where the run is; None: the default database.

    Raises:
        ConfigError: ``as_`` is neither, or ``run`` names no run.
        MissingExtraError: pandas or pyarrow is not installed.
        RunNotFoundError: the storage has no such run.
        StorageError: the storage cannot be read.
    """
    if as_ not in ("pandas", "arrow"):
        raise ConfigError(f"as_={as_!r} cannot be used: give 'pandas' or 'arrow'")
    build = _data_frame if as_ == "pandas" else _arrow_table
    _require(as_)
    run_id = run if isinstance(run, str) else getattr(run, "run_id", None)
    if not isinstance(run_id, str):
        raise ConfigError(f"run={run!r} cannot be used: give a run id, or something with a run_id")
    if storage is not None:
        return build(_columns(storage, run_id, keys))
    from runspan.storage import open_storage  # noqa: PLC0415 - loads SQLAlchemy

    opened = open_storage()
    try:
        return build(_columns(opened, run_id, keys))
    finally:
        opened.close()


def _columns(storage: ExperimentStorage, run_id: str, keys: str | Sequence[str] | None) -> _Columns:
    wanted = [keys] if isinstance(keys, str) else keys
    by_key = storage.get_all_metrics(run_id, wanted)
    columns: _Columns = {name: [] for name in ("key", "step", "value", "time", "rank", "attempt")}
    for key in by_key if wanted is None else dict.fromkeys(wanted):
        points = by_key.get(key, [])
        columns["key"].extend(point.key for point in points)
        columns["step"].extend(point.step for point in points)
        columns["value"].extend(point.value for point in points)
        columns["time"].extend(point.time_unix_nano for point in points)
        columns["rank"].extend(point.rank for point in points)
        columns["attempt"].extend(point.attempt for point in points)
    return columns


def _require(as_: str) -> None:
    """Fail before the storage is read, not after."""
    try:
        if as_ == "pandas":
            import pandas as pd  # noqa: F401, PLC0415 - an optional dependency
        else:
            import pyarrow as pa  # noqa: F401, PLC0415 - an optional dependency
    except ImportError:
        raise MissingExtraError(f"read_metrics(as_={as_!r})", as_) from None


def _data_frame(columns: _Columns) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415 - an optional dependency

    integers = {name: pd.Series(columns[name], dtype="int64") for name in ("step", "rank", "attempt")}
    return pd.DataFrame(
        {
            "key": pd.Series(columns["key"], dtype="str"),
            "step": integers["step"],
            "value": pd.Series(columns["value"], dtype="float64"),
            "time": pd.Series(columns["time"], dtype="int64").astype("datetime64[ns, UTC]"),
            "rank": integers["rank"],
            "attempt": integers["attempt"],
        }
    )


def _arrow_table(columns: _Columns) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - an optional dependency

    types = {
        "key": pa.string(),
        "step": pa.int64(),
        "value": pa.float64(),
        "time": pa.timestamp("ns", tz="UTC"),
        "rank": pa.int64(),
        "attempt": pa.int64(),
    }
    return pa.table(columns, schema=pa.schema(list(types.items())))
