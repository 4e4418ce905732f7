"""``runspan trace compare``: what one trace, or one group of runs, does differently from another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import (
    Column,
    clean,
    counted,
    format_bytes,
    format_duration,
    format_number,
    open_console,
    print_json,
    print_rows,
    say,
)
from runspan.cli._workspace import Workspace
from runspan.cli.trace._main_trace import find_main_trace
from runspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runspan.tracefile._compare import Comparison, GradientDelta, SpanDelta
    from runspan.tracefile._compare_groups import GroupComparison

__all__ = ["register"]

_NEGATIVE = 1
_BETWEEN = "vs"
_PAIR = 2
_ABSENT = "-"
#: Spans and gradients that people are shown; --json has all.
_MAX_ROWS = 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", short_help="Compare two traces, or two groups of runs.", epilog=EXIT_CODES)(_compare)


def _compare(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="BASELINE... [vs] CANDIDATE...",
            help="Trace files or runs (an id, the beginning of one, `latest`, a directory); of a run the newest attempt"
            " of rank 0. Between groups stands the word vs.",
        ),
    ],
    *,
    seed: Annotated[int, typer.Option("--seed", help="Draws the resamples behind a group's interval.")] = 0,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Compare two complete traces, or two groups of five runs or more.

    Two traces: the differences of total, memory peak, spans by path, and gradients. Groups: median, p95 and MAD of the
    totals, a 95 % interval of the medians' difference, and a verdict. The exit code is 1 where the two are not
    comparable, or the groups are ineligible for a verdict; slower and faster are answers like any other.
    """
    baselines, candidates = _sides(traces)
    workspace = Workspace.resolve(storage, directory)
    before = [find_main_trace(workspace, reference) for reference in baselines]
    after = [find_main_trace(workspace, reference) for reference in candidates]
    if len(before) == len(after) == 1:
        from runspan.tracefile import compare  # noqa: PLC0415 - a command loads what it needs

        comparison = compare(before[0], after[0])
        is_answered = comparison.comparable
        if json:
            print_json(comparison)
        else:
            _print_pair(comparison)
    else:
        from runspan.tracefile._compare_groups import GroupVerdict, compare_groups  # noqa: PLC0415 - as above

        groups = compare_groups(before, after, seed=seed)
        is_answered = groups.verdict is not GroupVerdict.INELIGIBLE
        if json:
            print_json(groups)
        else:
            _print_groups(groups)
    if not is_answered:
        raise typer.Exit(_NEGATIVE)


def _sides(traces: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if _BETWEEN not in traces:
        if len(traces) != _PAIR:
            raise ConfigError(
                f"{counted(len(traces), 'trace')} without the word vs: give two traces, or BASELINE... vs CANDIDATE..."
            )
        return traces[:1], traces[1:]
    place = traces.index(_BETWEEN)
    baselines, candidates = traces[:place], traces[place + 1 :]
    if not baselines or not candidates or _BETWEEN in candidates:
        raise ConfigError("the word vs stands once, between traces: BASELINE... vs CANDIDATE...")
    return baselines, candidates


def _print_pair(comparison: Comparison) -> None:
    say(f"baseline   {clean(comparison.baseline_run_id)}")
    say(f"candidate  {clean(comparison.candidate_run_id)}")
    for warning in comparison.warnings:
        say(f"warning    {clean(warning)}")
    say(f"total      {_change(comparison.total_delta_ns, comparison.total_delta_percent)}")
    before, after = comparison.baseline_peak_bytes, comparison.candidate_peak_bytes
    if before is not None or after is not None:
        say(f"peak       {_size(before)} -> {_size(after)}")
    sides = (Column("BASELINE", right=True), Column("CANDIDATE", right=True))
    spans = sorted(comparison.spans, key=lambda span: -abs(span.delta_ns))
    _print_table(
        (Column("SPAN", shrinks=True), Column("COUNT", right=True), *sides, Column("CHANGE", right=True)),
        [_span_row(span) for span in spans],
    )
    gradients = [_gradient_row(gradient) for gradient in comparison.gradients]
    _print_table((Column("GRADIENT", shrinks=True), *sides), [row for row in gradients if row[1] != row[2]])


def _print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    say("")
    print_rows(open_console(), columns, rows[:_MAX_ROWS])
    if len(rows) > _MAX_ROWS:
        say(f"... and {len(rows) - _MAX_ROWS} more: --json has all")


def _span_row(span: SpanDelta) -> list[str]:
    before, after = span.baseline_count, span.candidate_count
    return [
        span.path,
        str(before) if before == after else f"{before} -> {after}",
        format_duration(span.baseline_ns) if before else _ABSENT,
        format_duration(span.candidate_ns) if after else _ABSENT,
        _change(span.delta_ns, span.delta_percent),
    ]


def _gradient_row(gradient: GradientDelta) -> list[str]:
    sides = (
        (gradient.baseline_state, gradient.baseline_norm),
        (gradient.candidate_state, gradient.candidate_norm),
    )
    return [gradient.key, *((state or _ABSENT) if norm is None else format_number(norm) for state, norm in sides)]


def _print_groups(groups: GroupComparison) -> None:
    say(f"verdict    {groups.verdict}")
    for reason in groups.reasons:
        say(f"reason     {clean(reason)}")
    say(f"median     {_change(groups.median_delta_ns, groups.median_delta_percent)}")
    if groups.interval_ns is not None:
        low_ns, high_ns = groups.interval_ns
        say(f"interval   {_signed(low_ns)} to {_signed(high_ns)} (95 %, seed {groups.seed})")
    titles = ("RUNS", "MEDIAN", "P95", "MAD")
    _print_table(
        (Column("GROUP"), *(Column(title, right=True) for title in titles)),
        [
            [name, str(len(side.run_ids)), *map(format_duration, (side.median_ns, side.p95_ns, side.mad_ns))]
            for name, side in (("baseline", groups.baseline), ("candidate", groups.candidate))
        ],
    )


def _change(delta_ns: float, percent: float | None) -> str:
    return _signed(delta_ns) if percent is None else f"{_signed(delta_ns)} ({percent:+.1f} %)"


def _signed(delta_ns: float) -> str:
    sign = "-" if delta_ns < 0 else "+" if delta_ns > 0 else ""
    return f"{sign}{format_duration(abs(delta_ns))}"


def _size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_bytes(size_bytes)
