"""``runspan trace nvtx``: what it prints, and its exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from runspan.tracefile.events import OtelContext, SpanEnd, SpanStart, Terminal
from support.cli import Cli, make_run
from support.traces import START_UNIX_NANO, make_meta, write_lines

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Range"


@pytest.fixture
def runspan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on a root folder of two ranks that have captured step 3."""
    directory = make_run(tmp_path / "root", "run-a", world_size=2)
    for rank in range(2):
        meta = make_meta(rank, correlation_id="run-a/update-4", capture_step=4)
        start = SpanStart(
            id="5" * 16,
            name="step",
            start_ns=0,
            time_unix_nano=START_UNIX_NANO,
            span_kind="function",
            measured=True,
            otel=OtelContext("ab" * 16),
        )
        forward = msgspec.structs.replace(start, id="f" * 16, parent_id=start.id, name="forward", measured=False)
        ends = [SpanEnd(id=span.id, duration_ns=2_000_000) for span in (forward, start)]
        path = directory / "captures" / "update-000000004" / f"rank-{rank:05d}.jsonl"
        write_lines(path, [meta, start, forward, *ends, Terminal("complete", 2_000_000, "success")])
    return Cli(tmp_path / "root", capsys)


def _report(folder: Path, *ranges: tuple[str, int]) -> str:
    path = folder / "nsys.csv"
    rows = [f"1.0,3000000,{count},1.0,1.0,1,1,0.0,:run-a/update-4/{name}" for name, count in ranges]
    path.write_text("\n".join([_HEADER, *rows, ""]))
    return str(path)


def test_a_whole_match_is_0_and_a_table(runspan: Cli, tmp_path: Path) -> None:
    """Each range stands in a line with what trace and nsys tell of it, and a line counts them."""
    answer = runspan("trace", "nvtx", "run-a", _report(tmp_path, ("step", 2), ("step/forward", 2)))
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == (
        "RANGE                  STATE    EXPECTED  OBSERVED     SPAN  NSYS HOST  NSYS DEVICE\n"
        "update-4/step          matched         2         2  4.00 ms    3.00 ms            -\n"
        "update-4/step/forward  matched         2         2  4.00 ms    3.00 ms            -\n"
        "\n"
        "4 spans expected, 4 ranges observed: 4 matched, 0 missing, 0 unexpected, 0 duplicate\n"
    )


def test_what_does_not_match_is_1(runspan: Cli, tmp_path: Path) -> None:
    """A profile of rank 0 alone misses the other rank's ranges; the answer is negative, and its JSON says where."""
    report = _report(tmp_path, ("step", 1), ("step/loss", 3))
    answer = runspan("trace", "nvtx", "run-a", report, "--json")
    assert answer.code == 1
    document = answer.document
    counts = {key: document[key] for key in ("expected", "observed", "matched", "missing", "unexpected", "duplicate")}
    assert counts == {"expected": 4, "observed": 4, "matched": 1, "missing": 3, "unexpected": 3, "duplicate": 0}
    assert [(item["name"], item["state"]) for item in document["ranges"]] == [
        ("run-a/update-4/step", "missing"),
        ("run-a/update-4/step/forward", "missing"),
        ("run-a/update-4/step/loss", "unexpected"),
    ]
    assert document["ranges"][0]["span_ids"] == ["5" * 16, "5" * 16]


def test_one_rank_or_one_capture_may_be_asked_for(runspan: Cli, tmp_path: Path) -> None:
    """With --rank, or the file of one rank's capture, the other ranks' spans are not expected."""
    report = _report(tmp_path, ("step", 1), ("step/forward", 1))
    capture = runspan.root / "runs" / "run-a" / "captures" / "update-000000004" / "rank-00001.jsonl"
    for arguments in (["run-a", report, "--rank", "0"], [str(capture), report]):
        answer = runspan("trace", "nvtx", *arguments)
        assert answer.code == 0, answer
        assert "2 spans expected, 2 ranges observed: 2 matched" in answer.out


def test_a_profile_without_ranges_says_what_it_needs(runspan: Cli, tmp_path: Path) -> None:
    """Nothing of the run in a report is most often a package or an option that is missing."""
    answer = runspan("trace", "nvtx", "run-a", _report(tmp_path))
    assert answer.code == 1
    assert "0 ranges observed" in answer.out
    assert "pip install 'runspan[nvtx]'" in answer.err
    assert "--trace=nvtx" in answer.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no-such-run", "nsys.csv"], "no-such-run"),
        (["run-a", "no-such.csv"], "no-such.csv: cannot be read"),
        (["run-a", "{root}/runs/run-a/rank-00000.jsonl"], "nvtx_pushpop_sum"),
        (["{root}/runs/run-a/rank-00000.jsonl", "{report}"], "has no span that opens an NVTX range"),
        (["run-a", "{report}", "--rank", "7"], "has no span that opens an NVTX range"),
        (["run-a"], "CSV"),
    ],
)
def test_bad_input_is_2(runspan: Cli, tmp_path: Path, arguments: list[str], told: str) -> None:
    """A wrong run, report or rank is one line that names it."""
    report = _report(tmp_path, ("step", 1))
    answer = runspan("trace", "nvtx", *(text.format(root=runspan.root, report=report) for text in arguments))
    assert answer.code == 2
    assert told in answer.err
    assert "Traceback" not in answer.err
