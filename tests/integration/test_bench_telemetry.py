from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from runspan import TracingConfig
from runspan.bench import BenchOutcome, BenchRequest, BenchResult, run_benchmark
from runspan.storage import InMemoryStorage
from support.gate_repository import GateRepository
from support.otlp_receiver import OtlpReceiver, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ENTRY = 'status = "measured"\nbounds = { ratio = { max = 0.6 } }'


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GateRepository]:
    """Make a repository with a benchmark whose result the environment says."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = GateRepository(tmp_path / "gate")
    made.write("speed.py", 'import os\n\ndef bench(run, **_):\n    return {"ratio": float(os.environ["RATIO"])}\n')
    made.declare('callable = "speed:bench"', _ENTRY)
    made.commit()
    yield made
    sys.modules.pop("speed", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(made.top)]


def _bench(repository: GateRepository, tmp_path: Path, **config: Any) -> BenchResult:
    return run_benchmark(
        BenchRequest(benchmark_id="speed", gate=True),
        repository.top,
        config=TracingConfig(trace_dir=tmp_path / "runs", **config),
        storage=InMemoryStorage(),
        probe=repository.probe(),
    )


@pytest.mark.parametrize(("ratio", "passed"), [("0.5", 1), ("0.7", 0), ("broken", 0)])
def test_a_gate_result_arrives_at_the_collector(
    ratio: str, passed: int, repository: GateRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate span, each metric and whether it passed are exported, of a crashed benchmark too."""
    monkeypatch.setenv("RATIO", ratio)
    verdict = "Pass" if passed else "Fail"
    with OtlpReceiver() as receiver:
        result = _bench(repository, tmp_path, export_otlp=True, otlp_endpoint=f"http://127.0.0.1:{receiver.port}")
        assert until(lambda: receiver.points_of("runspan.gate.passed"))
        (span,) = [span for span in receiver.spans if span.name == "gate"]
        assert (span.attributes["runspan.gate.benchmark"], span.attributes["runspan.gate.verdict"]) == (
            "speed",
            verdict,
        )
        assert result.frame is not None
        values = {
            point.attributes["runspan.metric.key"]: point.value for point in receiver.points_of("runspan.gate.metric")
        }
        assert values == result.frame.metrics
        assert receiver.points_of("runspan.gate.passed")[-1].value == passed


def test_rank_0_writes_the_one_record(
    repository: GateRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank runs the benchmark; only rank 0 leaves records."""
    monkeypatch.setenv("RATIO", "0.5")
    for name, value in {"RUNSPAN_RUN_ID": "r", "RUNSPAN_WORLD_SIZE": "2", "RUNSPAN_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    other = _bench(repository, tmp_path)
    assert (other.outcome, other.frame, other.run_record, other.gate_record) == (BenchOutcome.PASS, None, None, None)
    assert not (repository.top / ".benchmarks/speed").exists()
    monkeypatch.setenv("RUNSPAN_RANK", "0")
    assert _bench(repository, tmp_path).gate_record is not None
