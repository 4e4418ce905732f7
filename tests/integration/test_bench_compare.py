from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from runspan import cli
from support.gate_repository import GateRepository

if TYPE_CHECKING:
    from pathlib import Path

_COMMAND = """\
import json, os, sys
with open("turns.txt", "a") as turns:
    turns.write(sys.argv[1])
noise = 1 + 0.01 * (len(open("turns.txt").read()) % 3)
value = {{"A": 1.0, "B": 1.0, "S": 1.3}}[sys.argv[1]] * noise
json.dump({{"metrics": {{"seconds": value{more}}}}}, open(os.environ["RUNSPAN_BENCH_OUT"], "w"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder with a command that measures a variant."""
    (tmp_path / "measure.py").write_text(_COMMAND.format(more=""))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _commands(*variants: str) -> list[str]:
    return [f"{sys.executable} measure.py {variant}" for variant in variants]


def test_commands_are_measured_in_turns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who goes first changes each round; a variant that is 30 % slower is called higher, with the rate."""
    assert cli.main(["bench", "compare", *_commands("A", "S"), "--rounds", "6", "--json"]) == 0
    assert (folder / "turns.txt").read_text() == "ASSAASSAASSA"
    compared = json.loads(capsys.readouterr().out)["metrics"]["seconds"]
    assert (compared["difference"], compared["rounds"], compared["false_alarm_rate"]) == ("higher", 6, 0.03125)
    assert compared["low"] > 0.2


@pytest.mark.usefixtures("folder")
def test_equal_commands_do_not_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """People get medians, the change, its interval and the answer in one row a metric."""
    assert cli.main(["bench", "compare", *_commands("A", "B"), "--rounds", "6"]) == 0
    titles, row = capsys.readouterr().out.splitlines()
    assert titles.split()[0] == "METRIC"
    assert "no difference" in row
    assert "3.1%" in row


@pytest.mark.usefixtures("folder")
def test_too_few_rounds_are_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """Below six rounds nothing can be decided, which is not called equal."""
    assert cli.main(["bench", "compare", *_commands("A", "S"), "--rounds", "2"]) == 3
    assert "too few rounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["./nowhere", "./nowhere"], 3, "./nowhere cannot be run"),
        (["''", "''"], 3, "cannot be run"),
        (["", "x"], 2, "an empty command"),
        (["'", "x"], 2, "No closing quotation"),
        (["a", "b", "--param", "k=v"], 2, "--param goes with --benchmark"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_measured_is_no_verdict(
    arguments: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A side that fails ends with 3, bad input with 2, both in one line."""
    assert cli.main(["bench", "compare", *arguments]) == code
    assert told in capsys.readouterr().err


def test_revisions_are_measured_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each side runs its own benchmark and code, uncommitted changes do not count, and the tree is left alone."""
    repository = GateRepository(tmp_path / "gate")
    repository.write("src/cost.py", "COST = 1.0\n")
    repository.write("speed.py", "import cost\n\ndef bench(run, **_):\n    return {'seconds': cost.COST}\n")
    repository.declare('callable = "speed:bench"')
    before = repository.commit()
    repository.write("src/cost.py", "COST = 1.5\n")
    repository.commit()
    repository.write("src/cost.py", "COST = 9.0\n")
    monkeypatch.chdir(repository.top)
    arguments = ["bench", "compare", before[:12], "HEAD", "--benchmark", "speed", "--rounds", "1", "--json"]
    assert cli.main(arguments) == 3  # one round decides nothing
    compared = json.loads(capsys.readouterr().out)["metrics"]["seconds"]
    assert (compared["baseline"], compared["candidate"], compared["change"]) == (1.0, 1.5, 0.5)
    assert repository.git("status", "--porcelain") == "M src/cost.py"
    assert cli.main(["bench", "compare", "nothing", "HEAD", "--benchmark", "speed"]) == 3
    assert "'nothing' is no commit" in capsys.readouterr().err
    assert cli.main(["bench", "compare", "HEAD", "HEAD", "--benchmark", "sped", "--rounds", "1"]) == 3
    assert "HEAD was not measured" in capsys.readouterr().err
