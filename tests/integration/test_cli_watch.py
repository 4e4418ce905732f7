from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Self

import pytest

from runspan.directory_frames import DirectoryFrames
from runspan.rpc import RemoteDashboard, serve
from support.programs import Workplace
from support.watched_frames import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

_TIMEOUT_S = 60.0
#: Trains until it is told to end by a line on stdin.
_TRAINING = """
    import select, sys, time
    import runspan

    with runspan.start_run("watched", run_id="r1", storage=runspan.InMemoryStorage()) as run:
        for number in run.steps(range(100_000)):
            with run.phase("forward"):
                time.sleep(0.01)
            run.log_metric("loss/train", 1 / (number + 1))
            if number == 30:
                run.alert("look here", "the training said so", "warning")
                print("ready", flush=True)
            if select.select([sys.stdin], [], [], 0)[0]:
                break
"""


class _Watch:
    """``runspan watch`` on a pseudo-terminal.

    Args:
        work: where the runs are.
        arguments: the command's.
        columns: the terminal's width.
        rows: its height.
        variables: what its environment has beside the basics.
    """

    def __init__(self, work: Workplace, *arguments: str, columns: int = 80, rows: int = 24, **variables: str) -> None:
        self._leader, self.follower = os.openpty()
        self.resize(columns, rows)
        self.modes = termios.tcgetattr(self.follower)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        environ = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8", **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runspan.cli", "watch", *arguments],
            env=work.environ(**environ),
            cwd=work.folder,
            stdin=self.follower,
            stdout=self.follower,
            stderr=self.follower,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._leader)
        os.close(self.follower)

    def resize(self, columns: int, rows: int) -> None:
        """Change the terminal's size, without telling anybody."""
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.size = (columns, rows)

    def read_until(self, is_enough: Callable[[str], bool]) -> str:
        """Read until what has been printed is enough; return it all.

        Raises:
            AssertionError: it never is.
        """
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not is_enough(self.text):
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not enough: {self.text[-2_000:]!r}")
            self._read(0.05)
        return self.text

    def wait(self) -> int:
        """Read to the end of the process, and return its exit code."""
        self.read_until(lambda _: self.process.poll() is not None)
        while self._read(0.0):
            pass
        return self.process.returncode

    def _read(self, timeout_s: float) -> bool:
        """Take what has been printed, waiting so long for it; return whether there was something."""
        if not select.select([self._leader], [], [], timeout_s)[0]:
            return False
        self.text += self._decoder.decode(os.read(self._leader, 65_536))
        return True

    def shown(self) -> list[str]:
        """Return what stands on the screen, by all that was drawn since it was last cleared."""
        terminal = Terminal(*self.size)
        drawn = self.text.rpartition("\x1b[0m\x1b[2J")[2]
        terminal.feed(drawn[: match.start()] if (match := re.search(r"\x1b[^A-Za-z]*$", drawn)) else drawn)
        return terminal.lines


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """Return an empty workplace."""
    return Workplace(tmp_path)


@pytest.fixture
def training(work: Workplace) -> Iterator[subprocess.Popen[str]]:
    """Start a training that has done 30 steps and goes on."""
    process = work.start(_TRAINING)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def _end(training: subprocess.Popen[str]) -> None:
    assert training.stdin is not None
    training.stdin.write("end\n")
    training.stdin.flush()
    training.wait(_TIMEOUT_S)


@pytest.mark.usefixtures("training")
def test_a_live_run_of_another_process_and_ctrl_c(work: Workplace) -> None:
    """The view shows the run and moves; Ctrl-C leaves screen, cursor and terminal modes as they were, with code 130."""
    with _Watch(work, "--interval", "0.1") as watch:
        watch.read_until(lambda text: "look here" in text and text.count("\x1b[2;") > 3)
        shown = watch.shown()
        assert shown[0].startswith("watched  running")
        assert re.match(r"step \d+ \(\d+/100,000\)", shown[1])
        assert any(line.startswith("loss/train") and line[-1] in "↘→" for line in shown)
        assert any("look here: the training said so" in line for line in shown)
        assert not termios.tcgetattr(watch.follower)[3] & termios.ECHO
        watch.process.send_signal(signal.SIGINT)
        assert watch.wait() == 130
        assert watch.text.startswith("\x1b[?1049h\x1b[?25l")
        assert watch.text.endswith("\x1b[0m\x1b[?25h\x1b[?1049l")
        assert termios.tcgetattr(watch.follower) == watch.modes


@pytest.mark.usefixtures("training")
def test_sigterm_gives_the_terminal_back(work: Workplace) -> None:
    """A watch that is told to end leaves the terminal as it was."""
    with _Watch(work, "--interval", "0.1") as watch:
        watch.read_until(lambda text: "look here" in text)
        watch.process.terminate()
        assert watch.wait() == 128 + signal.SIGTERM, watch.text
        assert watch.text.endswith("\x1b[0m\x1b[?25h\x1b[?1049l")
        assert termios.tcgetattr(watch.follower) == watch.modes


@pytest.mark.usefixtures("training")
def test_ctrl_c_on_a_line_that_takes_nothing_any_more(work: Workplace) -> None:
    """What a stuck line has not taken is dropped: the program ends at once, and restores the terminal's modes."""
    with _Watch(work, "--interval", "0.1", columns=200, rows=50) as watch:
        watch.read_until(lambda text: "look here" in text)
        for number in range(20):  # each draws everything again, and nobody reads
            watch.resize(200, 30 + number)
            watch.process.send_signal(signal.SIGWINCH)
            time.sleep(0.1)
        watch.process.send_signal(signal.SIGINT)
        assert watch.process.wait(10) == 130
        assert termios.tcgetattr(watch.follower) == watch.modes
        assert watch.wait() == 130
        assert watch.text.endswith("\x1b[0m\x1b[?25h\x1b[?1049l")


@pytest.mark.usefixtures("training")
def test_a_terminal_that_is_gone_is_one_line(work: Workplace) -> None:
    """Where the terminal is closed and nobody sends SIGHUP, the watch ends with 2 and a line on stderr."""
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "runspan.cli", "watch", "--interval", "0.1"],
        env=work.environ(TERM="xterm-256color"),
        cwd=work.folder,
        stdin=follower,
        stdout=follower,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    os.close(follower)
    assert os.read(leader, 1) == b"\x1b"
    os.close(leader)
    _, said = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 2
    assert said.startswith("runspan: Input/output error")
    assert said.count("\n") == 1


@pytest.mark.usefixtures("training")
def test_a_window_that_changes_its_size(work: Workplace) -> None:
    """The signal alone redraws the view at the new size, without waiting for the next look."""
    with _Watch(work, "--interval", "3600") as watch:
        watch.read_until(lambda text: "look here" in text)
        before = len(watch.text)
        watch.resize(50, 8)
        watch.process.send_signal(signal.SIGWINCH)
        watch.read_until(lambda text: "\x1b[2J" in text[before:] and watch.shown()[0].startswith("watched  running"))


def test_the_end_of_the_run_ends_the_watch(work: Workplace, training: subprocess.Popen[str]) -> None:
    """The last frame stays on the terminal as ordinary text, and the exit code is 0."""
    with _Watch(work, "--interval", "0.1") as watch:
        watch.read_until(lambda text: "look here" in text)
        _end(training)
        assert watch.wait() == 0
        final = watch.text.rpartition("\x1b[?1049l")[2]
        assert "success" in final
        assert "look here" in final
        assert "\x1b[?" not in final


@pytest.mark.parametrize("terminal", ["dumb", "pipe"])
def test_where_nothing_can_be_drawn_over(work: Workplace, training: subprocess.Popen[str], terminal: str) -> None:
    """A dumb terminal and a pipe get a line whenever something has changed, and the last frame at the end."""
    if terminal == "dumb":
        with _Watch(work, "--interval", "0.1", TERM="dumb") as watch:
            watch.read_until(lambda text: text.count("running") > 2)
            _end(training)
            assert watch.wait() == 0
            printed = watch.text
    else:
        command = [sys.executable, "-m", "runspan.cli", "watch", "--interval", "0.1"]
        with subprocess.Popen(
            command, env=work.environ(), cwd=work.folder, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            _end(training)
            printed = "".join([*lines, process.stdout.read()])
        assert process.returncode == 0
    assert "\x1b" not in printed
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  running  step \d+", printed)
    assert "watched  success" in printed


def test_over_grpc_the_same_is_shown(work: Workplace, training: subprocess.Popen[str]) -> None:
    """The view of a server moves; a server that goes away and comes back is told of; the frames are equal."""
    directory = work.only_run
    server = serve(directory, "127.0.0.1:0")
    address = str(server.address)
    with _Watch(work, address, "--interval", "0.1", "--run", "r1") as watch:
        watch.read_until(lambda text: "look here" in text)
        server.close(0)
        watch.read_until(lambda text: "cannot reach a dashboard" in text)
        server = serve(directory, address)
        try:
            before = watch.read_until(lambda _: True)
            watch.read_until(lambda text: len(text) > len(before) and not watch.shown()[2].startswith("!"))
            _end(training)
            assert watch.wait() == 0
            assert "success" in watch.text.rpartition("\x1b[?1049l")[2]
            frames = DirectoryFrames(directory)
            remote = RemoteDashboard(address)
            try:
                assert remote.frame() == frames.frame()
            finally:
                remote.close()
                frames.close()
        finally:
            server.close(0)
