from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from runspan.tracefile import Metric, read
from support.otlp_receiver import OtlpReceiver
from support.programs import Workplace, events_of, kinds_of, lines_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """Return an empty workplace."""
    return Workplace(tmp_path)


def test_spans_of_forked_children_are_exported_by_the_parent(work: Workplace) -> None:
    """Case 1: 4 children with a span each and no flush: 4 child spans beside run and rank, one trace, 5 pids."""
    with OtlpReceiver() as receiver:
        done = work.run(
            """
            import os, runspan
            with runspan.start_run("forks") as run:
                for index in range(4):
                    if os.fork() == 0:
                        with run.span(f"child {index}"):
                            pass
                        os._exit(0)
                for _ in range(4):
                    os.wait()
            """,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}",
        )
        spans = [span for span in receiver.spans if not span.attributes.get("runspan.pending")]
    assert done.returncode == 0, done.stderr
    assert sorted(span.name for span in spans) == [*(f"child {index}" for index in range(4)), "rank", "run"]
    assert len({span.trace_id for span in spans}) == 1
    assert len({span.resource["process.pid"] for span in spans}) == 5
    rank = next(span for span in spans if span.name == "rank")
    assert {span.parent_span_id for span in spans if span.name.startswith("child")} == {rank.span_id}
    assert len({span.span_id for span in spans}) == 6


def test_a_childs_file_is_its_own(work: Workplace) -> None:
    """A child writes a file of its own: counters from 0, no terminal, parents in the parent's file left out."""
    done = work.run("""
        import os, runspan
        with runspan.start_run("forks", tags={"a": "b"}) as run:
            for _ in range(3):
                run.log_metric("loss", 1.0)
            with run.span("outer"):
                pid = os.fork()
                if pid == 0:
                    assert runspan.current_run() is run and not run.is_finished()
                    assert run.current_step("loss") == 0 and run.metric_keys() == [] and run.summary == {}
                    run.log_metric("loss", 2.0)
                    with run.span("in child"), run.step(), run.span("in step"):
                        run.count("images")
                    run.log_param("late", 1)
                    run.event("note")
                    with run.epoch(1):
                        pass
                    os._exit(0)
                os.waitpid(pid, 0)
            assert run.current_step("loss") == 3
            run.log_metric("loss", 1.0)
            print(pid)
    """)
    assert done.returncode == 0, done.stderr
    (child,) = work.child_traces
    assert child.name == f"rank-00000.child-{done.stdout.strip()}.jsonl"
    lines, parents = lines_of(child), work.trace()
    assert lines[0]["process"]["pid"] == int(done.stdout) != parents[0]["process"]["pid"]
    assert lines[0] | {"timestamp": "", "time_unix_nano": 0, "process": {}, "resource": {}} == parents[0] | {
        "timestamp": "",
        "time_unix_nano": 0,
        "process": {},
        "resource": {},
    }
    assert "terminal" not in kinds_of(lines)
    assert [line["step"] for line in events_of(lines, "metric")] == [0]
    starts = {line["name"]: line for line in events_of(lines, "span_start")}
    (outer,) = events_of(parents, "span_start", name="outer")
    assert list(starts) == ["in child", "in step", "epoch"]
    assert "parent_id" not in starts["in child"]
    assert starts["in child"]["otel"]["parent_span_id"] == outer["id"]
    assert starts["in step"]["parent_id"] == starts["in child"]["id"]
    assert {line["key"] for line in events_of(lines, "param")} == {"late"}
    assert [line["step"] for line in events_of(parents, "metric")] == [0, 1, 2, 3]
    assert events_of(parents, "param") == []
    assert parents[-1]["status"] == "success"


@pytest.mark.parametrize(
    "end",
    [
        "run.finish(); os._exit(0)",
        "run.finish('failed'); run.log_metric('late', 1.0); os._exit(0)",
        "sys.exit(0)",
        "raise SystemExit(0)",
        "del run; gc.collect(); os._exit(0)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "pass",
    ],
)
def test_no_end_of_a_child_touches_the_parents_run(work: Workplace, end: str) -> None:
    """Case 2: whichever way a child ends, it ends soon, and the parent's file and storage stay as they are."""
    done = work.run(f"""
        import gc, os, runspan, signal, sys, time
        with runspan.start_run("forks", run_id="r") as run:
            run.log_metric("loss", 1.0)
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                run.log_metric("child", 1.0)
                {end}
            else:
                began = time.monotonic()
                _, status = os.waitpid(pid, 0)
                assert time.monotonic() - began < 5
                assert not run.is_finished() and run.status() == "running"
                run.log_metric("loss", 2.0)
        if os.getpid() == parent:
            storage = runspan.open_storage()
            print(storage.get_run_status("r"), [point.value for point in storage.get_metrics("r", "loss")],
                  storage.get_metrics("r", "child"))
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "success [1.0, 2.0] []\n"
    lines = work.trace()
    assert lines[-1]["status"] == "success"
    assert kinds_of(lines).count("terminal") == 1
    assert [line["value"] for line in events_of(lines, "metric")] == [1.0, 2.0]
    (child,) = work.child_traces
    assert "terminal" not in kinds_of(lines_of(child))


def test_forks_while_a_thread_logs_in_a_tight_loop(work: Workplace) -> None:
    """A lock that another thread holds at the moment of the fork is no child's: every child records and ends."""
    done = work.run("""
        import os, runspan, threading
        with runspan.start_run("forks") as run:
            def log():
                while not run.is_finished():
                    run.log_metric("loss", 1.0)
                    with run.span("busy"):
                        run.count("images")
                    run.log_metric("refused", "text")
            for _ in range(3):
                threading.Thread(target=log, daemon=True).start()
            for index in range(60):
                pid = os.fork()
                if pid == 0:
                    run.log_metric("child", index)
                    with run.span("in child"), run.step():
                        run.log_metric("refused", "text")
                    run.finish()
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
    """)
    assert done.returncode == 0, done.stderr
    assert len(work.child_traces) == 60
    for child in work.child_traces:
        assert [line["name"] for line in events_of(lines_of(child), "span_start")] == ["in child"]
    assert work.trace()[-1]["status"] == "success"


def test_multiprocessing_by_fork(work: Workplace) -> None:
    """Processes and pools of multiprocessing record into child files, found by current_run()."""
    done = work.run("""
        import multiprocessing, runspan
        def work(index):
            runspan.current_run().log_metric("work", index)
            return index
        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            with runspan.start_run("forks") as run:
                with context.Pool(3) as pool:
                    assert sorted(pool.map(work, range(30))) == list(range(30))
                process = context.Process(target=run.log_metric, args=("work", 30))
                process.start()
                process.join()
                assert process.exitcode == 0
    """)
    assert done.returncode == 0, done.stderr
    values = [line["value"] for child in work.child_traces for line in events_of(lines_of(child), "metric")]
    assert sorted(values) == list(range(31))
    assert work.trace()[-1]["status"] == "success"


def test_a_child_takes_sigterm_as_it_did_before_the_run(work: Workplace) -> None:
    """A child that blocks in C code dies of SIGTERM: no handler waits there for the interpreter."""
    done = work.run("""
        import os, runspan, signal
        earlier = signal.getsignal(signal.SIGTERM)
        with runspan.start_run("forks"):
            assert signal.getsignal(signal.SIGTERM) is not earlier
            pid = os.fork()
            if pid == 0:
                os._exit(0 if signal.getsignal(signal.SIGTERM) is earlier is signal.SIG_DFL else 1)
            assert os.waitpid(pid, 0)[1] == 0
            assert signal.getsignal(signal.SIGTERM) is not earlier
    """)
    assert done.returncode == 0, done.stderr


def test_multiprocessing_by_spawn(work: Workplace) -> None:
    """Case 12: a Run does not pickle, and says what to do; with child_environ the spawned process joins the run."""
    done = work.run("""
        import multiprocessing, os, runspan
        def use(run):
            pass
        def join(environ):
            os.environ.update(environ)
            with runspan.start_run() as run, run.span("spawned"):
                run.log_metric("work", 1.0)
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            with runspan.start_run("spawns", run_id="r") as run:
                try:
                    context.Process(target=use, args=(run,)).start()
                except TypeError as error:
                    print(error)
                process = context.Process(target=join, args=(run.child_environ({}),))
                process.start()
                process.join()
                assert process.exitcode == 0
    """)
    assert done.returncode == 0, done.stderr
    assert "child_environ" in done.stdout
    assert len(work.runs) == 1
    (child,) = work.child_traces
    (span,) = events_of(lines_of(child), "span_start")
    assert span["otel"]["parent_span_id"] == work.trace()[0]["span_id"]
    assert span["otel"]["trace_id"] == work.trace()[0]["trace_id"]


def test_a_loaders_workers_ended_by_sigterm(work: Workplace) -> None:
    """Workers that record in a tight loop die of SIGTERM as they would, keep their lines, and the loader goes on."""
    done = work.run("""
        import multiprocessing, runspan, time
        def load(queue):
            run = runspan.current_run()
            for index in range(10**9):
                with run.span("load", index=index) as span:
                    span.set_attribute("late", index)
                    run.log_metric("loaded", index)
                if index == 20:
                    queue.put("ready")
        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            with runspan.start_run("loader") as run:
                for round in range(6):
                    queue = context.Queue()
                    workers = [context.Process(target=load, args=(queue,)) for _ in range(4)]
                    for worker in workers:
                        worker.start()
                    for worker in workers:
                        queue.get(timeout=30)
                    for worker in workers:
                        worker.terminate()
                    began = time.monotonic()
                    for worker in workers:
                        worker.join(20)
                    print(*(worker.exitcode for worker in workers))
                    assert time.monotonic() - began < 10
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(-signal.SIGTERM)] * 24
    assert len(work.child_traces) == 24
    for child in work.child_traces:
        values = [event.value for event in read(child) if isinstance(event, Metric)]
        assert values == list(range(len(values)))
        assert len(values) > 20
    assert [line.get("name") for line in events_of(work.trace(), "event")] == []
    assert work.trace()[-1]["status"] == "success"


def test_an_earlier_handler_is_called_in_the_child_too(work: Workplace) -> None:
    """In a child SIGTERM reaches the program's own handler, as it would have, and the parent is not concerned."""
    done = work.run("""
        import os, runspan, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        with runspan.start_run("forks") as run:
            pid = os.fork()
            if pid == 0:
                run.log_metric("child", 1.0)
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(1)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    assert work.trace()[-1]["status"] == "success"


def test_grandchildren_and_children_of_a_finished_run(work: Workplace) -> None:
    """A child's child has a file of its own; a child of a finished run has none, and records nothing."""
    done = work.run("""
        import os, runspan
        def child(work):
            pid = os.fork()
            if pid == 0:
                work()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        with runspan.start_run("forks") as run:
            def deeper():
                with run.span("child"):
                    child(lambda: run.span("grandchild").__enter__().end())
            child(deeper)
        child(lambda: run.log_metric("late", 1.0))
    """)
    assert done.returncode == 0, done.stderr
    names = {line["name"]: line for child in work.child_traces for line in events_of(lines_of(child), "span_start")}
    assert set(names) == {"child", "grandchild"}
    assert len(work.child_traces) == 2
    assert names["grandchild"]["otel"]["parent_span_id"] == names["child"]["id"]
    assert "parent_id" not in names["grandchild"]


def test_a_childs_large_file_goes_on_in_parts(work: Workplace) -> None:
    """A child's trace is cut into parts like any other, and the parent ships spans of all of them."""
    with OtlpReceiver("http/protobuf") as receiver:
        done = work.run(
            """
            import os, runspan
            with runspan.start_run("forks") as run:
                pid = os.fork()
                if pid == 0:
                    for index in range(200):
                        with run.span("work", text="x" * 400):
                            pass
                    os._exit(0)
                os.waitpid(pid, 0)
            """,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}",
            RUNSPAN_OTLP_PROTOCOL="http/protobuf",
            RUNSPAN_MAX_FILE_BYTES="64KiB",
        )
        spans = [span for span in receiver.spans if span.name == "work"]
    assert done.returncode == 0, done.stderr
    assert len(spans) == 200
    assert len({span.span_id for span in spans}) == 200
