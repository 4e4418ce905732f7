from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import runspan
from runspan._run import golden as golden_module
from runspan.testing import FakeClock
from runspan.tracefile import read
from runspan.tracefile._promote import promote
from runspan.tracefile.events import Dropped, Meta, SpanEnd, encode
from support.programs import events_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.live import LiveRuns

_PREFIX = "runspan.golden."


def _train(live: LiveRuns, *, epochs: int = 3, extra: int = 0, wall_s: float = 0.0, **options: Any) -> runspan.Run:
    """Run epochs of two seconds each, and spans of half a second that the golden trace does not have.

    Args:
        live: starts the run.
        epochs: how many.
        extra: spans behind them.
        wall_s: by how much the wall clock steps in each epoch.
        options: the run's.
    """
    clock = FakeClock()
    with live.start(entrypoint="train:main", clock=clock, **options) as run:
        for number in range(epochs):
            with run.epoch(number), run.step():
                clock.advance(2.0)
                clock.step_wall(wall_s)
                run.log_metric("loss", 1.0 / (number + 1))
        for number in range(extra):
            with run.span(f"extra {number}"):
                clock.advance(0.5)
    return run


def _promoted(live: LiveRuns, run: runspan.Run, path: Path) -> Path:
    promote(live.trace_dir / run.id / "rank-00000.jsonl", path)
    return path


def _golden(live: LiveRuns, run: runspan.Run) -> dict[str, Any]:
    """Return what the `run` span of the file says about the golden trace."""
    (started,) = events_of(live.lines(run), "span_start", name="run")
    (ended,) = events_of(live.lines(run), "span_end", id=started["id"])
    return {name.removeprefix(_PREFIX): value for name, value in ended["attributes"].items() if _PREFIX in name}


def _losses(live: LiveRuns, run: runspan.Run) -> dict[str, int]:
    return {line["reason"]: line["count"] for line in events_of(live.lines(run), "dropped", signal="golden")}


def test_a_run_that_does_the_same_is_equivalent(
    live: LiveRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The score and its parts are attributes of `run`; the same program is equivalent, and nothing is warned of."""
    golden = _promoted(live, _train(live), tmp_path / "golden.jsonl.gz")
    run = _train(live, golden_trace_path=golden)
    found = _golden(live, run)
    assert found == {
        "score": 1.0,
        "sequence_similarity": 1.0,
        "timing_variation": 0.0,
        "matching_share": 1.0,
        "equivalent": True,
    }
    assert run._session.state.golden_score == 1.0
    assert _losses(live, run) == {}
    assert [record.message for record in caplog.records if "golden" in record.message] == []


def test_a_run_that_does_something_else_is_not(
    live: LiveRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other spans lower the score; the run succeeds all the same, with one warning that has the score."""
    golden = _promoted(live, _train(live), tmp_path / "golden.jsonl")
    run = _train(live, extra=5, golden_trace_path=golden)
    found = _golden(live, run)
    # run, rank and three epochs beside five more spans; run and rank take 8.5 s, not 6.
    assert (found["sequence_similarity"], found["matching_share"], found["equivalent"]) == (0.5, 0.5, False)
    assert found["timing_variation"] == pytest.approx(5.0 / 19.0)
    assert found["score"] == pytest.approx(0.4 * 0.5 + 0.2 * (14.0 / 19.0) + 0.4 * 0.5)
    assert run.status() is runspan.RunStatus.SUCCESS
    (warning,) = [record.message for record in caplog.records if "golden" in record.message]
    assert f"score {found['score']:.3f}, equivalent from 0.85" in warning


def test_a_wall_clock_that_steps_does_not_matter(live: LiveRuns, tmp_path: Path) -> None:
    """Case 14: durations are the monotonic clock's, so a wall clock that steps back changes no score."""
    golden = _promoted(live, _train(live), tmp_path / "golden.jsonl")
    found = _golden(live, _train(live, wall_s=-3600.0, golden_trace_path=golden))
    assert (found["score"], found["timing_variation"]) == (1.0, 0.0)


def test_what_cannot_be_compared_is_one_warning(
    live: LiveRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing, a foreign and a broken golden trace end no run: each is one warning, counted, without a score."""
    good = _promoted(live, _train(live), tmp_path / "golden.jsonl")
    (tmp_path / "notes.txt").write_text("no trace\n")
    lines = good.read_bytes().splitlines(keepends=True)
    (tmp_path / "broken.jsonl").write_bytes(lines[0] + b'{"kind":"span_start"}\n')
    meta, *_ = read(good)
    assert isinstance(meta, Meta)
    (tmp_path / "cuda.jsonl").write_bytes(encode(msgspec.structs.replace(meta, device="cuda:0")) + b"".join(lines[1:]))
    for name, reason, told in (
        ("missing.jsonl", "missing", "make it with `runspan trace promote"),
        ("notes.txt", "unreadable", "the first line must be the meta event"),
        ("broken.jsonl", "unreadable", "not a valid"),
        ("", "unreadable", "a directory"),
        ("cuda.jsonl", "not_comparable", "device is 'cuda:0' in the baseline and 'cpu' in the candidate"),
    ):
        caplog.clear()
        run = _train(live, golden_trace_path=tmp_path / name)
        assert _golden(live, run) == {}
        assert _losses(live, run) == {reason: 1}
        assert run._session.state.golden_score is None
        (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert told in warning


def test_a_comparison_that_takes_too_long_is_given_up(
    live: LiveRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a run waits a bounded time for the comparison: beyond it there is no score, and that is counted."""
    golden = _promoted(live, _train(live), tmp_path / "golden.jsonl")
    monkeypatch.setattr(golden_module, "_READING_NS", -1)
    run = _train(live, golden_trace_path=golden)
    assert (_golden(live, run), _losses(live, run)) == ({}, {"timeout": 1})


def test_a_fault_in_the_comparison_does_not_reach_the_training(
    live: LiveRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong, the run ends as it would have, strict or not; its file is complete."""
    golden = _promoted(live, _train(live), tmp_path / "golden.jsonl")

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(golden_module, "score_spans", fail)
    for strict in (False, True):
        run = _train(live, golden_trace_path=golden, strict=strict)
        assert _losses(live, run) == {"ZeroDivisionError": 1}
        assert live.lines(run)[-1]["outcome"] == "complete"


def test_only_a_success_is_compared(live: LiveRuns, tmp_path: Path) -> None:
    """Where a failed or cancelled run stopped says nothing about what it did: it has no score and no warning."""
    golden = _promoted(live, _train(live), tmp_path / "golden.jsonl")
    failed = live.start(entrypoint="train:main", golden_trace_path=golden)
    failed.finish(runspan.RunStatus.FAILED)
    cancelled = live.start(entrypoint="train:main", golden_trace_path=golden)
    cancelled.finish(runspan.RunStatus.CANCELLED)
    for run in (failed, cancelled):
        assert (_golden(live, run), _losses(live, run)) == ({}, {})


def test_rank_0_alone_is_compared(live: LiveRuns, tmp_path: Path) -> None:
    """Other ranks have no `run` span to carry a score, and are not asked for one; nor is a run without spans."""
    golden = _promoted(live, _train(live), tmp_path / "golden.jsonl")
    context = runspan.RankContext(1, 2, local_rank=1, host="here")
    run = _train(live, golden_trace_path=golden, rank_context=context, run_id="two")
    assert (_losses(live, run), run._session.state.golden_score) == ({}, None)
    plain = _train(live, golden_trace_path=golden, tracing_enabled=False)
    assert (_losses(live, plain), plain._session.state.golden_score) == ({}, None)


def test_a_run_without_a_file_is_told_so(live: LiveRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the file turned off there is nothing to compare: one warning, which says so."""
    golden = _promoted(live, _train(live), tmp_path / "golden.jsonl")
    run = _train(live, golden_trace_path=golden, trace_dir=None)
    assert run._session.dropped()["golden", "no_file"] == 1
    (warning,) = [record.message for record in caplog.records if "golden" in record.message]
    assert "the run has no trace file of its own" in warning


def test_many_metrics_are_read_within_the_bound(live: LiveRuns, tmp_path: Path) -> None:
    """A trace of 200,000 metric lines is compared in well under the second that it may take."""
    golden = _promoted(live, _train(live), tmp_path / "golden.jsonl")
    *head, last = golden.read_bytes().splitlines(keepends=True)
    (metric, *_) = [line for line in head if line.startswith(b'{"kind":"metric"')]
    golden.write_bytes(b"".join([*head, *[metric] * 200_000, last]))
    began = time.process_time()
    run = _train(live, golden_trace_path=golden)
    assert time.process_time() - began < 5
    assert _golden(live, run)["matching_share"] == 1.0
    losses = [event for event in read(live.trace_dir / run.id / "rank-00000.jsonl") if isinstance(event, Dropped)]
    assert losses == []
    assert any(isinstance(event, SpanEnd) for event in read(golden))
