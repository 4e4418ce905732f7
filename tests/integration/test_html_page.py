"""The HTML page in a real browser that has no network: what it shows, and what clicking and typing do."""

from __future__ import annotations

import math
import re
import socket
from typing import TYPE_CHECKING

import msgspec
import pytest

from runspan.export.html import export_html
from runspan.tracefile.events import Event, SpanStatus, Usage
from runspan.tracefile.layout import TraceName
from support.browser import Browser, browser_or_skip
from support.cli import make_step
from support.traces import START_UNIX_NANO, make_meta, make_metric, make_span, make_terminal, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from runspan.tracefile.events import TraceEvent

pytestmark = pytest.mark.browser

_RANKS, _STEPS = 4, 60
_SLOW = 2
#: Where the waterfall draws: the width of the labels, the top of the first row, the height of a row.
_GUTTER, _FIRST_ROW, _ROW = 78, 29, 18
_HOSTILE = "load </script><b>⚡ Ünïcödé"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run one browser for the tests of this module."""
    with browser_or_skip() as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of a run of four ranks: one is slow, one captured a step, one breaks a rule of the format."""
    folder = tmp_path_factory.mktemp("page")
    traces = []
    for rank in range(_RANKS):
        traces.append(folder / TraceName(rank).filename)
        write_lines(traces[-1], _rank_events(rank))
    capture = folder / "captures" / "update-000000031" / TraceName(1).filename
    write_lines(capture, _captured_events())
    export_html(traces, folder / "page.html")
    return folder / "page.html"


def _rank_events(rank: int) -> Iterator[TraceEvent]:
    yield make_meta(rank, resource={"runspan.run.name": "night run"})
    outer, outer_end = make_span(f"{rank}a", start_s=0.0, duration_s=10.0)
    load, load_end = make_span(f"{rank}b", start_s=4.0, duration_s=2.5)
    load = msgspec.structs.replace(load, name=_HOSTILE, parent_id=f"{rank}a", attributes={"file": "<train>.bin"})
    save, save_end = make_span(f"{rank}c", start_s=9.0, duration_s=0.5)
    parent_id = "nobody" if rank == 3 else f"{rank}a"
    save = msgspec.structs.replace(save, name="save", parent_id=parent_id, attributes={"size": 2**63})
    yield from (outer, load, load_end, save)
    yield msgspec.structs.replace(save_end, status=SpanStatus("error", "disk full") if rank == 1 else None)
    for step in range(_STEPS):
        work_ms = 80.0 if rank == _SLOW else 20.0
        event = make_step(step, forward=work_ms, all_reduce=100.0 - work_ms)
        yield msgspec.structs.replace(event, time_unix_nano=START_UNIX_NANO + (step + 1) * 100_000_000)
        yield make_metric(step, key="loss", value=math.nan if step == 30 else 2.0 / (step + 1))
        yield make_metric(step, key="lr", value=0.5)
    yield Usage(cpu_util=0.25, timestamp_ns=10**9, time_unix_nano=START_UNIX_NANO + 10**9)
    yield Event(name="checkpoint", level="info", message="saved", time_unix_nano=START_UNIX_NANO + 10**9)
    yield outer_end
    yield make_terminal(12.0)


def _captured_events() -> Iterator[TraceEvent]:
    at_ns = START_UNIX_NANO + 3_000_000_000
    yield make_meta(1, correlation_id="run-a/update-31", capture_step=31, time_unix_nano=at_ns)
    step, step_end = make_span("1d", duration_s=0.1)
    forward, forward_end = make_span("1e", start_s=0.02, duration_s=0.06)
    yield msgspec.structs.replace(step, name="step", measured=True)
    yield msgspec.structs.replace(forward, name="forward", parent_id="1d", step="forward")
    yield from (forward_end, step_end, make_terminal(0.1))


def _details(browser: Browser) -> dict[str, str]:
    names, values = browser.texts("#details dt"), browser.texts("#details dd")
    return {"name": browser.text("#details h3"), **dict(zip(names, values, strict=True))}


def _click_waterfall(browser: Browser, share: float, row: int) -> None:
    """Click the middle of a row at a share of the shown time."""
    width = browser.find("#lanes canvas").size["width"] - _GUTTER
    browser.click_at("#lanes canvas", _GUTTER + share * width, _FIRST_ROW + (row + 0.4) * _ROW)


def test_the_page_opens_without_a_network(browser: Browser, page: Path) -> None:
    """It shows the run, writes nothing to the console, and asks for nothing but itself."""
    browser.open(page)
    assert browser.title == "night run · runspan"
    assert browser.text("h1") == "night run\n✓ success"
    assert "ranks 4" in browser.text("#head .facts")
    assert "took 12.0 s" in browser.text("#head .facts")
    assert browser.pixels("#lanes canvas") > 5
    for section in ("#metrics", "#steps", "#usage"):
        assert browser.pixels(f"{section} canvas") > 5
    assert browser.console == []
    asked = [url for url in browser.requests if url != "about:blank"]
    assert page.as_uri() in asked
    assert all(url == page.as_uri() or url.startswith("data:") for url in asked)


def test_its_policy_stops_what_would_leave(browser: Browser, page: Path) -> None:
    """Even a script on the page reaches no server: the content security policy stops the request."""
    browser.open(page)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        stopped_by = browser.run_async(f"""
            const done = arguments[0];
            document.addEventListener('securitypolicyviolation', (event) => done(event.effectiveDirective));
            fetch('{address}').catch(() => {{}});
        """)
        assert stopped_by == "connect-src"
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_click_on_a_span_shows_its_details(browser: Browser, page: Path) -> None:
    """The pane reads the name, duration, times, status and attributes of the span under the pointer."""
    browser.open(page)
    assert browser.text("#details h3") == "No span selected"
    _click_waterfall(browser, 5 / 12, 1)
    details = _details(browser)
    assert details["name"] == _HOSTILE
    assert details["Duration"] == "2.50 s"
    assert details["Nanoseconds"] == "2500000000"
    assert details["Starts at"].startswith("4.0")
    assert details["Rank"] == "0"
    assert details["file"] == "<train>.bin"
    browser.click("#details dd button")
    assert (_details(browser)["name"], _details(browser)["Duration"]) == ("rank", "10.0 s")
    assert browser.console == []


def test_the_keyboard_walks_the_waterfall(browser: Browser, page: Path) -> None:
    """Arrows go to children, neighbours, parents and the next rank; + zooms; Escape selects nothing."""
    browser.open(page)
    down, up, right, escape = "\ue015", "\ue013", "\ue014", "\ue00c"
    visited = []
    for key in (down, down, right, up):
        browser.type("#lanes canvas", key)
        visited.append(_details(browser)["name"])
    assert visited[0] == "rank"
    assert visited[-1] == "rank"
    assert "rank" not in visited[1:3]
    before = browser.run("return document.querySelector('#lanes canvas').toDataURL()")
    browser.type("#lanes canvas", "+")
    assert browser.run("return document.querySelector('#lanes canvas').toDataURL()") != before
    browser.type("#lanes canvas", "0")
    browser.type("#lanes canvas", escape)
    assert browser.text("#details h3") == "No span selected"


def test_the_search_finds_names_attributes_and_status(browser: Browser, page: Path) -> None:
    """The table holds the matching spans; one of them is selected by its button."""
    browser.open(page)
    browser.type("#search", "<TRAIN>")
    assert browser.text("#search-answer") == "4 spans found"
    assert browser.texts("#span-table tbody tr td:first-child") == [_HOSTILE] * 4
    browser.type("#search", "error")
    assert browser.text("#search-answer") == "1 span found"
    browser.click("#span-table tbody button")
    details = _details(browser)
    assert (details["name"], details["Rank"], details["Status"]) == ("save", "1", "! error: disk full")
    assert details["size"] == str(2**63)


def test_the_filter_of_ranks_holds_everywhere(browser: Browser, page: Path) -> None:
    """Only the ranks asked for are in the tables and curves; what cannot be read is told and changes nothing."""
    browser.open(page)
    browser.type("#ranks", "0, 2-3")
    assert browser.text("#ranks-answer") == "3 of 4"
    assert browser.texts("#steps tbody tr td:first-child") == ["0", "2", "3"]
    assert "3 lines" in browser.label("#metrics canvas")
    assert set(browser.texts("#span-table tbody td:nth-child(2)")) == {"0", "2", "3"}
    browser.type("#ranks", "x")
    assert browser.find("#ranks").get_attribute("aria-invalid") == "true"
    assert browser.text("#ranks-answer") == "write ranks as 0-3,7"
    assert len(browser.texts("#steps tbody tr")) == 3


def test_another_metric_is_a_choice_away(browser: Browser, page: Path) -> None:
    """The curve's key is chosen from a list, its scale by a box; NaN is a gap that is told."""
    browser.open(page)
    chart = "#metrics canvas"
    assert "loss, 4 lines, from 0.033" in browser.label(chart)
    assert "4 points NaN or infinite, marked" in browser.text("#metrics .hint")
    linear = browser.run(f"return document.querySelector('{chart}').toDataURL()")
    browser.click("#metrics-log")
    assert browser.run(f"return document.querySelector('{chart}').toDataURL()") != linear
    browser.choose("#metrics-key", "lr")
    assert "lr, 4 lines" in browser.label(chart)
    assert browser.text("#metrics .hint") == ""
    browser.click("#metrics summary")
    assert browser.texts("#metrics tbody tr:first-child td") == ["0", "60", "0.5", "0.5", "0.5"]
    assert browser.console == []


def test_a_curve_is_read_with_the_keyboard(browser: Browser, page: Path) -> None:
    """Arrow keys move along a curve, and the values there are shown."""
    browser.open(page)
    for _ in range(3):
        browser.type("#metrics canvas", "\ue014")
    assert browser.text("#metrics .tip").splitlines()[:2] == ["step 2", "rank 0: 0.66667"]


def test_the_slow_rank_is_marked(browser: Browser, page: Path) -> None:
    """The rank that the others wait for is named, and its row of the table stands out."""
    browser.open(page)
    assert browser.text("#steps .notice").startswith("▲ Rank 2 is slow: its own work of a step takes 80.0 ms")
    assert browser.text("#steps tr.slow td") == "2"
    assert "rank 2 is slow" in browser.label("#steps .heat canvas")


def test_findings_lead_to_their_spans(browser: Browser, page: Path) -> None:
    """What health found is listed with its code and file; the ids it names select their spans."""
    browser.open(page)
    assert re.search(r"[1-9]\d* errors?, ", browser.text("#head .facts a"))
    assert "unknown_parent" in browser.texts("#findings code")
    assert "rank-00003.jsonl" in browser.text("#findings tbody tr")
    browser.click("#findings tbody button")
    assert _details(browser)["Rank"] == "3"


def test_a_captured_step_is_brought_into_view(browser: Browser, page: Path) -> None:
    """The list of captured steps zooms the waterfall to the one that is clicked."""
    browser.open(page)
    assert browser.texts("#captures tbody td") == ["update-000000031", "3.00 s", "1", "2", "100 ms, rank 1"]
    browser.type("#ranks", "1")
    browser.click("#captures tbody button")
    names = set()
    for row in range(4):
        _click_waterfall(browser, 0.5, row)
        names.add(_details(browser)["name"])
    assert {"step", "forward"} <= names


@pytest.mark.parametrize("width", [800, 1600])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_narrow_and_wide_windows(browser: Browser, page: Path, width: int, dark: bool) -> None:
    """At 800 and 1600 pixels nothing hangs over the side; light and dark follow the system."""
    browser.open(page, width=width, dark=dark)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    red = int(re.findall(r"\d+", background)[0])
    assert (red < 60) is dark


def test_everything_that_takes_the_focus_has_a_name(browser: Browser, page: Path) -> None:
    """A screen reader has a name to say for each control, chart and region, and finds the landmarks."""
    browser.open(page)
    nodes = browser.accessible_nodes
    roles = {node["role"]["value"] for node in nodes}
    assert {"banner", "navigation", "main", "complementary", "contentinfo", "application", "table"} <= roles
    nameless = [
        node["role"]["value"]
        for node in nodes
        if node["role"]["value"] not in {"RootWebArea", "generic"}
        and any(each["name"] == "focusable" and each["value"]["value"] for each in node.get("properties", ()))
        and not node["name"]["value"]
    ]
    assert nameless == []


def test_a_long_run_says_what_is_left_out(browser: Browser, tmp_path: Path) -> None:
    """The page of a run that does not fit opens, and tells how much it leaves out."""
    events: list[TraceEvent] = [make_meta()]
    for number in range(30_000):
        start, end = make_span(f"{number:016x}", start_s=number, duration_s=0.5 + number % 7)
        events += [start, end, make_metric(number, value=float(number % 11))]
    write_lines(tmp_path / "rank-00000.jsonl", events)
    export_html([tmp_path / "rank-00000.jsonl"], tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert re.search(r"leaves out the [\d,]+ shortest spans", browser.text("#left-out"))
    assert browser.pixels("#lanes canvas") > 5
    assert browser.console == []
