from __future__ import annotations

from pathlib import Path

import pytest

from runspan.errors import TraceFormatError
from runspan.export._sources import find_sources
from support.export_traces import CAPTURE, make_exported_run, write_trace
from support.traces import make_metric


def test_a_trace_brings_the_steps_that_it_captured(tmp_path: Path) -> None:
    """One rank's file means its captured steps too, and not those of the other ranks."""
    traces = make_exported_run(tmp_path)
    sources = find_sources(traces[1:])
    assert [(source.rank, source.capture) for source in sources.traces] == [(1, None), (1, CAPTURE)]
    assert sources.run_id == "run-a"


def test_a_captured_step_is_exported_alone(tmp_path: Path) -> None:
    """The file of one captured step means that step."""
    make_exported_run(tmp_path)
    (source,) = find_sources([tmp_path / "captures" / CAPTURE / "rank-00001.jsonl"]).traces
    assert (source.capture, source.label) == (CAPTURE, CAPTURE)


def test_a_path_relative_to_the_working_directory_finds_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a folder of ranks the captured steps are found three folders up."""
    write_trace(tmp_path / "ranks" / "00001", make_metric(0), rank=300)
    write_trace(tmp_path / "captures" / CAPTURE / "ranks" / "00001", make_metric(0), rank=300)
    monkeypatch.chdir(tmp_path / "ranks" / "00001")
    assert [source.capture for source in find_sources([Path("rank-00300.jsonl")]).traces] == [None, CAPTURE]


def test_labels_tell_the_traces_of_a_rank_apart(tmp_path: Path) -> None:
    """The first attempt needs no label; attempts, children and captured steps have one each."""
    paths = [
        write_trace(tmp_path, make_metric(0)),
        write_trace(tmp_path, make_metric(0), attempt=1),
        write_trace(tmp_path, make_metric(0), attempt=1, child="4711"),
    ]
    write_trace(tmp_path / "captures" / CAPTURE, make_metric(0), attempt=1)
    labels = [source.label for source in find_sources(paths).traces]
    assert labels == ["", "attempt 1", f"attempt 1 · {CAPTURE}", "attempt 1 · child 4711"]


def test_a_file_under_a_name_of_its_own_is_a_trace(tmp_path: Path) -> None:
    """A trace that somebody renamed is exported; its meta line tells the rank."""
    path = write_trace(tmp_path, make_metric(0), rank=3).rename(tmp_path / "mine.jsonl")
    (source,) = find_sources([path]).traces
    assert (source.rank, source.child, source.capture) == (3, None, None)


def test_nothing_to_export_is_an_error() -> None:
    """No trace at all is told as such."""
    with pytest.raises(TraceFormatError, match="there is no trace to export"):
        find_sources([])
