"""How the rows of ``runspan trace query`` look as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from runspan.cli._output import Column, format_bytes, format_duration, format_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from runspan.tracefile._questions import (
        GradientRow,
        HeavyRow,
        MemoryRow,
        OperationRow,
        SlowRow,
        SpanRow,
        TensorRow,
    )
    from runspan.tracefile._rank_questions import MetricRow, StepRow

__all__ = ["TABLES", "Table"]

_Cells: TypeAlias = "Callable[[Any], list[str]]"
_ABSENT = "-"


class Table(msgspec.Struct, frozen=True):
    """The headings of a table, and how a row's cells are made."""

    columns: tuple[Column, ...]
    cells: _Cells


def _slow(row: SlowRow) -> list[str]:
    return [
        row.path if row.op_name is None else f"{row.path}: {row.op_name}",
        str(row.calls),
        format_duration(row.self_ns),
        format_duration(row.total_ns),
        _share(row.share),
    ]


def _heavy(row: HeavyRow) -> list[str]:
    kind, what = ("operation", row.op_name) if row.path is None else ("span", row.path)
    return [kind, what or "", format_bytes(row.allocated_bytes), _share(row.share)]


def _memory(row: MemoryRow) -> list[str]:
    sizes = (
        row.peak_bytes,
        row.retained_bytes,
        row.device_used_bytes,
        row.device_reserved_bytes,
        row.device_capacity_bytes,
    )
    return [str(row.capture_step), str(row.rank), row.device, *map(_size, sizes)]


def _operation(row: OperationRow) -> list[str]:
    return [
        row.op_name,
        str(row.calls),
        format_duration(row.duration_ns),
        format_bytes(row.dense_bytes),
        f"{row.bytes_per_ns:.3g}",
    ]


def _span(row: SpanRow) -> list[str]:
    return [
        str(row.capture_step),
        str(row.rank),
        f"{'  ' * row.depth}{row.name}",
        row.step or _ABSENT,
        format_duration(row.start_ns),
        format_duration(row.duration_ns),
        format_duration(row.self_ns),
    ]


def _tensor(row: TensorRow) -> list[str]:
    return [
        str(row.capture_step),
        str(row.rank),
        str(row.tensor_id),
        row.label or _ABSENT,
        "x".join(map(str, row.shape)) or "scalar",
        row.dtype,
        row.device,
        row.category,
        _size(row.dense_bytes),
        row.path,
    ]


def _gradient(row: GradientRow) -> list[str]:
    norm = _ABSENT if row.norm is None else format_number(row.norm)
    return [str(row.capture_step), str(row.rank), str(row.root), row.key, row.state, norm]


def _metric(row: MetricRow) -> list[str]:
    bounds = (_ABSENT if bound is None else format_number(bound) for bound in (row.min, row.max))
    return [
        row.key,
        str(row.rank),
        str(row.attempt),
        str(row.points),
        str(row.last_step),
        format_number(row.last),
        *bounds,
        str(row.non_finite),
    ]


def _step(row: StepRow) -> list[str]:
    return [
        str(row.step),
        str(row.count),
        format_duration(row.min_ns),
        format_duration(row.mean_ns),
        format_duration(row.max_ns),
        str(row.slowest_rank),
    ]


def _share(share: float | None) -> str:
    return _ABSENT if share is None else f"{share:.1%}"


def _size(size_bytes: int | None) -> str:
    return _ABSENT if size_bytes is None else format_bytes(size_bytes)


def _number(title: str) -> Column:
    return Column(title, right=True)


_WHERE = (_number("CAPTURE"), _number("RANK"))

TABLES: dict[str, Table] = {
    "slowest": Table(
        (Column("SPAN", shrinks=True), _number("CALLS"), _number("SELF"), _number("TOTAL"), _number("SHARE")), _slow
    ),
    "heaviest": Table((Column("KIND"), Column("WHAT", shrinks=True), _number("ALLOCATED"), _number("SHARE")), _heavy),
    "memory": Table(
        (
            *_WHERE,
            Column("DEVICE"),
            _number("PEAK"),
            _number("RETAINED"),
            _number("DEVICE USED"),
            _number("RESERVED"),
            _number("CAPACITY"),
        ),
        _memory,
    ),
    "efficiency": Table(
        (Column("OPERATION", shrinks=True), _number("CALLS"), _number("TOTAL"), _number("BYTES"), _number("GB/S")),
        _operation,
    ),
    "spans": Table(
        (
            *_WHERE,
            Column("SPAN", shrinks=True),
            Column("STEP"),
            _number("START"),
            _number("DURATION"),
            _number("SELF"),
        ),
        _span,
    ),
    "tensors": Table(
        (
            *_WHERE,
            Column("TENSOR"),
            Column("LABEL"),
            Column("SHAPE"),
            Column("DTYPE"),
            Column("DEVICE"),
            Column("CATEGORY"),
            _number("BYTES"),
            Column("SPAN", shrinks=True),
        ),
        _tensor,
    ),
    "gradients": Table(
        (*_WHERE, Column("ROOT"), Column("PARAMETER", shrinks=True), Column("STATE"), _number("NORM")), _gradient
    ),
    "metrics": Table(
        (
            Column("METRIC", shrinks=True),
            _number("RANK"),
            _number("ATTEMPT"),
            _number("POINTS"),
            _number("LAST STEP"),
            _number("LAST"),
            _number("MIN"),
            _number("MAX"),
            _number("NON-FINITE"),
        ),
        _metric,
    ),
    "steps": Table(
        (
            _number("STEP"),
            _number("COUNT"),
            _number("SHORTEST"),
            _number("MEAN"),
            _number("LONGEST"),
            _number("SLOWEST RANK"),
        ),
        _step,
    ),
}
