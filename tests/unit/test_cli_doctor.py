from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.cli import Answer, Cli, make_run, store
from support.otlp_receiver import OtlpReceiver, refused_port

_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def runspan(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands in an environment that sets nothing."""
    for name in os.environ:
        if name.startswith(("RUNSPAN_", "OTEL_", "SLURM_", "OMPI_", "PMI_")) or name in {"RANK", "WORLD_SIZE"}:
            monkeypatch.delenv(name)
    return Cli(tmp_path / "root", capsys)


def _found(answer: Answer, name: str) -> dict[str, Any]:
    return next(check for check in answer.document if check["name"] == name)


def test_a_fresh_machine_has_no_problem(runspan: Cli) -> None:
    """Without any setting doctor finds a single process, folders that will be created, and no endpoint; exit 0."""
    answer = runspan("doctor", "--json")
    assert answer.code == 0
    assert _found(answer, "launcher")["found"] == "single: rank 0 of 1"
    assert "will be created" in _found(answer, "run directories")["found"]
    assert "will be created" in _found(answer, "storage")["found"]
    assert _found(answer, "otlp")["state"] == "note"
    assert not runspan.root.exists()


def test_every_extra_is_looked_at(runspan: Cli) -> None:
    """Doctor names each extra that the package has, but for that of its developers, installed or not."""
    checked = {check["name"] for check in runspan("doctor", "--json").document if check["name"].startswith("extra ")}
    extras = tomllib.loads(_PYPROJECT.read_text())["project"]["optional-dependencies"].keys() - {"dev"}
    assert checked == {f"extra {extra}" for extra in extras}


def test_the_storage_is_read_and_not_changed(runspan: Cli) -> None:
    """Doctor says which schema the database has."""
    store(runspan.root, make_run(runspan.root, "run-a"))
    assert "reachable, schema" in _found(runspan("doctor", "--json"), "storage")["found"]


def test_the_launcher_is_named(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that torchrun started, doctor says so, with the run id that all ranks come to."""
    torchrun = {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "TORCHELASTIC_RUN_ID": "job-7",
    }
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    answer = runspan("doctor", "--json")
    assert _found(answer, "launcher")["found"] == "torchrun: rank 1 of 4"
    assert _found(answer, "run id")["found"] == "job-7"


def test_ranks_without_a_common_run_id_are_a_problem(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks that have nothing to agree on: exit 1, and which variable is missing."""
    monkeypatch.setenv("RUNSPAN_RANK", "0")
    monkeypatch.setenv("RUNSPAN_WORLD_SIZE", "2")
    answer = runspan("doctor")
    assert answer.code == 1
    assert "RUNSPAN_RUN_ID" in answer.out


def test_a_contradiction_of_the_launcher_is_a_problem(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank beyond the world size is told as a run would tell it, and the other checks go on."""
    monkeypatch.setenv("RUNSPAN_RANK", "5")
    monkeypatch.setenv("RUNSPAN_WORLD_SIZE", "2")
    answer = runspan("doctor", "--json")
    assert answer.code == 1
    assert "RUNSPAN_RANK=5" in _found(answer, "launcher")["found"]
    assert _found(answer, "clock")["state"] == "ok"


def test_an_endpoint_that_takes_a_run_is_fine(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty request of each signal is really sent, and leaves nothing behind."""
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
        answer = runspan("doctor", "--json")
    assert answer.code == 0
    for signal in ("traces", "metrics"):
        assert _found(answer, f"otlp {signal}")["found"].endswith(f"(grpc): takes {signal}")
    assert receiver.request_sizes == [0, 0]


def test_an_endpoint_of_the_other_protocol_is_a_problem(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that listens is not enough: what a run sends there must be taken, else exit 1 with the variable to set."""
    with OtlpReceiver("http/protobuf") as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.port}")
        answer = runspan("doctor", "--json")
    assert answer.code == 1
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in _found(answer, "otlp traces")["advice"]


def test_an_endpoint_that_refuses_is_a_problem(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens: exit 1, with the reason and without the credentials of the URL."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://user:hunter2@127.0.0.1:{refused_port()}")
    answer = runspan("doctor")
    assert answer.code == 1
    assert "Connection refused" in answer.out
    assert "hunter2" not in answer.out


@pytest.mark.parametrize(
    ("protocol", "port", "other"), [("grpc", 4318, "http/protobuf"), ("http/protobuf", 4317, "grpc")]
)
def test_a_port_of_the_other_protocol_is_pointed_out(
    runspan: Cli, monkeypatch: pytest.MonkeyPatch, protocol: str, port: int, other: str
) -> None:
    """GRPC to 4318, or HTTP to 4317, is nearly always a mistake, whether something listens there or not."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    assert f"OTEL_EXPORTER_OTLP_PROTOCOL={other}" in _found(runspan("doctor", "--json"), "otlp traces")["advice"]


def test_an_unreadable_variable_is_a_problem(runspan: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that a run would refuse is refused here, by its name."""
    monkeypatch.setenv("RUNSPAN_HEARTBEAT_S", "often")
    answer = runspan("doctor", "--json")
    assert answer.code == 1
    assert "RUNSPAN_HEARTBEAT_S" in _found(answer, "settings")["found"]
