from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runspan._git import GitError
from runspan._run.gate import set_gate_values
from runspan.bench import BenchOutcome, BenchRequest, BenchResult, UnfitMachineError, run_benchmark
from runspan.errors import ConfigError, GateError
from runspan.gate import GateOutcome, check
from runspan.gate.frame import FrameStatus, VerdictKind
from runspan.gate.hardware_probe import CpuState, GpuState, HardwareProbe, MachineState
from runspan.gate.record import GateRecord
from runspan.tracefile.events import SpanStart
from runspan.tracefile.reader import read
from support.gate_repository import HARDWARE_KEY, GateRepository

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.live import LiveRuns

_ENTRY = 'status = "measured"\nparams = { size = "3" }\nbounds = { ratio = { max = 0.6, noise = 0.03 } }'
_CALLABLE = 'callable = "speed:bench"\nrepeats = 3\nwarmups = 1'


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[GateRepository]:
    """Make a repository whose module ``speed`` is imported anew by each test."""
    made = GateRepository(tmp_path / "gate")
    yield made
    sys.modules.pop("speed", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(made.top)]


@pytest.fixture(autouse=True)
def _no_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no cache beside the benchmark: an ignored file under a performance path is dirty."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def _bench(repository: GateRepository, live: LiveRuns, *, gate: bool = True, **request: Any) -> BenchResult:
    return run_benchmark(
        BenchRequest(**{"benchmark_id": "speed", "gate": gate, **request}),
        repository.top,
        config=live.config(),
        storage=live.storage,
        probe=repository.probe(),
    )


def _prepare(repository: GateRepository, body: str, declaration: str = _CALLABLE, entry: str = _ENTRY) -> None:
    repository.write("speed.py", f"calls = []\n\ndef bench(run, **params):\n    calls.append(params)\n    {body}\n")
    repository.declare(declaration, entry)
    repository.commit()


def _record(result: BenchResult) -> GateRecord:
    assert result.gate_record is not None
    return GateRecord.load(result.gate_record)


def test_a_gate_run_leaves_a_record_of_what_it_measured(repository: GateRepository, live: LiveRuns) -> None:
    """Repeats become median and spread, pins become parameters, and the commit is the one at the start."""
    _prepare(repository, 'return {"ratio": 0.1 * len(calls), "size": float(params["size"])}')
    result = _bench(repository, live)
    record = _record(result)
    assert (result.outcome, result.reason) == (BenchOutcome.PASS, "1 of 1 bounds hold")
    assert record.metrics["ratio"] == pytest.approx(0.3)
    assert [record.metrics[f"ratio.{part}"] for part in ("mad", "min", "max", "n")] == pytest.approx([0.1, 0.2, 0.4, 3])
    assert record.params == {"size": "3"}
    assert repository.git("rev-parse", "HEAD").startswith(record.git_sha)
    assert (record.frame_status, record.verdict, record.dirty_paths) == (FrameStatus.COMPLETED, "PASS", [])
    assert record.command == ["runspan", "bench", "run", "speed", "--param", "size=3", "--gate"]
    assert record.closure["tree:src"].hash == repository.git("rev-parse", "HEAD:src")
    assert record.perf_env == {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1"}
    assert record.hardware.gpu == "cpu:Intel(R) Xeon(R) Platinum 8480"
    assert record.hardware_state is not None
    assert record.hardware_state.postcheck is not None
    assert result.gate_record is not None
    assert result.gate_record.parent == repository.top / ".benchmarks/speed"


def test_a_run_leaves_a_run_record_whether_or_not_it_is_a_gates(repository: GateRepository, live: LiveRuns) -> None:
    """The run directory has one file a run with its last frame; without --gate nothing is written in the repository."""
    _prepare(repository, 'return {"ratio": 0.5}')
    result = _bench(repository, live, gate=False)
    assert result.gate_record is None
    assert result.run_record is not None
    assert result.run_record.parent.name == "gate"
    document = json.loads(result.run_record.read_bytes())
    assert (document["schema"], document["benchmark_id"], document["run_id"]) == (1, "speed", result.run_id)
    assert document["frame"]["metrics"]["ratio"] == 0.5
    assert [path.name for path in result.run_record.parent.iterdir()] == [result.run_record.name]
    assert not (repository.top / ".benchmarks/speed").exists()


def test_without_a_returned_mapping_the_last_metric_values_count(repository: GateRepository, live: LiveRuns) -> None:
    """A benchmark that logs its metrics to the run need not return them."""
    _prepare(repository, 'run.log_metric("ratio", 0.1); run.log_metric("ratio", 0.2)')
    assert _record(_bench(repository, live)).metrics["ratio"] == 0.2


def test_a_breach_of_the_bounds_at_head_fails(repository: GateRepository, live: LiveRuns) -> None:
    """The committed bounds judge, not those in the working tree."""
    _prepare(repository, 'return {"ratio": 0.7}')
    repository.declare(_CALLABLE, _ENTRY.replace("0.6", "0.9"))
    result = _bench(repository, live)
    assert (result.outcome, _record(result).verdict) == (BenchOutcome.FAIL, "FAIL")
    assert "at most 0.6" in result.reason


@pytest.mark.parametrize(
    ("body", "outcome", "reason"),
    [
        ('raise RuntimeError("no luck")', BenchOutcome.NO_VERDICT, "failed: RuntimeError: no luck"),
        ("raise KeyboardInterrupt", BenchOutcome.NO_VERDICT, "cancelled: KeyboardInterrupt"),
        ("raise SystemExit(3)", BenchOutcome.NO_VERDICT, "failed: SystemExit: 3"),
        ("raise SystemExit(0)", BenchOutcome.FAIL, "SystemExit: 0"),
        ("run.finish()", BenchOutcome.FAIL, "the benchmark ended before it had reported a result"),
        ("return {}", BenchOutcome.FAIL, "no metrics"),
        ('return {"ratio": float("nan"), "other": 1.0}', BenchOutcome.FAIL, "ratio is nan"),
        ('return {"ratio": "fast"}', BenchOutcome.NO_VERDICT, "expected a number"),
    ],
)
def test_a_gate_run_that_started_always_leaves_a_record(
    body: str, outcome: BenchOutcome, reason: str, repository: GateRepository, live: LiveRuns
) -> None:
    """Failed, cancelled, without metrics or with one that is not finite: Failed with verdict FAIL, never a pass."""
    _prepare(repository, body)
    result = _bench(repository, live)
    record = _record(result)
    assert result.outcome is outcome
    assert (record.frame_status, record.verdict) == (FrameStatus.FAILED, "FAIL")
    assert reason in record.verdict_reason
    assert "ratio" not in record.metrics


def test_a_crashed_rerun_does_not_hide_behind_an_older_pass(
    repository: GateRepository, live: LiveRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the crash takes the place of the pass of the same day and commit."""
    _prepare(repository, 'return {"ratio": float(__import__("os").environ["RATIO"])}')
    monkeypatch.setenv("RATIO", "0.5")
    first = _bench(repository, live)
    monkeypatch.delenv("RATIO")
    second = _bench(repository, live)
    assert (first.outcome, second.outcome) == (BenchOutcome.PASS, BenchOutcome.NO_VERDICT)
    assert {_record(first).verdict, _record(second).verdict} == {"FAIL"}


def test_while_a_gate_run_goes_on_its_record_is_that_of_a_failed_run(
    repository: GateRepository, live: LiveRuns
) -> None:
    """Also where a pass stood, and beside a failure; the run's own last record takes the place of it."""
    body = 'import pathlib; return {"ratio": float(b"killed before" in b"".join(f.read_bytes() for f in pathlib.Path('
    _prepare(repository, body + f'"{repository.top}/.benchmarks/speed").glob("*.json"))) / 2}}')
    folder = repository.top / ".benchmarks/speed"
    for outcome, ratio, files in ((BenchOutcome.PASS, 0.5, 1), (BenchOutcome.PASS, 0.5, 1)):
        result = _bench(repository, live)
        assert (result.outcome, _record(result).metrics["ratio"]) == (outcome, ratio)
        assert len(list(folder.iterdir())) == files
    failed = _record(result)
    path = msgspec.structs.replace(failed, verdict="FAIL").save(repository.top)
    beside = _bench(repository, live)
    assert beside.outcome is BenchOutcome.PASS
    assert set(folder.iterdir()) == {path, beside.gate_record}


def test_a_gate_run_is_of_the_committed_declaration(repository: GateRepository, live: LiveRuns) -> None:
    """Another callable or other pins in the working tree are not what a gate run runs; without --gate they are."""
    _prepare(repository, 'return {"ratio": 0.5}')
    repository.declare("command = ['false']", _ENTRY.replace('"3"', '"4"'))
    result = _bench(repository, live)
    assert result.outcome is BenchOutcome.PASS
    assert _record(result).params == {"size": "3"}
    assert _bench(repository, live, gate=False).outcome is BenchOutcome.NO_VERDICT
    repository.declare(_CALLABLE, _ENTRY, benchmark_id="new")
    with pytest.raises(GateError, match=r"'new' is not in HEAD:.benchmarks/bounds.toml: it declares speed"):
        _bench(repository, live, benchmark_id="new")


def test_shards_are_measured_one_by_one_and_judged_as_a_whole(repository: GateRepository, live: LiveRuns) -> None:
    """A part is held to what must be zero in it, the bounds are those of the sum, and the group passes the check."""
    entry = 'status = "measured"\nzero = ["drops"]\naggregate = { tokens = "sum" }\nbounds = { tokens = { min = 3.0 } }'
    body = 'return {"tokens": 2.0, "drops": float(params["drops"]), "shard.index": int(params["i"]), "shard.count": 2}'
    _prepare(repository, body, 'callable = "speed:bench"', entry)
    outcomes = [
        _bench(repository, live, params={"i": index, "drops": drops}).outcome
        for index, drops in (("0", "0"), ("1", "0"))
    ]
    assert outcomes == [BenchOutcome.PASS, BenchOutcome.PASS]
    (result,) = check(repository.top, base="main").results
    assert (result.outcome, result.problems) == (GateOutcome.PASS, ())
    assert _bench(repository, live, params={"i": "1", "drops": "1"}).outcome is BenchOutcome.FAIL


def test_a_record_that_cannot_be_written_is_no_verdict(repository: GateRepository, live: LiveRuns) -> None:
    """The failed write is kept on the run, and the run's own record is there."""
    _prepare(repository, 'return {"ratio": 0.5}')
    repository.write(".benchmarks/speed", "a file where the folder should be\n")
    result = _bench(repository, live)
    assert (result.outcome, result.gate_record) == (BenchOutcome.NO_VERDICT, None)
    assert "could not be written" in result.reason
    assert result.run_record is not None


@pytest.mark.parametrize(
    ("stated", "outcome", "verdict"),
    [
        ("Pass", BenchOutcome.PASS, "PASS"),
        ("Fail", BenchOutcome.FAIL, "FAIL"),
        ("Info", BenchOutcome.NO_VERDICT, "info"),
    ],
)
def test_a_command_says_its_result_in_a_file(
    stated: str, outcome: BenchOutcome, verdict: str, repository: GateRepository, live: LiveRuns
) -> None:
    """A command gets its parameters as JSON and writes metrics, a verdict and the data's fingerprint."""
    repository.write(
        "speed.py",
        "import json, os\n"
        'params = json.loads(os.environ["RUNSPAN_BENCH_PARAMS"])\n'
        'result = {"metrics": {"ratio": 0.5, "size": float(params["size"])},'
        f' "verdict": {{"kind": "{stated}", "reason": "says so"}}, "dataset_fingerprint": "d1"}}\n'
        'print("chatter")\n'
        'json.dump(result, open(os.environ["RUNSPAN_BENCH_OUT"], "w"))\n',
    )
    repository.declare(f'command = ["{sys.executable}", "speed.py"]', _ENTRY)
    repository.commit()
    result = _bench(repository, live, params={"size": "4"})
    record = _record(result)
    assert (result.outcome, record.verdict, record.verdict_reason) == (outcome, verdict, "says so")
    assert (record.metrics, record.dataset_fingerprint) == ({"ratio": 0.5, "size": 4.0}, "d1")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit(7)", "ended with exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "ended with signal 9"),
        ("pass", "wrote no result"),
        ('import os; open(os.environ["RUNSPAN_BENCH_OUT"], "w").write("{")', "is no JSON"),
    ],
)
def test_a_command_without_a_result_has_failed(
    script: str, reason: str, repository: GateRepository, live: LiveRuns
) -> None:
    """An exit code, a signal, a missing and a broken result are named in a Failed record."""
    repository.write("speed.py", f"{script}\n")
    repository.declare(f'command = ["{sys.executable}", "speed.py"]', _ENTRY)
    repository.commit()
    result = _bench(repository, live)
    assert (result.outcome, _record(result).frame_status) == (BenchOutcome.NO_VERDICT, FrameStatus.FAILED)
    assert reason in result.reason


def test_a_command_that_is_not_there_has_failed(repository: GateRepository, live: LiveRuns) -> None:
    """A command that cannot be run is named."""
    _prepare(repository, "pass", 'command = ["./nowhere"]')
    assert "./nowhere cannot be run" in _bench(repository, live).reason


@pytest.mark.parametrize("target", ["speed", "speed:nothing", "nowhere:bench"])
def test_a_callable_that_is_not_there_has_failed(target: str, repository: GateRepository, live: LiveRuns) -> None:
    """A module or function that cannot be found leaves a Failed record like any crash."""
    _prepare(repository, "pass", f'callable = "{target}"')
    assert _record(_bench(repository, live)).frame_status is FrameStatus.FAILED


@pytest.mark.parametrize(
    ("change", "dirty"),
    [
        ("src/model.py", ["src/model.py"]),
        ("src/new file ü.py", ["src/new file ü.py"]),
        ("src/tests/test_model.py", []),
        ("docs/readme.md", []),
        (".benchmarks/speed/earlier.json", []),
        (".benchmarks/config.toml", []),
    ],
)
def test_uncommitted_performance_paths_are_recorded(
    change: str, dirty: list[str], repository: GateRepository, live: LiveRuns
) -> None:
    """What is measured must be what is committed; tests, docs, records and rules (HEAD's hold) change nothing."""
    _prepare(repository, 'return {"ratio": 0.5}')
    repository.write(change, (repository.top / ".benchmarks/config.toml").read_text() + "# changed\n")
    result = _bench(repository, live)
    assert _record(result).dirty_paths == dirty
    assert result.outcome is (BenchOutcome.FAIL if dirty else BenchOutcome.PASS)


@pytest.mark.parametrize("committed", [True, False])
def test_an_uncommitted_benchmark_is_dirty(repository: GateRepository, live: LiveRuns, *, committed: bool) -> None:
    """The benchmark's own file must be committed as it is run, though no rule names it as a performance path."""
    repository.write(".benchmarks/config.toml", 'perf_paths = ["src"]\n')
    repository.declare(_CALLABLE, _ENTRY)
    if committed:
        repository.write("speed.py", 'def bench(run, **params):\n    return {"ratio": 9.5}\n')
    repository.commit()
    repository.write("speed.py", 'def bench(run, **params):\n    return {"ratio": 0.5}\n')
    result = _bench(repository, live)
    assert result.outcome is BenchOutcome.FAIL
    assert _record(result).dirty_paths == ["speed.py"]
    repository.commit()
    assert _bench(repository, live).outcome is BenchOutcome.PASS


def test_a_gate_run_without_git_does_not_start(repository: GateRepository, live: LiveRuns) -> None:
    """Without a commit to name there is no record to make; training goes on without, a gate does not."""
    _prepare(repository, 'return {"ratio": 0.5}')
    (repository.top / ".git").rename(repository.top / "elsewhere")
    with pytest.raises(GitError):
        _bench(repository, live)
    assert not live.trace_dir.exists()
    assert _bench(repository, live, gate=False).outcome is BenchOutcome.PASS


@pytest.mark.parametrize(
    ("entry", "key", "outcome"),
    [
        ("", HARDWARE_KEY, BenchOutcome.NO_BASELINE),
        (_ENTRY, "cpu-x", BenchOutcome.NOT_COMPARABLE),
        (_ENTRY.replace("measured", "unmeasured"), HARDWARE_KEY, BenchOutcome.FAIL),
        ('status = "measured"', HARDWARE_KEY, BenchOutcome.FAIL),
    ],
)
def test_a_gate_run_without_bounds_for_this_machine_does_not_pass(
    entry: str, key: str, outcome: BenchOutcome, repository: GateRepository, live: LiveRuns
) -> None:
    """No entry, one for other hardware, an unmeasured one and one without bounds each have an outcome of their own."""
    repository.write("speed.py", 'def bench(run, **params):\n    return {"ratio": 0.5}\n')
    repository.declare(_CALLABLE, entry, key=key)
    repository.commit()
    result = _bench(repository, live)
    assert result.outcome is outcome
    assert _record(result).verdict == "PASS"
    if outcome is BenchOutcome.NOT_COMPARABLE:
        assert _bench(repository, live, allow_other_hardware=True).outcome is BenchOutcome.PASS


def test_a_machine_that_is_slowed_down_is_not_measured(
    repository: GateRepository, live: LiveRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate run is refused with the reason before it starts."""
    _prepare(repository, 'return {"ratio": 0.5}')
    gpu = GpuState(uuid="GPU-0", throttle_reasons=["hardware thermal slowdown"])
    monkeypatch.setattr(HardwareProbe, "state", lambda _: MachineState(cpu=CpuState(), gpus=[gpu]))
    with pytest.raises(UnfitMachineError, match="GPU-0 is slowed down: hardware thermal slowdown"):
        _bench(repository, live)
    assert not live.trace_dir.exists()


def test_what_heat_did_is_told_in_the_summary(
    repository: GateRepository, live: LiveRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter that rose during the run makes its timings invalid, which the record says loudly."""
    _prepare(repository, 'return {"ratio": 0.5}')
    counts = iter([4, 9])
    monkeypatch.setattr(HardwareProbe, "state", lambda _: MachineState(cpu=CpuState(throttle_events=next(counts))))
    record = _record(_bench(repository, live))
    assert record.hardware_state is not None
    assert record.hardware_state.postcheck is not None
    assert record.hardware_state.postcheck.validity == "invalid"
    assert record.summary.endswith("· warning: heat slowed the processors down 5 times")


def test_an_unknown_benchmark_and_missing_rules_are_named(repository: GateRepository, live: LiveRuns) -> None:
    """Nothing starts where the declaration or the committed rules are missing, or tracing is off."""
    _prepare(repository, "pass")
    with pytest.raises(GateError, match=r"benchmark 'sped' is not in \.benchmarks/bounds\.toml: it declares speed"):
        _bench(repository, live, benchmark_id="sped")
    repository.git("rm", "-q", "--cached", ".benchmarks/config.toml")
    repository.git("commit", "-qm", "none")
    with pytest.raises(GateError, match="is not committed"):
        _bench(repository, live)
    with pytest.raises(ConfigError, match="tracing is off"):
        run_benchmark(BenchRequest(benchmark_id="speed"), repository.top, config=live.config(tracing_enabled=False))
    assert not live.trace_dir.exists()


def test_a_gate_result_is_a_span_and_values_to_alert_on(repository: GateRepository, live: LiveRuns) -> None:
    """The trace has one gate span with verdict, reason and commit; the run's metrics have gate values."""
    _prepare(repository, 'return {"ratio": 0.7}')
    result = _bench(repository, live)
    files = list((live.trace_dir / result.run_id).glob("**/*.jsonl"))
    starts = [event for event in read(files[0]) if isinstance(event, SpanStart) and event.name == "gate"]
    assert [start.attributes for start in starts] == [
        {
            "runspan.run.id": result.run_id,
            "runspan.rank": 0,
            "runspan.attempt": 0,
            "runspan.gate.benchmark": "speed",
            "runspan.gate.verdict": "Fail",
            "runspan.gate.reason": "ratio = 0.7 is not at most 0.6 (noise 0.03)",
            "runspan.gate.git_sha": _record(result).git_sha,
        }
    ]
    assert result.frame is not None
    assert result.frame.verdict is not None
    assert result.frame.verdict.kind is VerdictKind.FAIL


def test_gate_values_are_read_by_the_export(live: LiveRuns) -> None:
    """Each metric and whether the gate passed stand in what the exporter reads."""
    run = live.start()
    set_gate_values(run, "speed", {"ratio": 0.5}, passed=False)
    state = run._session.state
    assert (state.gate_metrics, state.gate_passed) == ({("speed", "ratio"): 0.5}, {"speed": False})
