from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runspan.tracefile.nvtx import join_ranges
from support.nvtx_tool import NvtxTool, nvtx_tool_or_skip
from support.programs import Workplace, events_of, lines_of

if TYPE_CHECKING:
    from pathlib import Path

_TRAIN = """
    import threading, runspan

    config = runspan.TracingConfig.from_env()
    with runspan.start_run("exp", run_id="job", storage=runspan.InMemoryStorage(), config=config) as run:
        for _ in range(6):
            with run.step() as step, run.phase("forward"):
                with run.span("attention/0"), run.span("höhe 😀, \\"quoted\\""):
                    pass
                with step.recorder.span("linear", "op"):
                    pass
            with run.span("outside"):
                pass
"""
_CAPTURE = {"RUNSPAN_CAPTURE": "wait=2,warmup=1,active=2,repeat=1,slow_factor=0"}


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """Run programs in a folder of their own."""
    return Workplace(tmp_path)


@pytest.fixture
def tool(tmp_path: Path) -> NvtxTool:
    """Build what stands in for a profiler."""
    return nvtx_tool_or_skip(tmp_path)


def _names_by_hand(directory: Path) -> list[str]:
    """Return the range names of all captured spans, in the files' order, derived from parents alone."""
    names = []
    for path in sorted(directory.glob("captures/*/rank-00000.jsonl")):
        lines = lines_of(path)
        spans = {line["id"]: line for line in events_of(lines, "span_start")}
        for span in spans.values():
            path_names, above = [span["name"]], span.get("parent_id")
            while above is not None:
                path_names.insert(0, spans[above]["name"])
                above = spans[above].get("parent_id")
            names.append(f"{lines[0]['correlation_id']}/{'/'.join(path_names)}")
    return names


def _are_nested(tool: NvtxTool) -> bool:
    """Whether each thread has closed all that it opened, and never more."""
    depths: dict[str, int] = {}
    for event in tool.events:
        depths[event.thread] = depths.get(event.thread, 0) + (1 if event.name is not None else -1)
        if depths[event.thread] < 0:
            return False
    return not any(depths.values())


def test_a_profiler_sees_the_captured_spans_letter_for_letter(work: Workplace, tool: NvtxTool) -> None:
    """Each captured span opens one range, called by correlation id and path; uncaptured steps and other spans none."""
    done = work.run(_TRAIN, **_CAPTURE, **tool.variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert tool.names == _names_by_hand(work.only_run)
    assert tool.names[:5] == [
        "job/update-4/step",
        "job/update-4/step/forward",
        "job/update-4/step/forward/attention/0",
        'job/update-4/step/forward/attention/0/höhe 😀, "quoted"',
        "job/update-4/step/forward/linear",
    ]
    assert {name.split("/")[1] for name in tool.names} == {"update-4", "update-5"}
    assert _are_nested(tool)


@pytest.mark.parametrize("variables", [{"NVTX_DISABLE": "1"}, {"RUNSPAN_CAPTURE": "active=0"}])
def test_nvtx_that_is_disabled_opens_nothing(work: Workplace, tool: NvtxTool, variables: dict[str, str]) -> None:
    """NVTX's own switch turns the ranges off, and without captured steps there are none."""
    done = work.run(_TRAIN, **{**_CAPTURE, **tool.variables, **variables})
    assert (done.returncode, done.stderr) == (0, "")
    assert tool.events == []


def test_without_the_package_nothing_happens(work: Workplace, tool: NvtxTool) -> None:
    """A program that cannot import nvtx trains, captures, and warns of nothing."""
    program = "import sys\nsys.modules['nvtx'] = None\n" + "\n".join(line[4:] for line in _TRAIN.splitlines())
    done = work.run(program, **_CAPTURE, **tool.variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(_names_by_hand(work.only_run)) == 10
    assert tool.events == []


def test_ranges_stay_nested_whatever_order_spans_end_in(work: Workplace, tool: NvtxTool) -> None:
    """Spans that end before those inside them, on other threads or with the run close no other span's range."""
    program = """
        import threading, runspan

        config = runspan.TracingConfig.from_env()
        with runspan.start_run("exp", run_id="job", storage=runspan.InMemoryStorage(), config=config) as run:
            with run.step() as step:
                crossed, inner = step.recorder.span("crossed"), step.recorder.span("inner")
                crossed.__enter__()
                inner.__enter__()
                crossed.__exit__(None, None, None)
                inner.__exit__(None, None, None)
                elsewhere = step.recorder.span("elsewhere")
                span = elsewhere.__enter__()
                thread = threading.Thread(target=span.end)
                thread.start()
                thread.join()
                def work():
                    with step.recorder.span("worker"):
                        pass
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
            with run.step(), run.phase("forward"):
                run.finish()
        """
    done = work.run(program, RUNSPAN_CAPTURE="wait=0,warmup=0,active=2", **tool.variables)
    assert done.returncode == 0, done.stderr
    assert tool.names == _names_by_hand(work.only_run)
    assert "job/update-1/step/worker" in tool.names
    assert _are_nested(tool)


def test_what_was_over_when_it_was_written_has_no_range_and_is_not_expected(work: Workplace, tool: NvtxTool) -> None:
    """The wait for data and steps captured afterwards open none; the join of a whole run asks for none of them."""
    program = """
        import runspan

        config = runspan.TracingConfig.from_env()
        with runspan.start_run("exp", run_id="job", storage=runspan.InMemoryStorage(), config=config) as run:
            for _ in run.steps(range(2)):
                with run.phase("forward"), run.phase("data"):
                    pass
            try:
                with run.step(), run.phase("forward"):
                    raise ValueError("boom")
            except ValueError:
                pass
        """
    done = work.run(program, RUNSPAN_CAPTURE="wait=0,warmup=0,active=1,repeat=1", **tool.variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert tool.names == ["job/update-1/step", "job/update-1/step/forward", "job/update-1/step/forward/data"]
    captures = sorted(work.only_run.glob("captures/*/rank-00000.jsonl"))
    assert len(captures) == 2
    report = work.folder / "report.csv"
    rows = [f"{number},{number + 1},1,0,1,:{name},7,7,0,0,{number},,:1,x" for number, name in enumerate(tool.names)]
    header = (
        "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl,NumChild,RangeId,ParentId,"
        "RangeStack,NameTree"
    )
    report.write_text("\n".join([header, *rows, ""]))
    join = join_ranges(captures, [report], "job")
    assert (join.expected, join.observed, join.matched, join.is_exact) == (3, 3, 3, True)
