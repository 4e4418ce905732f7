from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from runspan.gate import FrameStatus, GateOutcome
from support.gate import TIME
from support.gated import GatedRepository, bounds_text

if TYPE_CHECKING:
    from pathlib import Path

_BOUNDS = "{ tokens = { min = 3000.0 }, per_token = { max = 0.02 }, errors = { max = 0.0, min = 0.0 } }"
_GROUP = """\
zero = ["drops"]
[hardware.h100.default.benchmarks.decode.aggregate]
tokens = "sum"
errors = "sum"
per_token = { ratio = ["seconds", "tokens"] }
"""


@pytest.fixture
def repository(tmp_path: Path) -> GatedRepository:
    """Return a repository whose benchmark is measured in shards."""
    return GatedRepository.gated(tmp_path / "repository", bounds=bounds_text(bounds=_BOUNDS, more=_GROUP))


def _measure(repository: GatedRepository, index: int, *, count: int = 3, name: str = "", **changes: Any) -> Path:
    own = {"tokens": 1000.0 + index, "seconds": 20.0, "errors": 0.0, "drops": 0.0}
    metrics = {**own, "shard.index": index, "shard.count": count, **changes.pop("metrics", {})}
    kept = {metric: value for metric, value in metrics.items() if value is not None}
    defaults: dict[str, Any] = {"metrics": kept, "recorded_at": TIME + index, "verdict": "info"}
    return repository.measure(f"2026-01-02{name}-s{index}of{count}", **(defaults | changes))


def test_a_complete_group_passes_as_a_whole(repository: GatedRepository) -> None:
    """Three of three shards at one commit pass by the sums and ratios of their metrics."""
    for index in range(3):
        _measure(repository, index)
    result = repository.result()
    assert (result.outcome, result.problems) == (GateOutcome.PASS, ())
    values = {metric.metric: metric.value for metric in result.metrics}
    assert values == {"tokens": 3003.0, "errors": 0.0, "per_token": 60.0 / 3003.0}


def test_an_aggregate_out_of_its_bounds_fails(repository: GatedRepository) -> None:
    """The bounds hold for the whole: a slow shard spoils it."""
    for index in range(3):
        _measure(repository, index, metrics={"seconds": 40.0 if index else 20.0})
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert "per_token is 0.0333, expected at most 0.02" in result.problems[0]


def test_a_partial_group_is_missing(repository: GatedRepository) -> None:
    """Two of three shards are no measurement; the missing one is named."""
    _measure(repository, 0)
    _measure(repository, 2)
    result = repository.result()
    assert result.outcome is GateOutcome.MISSING
    assert "2 of 3 stand" in result.problems[0]
    assert "shard 1 is missing" in result.problems[0]


def test_shards_of_two_commits_or_partitions_make_no_group(repository: GatedRepository) -> None:
    """Shards of different commits do not complete each other, though all of them stand, nor do different counts."""
    _measure(repository, 0)
    _measure(repository, 1)
    _measure(repository, 2, count=4)
    repository.commit({"docs/a.md": "other\n"})
    _measure(repository, 2)
    assert repository.outcome() is GateOutcome.MISSING


def test_a_whole_draw_satisfies_no_group(repository: GatedRepository) -> None:
    """A record that is no shard is passed over, however good it is and however new."""
    repository.measure(
        recorded_at=TIME + 10, metrics={"tokens": 4000.0, "per_token": 0.01, "errors": 0.0, "drops": 0.0}
    )
    assert repository.outcome() is GateOutcome.MISSING
    for index in range(3):
        _measure(repository, index)
    assert repository.outcome() is GateOutcome.PASS


def test_the_newest_record_of_each_shard_counts(repository: GatedRepository) -> None:
    """A rerun of one shard takes the earlier one's place, for better and for worse."""
    for index in range(3):
        _measure(repository, index, metrics={"errors": 1.0 if index == 1 else 0.0})
    assert repository.outcome() is GateOutcome.FAIL
    _measure(repository, 1, name="T2", recorded_at=TIME + 10)
    assert repository.outcome() is GateOutcome.PASS
    _measure(repository, 1, name="T3", recorded_at=TIME + 11, frame_status=FrameStatus.FAILED)
    assert repository.outcome() is GateOutcome.FAIL


def test_an_older_whole_hides_no_failed_shard(repository: GatedRepository) -> None:
    """A newer group that is incomplete leaves the complete one standing, unless one of its shards failed."""
    for index in range(3):
        _measure(repository, index)
    repository.commit({"docs/a.md": "other\n"})
    _measure(repository, 0, name="b", recorded_at=TIME + 10)
    assert repository.outcome() is GateOutcome.PASS
    _measure(repository, 1, name="b", recorded_at=TIME + 9, verdict="FAIL")
    assert repository.outcome() is GateOutcome.FAIL


@pytest.mark.parametrize("metric", ["tokens", "seconds", "drops"])
def test_a_shard_without_its_counters_is_missing(repository: GatedRepository, metric: str) -> None:
    """A shard that lacks a metric that the aggregates or the zeros need makes the whole missing, not smaller."""
    for index in range(3):
        _measure(repository, index, metrics={metric: None} if index == 1 else {})
    result = repository.result()
    assert result.outcome is GateOutcome.MISSING
    assert f"shard 1 has no metric '{metric}'" in result.problems[0]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metrics": {"drops": 1.0}}, "drops is 1.0, and must be 0"),
        ({"dirty_paths": ["src/a.py"]}, "uncommitted changes: src/a.py"),
        ({"verdict": "FAIL"}, "shard 1 failed"),
        ({"frame_status": FrameStatus.FAILED}, "shard 1 failed"),
        ({"serve_overrides": {"a": "b"}}, "serve_overrides"),
    ],
)
def test_each_shard_is_sound_by_itself(repository: GatedRepository, changes: dict[str, Any], problem: str) -> None:
    """A shard with a forbidden count, uncommitted changes, a failure or other settings fails the whole and is named."""
    for index in range(3):
        _measure(repository, index, **(changes if index == 1 else {}))
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert any(problem in line and "s1of3" in line for line in result.problems), result.problems


def test_a_ratio_by_zero_fails(repository: GatedRepository) -> None:
    """A ratio whose divisor is zero is no number, which no bound takes."""
    for index in range(3):
        _measure(repository, index, metrics={"tokens": 0.0})
    result = repository.result()
    assert result.outcome is GateOutcome.FAIL
    assert any("per_token is missing or not finite" in problem for problem in result.problems)


def test_a_shard_passes_for_no_whole_benchmark(tmp_path: Path) -> None:
    """Where the entry has no aggregates, a record of a part does not pass, nor does one whose shard is ill-formed."""
    repository = GatedRepository.gated(tmp_path / "repository")
    for metrics in ({"shard.index": 0, "shard.count": 3}, {"shard.index": 5, "shard.count": 3}, {"shard.index": 0}):
        repository.measure(metrics={"latency_ms": 1.0, **metrics})
        assert repository.outcome() is GateOutcome.FAIL


def test_an_invalidated_shard_breaks_its_group(repository: GatedRepository) -> None:
    """Shards from before a change of performance code make no group with those from after it."""
    _measure(repository, 0)
    _measure(repository, 1)
    repository.commit({"src/a.py": "a = 2\n"})
    repository.git("branch", "-f", "base")
    _measure(repository, 2)
    assert repository.outcome() is GateOutcome.MISSING
