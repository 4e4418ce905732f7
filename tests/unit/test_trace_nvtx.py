from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runspan.errors import TraceFormatError
from runspan.tracefile.events import OtelContext, SpanEnd, SpanStart, Terminal, TraceEvent
from runspan.tracefile.nvtx import SpanPaths, join_ranges, range_name
from support.traces import START_UNIX_NANO, make_meta, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_PUSHPOP_TRACE = (
    "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl,NumChild,RangeId,ParentId,"
    "RangeStack,NameTree"
)
_PUSHPOP_SUM = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Range"
_GPU_SUM = (
    "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),Proj Med (ns),Proj Min (ns),"
    "Proj Max (ns),Proj StdDev (ns),Total GPU Ops,Avg GPU Ops,Avg Range Lvl,Avg Num Child"
)
_GPU_TRACE = (
    "Name,Projected Start (ns),Projected Duration (ns),Orig Start (ns),Orig Duration (ns),Style,PID,TID,NumGPUOps,Lvl,"
    "NumChild,RangeId,ParentId,RangeStack"
)
_STEP, _FORWARD = "run-a/update-4/step", "run-a/update-4/step/forward"
#: The same two ranges, forward twice, in the forms that versions of nsys write its reports in.
_FORMS = {
    "pushpop_trace": f"""{_PUSHPOP_TRACE}
1137544193,1137544203,10,7,3,:{_STEP},53,53,0,2,1,,:1,:{_STEP}
1137544194,1137544197,3,0,3,:{_FORWARD},53,53,1,0,2,1,:1:2,--:{_FORWARD}
1137544198,1137544202,4,0,4,:{_FORWARD},53,53,1,0,3,1,:1:3,--:{_FORWARD}
1137544198,1137544202,4,0,4,NCCL:ncclAllReduce,53,54,0,0,4,,:4,NCCL:ncclAllReduce
""",
    "pushpop_sum": f"""{_PUSHPOP_SUM}
58.8,10,1,10.0,10.0,10,10,0.0,:{_STEP}
41.2,7,2,3.5,3.5,3,4,0.7,:{_FORWARD}
""",
    "pushpop_sum in microseconds": f"""{_PUSHPOP_SUM.replace("(ns)", "(us)")}
58.8,0.010,1,0.010,0.010,0.010,0.010,0.000,:{_STEP}
41.2,0.007,2,0.004,0.004,0.003,0.004,0.001,:{_FORWARD}
""",
    "nvtx_sum, its domain not named": f"""{_PUSHPOP_SUM.replace("Range", "Style,Range")}
58.8,10,1,10.0,10.0,10,10,0.0,PushPop,{_STEP}
41.2,7,2,3.5,3.5,3,4,0.7,PushPop,{_FORWARD}
""",
    "nvtxppsum of 2021": f"""Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Range
58.8,10,1,10.0,10,10,{_STEP}
41.2,7,2,3.5,3,4,{_FORWARD}
""",
    "startend_trace": f"""Start (ns),End (ns),Duration (ns),Name,PID,TID
1,11,10,:{_STEP},53,53
2,5,3,:{_FORWARD},53,53
6,10,4,:{_FORWARD},53,53
""",
    "gpu_proj_sum": f"""{_GPU_SUM}
:{_STEP},PushPop,90,10,1,90.0,90.0,90,90,0.0,5,5.0,0.0,2.0
:{_FORWARD},PushPop,60,7,2,30.0,30.0,20,40,14.1,4,2.0,1.0,0.0
""",
    "gpu_proj_trace": f"""{_GPU_TRACE}
,100,90,,,,53,53,5,,0,,,
:{_STEP},100,90,1,10,PushPop,53,53,5,0,2,1,,:1
:{_FORWARD},100,20,2,3,PushPop,53,53,2,1,0,2,1,:1:2
:{_FORWARD},130,40,6,4,PushPop,53,53,2,1,0,3,1,:1:3
""",
    "what nsys prints on stdout": f"""Generating SQLite file /tmp/p.sqlite from /tmp/p.nsys-rep
Processing [/tmp/p.sqlite] with [/opt/nvidia/reports/cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
100.0,35872,1,35872.0,35872.0,35872,35872,0.0,"void gemm<int, float>(int, {_FORWARD})"
Processing [/tmp/p.sqlite] with [/opt/nvidia/reports/nvtx_pushpop_sum.py]...

 ** NVTX Push/Pop Range Summary (nvtx_pushpop_sum):

{_PUSHPOP_SUM}
58.8,10,1,10.0,10.0,10,10,0.0,:{_STEP}
41.2,7,2,3.5,3.5,3,4,0.7,:{_FORWARD}
Processing [/tmp/p.sqlite] with [/opt/nvidia/reports/openacc_sum.py]...
SKIPPED: /tmp/p.sqlite does not contain OpenACC event data.
""",
}


def _span(span_id: str, name: str, parent_id: str | None = None, **changes: Any) -> SpanStart:
    start = SpanStart(
        id=span_id,
        parent_id=parent_id,
        name=name,
        start_ns=1,
        time_unix_nano=START_UNIX_NANO,
        span_kind="function",
        measured=parent_id is None,
        otel=OtelContext("ab" * 16),
    )
    return msgspec.structs.replace(start, **changes)


def _write_capture(folder: Path, spans: Iterable[TraceEvent], *, step: int = 4, rank: int = 0) -> Path:
    """Write a capture of these spans, with their ends where they have none."""
    path = folder / "captures" / f"update-{step:09d}" / f"rank-{rank:05d}.jsonl"
    meta = make_meta(rank, correlation_id=f"run-a/update-{step}", capture_step=step)
    events = list(spans)
    ended = {event.id for event in events if isinstance(event, SpanEnd)}
    ends = [SpanEnd(id=event.id, duration_ns=5) for event in events if isinstance(event, SpanStart)]
    closing = [end for end in ends if end.id not in ended]
    write_lines(path, [meta, *events, *closing, Terminal("complete", 100, "success")])
    return path


def _capture(folder: Path, **place: int) -> Path:
    """Write a capture with a step and two forward passes in it."""
    spans = [_span("s", "step"), _span("f1", "forward", "s"), _span("f2", "forward", "s")]
    return _write_capture(folder, spans, **place)


def _report(folder: Path, text: str, name: str = "nsys.csv") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def _sums(rows: Iterable[Sequence[object]]) -> str:
    """Return a pushpop_sum of (name, instances, total ns), quoted as nsys does."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_PUSHPOP_SUM.split(","))
    writer.writerows([[1.0, total, instances, 1.0, 1.0, 1, 1, 0.0, name] for name, instances, total in rows])
    return out.getvalue()


@pytest.mark.parametrize("form", _FORMS)
def test_every_form_of_the_reports_is_read(tmp_path: Path, form: str) -> None:
    """Each report of each version tells how often and how long the spans' ranges were open; the rest is not ours."""
    join = join_ranges([_capture(tmp_path)], [_report(tmp_path, _FORMS[form])], "run-a")
    assert (join.expected, join.observed, join.matched) == (3, 3, 3)
    assert join.is_exact
    assert [(item.name, item.state, item.expected, item.observed, item.span_ids) for item in join.ranges] == [
        (_STEP, "matched", 1, 1, ["s"]),
        (_FORWARD, "matched", 2, 2, ["f1", "f2"]),
    ]
    assert [(item.span_duration_ns, item.host_duration_ns) for item in join.ranges] == [(5, 10), (10, 7)]
    device = [90, 60] if form.startswith("gpu") else [None, None]
    assert [item.device_duration_ns for item in join.ranges] == device


def test_missing_unexpected_and_duplicate_ranges_are_told(tmp_path: Path) -> None:
    """A span without its range, a range without a span, and one range too many; all counts add up."""
    spans = [_span("s", "step"), _span("f", "forward", "s"), _span("b1", "backward", "s"), _span("b2", "backward", "s")]
    rows = [
        (":run-a/update-4/step", 1, 9),
        (":run-a/update-4/step/forward", 3, 9),
        (":run-a/update-4/step/backward", 1, 9),
        (":run-a/update-4/step/Forward", 2, 9),
        (":run-a/update-9/step", 1, 9),
        (":run-ab/update-4/step", 1, 9),
        ("mine:run-a/update-4/step", 1, 9),
        (":attention", 7, 9),
    ]
    report = _report(tmp_path, _sums(rows))
    join = join_ranges([_write_capture(tmp_path, spans)], [report], "run-a")
    assert {item.name.removeprefix("run-a/"): (item.state, item.expected, item.observed) for item in join.ranges} == {
        "update-4/step": ("matched", 1, 1),
        "update-4/step/forward": ("duplicate", 1, 3),
        "update-4/step/backward": ("missing", 2, 1),
        "update-4/step/Forward": ("unexpected", 0, 2),
        "update-9/step": ("unexpected", 0, 1),
    }
    assert (join.expected, join.matched, join.missing) == (4, 3, 1)
    assert (join.observed, join.unexpected, join.duplicate) == (8, 3, 2)
    assert not join.is_exact


def test_several_reports_of_one_profile_are_not_counted_twice(tmp_path: Path) -> None:
    """What the host and the device saw of a range stands side by side; the kind that saw most of a name counts."""
    gpu = f"{_GPU_SUM}\n:{_FORWARD},PushPop,60,3,1,60.0,60.0,60,60,0.0,4,4.0,1.0,0.0\n"
    host = _report(tmp_path, _FORMS["pushpop_sum"], "host.csv")
    reports = [host, host, _report(tmp_path, _FORMS["pushpop_trace"], "trace.csv"), _report(tmp_path, gpu, "gpu.csv")]
    join = join_ranges([_capture(tmp_path)], reports, "run-a")
    assert join.is_exact
    assert [(item.host_duration_ns, item.device_duration_ns) for item in join.ranges] == [(10, None), (7, 60)]


def test_reports_of_several_ranks_are_added_up(tmp_path: Path) -> None:
    """Ranks share the ranges' names: two ranks' captures are matched by two ranks' reports of one kind."""
    captures = [_capture(tmp_path, rank=rank) for rank in range(2)]
    reports = [_report(tmp_path, _FORMS["pushpop_sum"], f"rank-{rank}.csv") for rank in range(2)]
    join = join_ranges(captures, reports, "run-a")
    assert (join.expected, join.observed, join.is_exact) == (6, 6, True)
    assert [item.host_duration_ns for item in join.ranges] == [20, 14]


def test_spans_that_were_over_when_they_were_written_are_not_expected(tmp_path: Path) -> None:
    """The wait that a step began with and a step captured afterwards had no range; a later data phase had one."""
    scheduled = [
        _span("s", "step", start_ns=0, attributes={"runspan.step.captured_because": "scheduled"}),
        _span("d", "data", "s", start_ns=0),
        _span("d2", "data", "s"),
    ]
    slow = [
        _span("s", "step", attributes={"runspan.step.captured_because": "slow"}),
        _span("f", "forward", "s"),
    ]
    captures = [_write_capture(tmp_path, scheduled), _write_capture(tmp_path, slow, step=7)]
    report = _report(tmp_path, _sums([]))
    join = join_ranges(captures, [report], "run-a")
    assert [item.name for item in join.ranges] == [_STEP, f"{_STEP}/data"]
    assert (join.expected, join.missing) == (2, 2)


def test_a_trace_that_is_no_capture_expects_nothing(tmp_path: Path) -> None:
    """A run's trace has no measured span: nothing in it opens a range."""
    path = tmp_path / "rank-00000.jsonl"
    write_lines(path, [make_meta(), _span("r", "run", measured=False), SpanEnd(id="r", duration_ns=1)])
    assert join_ranges([path], [_report(tmp_path, _sums([]))], "run-a").expected == 0


def test_paths_lead_from_the_root_by_names() -> None:
    """A span whose parent is not in the file begins a path; slashes in names stay, NUL is what no range can hold."""
    paths = SpanPaths()
    spans = [_span("a", "step"), _span("b", "x/y", "a"), _span("c", "\0", "b"), _span("d", "alone", "elsewhere")]
    assert [paths.add(span) for span in spans] == ["step", "step/x/y", "step/x/y/\0", "alone"]
    assert range_name("r/update-1", "step/x/y/\0\ud800") == "r/update-1/step/x/y/\ufffd\ufffd"


_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_NAMES, min_size=1, max_size=6))
def test_any_name_is_matched_letter_for_letter(tmp_path: Path, names: list[str]) -> None:
    """Commas, quotes, line ends, colons and other scripts in names come through trace, range and CSV unchanged."""
    spans = [_span(str(number), name, str(number - 1) if number else None) for number, name in enumerate(names)]
    rows = [(f":run-a/update-4/{'/'.join(names[: number + 1])}", 1, 5) for number in range(len(names))]
    report = tmp_path / "nsys.csv"
    with report.open("w", encoding="utf-8", newline="") as file:
        file.write(_sums(rows))
    join = join_ranges([_write_capture(tmp_path, spans)], [report], "run-a")
    assert join.is_exact, join
    assert join.matched == len(names)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no NVTX report; expected what `nsys stats --format csv --report nvtx_pushpop_sum` writes"),
        ("SKIPPED: p.sqlite does not contain NV Tools Extension (NVTX) data.\n", "holds no NVTX report"),
        ("Time (%),Total Time (ns),Instances,Name\n1,2,3,kernel\n", "nvtx_pushpop_sum or nvtx_startend_sum has Range,"),
        (_PUSHPOP_SUM + "\n1.0,5,1,1.0\n", ":2: 4 values for 9 columns; write the report anew"),
        (_PUSHPOP_SUM + f"\n1.0,5,many,1.0,1.0,1,1,0.0,:{_STEP}\n", ":2: Instances is 'many', which is no number"),
        (_PUSHPOP_SUM + f"\n1.0,5,,1.0,1.0,1,1,0.0,:{_STEP}\n", ":2: Instances is '', which is no number"),
        (_PUSHPOP_SUM + f"\n1.0,-5,1,1.0,1.0,1,1,0.0,:{_STEP}\n", ":2: Total Time is '-5', which is no number"),
        (_PUSHPOP_SUM + f"\n1.0,nan,1,1.0,1.0,1,1,0.0,:{_STEP}\n", ":2: Total Time is 'nan', which is no number"),
        (_PUSHPOP_SUM + f"\n1.0,1e999,1,1.0,1.0,1,1,0.0,:{_STEP}\n", ":2: Total Time is '1e999', which is no number"),
        (_PUSHPOP_SUM + f'\n1.0,5,1,1.0,1.0,1,1,0.0,"{_STEP}\n', "is no CSV file"),
        (_PUSHPOP_SUM + "\n" + "x" * (1 << 20), ":2: a line of more than 1,048,576 characters"),
    ],
)
def test_a_bad_report_is_one_clear_error(tmp_path: Path, text: str, told: str) -> None:
    """It names the file, and the line and value or the columns that were expected."""
    report = _report(tmp_path, text)
    with pytest.raises(TraceFormatError) as raised:
        join_ranges([_capture(tmp_path)], [report], "run-a")
    assert str(raised.value).startswith(str(report))
    assert told in str(raised.value)


def test_a_report_that_is_no_text_or_not_there_is_one_clear_error(tmp_path: Path) -> None:
    """A .nsys-rep in place of its report, or a wrong path."""
    binary = tmp_path / "profile.nsys-rep"
    binary.write_bytes(b"\x00\xff\xfe" * 100)
    for report, told in ((binary, "is no CSV file"), (tmp_path / "no.csv", "cannot be read: No such file")):
        with pytest.raises(TraceFormatError, match=told):
            join_ranges([_capture(tmp_path)], [report], "run-a")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=st.sampled_from(sorted(_FORMS)), cut=st.floats(0, 1), junk=st.text(max_size=20))
def test_a_damaged_report_ends_in_an_answer_or_one_error(tmp_path: Path, form: str, cut: float, junk: str) -> None:
    """Cut anywhere, with anything behind it, a report never raises another error than the one that names it."""
    text = _FORMS[form]
    report = tmp_path / "nsys.csv"
    report.write_bytes((text[: int(cut * len(text))] + junk).encode("utf-8", "replace"))
    try:
        answer = str(join_ranges([_capture(tmp_path)], [report], "run-a").expected)
    except TraceFormatError as error:
        answer = str(error)
    assert answer == "3" or answer.startswith(str(report))
