from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import tempfile
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runspan.errors import ConfigError, SchemaVersionError, TraceFormatError
from runspan.export._html_curves import CurveStore, StepGrid, thinned
from runspan.export._html_spans import LongestSpans, page_mapping, page_value
from runspan.export.html import PAGE_MAX_BYTES, export_html
from runspan.tracefile.events import (
    Artifact,
    Dropped,
    Event,
    Metrics,
    Param,
    SpanStatus,
    Tag,
    Terminal,
    Usage,
    jsonable,
)
from runspan.tracefile.layout import TraceName
from support.cli import make_step
from support.trace_strategies import EVENTS, with_jsonable_values
from support.traces import START_UNIX_NANO, make_meta, make_metric, make_span, make_terminal, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runspan.tracefile.events import TraceEvent

_HOSTILE = "</script><script>alert('1')</script><!-- ]]> \u2028 \u202e ⚡ é"
_numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**64), 2**64).map(float)


class _Elements(HTMLParser):
    """The elements of a page, and the text of its scripts and styles by (tag, type)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str | None, str]] = []
        self._inside: tuple[str, str | None] | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = (tag, dict(attrs).get("type")) if tag in {"script", "style"} else None

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - the parser's signature
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.texts.append((*self._inside, data))


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def _document(page: Path) -> Any:
    texts = [text for tag, kind, text in _Elements(page.read_text("utf-8")).texts if kind == "application/json"]
    return json.loads("".join(texts), parse_constant=_refuse_constant)


def _exported(folder: Path, *traces: Iterable[TraceEvent]) -> Any:
    """Export traces of as many ranks, each begun by its meta, and return what the page shows."""
    paths = []
    for rank, events in enumerate(traces):
        paths.append(folder / TraceName(rank).filename)
        write_lines(paths[-1], [make_meta(rank), *events])
    export_html(paths, folder / "page.html")
    return _document(folder / "page.html")


def test_no_text_of_a_trace_becomes_markup(tmp_path: Path) -> None:
    """Names that would end a script, and any Unicode, come through the page unchanged, as JSON alone."""
    start, end = make_span("a" * 16)
    start = msgspec.structs.replace(start, name=_HOSTILE, attributes={_HOSTILE: _HOSTILE})
    events: list[TraceEvent] = [start, end, make_metric(0, key=_HOSTILE), Param(_HOSTILE, _HOSTILE), make_terminal()]
    document = _exported(tmp_path, events)
    page = _Elements((tmp_path / "page.html").read_text("utf-8"))
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [
        {"type": "application/json", "id": "run-data"},
        {},
    ]
    assert document["spans"][0]["name"] == _HOSTILE
    assert document["spans"][0]["attributes"] == {_HOSTILE: _HOSTILE}
    assert document["metrics"][0]["key"] == _HOSTILE
    assert document["params"] == {_HOSTILE: _HOSTILE}


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS.map(with_jsonable_values), max_size=30))
def test_any_events_make_a_page(events: list[TraceEvent]) -> None:
    """Whatever a writer puts into a trace, it comes to a page whose data a strict parser takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / TraceName(0).filename
        write_lines(path, [make_meta(), *events])
        export_html([path], path.with_suffix(".html"))
        assert _document(path.with_suffix(".html"))["run"]["id"] == "run-a"


def test_the_title_is_escaped(tmp_path: Path) -> None:
    """A run's id stands in the title as text."""
    path = tmp_path / "rank-00000.jsonl"
    write_lines(path, [make_meta(run_id=_HOSTILE), make_terminal()])
    export_html([path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<title>&lt;/script&gt;" in page
    assert "alert('1')</script>" not in page


def test_the_policy_allows_the_page_s_own_script_and_style_alone(tmp_path: Path) -> None:
    """The content security policy names the hashes of the inline script and style, and forbids every request."""
    _exported(tmp_path, [make_terminal()])
    page = _Elements((tmp_path / "page.html").read_text("utf-8"))
    policy = next(str(each["content"]) for _, each in page.tags if each.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for directive, tag in (("script-src", "script"), ("style-src", "style")):
        text = "".join(text for found, kind, text in page.texts if found == tag and kind is None)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[directive] == f"'sha256-{digest}'"


def test_nothing_on_the_page_names_another_place() -> None:
    """No part that the page is made of has an address of a server."""
    for part in resources.files("runspan.export").joinpath("_page").iterdir():
        if part.is_file():
            assert not re.search(r"//[a-z0-9-]+\.|https?:|@import|url\(", part.read_text("utf-8")), part.name


def test_spans_have_their_times_status_and_place(tmp_path: Path) -> None:
    """A span counts from the run's start; its attributes are those of both its events; one that never ended is open."""
    start, end = make_span("a" * 16, start_s=0.5, duration_s=2.0)
    failed = SpanStatus("error", "out of memory")
    untyped = {name: jsonable(value) for name, value in {"huge": 2**63, "rate": math.inf, "left": None}.items()}
    end = msgspec.structs.replace(end, status=failed, attributes=untyped)
    child, _ = make_span("b" * 16, start_s=1.0)
    child = msgspec.structs.replace(child, parent_id="a" * 16, attributes=None)
    later: list[TraceEvent] = [
        make_meta(1, time_unix_nano=START_UNIX_NANO + 10**9),
        *make_span("c" * 16),
        make_terminal(),
    ]
    first, second = tmp_path / "rank-00000.jsonl", tmp_path / "rank-00001.jsonl"
    write_lines(first, [make_meta(), start, child, end, Terminal("failed", 3 * 10**9, "failed", "out of memory")])
    write_lines(second, later)
    export_html([first, second], tmp_path / "page.html")
    document = _document(tmp_path / "page.html")
    spans = {span["id"][0]: span for span in document["spans"]}
    assert spans["a"]["start_ns"] == 500_000_000
    assert spans["a"]["duration_ns"] == 2_000_000_000
    assert (spans["a"]["status"], spans["a"]["message"]) == ("error", "out of memory")
    assert spans["a"]["attributes"]["huge"] == str(2**63)
    assert spans["a"]["attributes"]["rate"] == "Infinity"
    assert spans["a"]["attributes"]["left"] is None
    assert spans["b"]["parent"] == "a" * 16
    assert (spans["b"]["status"], spans["b"]["duration_ns"]) == ("open", 2_000_000_000)
    assert spans["c"]["start_ns"] == 1_000_000_000
    assert document["traces"][spans["c"]["trace"]]["rank"] == 1
    assert (document["run"]["status"], document["run"]["reason"]) == ("failed", "out of memory")


def test_a_captured_step_stands_in_place_of_its_bar(tmp_path: Path) -> None:
    """Steps are bars of the waterfall, except those whose capture shows their spans; captures are listed."""
    folder = tmp_path / "captures" / "update-000000002"
    start, end = make_span("d" * 16, duration_s=0.25)
    start = msgspec.structs.replace(start, name="step", measured=True)
    meta = make_meta(correlation_id="run-a/update-2", capture_step=2, time_unix_nano=START_UNIX_NANO + 5 * 10**8)
    write_lines(folder / TraceName(0).filename, [meta, start, end, make_terminal(0.25)])
    steps = [make_step(number, forward=10.0) for number in range(3)]
    document = _exported(tmp_path, [*steps, make_terminal()])
    assert sorted(span["name"] for span in document["spans"]) == ["step", "step 0", "step 2"]
    (capture,) = document["captures"]
    assert capture["name"] == "update-000000002"
    (of_rank,) = capture["ranks"]
    assert (of_rank["measured_ns"], of_rank["start_ns"], of_rank["spans"]) == (250_000_000, 500_000_000, 1)


def test_metrics_keep_their_values(tmp_path: Path) -> None:
    """Curves of few points hold each of them, step 0 and what is not finite included, whichever way it was logged."""
    logged: list[TraceEvent] = [
        make_metric(0, value=math.nan),
        Metrics(step=1, values={"loss": 0.1, "lr": 1e-3}, time_unix_nano=START_UNIX_NANO),
        Metrics(values={"loss": -math.inf, "lr": 2}, steps={"loss": 2, "lr": 9}, time_unix_nano=START_UNIX_NANO),
    ]
    document = _exported(tmp_path, [*logged, make_terminal()])
    loss, rate = document["metrics"]
    assert (loss["key"], loss["x"], loss["y"]) == ("loss", [0, 1, 2], ["NaN", 0.1, "-Infinity"])
    assert (loss["count"], loss["last"]) == (3, "-Infinity")
    assert (rate["x"], rate["y"]) == ([1, 9], [1e-3, 2])


def test_steps_made_again_after_a_restart_show_the_later_values(tmp_path: Path) -> None:
    """An attempt that resumes at an older step takes the place of what the one before logged from there on."""
    paths = [tmp_path / TraceName(0, attempt).filename for attempt in (0, 1)]
    write_lines(paths[0], [make_meta(), *(make_metric(step, value=1.0) for step in range(213))])
    write_lines(paths[1], [make_meta(0, 1), *(make_metric(step, value=2.0) for step in range(200, 301))])
    export_html(paths, tmp_path / "page.html")
    first, second = _document(tmp_path / "page.html")["metrics"]
    assert first["x"] == list(range(200))
    assert second["x"] == list(range(200, 301))
    assert {*first["y"], *second["y"]} == {1, 2}


def test_the_slow_rank_is_named(tmp_path: Path) -> None:
    """The rank whose own work takes longest is marked; what ranks wait for each other does not count."""
    fast = [make_step(number, forward=2.0, all_reduce=8.0) for number in range(5)]
    slow = [make_step(number, forward=10.0) for number in range(5)]
    document = _exported(tmp_path, fast, slow, fast)
    assert document["slow_rank"]["rank"] == 1
    assert document["slow_rank"]["phase"] == "forward"
    assert [row["mean_ns"] for row in document["steps"]["grid"]["rows"]] == [
        [2_000_000] * 5,
        [10_000_000] * 5,
        [2_000_000] * 5,
    ]
    assert [row["median_ns"] for row in document["steps"]["ranks"]] == [10_000_000] * 3


def test_durations_are_those_of_the_summary(tmp_path: Path) -> None:
    """Of 20 steps the 95th percentile is the 19th, on the page as in the summary."""
    steps = [make_step(number, forward=number + 1.0) for number in range(20)]
    (row,) = _exported(tmp_path, steps)["steps"]["ranks"]
    assert (row["count"], row["median_ns"], row["p95_ns"], row["max_ns"]) == (20, 10_500_000, 19_000_000, 20_000_000)


def test_facts_are_shown_without_secrets(tmp_path: Path) -> None:
    """Parameters, tags, artifacts, events, usage and losses are on the page, secrets as ***."""
    facts: list[TraceEvent] = [
        Param("lr", 0.1),
        Param("api_key", "swordfish"),
        Tag("team", "vision"),
        Artifact("weights", "sha256-0", 2048, step=2),
        Event(name="note", level="warning", message="hot", time_unix_nano=START_UNIX_NANO + 10**9),
        Usage(cpu_util=0.5, timestamp_ns=0, time_unix_nano=START_UNIX_NANO),
        Dropped("spans", "queue_full", 3),
    ]
    document = _exported(tmp_path, [*facts, make_terminal()])
    assert document["params"] == {"lr": 0.1, "api_key": "***"}
    assert document["tags"] == {"team": "vision"}
    assert document["artifacts"] == [{"name": "weights", "bytes": 2048, "step": 2}]
    assert document["events"][0]["message"] == "hot"
    assert (document["usage"][0]["key"], document["usage"][0]["y"]) == ("cpu_util", [0.5])
    assert document["losses"] == [{"signal": "spans", "reason": "queue_full", "count": 3}]
    assert "swordfish" not in (tmp_path / "page.html").read_text("utf-8")


def test_what_is_wrong_is_among_the_findings(tmp_path: Path) -> None:
    """Health's findings, a file that is no trace, bad lines and a cut end are told, and the rest is shown."""
    start, end = make_span("a" * 16)
    child, child_end = make_span("b" * 16, start_s=5.0)
    child = msgspec.structs.replace(child, parent_id="a" * 16)
    good, broken = tmp_path / "rank-00000.jsonl", tmp_path / "rank-00001.jsonl"
    data = write_lines(good, [make_meta(), start, child, child_end, end])
    good.write_bytes(data + b'not a line\n{"kind":"param","key":"lr","value":1}\n{"kind":"par')
    broken.write_bytes(b"hello\n")
    export_html([good, broken], tmp_path / "page.html")
    document = _document(tmp_path / "page.html")
    codes = {finding["code"]: finding for finding in document["findings"]}
    assert {"child_outside_parent", "unreadable_file", "unreadable_lines", "interrupted", "torn_record"} <= set(codes)
    assert codes["child_outside_parent"]["ids"]
    assert codes["torn_record"]["severity"] == "warning"
    assert document["findings"][0]["severity"] == "error"
    assert document["params"] == {"lr": 1}
    assert document["run"]["status"] == "interrupted"


def test_without_a_readable_trace_nothing_is_written(tmp_path: Path) -> None:
    """No trace, and none that can be read, are one clear error; an older page stays as it was."""
    page, broken = tmp_path / "page.html", tmp_path / "rank-00000.jsonl"
    page.write_text("older")
    broken.write_bytes(b'{"kind":"meta","schema":"runspan/trace/99"}\n')
    with pytest.raises(TraceFormatError):
        export_html([], page)
    with pytest.raises(SchemaVersionError, match="newer runspan"):
        export_html([broken], page)
    assert page.read_text() == "older"
    assert sorted(tmp_path.iterdir()) == [page, broken]


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    """An output that cannot be written names the path."""
    path = tmp_path / "rank-00000.jsonl"
    write_lines(path, [make_meta(), make_terminal()])
    with pytest.raises(ConfigError, match=r"nowhere/page\.html cannot be written"):
        export_html([path], tmp_path / "nowhere" / "page.html")


def test_a_long_run_makes_a_page_within_its_limit(tmp_path: Path) -> None:
    """Of more spans than fit, the longest stay and the others are counted, however their names swell in the page."""
    events: list[TraceEvent] = []
    for number in range(9_000):
        start, end = make_span(f"{number:016x}", start_s=number, duration_s=(number + 1) / 1e4)
        note = {"note": "<" * 900}
        events += [msgspec.structs.replace(start, attributes=note), end, make_step(number, forward=1.0 + number)]
    document = _exported(tmp_path, events)
    kept = [span["duration_ns"] for span in document["spans"] if "id" in span]
    assert document["spans_left_out"] == 9_000 - len(kept) > 0
    assert min(kept) == (9_000 - len(kept) + 1) * 100_000
    steps = [span for span in document["spans"] if "id" not in span]
    assert document["steps_left_out"] == 9_000 - len(steps) > 0
    assert (tmp_path / "page.html").stat().st_size < PAGE_MAX_BYTES


@given(st.lists(st.tuples(st.integers(0, 10**6), _numbers), max_size=200), st.integers(8, 60))
def test_thinning_keeps_the_shape(points: list[tuple[int, float]], limit: int) -> None:
    """At most so many points stay, in order: the first, last, least and greatest ones, and one that is not finite."""
    xs = [float(x) for x, _ in points]
    values = [value for _, value in points]
    kept = thinned(xs, values, limit)
    assert len(kept) <= max(limit, 0)
    assert [xs[position] for position in kept] == sorted(xs[position] for position in kept)
    if not points:
        return
    assert {min(xs), max(xs)} <= {xs[position] for position in kept}
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        assert {min(finite), max(finite)} <= {values[position] for position in kept}
    if len(finite) < len(values):
        assert not all(math.isfinite(values[position]) for position in kept)


def test_curves_share_their_points() -> None:
    """Many points of several curves stay within the limit; curves beyond theirs are counted by their points."""
    store = CurveStore(max_points=300, max_curves=3)
    for step in range(1_000):
        for rank in range(4):
            store.add("loss", rank, 0, step, 1e9 if step == 500 else step % 7)
    curves = store.finish()
    assert [curve["rank"] for curve in curves] == [0, 1, 2]
    assert store.points_left_out == 1_000
    for curve in curves:
        assert curve["count"] == 1_000
        assert len(curve["x"]) <= 100
        assert (curve["x"][0], curve["x"][-1], max(curve["y"])) == (0, 999, 10**9)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5_000), st.integers(0, 10**9)), min_size=1, max_size=100))
def test_the_grid_holds_every_step(steps: list[tuple[int, int, int]]) -> None:
    """Each cell is the mean of the steps that fall into it, and no row has more columns than asked for."""
    grid = StepGrid(max_columns=16)
    for rank, step, duration_ns in steps:
        grid.add(rank, step, duration_ns)
    document = grid.finish()
    width, first = document["column_steps"], document["first_step"]
    for row in document["rows"]:
        assert len(row["mean_ns"]) <= 16
        for column, mean in enumerate(row["mean_ns"]):
            low = first + column * width
            inside = [each for rank, step, each in steps if rank == row["rank"] and low <= step < low + width]
            assert mean == (sum(inside) // len(inside) if inside else None)


def test_of_equally_long_spans_the_first_stay() -> None:
    """The longest spans are kept in the order in which they came."""
    spans = LongestSpans(max_bytes=60)
    for number, duration_ns in enumerate([5, 1, 5, 5, 9]):
        spans.add({"number": number, "duration_ns": duration_ns})
    kept = msgspec.json.decode(msgspec.json.encode(spans.finish()))
    assert [span["number"] for span in kept] == [0, 4]
    assert spans.left_out == 3


def test_values_are_what_a_browser_keeps_exact() -> None:
    """Integers beyond 2^53 are text, nested values their JSON, and long texts and maps are cut with a word about it."""
    assert page_value(2**53 + 1) == "9007199254740993"
    assert page_value(-(2**53)) == -(2**53)
    assert page_value(True) is True
    assert page_value([1, math.nan]) == '[1,"NaN"]'
    assert page_value("x" * 2_000) == f"{'x' * 1_000}… (2000 characters)"
    assert page_value("a\ud800b") == "a\ufffdb"
    assert page_mapping({str(number): number for number in range(70)})["…"] == "6 more in the trace file"
