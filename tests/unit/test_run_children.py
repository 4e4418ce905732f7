from __future__ import annotations

from typing import TYPE_CHECKING

import runspan
from runspan._run.lifecycle import open_runs
from runspan.tracefile.layout import RunDirectory
from support.programs import events_of, kinds_of, lines_of

if TYPE_CHECKING:
    import pytest

    from support.live import LiveRuns


def test_a_child_environment_adds_what_a_child_needs(live: LiveRuns) -> None:
    """Case 13: a copy of the given environment with the run, its folder, its rank and TRACEPARENT, nothing else."""
    with live.start(run_id="r", rank_context=runspan.RankContext(1, 2)) as run, run.span("launch"):
        base = {"PATH": "/bin", "SECRET": "x"}
        environ = run.child_environ(base)
        (launch,) = events_of(live.lines(run), "span_start", name="launch")
    assert base == {"PATH": "/bin", "SECRET": "x"}
    assert environ == {
        "PATH": "/bin",
        "SECRET": "x",
        "RUNSPAN_RUN_ID": "r",
        "RUNSPAN_TRACE_DIR": str(live.trace_dir),
        "RUNSPAN_PARENT": "1/2/0",
        "TRACEPARENT": f"00-{run.trace_id}-{launch['id']}-01",
    }
    off = live.start(trace_dir=None, tracing_enabled=False).child_environ({})
    assert off["RUNSPAN_TRACE_DIR"] == "none"
    assert "TRACEPARENT" not in off


def test_a_helper_joins_its_rank_by_a_child_file(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process started with child_environ opens a child file of that rank: no attempt, no run or rank span, no row."""
    with live.start(run_id="r") as run:
        run.log_metric("loss", 1.0)
        for name, value in run.child_environ({}).items():
            monkeypatch.setenv(name, value)
        helper = runspan.start_run("ignored", storage=live.storage)
        assert helper.run_id == "r"
        assert helper.current_step("loss") == 0
        with helper, helper.span("prepare"):
            helper.log_metric("loss", 2.0)
        assert live.storage.get_run_status("r") == "running"
    assert run.directory is not None
    (child,) = [path for name, path in RunDirectory(run.directory).trace_files() if name.child is not None]
    lines = lines_of(child)
    assert kinds_of(lines)[0] == "meta"
    (span,) = events_of(lines, "span_start")
    assert "parent_id" not in span
    assert span["otel"]["parent_span_id"] == live.lines(run)[0]["span_id"]
    assert lines[-1]["kind"] == "terminal"
    assert len(live.storage.get_metrics("r", "loss")) == 1


def test_a_helper_that_records_nothing_leaves_no_file(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child file is opened with its first line."""
    with live.start(run_id="r") as run:
        for name, value in run.child_environ({}).items():
            monkeypatch.setenv(name, value)
        runspan.start_run("ignored").finish()
    assert run.directory is not None
    assert [path.name for path in run.directory.iterdir()] == ["rank-00000.jsonl"]


def test_a_child_with_a_rank_of_its_own_is_a_rank(live: LiveRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 13: a launcher that is a run's child makes ranks of the same run, in the same trace."""
    with live.start(run_id="r", rank_context=runspan.RankContext(0, 2)) as run:
        for name, value in run.child_environ({"RUNSPAN_RANK": "1", "RUNSPAN_WORLD_SIZE": "2"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(open_runs, "_unnamed", 0)  # as in a process of its own
        rank = runspan.start_run("exp", storage=live.storage)
        assert (rank.run_id, rank.rank_context.rank, rank.trace_id) == ("r", 1, run.trace_id)
        rank.finish()
    assert run.directory is not None
    assert sorted(path.name for path in run.directory.iterdir()) == ["rank-00000.jsonl", "rank-00001.jsonl"]
