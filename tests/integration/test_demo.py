from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runspan._endpoints import guess_protocol
from runspan.demo import DemoOptions, run_demo
from runspan.errors import ConfigError, MissingExtraError
from runspan.tracefile.meta import TraceRunMeta
from support.cli import Answer, clean_environ, run_program
from support.otlp_receiver import OtlpReceiver

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Demo:
    """One demo with its defaults, which several tests look at."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = clean_environ(root)
        self.answer = run_program(["demo"], self.environ, timeout_s=120)

    def __call__(self, *arguments: str) -> Answer:
        return run_program(arguments, self.environ)

    @property
    def files(self) -> list[Path]:
        return sorted(self.root.glob("runs/*/rank-*.jsonl"))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> _Demo:
    """Run the demo once."""
    return _Demo(tmp_path_factory.mktemp("demo"))


def _strict_lines(path: Path) -> Iterator[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{path}: {name} is not JSON")

    for line in path.read_text("utf-8").splitlines():
        yield json.loads(line, parse_constant=refuse)


def test_the_demo_trains_a_real_classifier(demo: _Demo) -> None:
    """The main job: exit 0, more than 90 % of unseen digits right after 3 epochs, and the loss falls."""
    assert (demo.answer.code, demo.answer.err) == (0, "")
    shown = demo("show", "latest", "--json").document
    assert (shown["status"], shown["world_size"]) == ("success", 4)
    assert shown["metrics"]["accuracy/test"] > 0.9
    assert shown["summary"]["loss/train"]["last"] < 0.5
    assert shown["summary"]["loss/train"]["max"] > 2
    assert shown["summary"]["accuracy/test"]["count"] == 3
    assert [artifact["name"] for artifact in shown["artifacts"]] == ["network.npz"] * 3
    assert Path(shown["artifacts"][-1]["path"]).stat().st_size == shown["artifacts"][-1]["bytes"]


def test_the_demo_leaves_a_file_a_rank_and_a_database(demo: _Demo) -> None:
    """Every line of every file is strict JSON, the first is meta with TraceRunMeta's fields, the last is terminal."""
    assert [path.name for path in demo.files] == [f"rank-0000{rank}.jsonl" for rank in range(4)]
    assert (demo.root / "experiments.db").is_file()
    for path in demo.files:
        first, *_, last = _strict_lines(path)
        assert (first["kind"], first["schema"], last["kind"], last["outcome"]) == (
            "meta",
            "runspan/trace/1",
            "terminal",
            "complete",
        )
        expected = [name for name in TraceRunMeta.__struct_fields__ if name != "candle_version"]
        assert list(first)[2 : 2 + len(expected)] == expected


def test_the_ranks_share_one_trace(demo: _Demo) -> None:
    """One trace id, one run span in rank 0's file, and a rank span in each file whose parent is the run's."""
    metas = [next(_strict_lines(path)) for path in demo.files]
    assert len({meta["trace_id"] for meta in metas}) == 1
    spans = [[line for line in _strict_lines(path) if line["kind"] == "span_start"] for path in demo.files]
    runs = [span["id"] for of_rank in spans for span in of_rank if span["name"] == "run"]
    assert len(runs) == 1
    parents = [span["otel"]["parent_span_id"] for of_rank in spans for span in of_rank if span["name"] == "rank"]
    assert parents == runs * 4


def test_the_demo_prints_what_a_person_wants_to_know(demo: _Demo) -> None:
    """Accuracy, loss curve, step time by rank, the slow rank, the files, and commands that work."""
    out = demo.answer.out
    assert "accuracy" in out
    assert "█" in out
    assert "Rank 2 is slow" in out
    assert "in forward" in out
    assert str(demo.root / "experiments.db") in out
    commands = [shlex.split(line)[1:] for line in out.splitlines() if line.startswith("  runspan ")]
    assert [command[0] for command in commands] == ["show", "metrics", "trace", "trace", "runs"]
    assert [command[1] for command in commands if command[0] == "trace"] == ["query", "view"]
    for command in commands:
        options = ["--no-open"] if "view" in command else []
        assert demo(*command, *options).code == 0


def test_every_rank_is_in_storage(demo: _Demo) -> None:
    """Case 22: 4 ranks log the same key of one run, and each point is there under its rank."""
    points = demo("metrics", "latest", "loss/train", "--json").document["points"]
    by_rank = [sum(point["rank"] == rank for point in points) for rank in range(4)]
    assert len(set(by_rank)) == 1
    assert by_rank[0] > 100
    counts = demo("show", "latest", "--json").document["counts"]
    assert counts["images"] == 8 * len(points)


def test_the_demo_ships_to_a_collector(tmp_path: Path) -> None:
    """--otlp URL sends the run's and each rank's span, and the last accuracy, over HTTP too."""
    with OtlpReceiver("http/protobuf") as receiver:
        url = f"http://127.0.0.1:{receiver.port}"
        options = ["--ranks", "2", "--epochs", "1", "--otlp", url, "--otlp-protocol", "http/protobuf"]
        answer = run_program(["demo", *options], clean_environ(tmp_path), timeout_s=120)
        spans = [span for span in receiver.spans if not span.attributes.get("runspan.pending")]
        assert answer.code == 0
        assert sorted(span.name for span in spans if span.name in {"run", "rank"}) == ["rank", "rank", "run"]
        values = [point for point in receiver.points if point.attributes.get("runspan.metric.key") == "accuracy/test"]
        assert values


def test_the_commands_find_a_run_that_is_elsewhere(tmp_path: Path) -> None:
    """With --dir and --storage none the printed commands carry both, and work without storage."""
    environ = clean_environ(tmp_path / "default")
    options = ["--ranks", "1", "--epochs", "1", "--dir", str(tmp_path / "other"), "--storage", "none"]
    answer = run_program(["demo", *options], environ)
    commands = [shlex.split(line)[1:] for line in answer.out.splitlines() if line.startswith("  runspan ")]
    assert [command[0] for command in commands] == ["show", "metrics", "trace", "trace", "runs"]
    assert {run_program(command, environ).code for command in commands} == {0}
    assert "slow" not in answer.out


def test_a_rank_that_dies_ends_the_demo(tmp_path: Path) -> None:
    """SIGKILL of one rank: the others end too, the failure names the one that was killed, and its run is no success."""
    environ = clean_environ(tmp_path, RUNSPAN_HEARTBEAT_S="0.2", RUNSPAN_STORAGE="none")

    def kill_rank_1(pids: list[int]) -> None:
        os.kill(pids[1], signal.SIGKILL)

    result = run_demo(DemoOptions(epochs=500), environ, started=kill_rank_1)
    assert result.failure == "rank 1 was ended by SIGKILL"
    assert result.duration_s < 60


def test_the_command_fails_when_a_rank_fails(tmp_path: Path) -> None:
    """Ranks that cannot start make the command exit 1, and it names the rank and where to look."""
    broken = tmp_path / "broken" / "sklearn"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('scikit-learn is broken')")
    environ = clean_environ(tmp_path, PYTHONPATH=str(broken.parent))
    answer = run_program(["demo", "--ranks", "2"], environ)
    assert answer.code == 1
    assert "rank 0 ended with exit code 1" in answer.err
    assert "scikit-learn is broken" in answer.err
    assert "runspan show" in answer.err


def test_sigterm_ends_the_ranks_and_then_the_command(tmp_path: Path) -> None:
    """SIGTERM to the command alone: its ranks record their end as cancelled, and it ends as by the signal."""
    environ = clean_environ(tmp_path, RUNSPAN_STORAGE="none")
    command = [sys.executable, "-m", "runspan.cli", "demo", "--ranks", "2", "--epochs", "500"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline_s = time.monotonic() + 60
        while len(files := sorted(tmp_path.glob("runs/*/rank-*.jsonl"))) < 2 or not _all_step(files):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        pids = [next(_strict_lines(path))["process"]["pid"] for path in files]
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    ends = [json.loads(path.read_text("utf-8").splitlines()[-1]) for path in files]
    assert [(end["kind"], end["status"]) for end in ends] == [("terminal", "cancelled")] * 2


def _all_step(files: list[Path]) -> bool:
    """Whether every rank has begun to train."""
    return all('"kind":"step"' in path.read_text("utf-8") for path in files)


def test_sigterm_that_the_host_handles_ends_the_demo(tmp_path: Path) -> None:
    """A program with a handler of its own goes on: the handler is called once, and the result says what happened."""
    calls: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _frame: calls.append(number))
    try:
        environ = clean_environ(tmp_path, RUNSPAN_STORAGE="none")
        result = run_demo(
            DemoOptions(ranks=2, epochs=500), environ, started=lambda _: os.kill(os.getpid(), signal.SIGTERM)
        )
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert (result.failure, calls) == ("it was ended by SIGTERM", [signal.SIGTERM])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--ranks", "0"], "--ranks"),
        (["--ranks", "33"], "--ranks"),
        (["--epochs", "0"], "--epochs"),
        (["--slow-rank", "4"], "--slow-rank"),
        (["--slow-ms", "nan"], "--slow-ms"),
        (["--seed", "-1"], "--seed"),
        (["--otlp", "http://localhost:none"], "--otlp"),
        (["--otlp", "ftp://localhost"], "--otlp"),
        (["--otlp", "http://localhost:4317", "--otlp-protocol", "udp"], "--otlp-protocol"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(tmp_path: Path, options: list[str], named: str) -> None:
    """One line that names the option and what it takes, exit 2, and no run directory."""
    answer = run_program(["demo", *options], clean_environ(tmp_path))
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert named in answer.err
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scikit-learn the demo says which extra to install."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'runspan\[demo\]'"):
        run_demo(DemoOptions(), {})


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("http://localhost:4317", "grpc"),
        ("localhost:4317", "grpc"),
        ("http://localhost:4318", "http/protobuf"),
        ("https://collector.example/otlp", "http/protobuf"),
        ("http://localhost:4317/", "grpc"),
    ],
)
def test_the_protocol_is_guessed_from_the_url(url: str, protocol: str) -> None:
    """Port 4318 and a path speak for HTTP."""
    assert guess_protocol(url) == protocol


def test_one_rank_alone_is_never_slow() -> None:
    """Slow is slower than another: a single rank is left alone, of two the last is slow unless told otherwise."""
    assert [DemoOptions(ranks=ranks).chosen_slow_rank for ranks in (1, 2, 4)] == [-1, 1, 2]
    with pytest.raises(ConfigError, match="--slow-rank 4"):
        DemoOptions(slow_rank=4)
