"""``runspan trace query``: ready-made questions to a trace or a run."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from runspan._clock import SystemClock
from runspan.cli._details import rank_reports
from runspan.cli._options import EXIT_CODES, DirOption, JsonOption, StorageOption
from runspan.cli._output import counted, note, open_console, print_json, print_rows
from runspan.cli._workspace import Workspace
from runspan.cli.show import print_ranks, rank_document
from runspan.cli.trace._reading import LenientOption, Traces
from runspan.cli.trace._report import tell_problems
from runspan.cli.trace._tables import TABLES
from runspan.cli.trace._target import TraceArgument  # noqa: TC001 - typer reads annotations
from runspan.errors import ConfigError, TraceFormatError
from runspan.tracefile import _questions
from runspan.tracefile._rank_questions import MetricRow, StepDurations, StepRow, find_metrics
from runspan.tracefile.graph import Graph, build_graph
from runspan.tracefile.layout import TraceName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from runspan.cli._details import RankReport
    from runspan.tracefile._memory_profile import MemoryPoint

__all__ = ["register"]

_NOTHING_OR_PARTIAL = 1
#: How many rows a table has unless told.
_TABLE_ROWS = 20


class QueryKind(StrEnum):
    """What can be asked."""

    SLOWEST = "slowest"
    HEAVIEST = "heaviest"
    MEMORY = "memory"
    EFFICIENCY = "efficiency"
    SPANS = "spans"
    TENSORS = "tensors"
    GRADIENTS = "gradients"
    METRICS = "metrics"
    STEPS = "steps"
    STRAGGLERS = "stragglers"


#: Questions to captured steps; of a run without any, to its own spans.
_OF_GRAPHS: dict[QueryKind, Callable[[Iterable[Graph]], Sequence[msgspec.Struct]]] = {
    QueryKind.SLOWEST: _questions.find_slowest,
    QueryKind.HEAVIEST: _questions.find_heaviest,
    QueryKind.EFFICIENCY: _questions.find_efficiency,
    QueryKind.SPANS: _questions.find_spans,
    QueryKind.TENSORS: _questions.find_tensors,
    QueryKind.GRADIENTS: _questions.find_gradients,
}

#: These come from calls of ``step.recorder``.
_FROM_HOOKS = {
    QueryKind.HEAVIEST,
    QueryKind.MEMORY,
    QueryKind.EFFICIENCY,
    QueryKind.TENSORS,
    QueryKind.GRADIENTS,
}


class _Timeline(msgspec.Struct, frozen=True):
    """The live logical memory of one capture by time."""

    capture_step: int
    rank: int
    points: tuple[MemoryPoint, ...]


class _Answer(msgspec.Struct, frozen=True):
    """The rows of an answer, and what ``--json`` has beside them."""

    rows: Sequence[msgspec.Struct]
    beside: dict[str, Any] = {}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("query", short_help="Ask a trace a question.", epilog=EXIT_CODES)(_query)


def _query(
    trace: TraceArgument,
    *,
    kind: Annotated[QueryKind, typer.Option("--kind", help="The question.", show_default=False)],
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help=f"At most so many rows.  [default: {_TABLE_ROWS}; with --json all]"),
    ] = None,
    lenient: LenientOption = False,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Ask a trace, or all traces of a run, a question.

    slowest, heaviest, memory, efficiency, spans, tensors and gradients are about captured steps, all of a run's; where
    it has none, about its own spans. They need valid and complete traces. metrics, steps and stragglers are about a
    run's ranks: every metric's values, the longest steps, the rank that the others wait for.

    The exit code is 1 when there is nothing to show, or a file of the run cannot be read.
    """
    workspace = Workspace.resolve(storage, directory)
    traces = Traces(workspace, trace, lenient=lenient)
    if kind is QueryKind.STRAGGLERS:
        has_rows = _show_stragglers(traces, limit, json=json)
    else:
        answer = _answer(kind, traces)
        has_rows = bool(answer.rows)
        if not has_rows and traces.problems:
            raise TraceFormatError(f"no trace of the run can be asked: {traces.problems[0]}")
        _show(kind, answer, limit, json=json)
    tell_problems(traces)
    if traces.problems or not has_rows:
        raise typer.Exit(_NOTHING_OR_PARTIAL)


def _answer(kind: QueryKind, traces: Traces) -> _Answer:
    if kind is QueryKind.METRICS:
        rows: list[MetricRow] = []
        for of_trace in traces.each(traces.run_traces, find_metrics):
            rows += of_trace
        return _Answer(rows)
    if kind is QueryKind.STEPS:
        return _Answer(_step_rows(traces))
    graphs = traces.each(traces.captures or traces.run_traces, build_graph)
    if kind is QueryKind.MEMORY:
        timelines: list[_Timeline] = []
        memory = _questions.find_memory(_collecting(graphs, timelines))
        return _Answer(memory, {"timelines": timelines})
    return _Answer(_OF_GRAPHS[kind](graphs))


def _step_rows(traces: Traces) -> list[StepRow]:
    """Return the longest steps; a rank's newest attempt is read first, for it supersedes the older ones."""

    def attempt(name: TraceName | None) -> int:
        return 0 if name is None else name.attempt

    steps = StepDurations()
    newest_first = sorted(traces.run_traces, key=lambda path: -attempt(TraceName.parse(path.name)))
    for _ in traces.each(newest_first, steps.add):
        pass
    return steps.rows()


def _collecting(graphs: Iterable[Graph], timelines: list[_Timeline]) -> Iterator[Graph]:
    for graph in graphs:
        if graph.memory is not None:
            timelines.append(_Timeline(graph.meta.capture_step, graph.meta.process.rank, graph.memory.timeline))
        yield graph


def _show(kind: QueryKind, answer: _Answer, limit: int | None, *, json: bool) -> None:
    if json:
        print_json({"kind": kind, "total": len(answer.rows), "rows": answer.rows[:limit], **answer.beside})
        return
    table = TABLES[kind]
    shown = answer.rows[: limit or _TABLE_ROWS]
    if shown:
        print_rows(open_console(), table.columns, [table.cells(row) for row in shown])
    if len(answer.rows) > len(shown):
        note(f"{len(shown)} of {counted(len(answer.rows), 'row')} shown: --limit shows more, --json all")
    if not answer.rows:
        hint = "; hooks tell `step.recorder` of it, in captured steps" if kind in _FROM_HOOKS else ""
        note(f"nothing was recorded that --kind {kind} is about: unknown, not zero{hint}")


def _show_stragglers(traces: Traces, limit: int | None, *, json: bool) -> bool:
    """Show the ranks by how long their own work of a step takes, longest first; return whether there are any.

    Raises:
        ConfigError: it is one file.
    """
    if traces.directory is None:
        raise ConfigError("--kind stragglers compares the ranks of a run: give a run or its directory, not one file")
    reports, slow, problems = rank_reports(traces.directory, SystemClock())
    traces.problems += [problem for problem in problems if problem not in traces.problems]
    timed = sorted((report for report in reports if report.steps.count), key=_own_ns, reverse=True)
    if json:
        document = {
            "kind": QueryKind.STRAGGLERS,
            "total": len(timed),
            "rows": [rank_document(report) for report in timed[:limit]],
            "slow_rank": slow,
        }
        print_json(document)
        return bool(timed)
    print_ranks(open_console(), timed[: limit or _TABLE_ROWS], slow)
    if timed and slow is None:
        note("no rank is clearly slower than the others")
    if not timed:
        note("no rank has recorded a step")
    return bool(timed)


def _own_ns(report: RankReport) -> float:
    return report.steps.own_median_ns or 0.0
