from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec
from opentelemetry import context, trace

import runspan
from runspan.export._html_document import build_document
from runspan.export._sources import find_sources
from runspan.export.database import create_database
from runspan.export.folded import export_folded
from runspan.export.perfetto import export_perfetto
from runspan.export.speedscope import export_speedscope
from support.chrome_trace import counters, load_chrome_trace, slices, thread_names
from support.export_traces import span_events, trace_files, write_trace
from support.speedscope_format import load_speedscope

if TYPE_CHECKING:
    from pathlib import Path

    from support.live import LiveRuns


def _train(live: LiveRuns) -> runspan.Run:
    """Run three steps, the second of which is captured, with a span of another thread beside them."""
    run = live.start(capture=runspan.CaptureSchedule(wait=1, warmup=0, active=1, repeat=1))
    with run.span("epoch"):
        outer = context.get_current()
        inside, leave = threading.Event(), threading.Event()

        def load() -> None:
            token = context.attach(outer)
            with run.span("load"):
                inside.set()
                assert leave.wait(30)
            context.detach(token)

        loader = threading.Thread(target=load)
        loader.start()
        assert inside.wait(30)
        for step in range(3):
            with run.step(), run.phase("forward"):
                run.log_metric("loss", float("nan") if step == 1 else 1 / (step + 1))
        with run.span("evaluate"):
            leave.set()
            loader.join()
    return run


def test_a_run_is_exported_while_it_runs_and_after(live: LiveRuns, tmp_path: Path) -> None:
    """What a real run has written so far keeps every format's rules, open spans drawn; and so it does at its end."""
    run = _train(live)
    (directory,) = live.trace_dir.iterdir()
    for is_over in (False, True):
        if is_over:
            run.finish()
        traces = trace_files(directory)
        export_perfetto(traces, tmp_path / "trace.json")
        events = load_chrome_trace(tmp_path / "trace.json")
        drawn = {event["name"]: event for event in slices(events)}
        assert drawn.keys() >= {"run", "rank", "epoch", "load", "evaluate", "step 0", "step 1", "step 2", "forward"}
        assert drawn["run"]["args"].get("open", False) is not is_over
        assert drawn["load"]["tid"] != drawn["evaluate"]["tid"]
        assert [float(value) for value in counters(events, "loss")] == [1, 1 / 3]
        assert "spans · update-000000002" in thread_names(events, 1)
        export_speedscope(traces, tmp_path / "profile.json")
        load_speedscope(tmp_path / "profile.json")
        export_folded(traces, tmp_path / "stacks.txt")
        paths = [line.rpartition(" ")[0] for line in (tmp_path / "stacks.txt").read_text().splitlines()]
        assert {"run;rank;epoch;load", "run;rank;epoch;evaluate", "step;forward"} <= set(paths)


def test_a_run_is_asked_while_it_runs(live: LiveRuns) -> None:
    """A query sees the steps, metrics and spans that were recorded so far; an open span has no duration."""
    run = _train(live)
    (directory,) = live.trace_dir.iterdir()
    sql = """
        SELECT
            (SELECT count(*) FROM steps WHERE duration_ns >= map_extract(phases, 'forward')[1]),
            (SELECT count(*) FROM metrics WHERE key = 'loss' AND isnan(value)),
            (SELECT list(name ORDER BY start_ns) FROM spans WHERE duration_ns IS NULL),
            (SELECT list(name ORDER BY start_ns) FROM spans WHERE capture = 'update-000000002'),
            (SELECT count(DISTINCT run_id) FROM traces)
    """
    with create_database(find_sources(trace_files(directory))) as database:
        rows = list(database.ask(sql).rows)
        assert (database.unreadable, database.problems) == (0, [])
    assert rows == [(3, 1, ["run", "rank"], ["step", "forward"], 1)]
    assert not run.is_finished()


def test_spans_keep_the_ids_of_opentelemetry(live: LiveRuns) -> None:
    """A row's span and trace id are those under which a tracing store has the span."""
    run = live.start()
    with run.span("epoch"):
        current = trace.get_current_span().get_span_context()
    (directory,) = live.trace_dir.iterdir()
    with create_database(find_sources(trace_files(directory))) as database:
        rows = list(database.ask("SELECT trace_id, span_id FROM spans WHERE name = 'epoch'").rows)
    assert rows == [(trace.format_trace_id(current.trace_id), trace.format_span_id(current.span_id))]


def test_a_renamed_span_has_its_last_name_everywhere(tmp_path: Path) -> None:
    """Each export shows the name that a span's end tells, which is the one that a tracing store has."""
    start, end = span_events("ab" * 8, "first", 0, 10)
    path = write_trace(tmp_path, start, msgspec.structs.replace(end, name="last"))
    export_perfetto([path], tmp_path / "trace.json")
    assert [event["name"] for event in slices(load_chrome_trace(tmp_path / "trace.json"))] == ["last"]
    export_speedscope([path], tmp_path / "profile.json")
    assert load_speedscope(tmp_path / "profile.json")["shared"]["frames"] == [{"name": "last"}]
    export_folded([path], tmp_path / "stacks.txt")
    assert (tmp_path / "stacks.txt").read_text() == "last 10\n"
    with create_database(find_sources([path])) as database:
        assert list(database.ask("SELECT name FROM spans").rows) == [("last",)]
    assert [msgspec.json.decode(span)["name"] for span in build_document([path])["spans"]] == ["last"]
