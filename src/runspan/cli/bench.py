"""``runspan bench``: run the benchmarks that a repository declares, and compare two of its states."""

from __future__ import annotations

import dataclasses
import shlex
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from runspan.cli._options import DirOption, JsonOption, StorageOption  # noqa: TC001 - typer reads the annotations
from runspan.cli._output import Column, clean, format_number, note, open_console, print_json, print_rows, say
from runspan.cli._workspace import Workspace
from runspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runspan.bench import BenchResult
    from runspan.gate.baseline import Benchmark
    from runspan.gate.noise import PairedComparison
    from runspan.storage.base import ExperimentStorage

__all__ = ["register"]

_EXIT_CODES = (
    "Exit codes: 0 passed; 1 failed; 2 bad usage or configuration; 3 no verdict (crashed, cancelled, no bounds, no"
    " commit, not recorded); 4 not comparable: no bounds for this hardware."
)
_NO_VERDICT = 3
_CODES = {"PASS": 0, "FAIL": 1, "NO_VERDICT": _NO_VERDICT, "NO_BASELINE": _NO_VERDICT, "NOT_COMPARABLE": 4}
_ABSENT = "-"

ParamOption = Annotated[
    list[str] | None, typer.Option("--param", metavar="KEY=VALUE", help="A parameter, on top of the pinned ones.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    bench = typer.Typer(
        name="bench",
        help="Run the benchmarks that .benchmarks/bounds.toml declares.",
        short_help="Run benchmarks, for a gate or to compare.",
        no_args_is_help=True,
        rich_markup_mode=None,
        epilog=_EXIT_CODES,
    )
    bench.command("list", short_help="List the declared benchmarks.", epilog=_EXIT_CODES)(_list)
    bench.command("run", short_help="Run a benchmark.", epilog=_EXIT_CODES)(_run)
    bench.command("compare", short_help="Compare two revisions or commands in turns.", epilog=_EXIT_CODES)(_compare)
    app.add_typer(bench)


def _list(*, json: JsonOption = False) -> None:
    """List the benchmarks that the nearest .benchmarks declares, and whether this hardware has bounds for them."""
    from runspan._bench.repository import declared_benchmarks  # noqa: PLC0415 - a command loads what it needs
    from runspan.bench import find_top  # noqa: PLC0415
    from runspan.gate.hardware_probe import HardwareProbe  # noqa: PLC0415

    declared = declared_benchmarks(find_top(Path.cwd()))
    key = HardwareProbe().fingerprint().gate_key
    entries = declared.entries.get(key, {}).get(declared.default_models.get(key, ""), {})
    rows = [
        {
            "id": benchmark_id,
            "runs": _what_runs(benchmark),
            "repeats": benchmark.repeats,
            "warmups": benchmark.warmups,
            "entry": entries[benchmark_id].status if benchmark_id in entries else None,
        }
        for benchmark_id, benchmark in sorted(declared.benchmarks.items())
    ]
    if json:
        print_json({"hardware": key, "benchmarks": rows})
        return
    if not rows:
        say("no benchmarks are declared")
        return
    columns = (
        *(Column("BENCHMARK", whole=True), Column("RUNS", shrinks=True)),
        *(Column("REPEATS", right=True), Column("WARMUPS", right=True), Column(f"ON {key}")),
    )
    print_rows(open_console(), columns, [[str(value or _ABSENT) for value in row.values()] for row in rows])


def _run(
    benchmark: Annotated[str, typer.Argument(metavar="BENCHMARK", help="Its id in .benchmarks/bounds.toml.")],
    *,
    param: ParamOption = None,
    url: Annotated[str, typer.Option("--url", help="The server to measure.")] = "",
    model: Annotated[str, typer.Option("--model", help="The model to measure  [default: the hardware's]")] = "",
    serve_override: Annotated[
        list[str] | None,
        typer.Option("--serve-override", metavar="KEY=VALUE", help="A recipe key that is changed for this run."),
    ] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Leave a record in .benchmarks/<benchmark>, to be committed and checked.")
    ] = False,
    allow_other_hardware: Annotated[
        bool, typer.Option("--allow-other-hardware", help="Pass without bounds for this hardware.")
    ] = False,
    json: JsonOption = False,
    storage: StorageOption = None,
    directory: DirOption = None,
) -> None:
    """Run a benchmark as a Run: warm-ups, then repeats; their median is judged by the bounds at HEAD.

    With --gate, whatever ends the run leaves a record: a crash, Ctrl-C and SIGTERM and SIGKILL a failed one.
    A callable gets its parameters as keywords; a command as JSON in RUNSPAN_BENCH_PARAMS, and writes its result to the
    file that RUNSPAN_BENCH_OUT names.
    """
    from runspan._git import GitError  # noqa: PLC0415 - a command loads what it needs
    from runspan.bench import BenchRequest, UnfitMachineError, find_top, run_benchmark  # noqa: PLC0415
    from runspan.config import TracingConfig  # noqa: PLC0415
    from runspan.storage import InMemoryStorage  # noqa: PLC0415

    request = BenchRequest(
        benchmark_id=benchmark,
        params=_pairs("--param", param),
        url=url,
        model=model,
        serve_overrides=_pairs("--serve-override", serve_override),
        gate=gate,
        allow_other_hardware=allow_other_hardware,
        source="cli",
    )
    workspace, config = Workspace.resolve(storage, directory), TracingConfig.from_env()
    if directory is not None:
        config = dataclasses.replace(config, trace_dir=workspace.trace_dir)
    opened: AbstractContextManager[ExperimentStorage] = (
        nullcontext(InMemoryStorage()) if workspace.storage_url is None else workspace.writing()
    )
    try:
        with opened as rows:
            result = run_benchmark(request, find_top(Path.cwd()), config=config, storage=rows, show_progress=not json)
    except (GitError, UnfitMachineError) as error:
        note(f"no verdict: {error}")
        raise typer.Exit(_NO_VERDICT) from error
    if json:
        records = {name: None if path is None else str(path) for name, path in _records(result).items()}
        print_json({**msgspec.structs.asdict(result), **records})
    else:
        _print_result(result)
    raise typer.Exit(_CODES[result.outcome])


def _compare(
    baseline: Annotated[str, typer.Argument(metavar="A", help="A revision, or without --benchmark a command.")],
    candidate: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    *,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", metavar="BENCHMARK", help="The benchmark that both revisions have.")
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="How often each is measured; six or more decide.")
    ] = 10,
    param: ParamOption = None,
    json: JsonOption = False,
) -> None:
    """Measure two variants in turns, A B B A, and tell which metrics differ.

    With --benchmark A and B are revisions, laid out in folders of their own; without, they are commands that write
    their result to the file that RUNSPAN_BENCH_OUT names. Equal code is called different in 5 % of comparisons at most,
    for each metric, whatever the noise: the exact rate stands beside the answer. Slower and faster are answers like any
    other; the exit code is 3 where a variant cannot be measured, or there were too few rounds.
    """
    from runspan._bench.comparison import (  # noqa: PLC0415 - a command loads what it needs
        CommandVariant,
        RevisionVariant,
        Variant,
        checked_out,
        compare_variants,
    )
    from runspan._git import Git, GitError  # noqa: PLC0415
    from runspan._run.progress import step_progress  # noqa: PLC0415
    from runspan.errors import GateError  # noqa: PLC0415
    from runspan.gate.noise import Difference  # noqa: PLC0415

    params = _pairs("--param", param)
    if benchmark is None and params:
        raise ConfigError("--param goes with --benchmark: write a command's arguments into the command")
    variants: list[Variant] = []
    try:
        with ExitStack() as folders:
            if benchmark is None:
                variants = [CommandVariant(_command(text)) for text in (baseline, candidate)]
            else:
                git = Git.around(Path.cwd())
                options = [option for key, value in params.items() for option in ("--param", f"{key}={value}")]
                for revision in (baseline, candidate):
                    folder = folders.enter_context(checked_out(git, revision))
                    variants.append(RevisionVariant(revision, folder, [benchmark, *options]))
            advance = folders.enter_context(step_progress(2 * rounds, shown=not json))
            compared = compare_variants(variants[0], variants[1], rounds, advance)
    except (GateError, GitError) as error:
        note(f"no verdict: {error}")
        raise typer.Exit(_NO_VERDICT) from error
    if json:
        print_json({"baseline": baseline, "candidate": candidate, "metrics": compared})
    else:
        _print_comparison(compared)
    if any(item.difference is Difference.UNDECIDED for item in compared.values()):
        raise typer.Exit(_NO_VERDICT)


def _print_comparison(compared: Mapping[str, PairedComparison]) -> None:
    columns = (
        *(Column("METRIC", shrinks=True), Column("A", right=True), Column("B", right=True)),
        *(Column("CHANGE", right=True), Column("INTERVAL"), Column("B IS"), Column("FALSE ALARMS", right=True)),
    )
    rows = []
    for name, item in compared.items():
        share = f" ({item.change / abs(item.baseline):+.1%})" if item.baseline else ""
        interval = rate = _ABSENT
        if item.low is not None and item.high is not None:
            interval, rate = f"{format_number(item.low)} to {format_number(item.high)}", f"{item.false_alarm_rate:.1%}"
        medians = (format_number(item.baseline), format_number(item.candidate))
        change = f"{format_number(item.change)}{share}"
        rows.append([name, *medians, change, interval, str(item.difference), rate])
    print_rows(open_console(), columns, rows)


def _command(text: str) -> list[str]:
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"command {text!r}: {error}") from error
    if not command:
        raise ConfigError("an empty command: expected a program and its arguments")
    return command


def _print_result(result: BenchResult) -> None:
    frame = result.frame
    if frame is not None and frame.metrics:
        rows = [[name, format_number(value)] for name, value in sorted(frame.metrics.items())]
        print_rows(open_console(), (Column("METRIC", shrinks=True), Column("VALUE", right=True)), rows)
        say("")
    for line in frame.log if frame is not None else ():
        note(line.message)
    say(f"{result.outcome}: {clean(result.reason)}")
    say(f"run {clean(result.run_id)}")
    if result.gate_record is not None:
        say(f"record {clean(str(result.gate_record))}")


def _records(result: BenchResult) -> dict[str, Path | None]:
    return {"run_record": result.run_record, "gate_record": result.gate_record}


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"{option} {text!r}: expected KEY=VALUE")
        if key in pairs:
            raise ConfigError(f"{option} {key} is given twice: give it once")
        pairs[key] = value
    return pairs


def _what_runs(benchmark: Benchmark) -> str:
    return benchmark.callable or " ".join(benchmark.command or ())
