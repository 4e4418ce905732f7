"""``runspan diff``: what two runs differ in."""

from __future__ import annotations

import json as json_format
import math
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from runspan.cli._details import opened_run
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import Column, clean, format_number, open_console, plain, print_json, print_rows
from runspan.cli._workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runspan.records import RunInfo

__all__ = ["register"]

_ABSENT = "-"
_VALUE_WIDTH = 60
_STATISTICS = ("last", "min", "max", "count")

_RUN_HELP = "A run id, the beginning of one, `latest`, or a run directory."


class _Difference(msgspec.Struct, frozen=True):
    """One name that two runs have different values for; UNSET where a run has none."""

    name: str
    a: Any
    b: Any


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diff", short_help="Show what two runs differ in.", epilog=EXIT_CODES)(_diff)


def _diff(
    a: Annotated[str, typer.Argument(metavar="RUN_A", help=_RUN_HELP)],
    b: Annotated[str, typer.Argument(metavar="RUN_B", help=_RUN_HELP)],
    *,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Show the parameters, tags and metric summaries that two runs differ in.

    A difference is an answer like any other: the exit code is 0 with and without one.
    """
    workspace = Workspace.resolve(storage, directory)
    with opened_run(workspace, a) as opened:
        info_a = opened.info
    with opened_run(workspace, b) as opened:
        info_b = opened.info
    sections = {
        "params": _differences(info_a.params, info_b.params),
        "tags": _differences(info_a.tags, info_b.tags),
        "summary": _differences(_statistics(info_a), _statistics(info_b)),
    }
    if json:
        print_json(
            {
                "a": info_a.run_id,
                "b": info_b.run_id,
                **{title: {each.name: _sides(each) for each in found} for title, found in sections.items()},
            }
        )
        return
    _print(info_a, info_b, sections)


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[_Difference]:
    pairs = [_Difference(name, a.get(name, msgspec.UNSET), b.get(name, msgspec.UNSET)) for name in sorted({*a, *b})]
    return [pair for pair in pairs if not _same(pair.a, pair.b)]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    # 1, 1.0 and True are equal in Python, but a parameter that changed its type did change.
    return type(a) is type(b) and bool(a == b)


def _statistics(info: RunInfo) -> dict[str, float | int | None]:
    return {
        f"{key} {statistic}": getattr(summary, statistic)
        for key, summary in info.summary.items()
        for statistic in _STATISTICS
    }


def _sides(difference: _Difference) -> dict[str, Any]:
    sides = {"a": difference.a, "b": difference.b}
    return {side: value for side, value in sides.items() if value is not msgspec.UNSET}


def _print(info_a: RunInfo, info_b: RunInfo, sections: dict[str, list[_Difference]]) -> None:
    console = open_console()
    for side, info in (("A", info_a), ("B", info_b)):
        console.print(f"{side}  {clean(info.run_id)}  {info.status}", soft_wrap=True)
    if not any(sections.values()):
        console.print("No difference in parameters, tags and metric summaries.")
    for title, found in sections.items():
        if found:
            console.print()
            columns = (
                Column(title.upper()),
                Column("A", right=True),
                Column("B", right=True),
                Column("B - A", right=True),
            )
            print_rows(console, columns, [_row(each) for each in found])


def _row(difference: _Difference) -> list[str]:
    a, b = difference.a, difference.b
    change = ""
    if _is_number(a) and _is_number(b):
        change = format_number(b - a) if b < a else f"+{format_number(b - a)}"
    return [difference.name, _shown(a), _shown(b), change]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    if value is msgspec.UNSET:
        return _ABSENT
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(plain(value))
    text = value if isinstance(value, str) else json_format.dumps(plain(value), ensure_ascii=False)
    return text if len(text) <= _VALUE_WIDTH else f"{text[:_VALUE_WIDTH]}…"
