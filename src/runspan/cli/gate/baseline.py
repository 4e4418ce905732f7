"""``runspan gate baseline``: bounds that past records suggest."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import typer

from runspan._bench.repository import declared_benchmarks
from runspan.cli._options import JsonOption  # noqa: TC001 - typer reads annotations
from runspan.cli._output import note, print_json, say
from runspan.cli.gate._common import GATE_EXIT_CODES, failing_closed, find_repository
from runspan.errors import ConfigError
from runspan.gate._folder import read_folder
from runspan.gate.proposing import propose_entries, toml_of

__all__ = ["register"]

#: From this false-alarm rate on people are told how many records more bring it down.
_USUAL_RATE = 0.05

_MetricsOption = list[str] | None


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("baseline", short_help="Propose bounds from past records.", epilog=GATE_EXIT_CODES)(_baseline)


def _baseline(
    benchmark: Annotated[str, typer.Argument(metavar="BENCHMARK", help="Whose records to go by.")],
    *,
    max_: Annotated[_MetricsOption, typer.Option("--max", metavar="METRIC", help="Bound it from above.")] = None,
    min_: Annotated[_MetricsOption, typer.Option("--min", metavar="METRIC", help="Bound it from below.")] = None,
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="Use the newest N of each hardware and model.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Propose entries for bounds.toml, one for each hardware and model that has records; nothing is written.

    A bound is the worst of n past values: the next one of the same code misses it with probability 1/(n + 1) at most,
    however the values are distributed, as long as none of them is special. m bounds together: m/(n + 1). Its noise is
    the distance to the median, 5 % of the bound at most. Metrics that have a bound on one side keep their side.
    """
    with failing_closed():
        both = sorted(set(max_ or ()) & set(min_ or ()))
        if both:
            raise ConfigError(f"--max and --min are both given for {', '.join(both)}: give one")
        top = find_repository()
        found = read_folder(top, benchmark, time.time())
        limits: dict[str, Literal["min", "max"]] = dict.fromkeys(max_ or (), "max")
        limits |= dict.fromkeys(min_ or (), "min")
        records = [candidate.record for candidate in found.records]
        entries = propose_entries(benchmark, records, declared_benchmarks(top), limits, newest=last)
        if json:
            print_json({"entries": entries, "problems": found.problems})
        else:
            say("\n".join(map(toml_of, entries)).rstrip("\n"))
        for problem in found.problems:
            note(problem)
        for entry in entries:
            wanted = round(len(entry.proposals) / _USUAL_RATE) - 1
            if (lacking := wanted - len(entry.git_shas)) > 0:
                note(
                    f"{entry.hardware_key}: the false-alarm rate is {entry.false_alarm_rate:.1%};"
                    f" {lacking} more records, one a commit and day, bring it to {_USUAL_RATE:.0%}"
                )
