from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from runspan import cli
from runspan.errors import GateError
from runspan.gate.baseline import Baseline, BaselineEntry, Bound, parse_baseline
from runspan.gate.frame import FrameStatus
from runspan.gate.hardware import Hardware
from runspan.gate.proposing import propose_entries, toml_of
from runspan.gate.record import GateRecord

if TYPE_CHECKING:
    from pathlib import Path


def _record(value: float, number: int = 0, **changes: Any) -> GateRecord:
    fields: dict[str, Any] = {
        "benchmark_id": "speed",
        "benchmark_name": "speed",
        "git_sha": f"{number:010x}",
        "recorded_at": 1_700_000_000 + number,
        "target_model": "",
        "params": {"size": "3"},
        "command": ["runspan"],
        "metrale_version": "0",
        "hardware": Hardware(gpu="cpu:Xeon 8480", driver="", source="kernel"),
        "metrics": {"ratio": value, "ratio.n": 7.0},
        "frame_status": FrameStatus.COMPLETED,
        "verdict": "PASS",
        "verdict_reason": "",
        "summary": "",
    }
    return GateRecord(**{**fields, **changes})


def _records(*values: float) -> list[GateRecord]:
    return [_record(value, len(values) - number) for number, value in enumerate(values)]


def test_records_become_an_entry_that_bounds_toml_takes() -> None:
    """The written entry reads back as bounds of the right hardware, model and parameters, which the records hold."""
    (proposal,) = propose_entries("speed", _records(0.55, 0.5, 0.52), Baseline(), {"ratio": "max"})
    text = toml_of(proposal)
    baseline = parse_baseline(text.encode())
    entry = baseline.entry("cpu-xeon-8480", "default", "speed")
    assert entry is not None
    assert (entry.status, entry.params) == ("measured", {"size": "3"})
    assert all(entry.bounds["ratio"].holds(value) for value in (0.55, 0.5, 0.52))
    assert not entry.bounds["ratio"].holds(0.56)
    assert "25.0%" in text
    assert proposal.false_alarm_rate == 0.25


def test_several_bounds_have_the_sum_of_their_rates() -> None:
    """A record of the same code breaches one of m bounds with probability m/(n + 1) at most."""
    records = [_record(1.0, metrics={"a": 1.0, "b": 2.0}) for _ in range(9)]
    (proposal,) = propose_entries("speed", records, Baseline(), {"a": "max", "b": "min"})
    assert proposal.false_alarm_rate == pytest.approx(0.2)
    (certain,) = propose_entries("speed", records[:1], Baseline(), {"a": "max", "b": "min"})
    assert certain.false_alarm_rate == 1.0


def test_an_entrys_sides_are_kept() -> None:
    """Metrics that are bounded on one side stay bounded there; one that is pinned is left alone."""
    bounds = {"ratio": Bound(min=0.1), "ratio.n": Bound(min=7.0, max=7.0)}
    entries = {"cpu-xeon-8480": {"default": {"speed": BaselineEntry(status="measured", bounds=bounds)}}}
    baseline = Baseline(entries=entries, default_models={"cpu-xeon-8480": "default"})
    (proposal,) = propose_entries("speed", _records(0.5, 0.6), baseline, {})
    assert proposal.proposals["ratio"].bound.min is not None
    assert list(proposal.proposals) == ["ratio"]


def test_only_comparable_clean_records_count() -> None:
    """Failed, dirty and other-parameter records say nothing, nor do those before the newest N."""
    records = [
        _record(0.5, 9),
        _record(9.0, 8, frame_status=FrameStatus.FAILED),
        _record(9.0, 7, verdict="FAIL"),
        _record(9.0, 6, dirty_paths=["src"]),
        _record(9.0, 5, params={"size": "4"}),
        _record(9.0, 4, serve_overrides={"batch": "1"}),
        _record(9.0, 3, hardware=Hardware(gpu="unknown", driver="", source="unknown")),
        _record(0.6, 2),
        _record(0.7, 1),
    ]
    (proposal,) = propose_entries("speed", records, Baseline(), {"ratio": "max"}, newest=2)
    assert proposal.git_shas == ["0000000009", "0000000002"]
    assert proposal.proposals["ratio"].median == pytest.approx(0.55)


def test_each_hardware_and_model_has_an_entry_of_its_own() -> None:
    """Measurements of different machines are never mixed."""
    gpu = Hardware(gpu="NVIDIA H100 80GB HBM3", driver="1", source="nvml")
    records = [_record(0.5), _record(0.1, hardware=gpu), _record(0.2, hardware=gpu, target_model="org/big")]
    proposals = propose_entries("speed", records, Baseline(), {"ratio": "max"})
    assert [(item.hardware_key, item.model) for item in proposals] == [
        ("cpu-xeon-8480", "default"),
        ("h100", "default"),
        ("h100", "org/big"),
    ]
    assert tomllib.loads(toml_of(proposals[2]))["hardware"]["h100"]["org/big"]["benchmarks"]["speed"]


@pytest.mark.parametrize(
    ("records", "limits", "told"),
    [
        ([], {"ratio": "max"}, "has no record to go by"),
        (_records(0.5), {}, "is not guessed: give --max or --min with one of ratio, ratio.n"),
        (_records(0.5), {"speed": "max"}, "1 of 1 records on cpu-xeon-8480 have no metric 'speed'"),
    ],
)
def test_what_cannot_be_proposed_is_said(records: list[GateRecord], limits: Any, told: str) -> None:
    """No record, no direction and an absent metric are errors that say what to do."""
    with pytest.raises(GateError, match=told):
        propose_entries("speed", records, Baseline(), limits)


def test_gate_baseline_prints_toml_for_people_and_json_for_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed can be pasted into bounds.toml; stderr says how many records a usual rate needs."""
    (tmp_path / ".benchmarks").mkdir()
    (tmp_path / ".benchmarks/bounds.toml").write_text("")
    for record in _records(0.5, 0.6):
        record.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["gate", "baseline", "speed", "--max", "ratio"]) == 0
    printed = capsys.readouterr()
    assert tomllib.loads(printed.out)["hardware"]["cpu-xeon-8480"]["default"]["benchmarks"]["speed"]["bounds"]
    assert "17 more records, one a commit and day, bring it to 5%" in printed.err
    assert cli.main(["gate", "baseline", "speed", "--max", "ratio", "--json"]) == 0
    assert '"false_alarm_rate": 0.333' in capsys.readouterr().out
    assert cli.main(["gate", "baseline", "speed", "--max", "ratio", "--min", "ratio"]) == 2
    assert cli.main(["gate", "baseline", "other", "--max", "ratio"]) == 2
