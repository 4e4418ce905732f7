from __future__ import annotations

import itertools
import signal
from typing import TYPE_CHECKING, Any

import pytest

from runspan import ids
from runspan.tracefile import Metric, read_run
from support.otlp_receiver import OtlpReceiver
from support.programs import Workplace, events_of, lines_of, wait_for

if TYPE_CHECKING:
    from pathlib import Path

#: Starts a Run of its rank when it is told to, tells what it has, and ends when it is told to.
_RANK = """
    import runspan, sys
    sys.stdin.readline()
    with runspan.start_run("ranks", params={"lr": 0.1}) as run:
        for step in range(100):
            run.log_metric("loss", run.rank_context.rank + step)
        with run.epoch(0), run.span("work"):
            pass
        print(run.trace_id, run.span_id, flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """Return an empty workplace."""
    return Workplace(tmp_path)


class _Ranks:
    """Four processes of one run, started one after the other."""

    def __init__(self, work: Workplace, **variables: str) -> None:
        self._processes = [
            work.start(
                _RANK,
                pass_fds=(),
                RUNSPAN_RUN_ID="r",
                RUNSPAN_RANK=str(rank),
                RUNSPAN_WORLD_SIZE="4",
                **variables,
            )
            for rank in range(4)
        ]

    def begin(self, rank: int) -> str:
        """Let a rank start its Run and return what it says."""
        self._tell(rank)
        stdout = self._processes[rank].stdout
        assert stdout is not None
        return stdout.readline()

    def end(self, rank: int) -> None:
        """Let a rank end."""
        self._tell(rank)
        ended = wait_for(self._processes[rank])
        assert ended.returncode == 0, ended.stderr

    def kill(self, rank: int) -> None:
        """Kill a rank."""
        self._processes[rank].kill()
        assert wait_for(self._processes[rank]).returncode == -signal.SIGKILL

    def _tell(self, rank: int) -> None:
        stdin = self._processes[rank].stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()


def _traces(work: Workplace) -> list[list[dict[str, Any]]]:
    return [work.trace(f"rank-{rank:05d}.jsonl") for rank in range(4)]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (3, 2, 1, 0)])
def test_four_ranks_are_one_trace_in_any_order(work: Workplace, order: tuple[int, ...]) -> None:
    """One trace id, one run span, four rank spans whose parent is the run's, also when rank 1 starts first; case 22."""
    with OtlpReceiver() as receiver:
        ranks = _Ranks(work, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}")
        said = {ranks.begin(rank) for rank in order}
        for rank in order:
            ranks.end(rank)
        spans = [span for span in receiver.spans if not span.attributes.get("runspan.pending")]
    assert said == {f"{ids.run_trace_id('r'):032x} {ids.run_span_id('r'):016x}\n"}
    assert {span.trace_id for span in spans} == {f"{ids.run_trace_id('r'):032x}"}
    (run_span,) = [span for span in spans if span.name == "run"]
    rank_spans = [span for span in spans if span.name == "rank"]
    assert run_span.span_id == f"{ids.run_span_id('r'):016x}"
    assert sorted(span.attributes["runspan.rank"] for span in rank_spans) == [0, 1, 2, 3]
    assert {span.parent_span_id for span in rank_spans} == {run_span.span_id}
    assert len([span for span in spans if span.name == "work"]) == 4
    assert len([span for span in spans if span.name == "epoch"]) == 1
    assert len({span.resource["service.instance.id"] for span in spans}) == 4
    traces = _traces(work)
    assert [len(events_of(lines, "span_start", name="run")) for lines in traces] == [1, 0, 0, 0]
    assert [len(events_of(lines, "span_start", name="epoch")) for lines in traces] == [1, 1, 1, 1]
    assert all(lines[-1]["status"] == "success" for lines in traces)
    look = work.run(
        """
        import runspan
        storage = runspan.open_storage()
        info = storage.get_run("r")
        points = storage.get_metrics("r", "loss")
        print(info.status, info.world_size, len(points), len({(p.rank, p.step) for p in points}), info.counts["steps"])
        """,
        name="look",
    )
    assert look.stdout == "success 4 400 400 0\n", look.stderr
    merged = [event for _, event in read_run(work.only_run).events() if isinstance(event, Metric)]
    assert len(merged) == 400


def test_with_rank_0_killed_the_run_can_be_told(work: Workplace) -> None:
    """Case 4: rank 0's file holds the run's start, and the other rank spans name it as parent."""
    ranks = _Ranks(work)
    for rank in (1, 0, 2, 3):
        ranks.begin(rank)
    ranks.kill(0)
    for rank in (1, 2, 3):
        ranks.end(rank)
    killed, *others = _traces(work)
    (run_start,) = events_of(killed, "span_start", name="run")
    assert run_start["id"] == f"{ids.run_span_id('r'):016x}"
    assert run_start["attributes"]["runspan.trace.run_id"] == "r"
    assert "terminal" not in [line["kind"] for line in killed]
    for lines in others:
        (rank_start,) = events_of(lines, "span_start", name="rank")
        assert rank_start["otel"]["parent_span_id"] == run_start["id"]
        assert rank_start["otel"]["trace_id"] == run_start["otel"]["trace_id"]
        assert lines[-1]["kind"] == "terminal"


def test_a_relaunch_after_a_kill_is_the_next_attempt(work: Workplace) -> None:
    """Cases 19 and 34: attempts are told apart, counters go on, and the later one supersedes in storage."""
    program = """
        import os, runspan, signal, sys
        with runspan.start_run("resumed", run_id="r") as run:
            first = int(sys.argv[1])
            for step in range(first, int(sys.argv[2])):
                run.log_metric_at("loss", step, run.rank_context.attempt)
                run.log_metric("automatic", step)
            run.log_param("attempt", run.rank_context.attempt)
            print(run.rank_context.attempt, run.current_step("automatic"), flush=True)
            if len(sys.argv) > 3:
                run._session.consumer.finish(10)  # what a longer run would have stored by now
                os.kill(os.getpid(), signal.SIGKILL)
    """
    assert work.run(program, "0", "213", "kill").stdout == "0 213\n"
    assert work.run(program, "200", "250", "kill").stdout == "1 263\n"
    last = work.run(program, "240", "301")
    assert last.stdout == "2 324\n", last.stderr
    run = read_run(work.only_run)
    assert [(trace.name.attempt, trace.name.rank) for trace in run.traces] == [(0, 0), (1, 0), (2, 0)]
    keys = [lines_of(path) for path in sorted(work.only_run.glob("rank-*.jsonl"))]
    assert [len(events_of(lines, "param")) for lines in keys] == [1, 1, 1]
    look = work.run(
        """
        import runspan
        storage = runspan.open_storage()
        points = storage.get_metrics("r", "loss")
        assert [p.step for p in points] == list(range(301))
        first = storage.get_metrics("r", "loss", attempt=0)
        print(*(sum(p.value == attempt for p in points) for attempt in range(3)), len(first))
        automatic = storage.get_metrics("r", "automatic")
        print(storage.get_run_status("r"), storage.get_params("r")["attempt"], len(automatic))
        """,
        name="look",
    )
    assert look.stdout.splitlines() == ["200 40 61 213", "success 2 324"], look.stderr


def test_attempts_race_for_their_names(work: Workplace) -> None:
    """Case 22: processes that start the same rank at the same moment each get an attempt and a file of their own."""
    program = """
        import runspan, sys
        sys.stdin.readline()
        with runspan.start_run("race", run_id="r", storage=runspan.InMemoryStorage()) as run:
            run.log_metric("loss", 1.0)
            print(run.rank_context.attempt)
    """
    processes = [work.start(program) for _ in range(6)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [wait_for(process) for process in processes]
    assert [each.returncode for each in ended] == [0] * 6, ended
    assert sorted(int(each.stdout) for each in ended) == list(range(6))
    assert len(list(work.only_run.glob("rank-00000*.jsonl"))) == 6


def test_many_processes_write_large_records_into_one_run_directory(work: Workplace) -> None:
    """Eight processes with records of 20 kB tear none and lose none."""
    program = """
        import runspan, sys
        rank = int(sys.argv[1])
        context = runspan.RankContext(rank, 8)
        with runspan.start_run("large", run_id="r", rank_context=context) as run:
            for index in range(150):
                run.event("large", index=index, text=chr(65 + rank) * 20_000)
    """
    processes = [work.start(program, str(rank), RUNSPAN_STORAGE="none") for rank in range(8)]
    for process in processes:
        ended = wait_for(process)
        assert ended.returncode == 0, ended.stderr
    for rank in range(8):
        events = events_of(work.trace(f"rank-{rank:05d}.jsonl"), "event", name="large")
        assert [event["attributes"]["index"] for event in events] == list(range(150))
        assert {event["attributes"]["text"] for event in events} == {chr(65 + rank) * 20_000}


def test_ranks_above_256_have_folders(work: Workplace) -> None:
    """Above 256 ranks a level stands between, and the reader finds the files there."""
    program = """
        import runspan, sys
        for rank in (0, 255, 256, 300):
            context = runspan.RankContext(rank, 301)
            with runspan.start_run("wide", run_id="r", rank_context=context) as run:
                run.log_metric("loss", rank)
                print("rank", rank)
    """
    done = work.run(program, RUNSPAN_CAPTURE_OUTPUT="1")
    assert done.returncode == 0, done.stderr
    files = {path.relative_to(work.only_run).as_posix() for path in work.only_run.rglob("*.jsonl")}
    assert files == {
        "ranks/00000/rank-00000.jsonl",
        "ranks/00000/rank-00255.jsonl",
        "ranks/00001/rank-00256.jsonl",
        "ranks/00001/rank-00300.jsonl",
    }
    assert (work.only_run / "ranks/00001/rank-00300.log").read_text() == "rank 300\n"
    assert len(list(itertools.chain(read_run(work.only_run).traces))) == 4
