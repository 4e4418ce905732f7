from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import runspan
from runspan.errors import InvalidStateError
from runspan.storage import InMemoryStorage
from runspan.tracefile.layout import RunDirectory
from support.programs import events_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.live import LiveRuns


@pytest.mark.parametrize("has_storage", [True, False])
def test_a_resumed_run_is_a_new_attempt_of_the_same_run(
    live: LiveRuns, monkeypatch: pytest.MonkeyPatch, has_storage: bool
) -> None:
    """Case 19: same id and trace, a file of its own, counters that go on; the first attempt's points stay readable."""
    monkeypatch.setenv("RUNSPAN_STORAGE", "none")
    storage = live.storage if has_storage else None
    first = live.start(run_id="r", storage=storage, trace_dir=live.trace_dir)
    for step in range(213):
        first.log_metric("loss", step)
    first.log_metric_at("explicit", 900, 1.0)
    first.finish("failed", "crash")
    again = live.start(run_id="r", storage=storage)
    assert again.rank_context.attempt == 1
    assert (again.trace_id, again.span_id) == (first.trace_id, first.span_id)
    assert again.current_step("loss") == 213
    assert again.current_step("explicit") == 0
    assert again.metric_keys() == []
    for step in range(200, 301):
        again.log_metric_at("loss", step, -step)
    assert again.status() == "running"
    if has_storage:
        assert live.storage.get_run_status("r") == "running"
    again.finish()
    assert again.directory is not None
    assert [name.attempt for name, _ in RunDirectory(again.directory).trace_files()] == [0, 1]
    if has_storage:
        points = live.storage.get_metrics("r", "loss")
        assert [point.step for point in points] == list(range(301))
        assert {point.step for point in points if point.attempt == 1} == set(range(200, 301))
        assert len(live.storage.get_metrics("r", "loss", attempt=0)) == 213
        assert live.storage.get_run("r").status == "success"


def test_a_resumed_run_keeps_the_first_attempts_start(live: LiveRuns) -> None:
    """The run span of a later attempt has the same ids and the start of the first; the rank span is its own."""
    first = live.start(run_id="r")
    first.finish("cancelled")
    again = live.start(run_id="r")
    run_span, rank_span = events_of(live.lines(again), "span_start")
    assert run_span["id"] == first.span_id
    assert run_span["time_unix_nano"] == live.lines(first)[0]["time_unix_nano"]
    assert run_span["start_ns"] == 0
    assert rank_span["time_unix_nano"] > run_span["time_unix_nano"]
    again.finish()
    (run_end,) = events_of(live.lines(again), "span_end", id=again.span_id)
    assert run_span["time_unix_nano"] + run_end["duration_ns"] > rank_span["time_unix_nano"]


def test_resume_modes(live: LiveRuns) -> None:
    """Never refuses an earlier attempt, must refuses its absence, and neither leaves anything behind."""
    with pytest.raises(InvalidStateError, match=r"'must'"):
        live.start(run_id="r", resume="must")
    assert not live.trace_dir.exists()
    live.start(run_id="r", resume="never").finish()
    with pytest.raises(InvalidStateError, match=r"'never'"):
        live.start(run_id="r", resume="never")
    again = live.start(run_id="r", resume="must")
    assert again.rank_context.attempt == 1
    other = live.start(run_id="r", resume="never", rank_context=runspan.RankContext(1, 2))
    assert other.rank_context.attempt == 0


def test_the_launchers_count_of_restarts_is_a_lower_bound(live: LiveRuns) -> None:
    """The attempt is the larger of the launcher's count and one more than the highest of the rank's files."""
    assert live.start(run_id="r", rank_context=runspan.RankContext(0, 1, attempt=4)).rank_context.attempt == 4
    assert live.start(run_id="r", rank_context=runspan.RankContext(0, 1, attempt=2)).rank_context.attempt == 5


def test_counters_resume_from_storage_where_the_files_are_gone(
    live: LiveRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On another machine the attempt and the counters come from storage."""
    first = live.start(run_id="r")
    for _ in range(5):
        first.log_metric("loss", 1.0)
    first.finish("failed")
    again = live.start(run_id="r", trace_dir=tmp_path / "other machine")
    assert again.rank_context.attempt == 1
    assert again.current_step("loss") == 5
    assert caplog.records == []


def test_counters_begin_at_0_where_nothing_can_be_read(live: LiveRuns, caplog: pytest.LogCaptureFixture) -> None:
    """An unreadable older file and no storage: 0 and a warning."""
    first = live.start(run_id="r", storage=InMemoryStorage())
    first.log_metric("loss", 1.0)
    first.finish()
    assert first.directory is not None
    (first.directory / "rank-00000.jsonl").write_bytes(b'{"kind":"meta","schema":"other/9"}\n')
    again = live.start(run_id="r", storage=InMemoryStorage())
    assert again.rank_context.attempt == 1
    assert again.current_step("loss") == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_killed_runs_torn_file_resumes(live: LiveRuns) -> None:
    """Counters go on from the last whole line of an attempt that was killed in the middle of a line."""
    first = live.start(run_id="r")
    for _ in range(10):
        first.log_metric("loss", 1.0)
    first.finish()
    assert first.directory is not None
    path = first.directory / "rank-00000.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith((b'{"kind":"terminal', b'{"kind":"span_end'))]
    last = max(index for index, line in enumerate(kept) if b'"metric"' in line)
    path.write_bytes(b"".join(kept[:last]) + kept[last][:20])
    assert live.start(run_id="r").current_step("loss") == 9
