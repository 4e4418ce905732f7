from __future__ import annotations

import gzip
import math
from typing import TYPE_CHECKING

import pytest

from runspan import ids
from runspan.errors import InvalidStateError, StorageError, TraceFormatError
from runspan.importer import ImportReport, import_run_directory, import_runs
from runspan.records import MetricPoint, MetricSummary, RunStatus
from runspan.storage import ExperimentStorage, InMemoryStorage, SqlStorage
from runspan.tracefile.events import Artifact, Count, Metrics, Param, Step, Tag, Terminal, TraceEvent, jsonable
from runspan.tracefile.layout import TraceName
from support.traces import START_UNIX_NANO, make_meta, make_metric, make_terminal, write_lines, write_parts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RESOURCE = {"runspan.experiment.name": "gpt", "runspan.run.name": "try", "runspan.run.group": "sweep"}


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ExperimentStorage]:
    """Open an empty storage."""
    opened = InMemoryStorage() if request.param == "memory" else SqlStorage(tmp_path / "x.db")
    yield opened
    opened.close()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Name the run directory."""
    return tmp_path / "runs" / "run-a"


def write_trace(
    run_dir: Path, events: list[TraceEvent], *, rank: int = 0, attempt: int = 0, child: str | None = None
) -> Path:
    """Write one trace of the run."""
    path = run_dir / TraceName(rank, attempt, child).filename
    write_lines(path, [make_meta(rank, attempt, resource=RESOURCE), *events])
    return path


def metrics(count: int, *, start: int = 0) -> list[TraceEvent]:
    """Build metric events, one a second."""
    return [make_metric(step, at_s=float(step)) for step in range(start, start + count)]


def test_import_brings_the_whole_run(storage: ExperimentStorage, run_dir: Path) -> None:
    """Experiment, run, attempt, metrics, params, tags, counters, artifacts, summary and ids come from the trace."""
    meta = make_meta(resource=RESOURCE, trace_id="ab" * 16, run_span_id="cd" * 8, tags={"lesson": "1"})
    events: list[TraceEvent] = [
        Param("lr", 0.1),
        Param("lr", 0.2),
        Param("nan", jsonable(math.nan)),
        Tag("host", "a"),
        *metrics(3),
        Metrics(values={"loss": 9.0, "acc": 0.5}, steps={"loss": 3, "acc": 0}, time_unix_nano=START_UNIX_NANO + 9),
        Metrics(step=7, values={"acc": math.inf}, time_unix_nano=START_UNIX_NANO + 10),
        Step(step=0, duration_ns=1, samples=8, tokens=100, time_unix_nano=START_UNIX_NANO),
        Step(step=1, duration_ns=1, samples=8, time_unix_nano=START_UNIX_NANO),
        Count(key="skipped", value=2, time_unix_nano=START_UNIX_NANO),
        Artifact("weights", "sha256-" + "a" * 64, 12, 3),
        Artifact("data", "sha256-" + "b" * 64, 99, None, "/data/set"),
        Terminal("failed", 5_000_000_000, "cancelled", "SIGTERM"),
    ]
    write_lines(run_dir / "rank-00000.jsonl", [meta, *events])
    report = import_run_directory(run_dir, storage)
    assert report == ImportReport("run-a", str(run_dir), 6, 0, 1, ())
    info = storage.get_run("run-a")
    assert (info.experiment_id, info.name, info.group) == (ids.experiment_id("gpt"), "try", "sweep")
    assert (info.trace_id, info.span_id, info.world_size, info.attempts) == ("ab" * 16, "cd" * 8, 4, 1)
    assert (info.status, info.reason) == (RunStatus.CANCELLED, "SIGTERM")
    assert (info.start_time, info.end_time) == (START_UNIX_NANO, START_UNIX_NANO + 5_000_000_000)
    assert info.params["lr"] == 0.2
    assert math.isnan(info.params["nan"])
    assert info.tags == {"lesson": "1", "host": "a"}
    assert info.counts == {"steps": 2, "samples": 16, "tokens": 100, "skipped": 2}
    expected = {"loss": MetricSummary(9.0, 0.0, 9.0, 4), "acc": MetricSummary(math.inf, 0.5, 0.5, 2)}
    assert info.summary == expected
    assert storage.get_metrics("run-a", "acc") == [
        MetricPoint("acc", 0, 0.5, START_UNIX_NANO + 9),
        MetricPoint("acc", 7, math.inf, START_UNIX_NANO + 10),
    ]
    weights, data = storage.list_artifacts("run-a")
    assert (weights.path, weights.step, weights.reference) == (str(run_dir / "artifacts" / weights.hash), 3, False)
    assert (data.path, data.bytes, data.reference) == ("/data/set", 99, True)


def test_importing_again_adds_only_what_is_new(storage: ExperimentStorage, run_dir: Path) -> None:
    """Case 37: the second import adds nothing, and a third with ten new records adds ten."""
    repeated = make_metric(5, at_s=5.0)  # identical (run, name, step, time, value), logged twice
    before: list[TraceEvent] = [*metrics(100), repeated, make_metric(3, value=math.nan), make_metric(3, value=math.nan)]
    write_trace(run_dir, before)
    first, second = import_run_directory(run_dir, storage), import_run_directory(run_dir, storage)
    assert (first.points_added, first.points_known) == (103, 0)
    assert (second.points_added, second.points_known) == (0, 103)
    write_trace(run_dir, [*before, *metrics(10, start=100), make_terminal()])
    third = import_run_directory(run_dir, storage)
    assert (third.points_added, third.points_known) == (10, 103)
    assert len(storage.get_metrics("run-a", "loss")) == 113


def test_points_of_the_live_run_are_not_doubled(storage: ExperimentStorage, run_dir: Path) -> None:
    """Case 25: of a run whose storage failed in the middle the import adds what is missing, and ends it."""
    run = storage.create_run(storage.create_experiment("gpt"), "run-a", 1)
    storage.start_run(run, time_unix_nano=START_UNIX_NANO)
    live = [MetricPoint("loss", step, step / 4, START_UNIX_NANO + step * 10**9) for step in range(100)]
    storage.log_metrics(run, live[:40] + live[70:])
    write_trace(run_dir, [*metrics(100), make_terminal(99.0)])
    report = import_run_directory(run_dir, storage)
    assert (report.points_added, report.points_known) == (30, 70)
    assert storage.get_metrics(run, "loss") == live
    assert storage.get_run(run).status is RunStatus.SUCCESS


def test_end_that_the_live_run_stored_stays(storage: ExperimentStorage, run_dir: Path) -> None:
    """An attempt that is complete in storage keeps its status, reason and time."""
    run = storage.create_run(storage.create_experiment("gpt"), "run-a")
    storage.start_run(run, time_unix_nano=1)
    storage.complete_run(run, RunStatus.FAILED, reason="live", time_unix_nano=2)
    write_trace(run_dir, [make_terminal()])
    import_run_directory(run_dir, storage)
    info = storage.get_run(run)
    assert (info.status, info.reason, info.start_time, info.end_time) == (RunStatus.FAILED, "live", 1, 2)


def test_all_ranks_attempts_parts_and_children_are_read(storage: ExperimentStorage, run_dir: Path) -> None:
    """Every trace of the run arrives under its rank and attempt, gzipped parts and children's traces too."""
    parts = write_parts(run_dir, TraceName(0), [metrics(5), [*metrics(5, start=5), make_terminal()]])
    compressed = parts[0].with_name(parts[0].name + ".gz")
    compressed.write_bytes(gzip.compress(parts[0].read_bytes()))
    parts[0].unlink()
    write_trace(run_dir, [*metrics(2), Step(step=0, duration_ns=1, time_unix_nano=0)], rank=1)
    write_trace(run_dir, [*metrics(3, start=1), Step(step=0, duration_ns=1, time_unix_nano=0)], rank=1, attempt=1)
    write_trace(run_dir, [make_metric(0, key="loader")], rank=1, attempt=1, child="77")
    report = import_run_directory(run_dir, storage)
    assert (report.traces, report.points_added) == (4, 16)
    assert storage.metric_series("run-a", "loss") == [(0, 0), (1, 0), (1, 1)]
    assert storage.metric_series("run-a", "loader") == [(1, 1)]
    assert [point.attempt for point in storage.get_metrics("run-a", "loss", rank=1)] == [0, 1, 1, 1]
    assert storage.attempts("run-a", 1) == [0, 1]
    info = storage.get_run("run-a")
    assert (info.counts["steps"], info.attempts) == (2, 2)
    assert info.summary["loader"].count == 1


def test_run_of_many_ranks_ends_when_all_were_imported(storage: ExperimentStorage, run_dir: Path) -> None:
    """The status over the ranks follows from their terminals: the worst."""
    for rank in range(3):
        write_trace(run_dir, [make_terminal()], rank=rank)
    failed = Terminal("failed", 9, "failed", "ValueError: x")
    write_trace(run_dir, [failed], rank=3)
    import_run_directory(run_dir, storage)
    info = storage.get_run("run-a")
    assert (info.status, info.reason) == (RunStatus.FAILED, "ValueError: x")


def test_killed_run_is_imported_and_said_to_be_interrupted(storage: ExperimentStorage, run_dir: Path) -> None:
    """Case 4: a trace without a terminal, cut in its last line, gives all its whole points and stays running."""
    path = write_trace(run_dir, metrics(100))
    path.write_bytes(path.read_bytes()[:-7])
    report = import_run_directory(run_dir, storage)
    assert report.points_added == 99
    assert storage.get_run_status("run-a") is RunStatus.RUNNING
    text = "\n".join(report.warnings)
    assert "cut" in text
    assert "interrupted, last seen 2023-11-14T22:14:58.000Z; `runspan trace recover` ends it" in text


def test_bad_line_costs_only_itself(storage: ExperimentStorage, run_dir: Path) -> None:
    """A line in the middle that is no JSON is left out with a warning that names the file."""
    path = write_trace(run_dir, [*metrics(10), make_terminal()])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b"{broken\n", *lines[4:]]))
    report = import_run_directory(run_dir, storage)
    assert report.points_added == 10
    assert report.warnings == (f"{path}: 1 unreadable lines left out",)
    assert storage.get_run_status("run-a") is RunStatus.SUCCESS


def test_broken_trace_does_not_stop_the_other_ranks(storage: ExperimentStorage, run_dir: Path) -> None:
    """Case 34: a rank's file without meta, or of another run, is named, and the rest is imported."""
    write_trace(run_dir, [*metrics(2), make_terminal()])
    (run_dir / "rank-00001.jsonl").touch()
    write_lines(run_dir / "rank-00002.jsonl", [make_meta(2, run_id="stranger"), *metrics(3)])
    report = import_run_directory(run_dir, storage)
    assert (report.points_added, report.traces) == (2, 1)
    assert len(report.warnings) == 2
    assert "rank-00001.jsonl" in report.warnings[0]
    assert "rank-00002.jsonl: left out, it is of run 'stranger'" in report.warnings[1]


def test_folder_of_runs_goes_on_past_a_broken_one(storage: ExperimentStorage, run_dir: Path) -> None:
    """Case 34: of several run directories each readable one is imported, and each other one is a named failure."""
    write_trace(run_dir, [*metrics(2), make_terminal()])
    broken = run_dir.parent / "broken"
    broken.mkdir()
    (broken / "rank-00000.jsonl").write_bytes(b"no json\n")
    write_lines(run_dir.parent / "z" / "rank-00000.jsonl", [make_meta(run_id="z"), *metrics(3)])
    seen: list[Path] = []
    summary = import_runs(run_dir.parent, storage, progress=seen.append)
    assert [report.run_id for report in summary.reports] == ["run-a", "z"]
    assert [failure.path for failure in summary.failures] == [str(broken)]
    assert "rank-00000.jsonl" in summary.failures[0].error
    assert [path.parent.name for path in seen] == ["run-a", "z"]
    assert {run.run_id for run in storage.list_runs()} == {"run-a", "z"}


def test_one_run_directory_is_a_folder_of_one(storage: ExperimentStorage, run_dir: Path) -> None:
    """import_runs takes a run directory itself too."""
    write_trace(run_dir, metrics(1))
    assert [report.points_added for report in import_runs(run_dir, storage).reports] == [1]


def test_what_is_no_run_directory_is_named(storage: ExperimentStorage, tmp_path: Path) -> None:
    """A missing path, a file, an empty folder: the error names it and says what was expected."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("missing", "file", "empty"):
        with pytest.raises(TraceFormatError, match=rf"{name}: expected a run directory"):
            import_runs(tmp_path / name, storage)
        with pytest.raises(TraceFormatError, match=rf"{name}: no run directory"):
            import_run_directory(tmp_path / name, storage)


def test_run_under_another_experiment_is_refused(storage: ExperimentStorage, run_dir: Path) -> None:
    """A run id that the storage has under another experiment is an error, and nothing is added to that run."""
    storage.create_run(storage.create_experiment("other"), "run-a")
    write_trace(run_dir, metrics(1))
    with pytest.raises(InvalidStateError, match="belongs to experiment"):
        import_run_directory(run_dir, storage)
    assert storage.metric_keys("run-a") == []


def test_trace_without_an_experiment_name_goes_by_its_entrypoint(storage: ExperimentStorage, run_dir: Path) -> None:
    """A trace of another writer, whose resource names no experiment, is filed under its entrypoint's module."""
    write_lines(run_dir / "rank-00000.jsonl", [make_meta(), *metrics(1)])
    import_run_directory(run_dir, storage)
    assert [experiment.name for experiment in storage.list_experiments()] == ["train"]


def test_broken_storage_is_not_taken_for_a_broken_trace(run_dir: Path, tmp_path: Path) -> None:
    """A storage that fails stops the import with its StorageError."""
    write_trace(run_dir, metrics(1))
    closed = SqlStorage(tmp_path / "closed.db")
    closed.close()
    with pytest.raises(StorageError, match="was closed"):
        import_runs(run_dir.parent, closed)
