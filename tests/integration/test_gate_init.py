from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from runspan import cli
from runspan.gate.baseline import parse_baseline, parse_config
from runspan.gate.hardware_probe import HardwareProbe
from support.gate_repository import GateRepository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FILES = (".benchmarks/config.toml", ".benchmarks/bounds.toml", ".github/workflows/benchmark-gate.yml")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GateRepository]:
    """Stand in a repository without any of the gate's files."""
    made = GateRepository(tmp_path / "gate")
    (made.top / ".benchmarks/config.toml").unlink()
    (made.top / ".benchmarks").rmdir()
    made.write("timing.py", 'def bench(run, **params):\n    return {"seconds": 0.5}\n')
    made.commit()
    machine = made.probe()
    for member in ("fingerprint", "state"):
        monkeypatch.setattr(HardwareProbe, member, getattr(machine, member))
    monkeypatch.chdir(made.top / "src")
    monkeypatch.setenv("RUNSPAN_DIR", str(tmp_path / "root"))
    monkeypatch.setenv("RUNSPAN_STORAGE", "none")
    yield made
    sys.modules.pop("timing", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(made.top)]


def test_gate_init_outside_of_a_repository_says_where_to_run_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to write to: one line, and exit code 2."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["gate", "init"]) == 2
    assert "run it in the git repository whose benchmarks it is for" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_gate_init_writes_files_that_can_be_used_as_they_are(
    repository: GateRepository, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rules name the code that is there, the workflow fetches the full history of the pull request's own head."""
    assert cli.main(["gate", "init"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:-1] == [f"wrote {repository.top / name}" for name in _FILES]
    assert parse_config((repository.top / _FILES[0]).read_bytes()).perf_paths == ["src"]
    assert parse_baseline((repository.top / _FILES[1]).read_bytes()).benchmarks == {}
    workflow = yaml.safe_load((repository.top / _FILES[2]).read_text())
    checkout = workflow["jobs"]["gate"]["steps"][0]
    assert checkout["with"]["fetch-depth"] == 0
    assert checkout["with"]["ref"] == "${{ github.event.pull_request.head.sha }}"


def test_the_commented_samples_are_valid(repository: GateRepository) -> None:
    """With the comment signs of its sample lines removed, each file is one that the gate takes."""
    assert cli.main(["gate", "init"]) == 0
    config, bounds = ((repository.top / name).read_text() for name in _FILES[:2])
    assert parse_config(_uncommented(config)).targets["library"].hash == "python-ast"
    entry = parse_baseline(_uncommented(bounds)).entry("cpu-xeon-8480", "default", "step")
    assert entry is not None
    assert entry.bounds["seconds"].max == 0.5


def _uncommented(text: str) -> bytes:
    """Take the comment sign off lines that are TOML behind it."""
    lines = [line.removeprefix("# ") if " = " in line or line.startswith("# [") else line for line in text.splitlines()]
    return "\n".join(lines).encode()


def test_gate_init_leaves_what_is_there(repository: GateRepository, capsys: pytest.CaptureFixture[str]) -> None:
    """A second call changes nothing and says so."""
    assert cli.main(["gate", "init"]) == 0
    (repository.top / _FILES[0]).write_text("# mine\n")
    capsys.readouterr()
    assert cli.main(["gate", "init"]) == 0
    assert (repository.top / _FILES[0]).read_text() == "# mine\n"
    assert capsys.readouterr().err.count("it stays as it is") == len(_FILES)


def test_from_init_to_a_passing_gate(repository: GateRepository, capsys: pytest.CaptureFixture[str]) -> None:
    """With a benchmark, its record and the bounds proposed from it the check passes; a change of code undoes that."""
    assert cli.main(["gate", "init"]) == 0
    bounds = repository.top / _FILES[1]
    bounds.write_text(bounds.read_text() + '[benchmarks.speed]\ncallable = "timing:bench"\nrepeats = 3\n')
    repository.commit()
    assert cli.main(["bench", "run", "speed", "--gate"]) == 3  # no bounds yet
    capsys.readouterr()
    assert cli.main(["gate", "baseline", "speed", "--max", "seconds"]) == 0
    bounds.write_text(bounds.read_text() + capsys.readouterr().out)
    repository.commit()
    assert cli.main(["gate", "check", "--base", "HEAD"]) == 0
    assert cli.main(["bench", "run", "speed", "--gate"]) == 0
    repository.write("src/model.py", "DEPTH = 2\n")
    repository.commit()
    assert cli.main(["gate", "check", "--base", "HEAD"]) == 3


def test_gate_init_outside_a_repository_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no top to write to without git."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert cli.main(["gate", "init"]) == 2
    assert list(tmp_path.iterdir()) == []
