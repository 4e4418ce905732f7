from __future__ import annotations

from pathlib import Path

from runspan.gate.baseline import BOUNDS_PATH, CONFIG_PATH, parse_baseline, parse_config

_TOP = Path(__file__).resolve().parents[2]


def test_this_repositorys_gate_names_what_is_there() -> None:
    """The rules and bounds can be used, each performance path exists, and each entry has its benchmark."""
    config = parse_config((_TOP / CONFIG_PATH).read_bytes())
    baseline = parse_baseline((_TOP / BOUNDS_PATH).read_bytes())
    listed = [*config.perf_paths, *(path for paths in config.excluded.values() for path in paths)]
    assert [path for path in listed if not (_TOP / path).exists()] == []
    assert baseline.benchmark_ids == set(baseline.benchmarks) == {"log_metric", "step"}
