from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runspan.tracefile import SpanEnd, SpanStart, read
from runspan.tracefile.reader import TraceStatus, peek
from support.programs import Workplace, events_of, kinds_of, lines_of, wait_for

_TESTS = Path(__file__).parents[1]

#: Says so when its loop runs, and goes on until it is told to stop by whatever the test does.
_LOOP = """
    import runspan, sys, time
    with runspan.start_run("loop") as run:
        run.log_metric("loss", 0.5)
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
"""


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """Return an empty workplace."""
    return Workplace(tmp_path)


def _signal_when_ready(process: subprocess.Popen[str], number: signal.Signals) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)


def _storm(
    tmp_path: Path, work: str, handler: str, count: int, number: signal.Signals = signal.SIGTERM
) -> list[dict[str, Any]]:
    """Signal so many recording processes at random moments; return how each ended, with its trace's lines."""
    command = [sys.executable, "-m", "support.termination", "--work", work, "--handler", handler]
    done = subprocess.run(
        [*command, "--count", str(count), "--signal", number.name],
        cwd=_TESTS,
        env=Workplace(tmp_path).environ(
            RUNSPAN_STORAGE="none", RUNSPAN_CAPTURE="wait=0,warmup=0,active=1,repeat=0" if work == "captures" else ""
        ),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == count
    runs = Workplace(tmp_path).root / "runs"
    return [
        {**each, "lines": lines_of(runs / f"{work}-{handler}-{each['index']}/rank-00000.jsonl")} for each in results
    ]


@pytest.mark.parametrize("work", ["metrics", "spans", "steps", "journal", "threads"])
@pytest.mark.parametrize(
    ("handler", "exit_code", "calls"), [("default", -signal.SIGTERM, 0), ("returns", 44, 1), ("raises", 43, 1)]
)
def test_sigterm_at_random_moments_of_a_tight_loop(
    tmp_path: Path, work: str, handler: str, exit_code: int, calls: int
) -> None:
    """Case 23: no deadlock, the earlier handler called once, the exit as it would have been, the run Cancelled."""
    for each in _storm(tmp_path, work, handler, 14):
        assert not each["hung"], each
        assert each["exit"] == exit_code
        assert each["handler_calls"] == calls
        terminal = each["lines"][-1]
        assert (terminal["kind"], terminal["outcome"]) == ("terminal", "failed")
        assert (terminal["status"], terminal["reason"]) == ("cancelled", "SIGTERM")
        assert each["elapsed_s"] < 3.0


@pytest.mark.parametrize(
    ("number", "handler", "exit_code"),
    [
        (signal.SIGTERM, "default", -signal.SIGTERM),
        (signal.SIGTERM, "returns", 44),
        (signal.SIGTERM, "raises", 43),
        (signal.SIGINT, "default", 45),
    ],
)
def test_a_signal_at_random_moments_of_captured_steps(
    tmp_path: Path, number: signal.Signals, handler: str, exit_code: int
) -> None:
    """No deadlock while evidence is recorded; SIGTERM leaves each capture whole, Ctrl-C at most one that is cut."""
    for each in _storm(tmp_path, "captures", handler, 12, number):
        assert not each["hung"], each
        assert each["exit"] == exit_code
        run = Workplace(tmp_path).root / f"runs/captures-{handler}-{each['index']}"
        paths = sorted(run.glob("captures/*/rank-00000.jsonl"))
        assert paths
        whole = [path for path in paths if path.read_bytes().rpartition(b'{"kind":"terminal"')[1]]
        assert len(paths) - len(whole) <= (0 if number is signal.SIGTERM else 1)
        for path in whole:
            lines = lines_of(path)
            assert [index for index, kind in enumerate(kinds_of(lines)) if kind == "terminal"] == [len(lines) - 1]
            if number is signal.SIGTERM:
                assert len(events_of(lines, "span_start")) == len(events_of(lines, "span_end"))


@pytest.mark.parametrize("work", ["metrics", "spans", "steps", "journal"])
def test_ctrl_c_at_random_moments_of_a_tight_loop(tmp_path: Path, work: str) -> None:
    """Case 23: wherever KeyboardInterrupt strikes, it goes on to the caller, and the file is whole and Cancelled."""
    for each in _storm(tmp_path, work, "default", 12, signal.SIGINT):
        assert not each["hung"], each
        assert each["exit"] == 45
        assert (each["lines"][-1]["status"], each["lines"][-1]["reason"]) == ("cancelled", "KeyboardInterrupt")
        trace = Workplace(tmp_path).root / f"runs/{work}-default-{each['index']}/rank-00000.jsonl"
        kinds = Counter(type(event) for event in read(trace))  # no end without its start
        assert kinds[SpanStart] - kinds[SpanEnd] in {0, 1}


@pytest.mark.parametrize(("handler", "exit_code"), [("default", -signal.SIGTERM), ("returns", 44), ("raises", 43)])
def test_sigterm_inside_finish(tmp_path: Path, handler: str, exit_code: int) -> None:
    """A signal during finish waits for its end: the run stays what it was finished as, and the exit is as ever."""
    for each in _storm(tmp_path, "finish", handler, 14):
        assert not each["hung"], each
        assert each["exit"] == exit_code
        assert each["lines"][-1]["status"] == "success"


def test_sigterm_without_an_earlier_handler_ends_spans_and_says_so_in_storage(work: Workplace) -> None:
    """The run is finished before the process dies of SIGTERM: spans ended, storage Cancelled, file terminal."""
    process = work.start(_LOOP)
    _signal_when_ready(process, signal.SIGTERM)
    assert wait_for(process).returncode == -signal.SIGTERM
    lines = work.trace()
    assert lines[-1]["kind"] == "terminal"
    started = {line["id"] for line in events_of(lines, "span_start")}
    assert started == {line["id"] for line in events_of(lines, "span_end")}
    status = work.run("import runspan; print(*runspan.open_storage().list_runs()[0].status.split())", name="look")
    assert status.stdout == "cancelled\n", status.stderr


def test_an_earlier_handler_that_returns_leaves_the_run_open(work: Workplace) -> None:
    """Training goes on after such a handler; what is logged then is kept, and an explicit finish keeps its status."""
    process = work.start(
        """
        import runspan, signal, sys, time
        stop = []
        signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
        with runspan.start_run("loop") as run:
            print("ready", flush=True)
            while not stop:
                time.sleep(0.01)
            assert stop == [1] and not run.is_finished()
            run.log_metric("after", 1.0)
            run.finish(sys.argv[1])
    """,
        "success",
    )
    _signal_when_ready(process, signal.SIGTERM)
    ended = wait_for(process)
    assert ended.returncode == 0, ended.stderr
    lines = work.trace()
    assert lines[-1]["status"] == "success"
    assert [line["key"] for line in events_of(lines, "metric")] == ["after"]
    assert [line["name"] for line in events_of(lines, "event")] == ["SIGTERM"]


def test_handlers_are_put_back_and_chains_stay_whole(work: Workplace) -> None:
    """A handler installed later that calls ours does not recurse, over two Runs; the first one is back at the end."""
    done = work.run("""
        import os, runspan, signal
        calls = []
        def first(*_): calls.append("first")
        signal.signal(signal.SIGTERM, first)
        run = runspan.start_run("a")
        assert signal.getsignal(signal.SIGTERM) is not first
        ours = signal.getsignal(signal.SIGTERM)
        def later(number, frame):
            calls.append("later")
            ours(number, frame)
        signal.signal(signal.SIGTERM, later)
        run.finish()
        assert signal.getsignal(signal.SIGTERM) is later
        with runspan.start_run("b") as again:
            os.kill(os.getpid(), signal.SIGTERM)
            assert calls == ["later", "first"], calls
        assert signal.getsignal(signal.SIGTERM) is later
        signal.signal(signal.SIGTERM, first)
        runspan.start_run("c").finish()
        assert signal.getsignal(signal.SIGTERM) is first
        print(again.status())
    """)
    assert (done.returncode, done.stdout) == (0, "cancelled\n"), done.stderr


def test_a_later_handler_over_the_default_one_decides(work: Workplace) -> None:
    """A handler installed after the Run's that calls it, as it would an earlier one, is not overruled: no death."""
    done = work.run("""
        import os, runspan, signal
        with runspan.start_run("a") as run:
            ours = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda *given: ours(*given))
            os.kill(os.getpid(), signal.SIGTERM)
        print(run.status())
    """)
    assert (done.returncode, done.stdout) == (0, "cancelled\n"), done.stderr


def test_ignored_sigterm_stays_ignored(work: Workplace) -> None:
    """Where the program ignores SIGTERM, the run goes on as if nothing was sent."""
    done = work.run("""
        import os, runspan, signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with runspan.start_run("a") as run:
            os.kill(os.getpid(), signal.SIGTERM)
            run.log_metric("loss", 1.0)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        print(run.status())
    """)
    assert (done.returncode, done.stdout) == (0, "success\n"), done.stderr


def test_a_run_started_on_another_thread_installs_no_handler(work: Workplace) -> None:
    """Signal handlers are the main thread's: a Run of another thread leaves SIGTERM alone and works all the same."""
    done = work.run("""
        import runspan, signal, threading
        def train():
            with runspan.start_run("a") as run:
                run.log_metric("loss", 1.0)
                assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    """)
    assert done.returncode == 0, done.stderr
    assert work.trace()[-1]["status"] == "success"


def test_the_deferred_signal_is_handled_on_the_main_thread(work: Workplace) -> None:
    """With other threads recording at the same time, an earlier handler still runs on the main thread alone."""
    done = work.run("""
        import os, runspan, signal, threading, time
        threads = set()
        signal.signal(signal.SIGTERM, lambda *_: threads.add(threading.get_ident()))
        with runspan.start_run("a") as run:
            def log():
                while not run.is_finished():
                    run.event("other")
            for _ in range(3):
                threading.Thread(target=log, daemon=True).start()
            for _ in range(150):
                timer = threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGTERM))
                timer.start()
                while timer.is_alive():
                    run.log_metric("loss", 1.0)
                timer.join()
            for _ in range(10):
                run.log_metric("loss", 1.0)
        assert threads == {threading.main_thread().ident}, threads
    """)
    assert done.returncode == 0, done.stderr
    assert work.trace()[-1]["reason"] == "SIGTERM"


def test_process_1_of_a_container_is_not_ended(work: Workplace) -> None:
    """The kernel spares process 1 without a handler: the run goes on, and ends Cancelled when the program ends."""
    if os.geteuid() != 0:
        pytest.skip("a process namespace of its own needs root")
    script = work.folder / "train.py"
    script.write_text(
        "import os, runspan, signal\n"
        "with runspan.start_run('a') as run:\n"
        "    assert os.getpid() == 1\n"
        "    os.kill(1, signal.SIGTERM)\n"
        "    run.log_metric('loss', 1.0)\n"
        "print(run.status())\n"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, str(script)]
    done = subprocess.run(command, cwd=work.folder, env=work.environ(), capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this machine gives no process namespace")
    assert (done.returncode, done.stdout) == (0, "cancelled\n"), done.stderr


_STATUS_MATRIX = {
    "return": ("pass", 0, "success", None),
    "exception": ("raise ValueError('bad loss')", 1, "failed", "ValueError: bad loss"),
    "sys.exit(0)": ("sys.exit(0)", 0, "success", None),
    "sys.exit(False)": ("sys.exit(False)", 0, "success", None),
    "sys.exit()": ("sys.exit()", 0, "success", None),
    "sys.exit(1)": ("sys.exit(1)", 1, "failed", "SystemExit: 1"),
    "sys.exit(text)": ("sys.exit('no data')", 1, "failed", "SystemExit: no data"),
    "sys.exit(list)": ("sys.exit([1])", 1, "failed", "SystemExit: [1]"),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(5)", -signal.SIGINT, "cancelled", "KeyboardInterrupt"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)", -signal.SIGTERM, "cancelled", "SIGTERM"),
    "asyncio": ("raise __import__('asyncio').CancelledError", 1, "cancelled", "CancelledError"),
    "BaseException": ("raise type('Odd', (BaseException,), {})('x')", 1, "failed", "Odd: x"),
    "GeneratorExit": ("raise GeneratorExit", 1, "success", None),
}


@pytest.mark.parametrize("how", _STATUS_MATRIX)
def test_status_matrix_of_the_with_block(work: Workplace, how: str) -> None:
    """Case 23: each way to leave the block has its status in file and storage, and leaves the exit code as it was."""
    code, exit_code, status, reason = _STATUS_MATRIX[how]
    done = work.run(f"""
        import os, runspan, signal, sys, time
        with runspan.start_run("matrix", run_id="m") as run:
            run.log_metric("loss", 1.0)
            {code}
    """)
    assert done.returncode == exit_code, done.stderr
    terminal = work.trace()[-1]
    assert (terminal["status"], terminal.get("reason")) == (status, reason)
    assert terminal["outcome"] == ("complete" if status == "success" else "failed")
    look = work.run(
        """
        import runspan
        info = runspan.open_storage().get_run("m")
        print(info.status, info.reason)
    """,
        name="look",
    )
    assert look.stdout == f"{status} {reason}\n", look.stderr


def test_an_exception_is_on_the_spans_and_its_traceback_in_the_file(work: Workplace) -> None:
    """An exception in the block fails rank and run span and leaves its traceback as an event."""
    work.run("""
        import runspan
        with runspan.start_run("matrix"):
            raise ValueError("bad loss, password=hunter2hunter2")
    """)
    lines = work.trace()
    (event,) = events_of(lines, "event", name="exception")
    assert "bad loss" in event["attributes"]["exception.stacktrace"]
    assert "Traceback" in event["attributes"]["exception.stacktrace"]
    ends = events_of(lines, "span_end")
    assert [end["status"]["code"] for end in ends] == ["error", "error"]
    assert ends[0]["events"][0]["name"] == "exception"
    assert "hunter2" not in (work.only_run / "rank-00000.jsonl").read_text()


@pytest.mark.parametrize(
    ("code", "exit_code", "status", "reason"),
    [
        ("", 0, "success", "exit"),
        ("sys.exit(3)", 3, "success", "exit"),
        ("raise ValueError('bad; api_key=hunter2hunter2')", 1, "failed", "ValueError: bad; api_key=***"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "cancelled", "KeyboardInterrupt"),
    ],
)
def test_a_run_still_open_at_interpreter_exit(
    work: Workplace, code: str, exit_code: int, status: str, reason: str
) -> None:
    """An open Run is finished at exit: Failed after an uncaught exception, else Success with the reason exit."""
    done = work.run(f"""
        import runspan, sys
        run = runspan.start_run("open")
        run.log_metric("loss", 1.0)
        {code}
    """)
    assert done.returncode == exit_code, done.stderr
    lines = work.trace()
    assert (lines[-1]["status"], lines[-1]["reason"]) == (status, reason)
    assert ("exception" in [line.get("name") for line in lines]) == (status == "failed")


def test_sigkill_leaves_everything_that_was_accepted(work: Workplace) -> None:
    """Case 4: after SIGKILL the file has meta, all 100 metrics and the open spans, and reads as interrupted."""
    process = work.start(
        """
        import runspan, time
        with runspan.start_run("killed") as run:
            for _ in range(100):
                run.log_metric("loss", 0.5)
            print("ready", flush=True)
            time.sleep(60)
        """,
        RUNSPAN_HEARTBEAT_S="0.1",
    )
    _signal_when_ready(process, signal.SIGKILL)
    assert wait_for(process).returncode == -signal.SIGKILL
    lines = work.trace()
    assert kinds_of(lines)[0] == "meta"
    assert [line["step"] for line in events_of(lines, "metric")] == list(range(100))
    assert [line["name"] for line in events_of(lines, "span_start")] == ["run", "rank"]
    path = work.only_run / "rank-00000.jsonl"
    for _ in range(100):
        seen = peek(path)
        if seen.state.status is not TraceStatus.RUNNING:
            break
        signal.sigtimedwait([], 0.02)
    assert seen.state.status is TraceStatus.INTERRUPTED
    assert str(seen.state).startswith("interrupted, last seen 2")


def test_kill_9_in_a_tight_loop_loses_no_call_that_returned(work: Workplace) -> None:
    """Every log_metric call that returned before SIGKILL is in the file, in order."""
    for round_number in range(8):
        read, write = os.pipe()
        process = work.start(
            """
            import os, runspan, sys
            report = int(sys.argv[1])
            with runspan.start_run("killed", run_id=sys.argv[2]) as run:
                step = 0
                while True:
                    run.log_metric("loss", step)
                    step += 1
                    os.write(report, step.to_bytes(8, "little"))
            """,
            str(write),
            f"kill-{round_number}",
            pass_fds=[write],
            RUNSPAN_STORAGE="none",
        )
        os.close(write)
        returned = 0
        with os.fdopen(read, "rb") as report:
            while returned < 500 + 137 * round_number:
                returned = int.from_bytes(report.read(8), "little")
            process.kill()
            for chunk in iter(lambda: report.read(8), b""):
                returned = int.from_bytes(chunk, "little")
        wait_for(process)
        lines = _whole_lines(work.root / f"runs/kill-{round_number}/rank-00000.jsonl")
        values = [line["value"] for line in events_of(lines, "metric")]
        assert values == list(range(len(values)))
        assert returned <= len(values) <= returned + 1


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]
