from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given

from runspan.errors import TraceFormatError
from runspan.export.folded import export_folded
from runspan.tracefile.events import SpanEnd, SpanStart, TraceEvent
from support.export_traces import any_spans, make_exported_run, span_events, write_trace
from support.traces import make_meta, make_metric, write_lines


def _fold(traces: list[Path], folder: Path) -> list[str]:
    output = folder / "stacks.txt"
    export_folded(traces, output)
    return output.read_text().splitlines()


def test_self_time_is_the_duration_without_the_union_of_the_children(tmp_path: Path) -> None:
    """Children that overlap are counted once, what reaches beyond the parent not at all."""
    outer, outer_end = span_events("aa", "rank", 0, 100)
    one, one_end = span_events("ab", "load", 10, 50, "aa")
    two, two_end = span_events("ac", "load", 40, 60, "aa")
    late, late_end = span_events("ad", "tail", 90, 130, "aa")
    trace = write_trace(tmp_path, outer, one, two, two_end, one_end, late, late_end, outer_end)
    assert _fold([trace], tmp_path) == ["rank 40", "rank;load 60", "rank;tail 40"]


def test_a_child_that_outlives_its_parent_covers_it_to_the_end(tmp_path: Path) -> None:
    """A task that is still open when its parent ends is a child in that time."""
    outer, outer_end = span_events("aa", "rank", 0, 100)
    late, late_end = span_events("ab", "task", 70, 500, "aa")
    assert _fold([write_trace(tmp_path, outer, late, outer_end, late_end)], tmp_path) == ["rank 70", "rank;task 430"]


def test_of_several_ranks_each_path_begins_with_the_rank(tmp_path: Path) -> None:
    """The captured step is a root of its own."""
    assert _fold(make_exported_run(tmp_path / "run"), tmp_path) == [
        "rank 0;rank 999999506",
        "rank 0;rank;evaluate 501",
        "rank 0;step 2100",
        "rank 0;step;forward 2900",
        "rank 1;rank 999999506",
        "rank 1;rank;evaluate 501",
        "rank 1;step 2100",
        "rank 1;step;forward 2890",
    ]


@pytest.mark.parametrize(
    ("name", "written"),
    [("a;b", r"a\x3bb"), ("a\nb", r"a\nb"), ("a\\b", r"a\\b"), ("a b 7", "a b 7"), ("a\u2028é", r"a\u2028é")],
)
def test_what_separates_is_escaped_in_names(tmp_path: Path, name: str, written: str) -> None:
    """A semicolon or a line break in a name makes no frame and no line."""
    start, end = span_events("aa", name, 0, 10)
    assert _fold([write_trace(tmp_path, start, end)], tmp_path) == [f"{written} 10"]


def test_an_open_span_lasts_until_the_trace_was_last_seen(tmp_path: Path) -> None:
    """Case 4: a killed run's spans count as far as it was seen."""
    start, _ = span_events("aa", "rank", 0, 0)
    path = tmp_path / "rank-00000.jsonl"
    write_lines(path, [make_meta(), start, make_metric(0, at_s=2)])
    assert _fold([path], tmp_path) == ["rank 2000000000"]


def test_repeated_paths_add_up(tmp_path: Path) -> None:
    """A path is one line, however often it was taken."""
    spans = [event for number in range(3) for event in span_events(f"a{number}", "step", number * 10, number * 10 + 5)]
    assert _fold([write_trace(tmp_path, *spans)], tmp_path) == ["step 15"]


@given(events=any_spans())
def test_self_time_equals_the_rule_for_any_spans(events: list[TraceEvent]) -> None:
    """What the file says in total is what the definition gives, nanosecond by nanosecond."""
    with tempfile.TemporaryDirectory() as name:
        lines = _fold([write_trace(Path(name), *events)], Path(name))
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == _self_time(events)


def _self_time(events: list[TraceEvent]) -> int:
    """Return the total self time, counting each ns of each span that no child covers.

    The trace is written in the order in which things happened: a child is one that began while its parent was open, and
    one that was open when its parent ended lasts at least until then.
    """
    seen_ns = 2_000_000_000  # the terminal event of the traces
    starts = {event.id: event for event in events if isinstance(event, SpanStart)}
    ends = {event.id: starts[event.id].start_ns + event.duration_ns for event in events if isinstance(event, SpanEnd)}
    opened: set[str] = set()
    outliving: set[str] = set()
    children: dict[str, list[str]] = {span_id: [] for span_id in starts}
    for event in events:
        if isinstance(event, SpanStart):
            opened.add(event.id)
            if event.parent_id in opened:
                children[event.parent_id].append(event.id)
        elif isinstance(event, SpanEnd):
            opened.discard(event.id)
            outliving |= opened.intersection(children[event.id])
    total = 0
    for span_id, start in starts.items():
        end_ns = ends.get(span_id, seen_ns)
        edges = {start.start_ns, end_ns}
        spans = [
            (starts[child].start_ns, end_ns if child in outliving else ends.get(child, seen_ns))
            for child in children[span_id]
        ]
        edges |= {edge for pair in spans for edge in pair if start.start_ns < edge < end_ns}
        cuts = sorted(edges)
        for low, high in pairwise(cuts):
            if not any(begins <= low and high <= ends_ns for begins, ends_ns in spans):
                total += high - low
    return total


def test_traces_without_spans_are_a_clear_error(tmp_path: Path) -> None:
    """An empty file would look like a run that took no time."""
    with pytest.raises(TraceFormatError, match="there is no span to export"):
        export_folded([write_trace(tmp_path, make_metric(0))], tmp_path / "stacks.txt")


def test_the_ids_of_two_ranks_do_not_meet(tmp_path: Path) -> None:
    """Equal span ids in two files are two spans."""
    start, end = span_events("aa", "rank", 0, 10)
    other = msgspec.structs.replace(start, name="other")
    traces = [write_trace(tmp_path, start, end), write_trace(tmp_path, other, end, rank=1)]
    assert _fold(traces, tmp_path) == ["rank 0;rank 10", "rank 1;other 10"]
