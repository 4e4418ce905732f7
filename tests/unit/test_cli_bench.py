from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from runspan.gate.hardware_probe import HardwareProbe
from runspan.gate.record import GateRecord
from support.cli import Cli
from support.gate_repository import GateRepository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.live import LiveRuns

_BODY = """\
def bench(run, ratio="0.5", **params):
    print("chatter")
    if ratio == "crash":
        raise RuntimeError("no luck")
    return {"ratio": float(ratio)}
"""
_ENTRY = 'status = "measured"\nbounds = { ratio = { max = 0.6 } }'


@pytest.fixture
def repository(tmp_path: Path, live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> Iterator[GateRepository]:
    """Stand in a committed repository with a benchmark, on the made-up machine."""
    del live  # for its clean environment
    made = GateRepository(tmp_path / "gate")
    made.write("speed.py", _BODY)
    made.declare('callable = "speed:bench"\nrepeats = 2', _ENTRY)
    made.commit()
    machine = made.probe()
    for member in ("fingerprint", "state"):
        monkeypatch.setattr(HardwareProbe, member, getattr(machine, member))
    monkeypatch.chdir(made.top / "src")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield made
    sys.modules.pop("speed", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(made.top)]


@pytest.fixture
def runspan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on an empty root folder."""
    return Cli(tmp_path / "root", capsys)


@pytest.mark.parametrize(
    ("ratio", "code", "outcome"), [("0.5", 0, "PASS"), ("0.7", 1, "FAIL"), ("crash", 3, "NO_VERDICT")]
)
def test_bench_run_ends_with_the_verdicts_code(
    ratio: str, code: int, outcome: str, repository: GateRepository, runspan: Cli
) -> None:
    """0 passed, 1 failed, 3 crashed; the record is there each time, below the repository's top."""
    answer = runspan("bench", "run", "speed", "--param", f"ratio={ratio}", "--gate", "--json")
    assert (answer.code, answer.document["outcome"]) == (code, outcome)
    record = GateRecord.load(answer.document["gate_record"])
    assert record.params == {"ratio": ratio}
    assert list((repository.top / ".benchmarks/speed").iterdir())


@pytest.mark.usefixtures("repository")
def test_bench_run_prints_metrics_and_outcome(runspan: Cli) -> None:
    """People get a table, the outcome with its reason, and where the record is; chatter stays off stdout."""
    answer = runspan("bench", "run", "speed", "--gate")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].split() == ["METRIC", "VALUE"]
    assert "PASS: 1 of 1 bounds hold" in lines
    assert lines[-1].startswith("record ")
    assert "chatter" not in answer.out
    assert "chatter" in answer.err


def test_bench_run_without_bounds_for_the_machine_is_not_comparable(repository: GateRepository, runspan: Cli) -> None:
    """4 where only other hardware has bounds, 3 where nothing has; an option lets the first pass."""
    repository.declare('callable = "speed:bench"', _ENTRY, key="cpu-x")
    repository.commit()
    assert runspan("bench", "run", "speed", "--gate").code == 4
    assert runspan("bench", "run", "speed", "--gate", "--allow-other-hardware").code == 0
    repository.declare('callable = "speed:bench"')
    repository.commit()
    assert runspan("bench", "run", "speed", "--gate").code == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("sped",), "it declares speed"),
        (("speed", "--param", "ratio"), "expected KEY=VALUE"),
        (("speed", "--param", "a=1", "--param", "a=2"), "is given twice"),
    ],
)
@pytest.mark.usefixtures("repository")
def test_bench_run_refuses_bad_input(arguments: tuple[str, ...], told: str, runspan: Cli) -> None:
    """An unknown benchmark and a broken parameter end with 2 and one line."""
    answer = runspan("bench", "run", *arguments)
    assert answer.code == 2
    assert told in answer.err


def test_bench_run_without_git_has_no_verdict(repository: GateRepository, runspan: Cli) -> None:
    """A gate run that cannot name its commit ends with 3 and the reason, before it starts."""
    (repository.top / ".git").rename(repository.top / "elsewhere")
    answer = runspan("bench", "run", "speed", "--gate")
    assert (answer.code, answer.out) == (3, "")
    assert "no verdict:" in answer.err


@pytest.mark.usefixtures("repository")
def test_bench_list_tells_what_is_declared(runspan: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    """Each benchmark has what it runs, how often, and whether this hardware has bounds for it."""
    del runspan
    from runspan import cli  # noqa: PLC0415 - the command takes no --dir

    assert cli.main(["bench", "list"]) == 0
    titles, row = capsys.readouterr().out.splitlines()
    assert titles.split()[:4] == ["BENCHMARK", "RUNS", "REPEATS", "WARMUPS"]
    assert row.split() == ["speed", "speed:bench", "2", "-", "measured"]
    assert cli.main(["bench", "list", "--json"]) == 0


def test_bench_outside_a_repository_says_what_to_do(
    tmp_path: Path, runspan: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no folder above has .benchmarks, the command that makes one is named."""
    monkeypatch.chdir(tmp_path)
    answer = runspan("bench", "run", "speed")
    assert answer.code == 2
    assert "run `runspan gate init`" in answer.err
