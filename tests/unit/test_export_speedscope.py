from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from runspan.errors import TraceFormatError
from runspan.export.speedscope import export_speedscope
from support.export_traces import CAPTURE, any_spans, make_exported_run, span_events, spans_of, write_trace
from support.speedscope_format import SCHEMA, load_speedscope, stacks
from support.traces import START_UNIX_NANO, make_meta, make_metric, write_lines

if TYPE_CHECKING:
    from runspan.tracefile.events import TraceEvent


def test_the_file_validates_against_the_schema(tmp_path: Path) -> None:
    """A run of two ranks with captured steps is a valid speedscope file."""
    output = tmp_path / "profile.json"
    export_speedscope(make_exported_run(tmp_path / "run"), output)
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_rank_and_its_captured_steps_are_profiles(tmp_path: Path) -> None:
    """Each has the spans as they nest, in ns from the start of the first trace."""
    output = tmp_path / "profile.json"
    export_speedscope(make_exported_run(tmp_path / "run"), output)
    document = load_speedscope(output)
    names = [profile["name"] for profile in document["profiles"]]
    assert names == ["rank 0", f"rank 0 · {CAPTURE}", "rank 1", f"rank 1 · {CAPTURE}"]
    assert stacks(document, "rank 0") == [("rank", 0, 1_000_000_007), ("rank;evaluate", 1_500, 2_001)]
    assert stacks(document, f"rank 1 · {CAPTURE}") == [("step", 10, 5_000), ("step;forward", 110, 3_000)]
    assert (document["name"], document["activeProfileIndex"]) == ("run-a", 0)


def test_spans_that_overlap_are_lanes_of_their_own(tmp_path: Path) -> None:
    """Two threads' spans below one parent are two profiles: a stack holds one of them at a time."""
    outer, outer_end = span_events("aa", "rank", 0, 100)
    one, one_end = span_events("ab", "load", 10, 50, "aa")
    two, two_end = span_events("ac", "load", 20, 60, "aa")
    output = tmp_path / "profile.json"
    export_speedscope([write_trace(tmp_path, outer, one, two, one_end, two_end, outer_end)], output)
    document = load_speedscope(output)
    assert stacks(document, "rank 0") == [("rank", 0, 100), ("rank;load", 10, 50)]
    assert stacks(document, "rank 0 · lane 2") == [("load", 20, 60)]


def test_a_later_start_is_told_by_the_wall_clock(tmp_path: Path) -> None:
    """A rank that started a second later has its spans a second later."""
    outer, outer_end = span_events("aa", "rank", 5, 100)
    first = write_trace(tmp_path, outer, outer_end)
    second = tmp_path / "rank-00001.jsonl"
    write_lines(second, [make_meta(1, time_unix_nano=START_UNIX_NANO + 10**9), outer, outer_end])
    export_speedscope([first, second], tmp_path / "profile.json")
    assert stacks(load_speedscope(tmp_path / "profile.json"), "rank 1") == [("rank", 10**9 + 5, 10**9 + 100)]


@given(events=any_spans())
def test_any_spans_are_balanced_and_each_is_there_once(events: list[TraceEvent]) -> None:
    """Whatever order spans begin and end in, the events of each profile are balanced and in the order of time."""
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "profile.json"
        export_speedscope([write_trace(Path(name), *events)], output)
        document = load_speedscope(output)
    opened = sum(event["type"] == "O" for profile in document["profiles"] for event in profile["events"])
    assert opened == spans_of(events)


def test_traces_without_spans_are_a_clear_error(tmp_path: Path) -> None:
    """A profile of nothing is not written."""
    trace = write_trace(tmp_path / "run", make_metric(0))
    with pytest.raises(TraceFormatError, match="there is no span to export"):
        export_speedscope([trace], tmp_path / "profile.json")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "run"]
