"""``search_runs`` over :class:`~runspan.records.RunInfo`: one meaning for all backends."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from runspan.records import FilterOp
from runspan.storage._rules import require_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runspan.records import Filter, MetricSummary, RunInfo

__all__ = ["newest_first", "select_runs"]

_PLAIN_FIELDS = frozenset({"status", "name", "group", "experiment_id", "start_time", "end_time"})
_STATISTICS = frozenset({"last", "min", "max", "count"})
_MISSING = object()


def newest_first(runs: Sequence[RunInfo]) -> list[RunInfo]:
    """Sort runs, given in the order they were created: newest start first, never-started ones first of all."""
    newest = list(reversed(runs))  # of runs that started together the one created last comes first
    newest.sort(key=lambda run: math.inf if run.start_time is None else run.start_time, reverse=True)
    return newest


def select_runs(
    runs: Sequence[RunInfo], filters: Sequence[Filter], order_by: str | None, limit: int | None
) -> list[RunInfo]:
    """Apply filters, order and limit to runs that are sorted newest first.

    Raises:
        ValueError: an unknown field or operator, or a negative limit.
    """
    if limit is not None:
        require_limit(limit)
    for condition in filters:
        _require_field(condition.field)
        _require_operator(condition.op)
    selected = [run for run in runs if all(_matches(run, condition) for condition in filters)]
    if order_by is not None:
        selected = _ordered(selected, order_by)
    return selected[:limit]


def _require_field(field: str) -> None:
    family, _, key = field.partition(".")
    if field not in _PLAIN_FIELDS and not (family in {"params", "tags", "summary"} and key):
        raise ValueError(
            f"unknown field {field!r}: use {', '.join(sorted(_PLAIN_FIELDS))}, params.<key>, tags.<key> or "
            "summary.<metric key>.<last|min|max|count>"
        )


def _require_operator(operator_name: str) -> None:
    if operator_name not in set(FilterOp):
        raise ValueError(f"unknown operator {operator_name!r}: use {', '.join(FilterOp)}")


def _value_of(run: RunInfo, field: str) -> Any:
    if field in _PLAIN_FIELDS:
        value = getattr(run, field)
        return _MISSING if value is None else value
    family, _, key = field.partition(".")
    if family == "summary":
        return _statistic(run.summary, key)
    values: dict[str, Any] = run.params if family == "params" else run.tags
    return values.get(key, _MISSING)


def _statistic(summary: dict[str, MetricSummary], key: str) -> Any:
    # The longest metric key that fits wins: a metric may itself be called "loss.min".
    if key in summary:
        return summary[key].last
    metric, _, statistic = key.rpartition(".")
    if metric not in summary or statistic not in _STATISTICS:
        return _MISSING
    value = getattr(summary[metric], statistic)
    return _MISSING if value is None else value


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "str" if isinstance(value, str) else type(value).__name__


def _same(left: Any, right: Any) -> bool:
    """Compare as ``==`` does, but ``True`` is not 1, however deep."""
    if _type_of(left) != _type_of(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(item, right[key]) for key, item in left.items())
    return bool(left == right)


_EQUALITY: dict[FilterOp, Callable[[Any, Any], bool]] = {
    FilterOp.EQ: _same,
    FilterOp.NE: lambda actual, wanted: not _same(actual, wanted),
}
_ORDERING: dict[FilterOp, Callable[[Any, Any], bool]] = {
    **_EQUALITY,
    FilterOp.GT: operator.gt,
    FilterOp.LT: operator.lt,
    FilterOp.GE: operator.ge,
    FilterOp.LE: operator.le,
}
#: What values of a type can be asked beyond equality.
_COMPARISONS = {
    "number": _ORDERING,
    "str": {**_ORDERING, FilterOp.CONTAINS: operator.contains, FilterOp.STARTS_WITH: str.startswith},
}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _matches(run: RunInfo, condition: Filter) -> bool:
    actual, wanted = _value_of(run, condition.field), condition.value
    if actual is _MISSING or _is_nan(actual) or _is_nan(wanted):
        return False
    if condition.op is FilterOp.CONTAINS and isinstance(actual, list):
        return any(_same(item, wanted) for item in actual)
    kind = _type_of(actual)
    comparison = _COMPARISONS.get(kind, _EQUALITY).get(condition.op)
    return comparison is not None and kind == _type_of(wanted) and comparison(actual, wanted)


def _ordered(runs: list[RunInfo], order_by: str) -> list[RunInfo]:
    field = order_by.removeprefix("-")
    _require_field(field)
    present: list[tuple[tuple[str, Any], RunInfo]] = []
    absent: list[RunInfo] = []
    for run in runs:
        value = _value_of(run, field)
        if _type_of(value) in {"bool", "number", "str"} and not _is_nan(value):
            present.append(((_type_of(value), value), run))
        else:
            absent.append(run)
    present.sort(key=lambda pair: pair[0], reverse=order_by.startswith("-"))
    return [run for _, run in present] + absent
