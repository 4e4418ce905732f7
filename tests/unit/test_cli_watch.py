from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from runspan.cli._watch_screen import Screen
from runspan.cli._watch_view import Page, frame_lines, status_line
from runspan.frames import FrameRank
from support.cli import Cli, cut_end, make_run
from support.traces import make_terminal
from support.watched_frames import NOW_UNIX_NANO, Terminal, make_frame, make_metric_of

if TYPE_CHECKING:
    from pathlib import Path

    from runspan.frames import Frame


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run commands on an empty root folder."""
    return Cli(tmp_path / "root", capsys)


def _lines(frame: Frame, width: int = 80, height: int | None = 24, **page: Any) -> list[str]:
    made = frame_lines(frame, Page(width=width, height=height, **page), NOW_UNIX_NANO)
    return [line.plain for line in made]


def test_a_frame_at_80_columns_and_24_rows() -> None:
    """Status, rate, ETA, metrics with trend, ranks with the slow one marked, usage and alerts, newest first."""
    lines = _lines(make_frame())
    assert lines[0] == "mnist  running  1m 40s  01a2"
    assert lines[1].startswith("step 1,234 (1,234/2,000)  ━━━")
    assert lines[1].endswith("61 %  12.7 steps/s  ETA 1m 00s")
    assert lines[2] == "CPU  45%  memory 3.00 GiB of 16.0 GiB (19%)  GPU  97%"
    assert lines[4].split() == ["METRIC", "LAST", "MIN", "MAX", "NEWEST"]
    assert lines[5].split()[0] == "metric/0"
    assert lines[5][-1] in "↗↘→"
    assert lines[9].split() == ["RANK", "STATUS", "STEP", "TIME", "OWN"]
    assert lines[11].split()[:3] == ["1", "running", "1,234"]
    assert lines[11].endswith("█ slow")
    assert lines[13] == "ALERTS"
    assert lines[14].startswith("22:15:00Z  error     rank 0: alert 1: which has a text")
    assert lines[14].endswith("…")
    assert max(map(len, lines)) <= 80


@settings(max_examples=150, deadline=None)
@given(
    width=st.integers(10, 240),
    height=st.integers(1, 70),
    ranks=st.integers(0, 90),
    metrics=st.integers(0, 60),
    alerts=st.integers(0, 20),
    ascii_only=st.booleans(),
)
def test_every_frame_fits(  # noqa: PLR0917 - hypothesis names them
    width: int, height: int, ranks: int, metrics: int, alerts: int, ascii_only: bool
) -> None:
    """Whatever there is to show, no line is wider and no page higher than the terminal."""
    frame = make_frame(ranks=ranks, metrics=metrics, alerts=alerts, problems=("unreadable",))
    lines = _lines(frame, width, height, ascii_only=ascii_only)
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)
    if ascii_only:
        assert all(line.isascii() for line in lines)


def test_what_does_not_fit_is_counted_and_what_matters_is_shown() -> None:
    """Of a thousand ranks the slow one and one that failed are shown; each part says how many more there are."""
    frame = make_frame(ranks=1_000, metrics=100, alerts=20)
    ranks = list(frame.ranks)
    ranks[500] = FrameRank(rank=500, status="failed")
    text = "\n".join(_lines(msgspec.structs.replace(frame, ranks=tuple(ranks), metrics_left_out=7)))
    assert " 999  running" in text
    assert " 500  failed" in text
    assert "metric/0" in text
    assert text.count(" more\n") == 2
    assert " older\n" in text


def test_a_silent_rank_and_a_lost_connection_are_told() -> None:
    """A rank that has not been heard of for a minute, and why there is no newer frame."""
    silent = msgspec.structs.replace(make_frame(ranks=1).ranks[0], last_seen_unix_nano=NOW_UNIX_NANO - 60_000_000_000)
    frame = msgspec.structs.replace(make_frame(ranks=1), ranks=(silent,))
    made = frame_lines(frame, Page(width=80, height=24), NOW_UNIX_NANO, "cannot reach 127.0.0.1:7776")
    lines = [line.plain for line in made]
    assert lines[2] == "! cannot reach 127.0.0.1:7776"
    assert any(line.endswith("silent for 1m 00s") for line in lines)


def test_values_that_are_no_numbers_and_names_that_are_hostile() -> None:
    """NaN and infinities are shown; control characters of names and alerts never reach the terminal."""
    frame = make_frame(alerts=0, metrics=0)
    identity = msgspec.structs.replace(frame.run, experiment="a\x1b[2Jb", name="x\ny")
    metrics = (
        make_metric_of("loss\x1b]0;title\x07", [math.nan, math.inf, 1.0, math.nan]),
        make_metric_of("損失/訓練", [1.0, 2.0]),
        make_metric_of("none", []),
        make_metric_of("k" * 300, [1.0], rank=3),
    )
    lines = _lines(msgspec.structs.replace(frame, run=identity, metrics=metrics))
    assert all(line.isprintable() for line in lines)
    assert any("NaN" in line for line in lines)
    assert all(cell_len(line) <= 80 for line in lines)


def test_a_long_name_does_not_push_out_the_status() -> None:
    """An experiment's name of 300 characters is cut."""
    frame = make_frame()
    lines = _lines(msgspec.structs.replace(frame, run=msgspec.structs.replace(frame.run, experiment="e" * 300)))
    assert lines[0] == f"{'e' * 39}…  running  1m 40s  01a2"


def test_a_run_without_steps_metrics_or_ranks() -> None:
    """A run that has only begun, or one that nothing is known of, is a frame too."""
    frame = make_frame(ranks=0, metrics=0, alerts=0, status="pending", start_unix_nano=None)
    assert _lines(frame) == ["mnist  pending  01a2", "no step yet"]


def test_a_status_line() -> None:
    """The same in one line, for a terminal that cannot be drawn over."""
    assert status_line(make_frame(metrics=1)) == (
        "running  step 1,234 (1,234/2,000)  12.7 steps/s  ETA 1m 00s  metric/0 1  rank 1 is slow"
        "  2 alerts, the newest: error: alert 1"
    )


class _Drawn:
    """A screen over a pipe, and a terminal that takes what it writes."""

    def __init__(self, columns: int, rows: int, **console: Any) -> None:
        self._reader, writer = os.pipe()
        self._file = os.fdopen(writer, "w", encoding="utf-8")
        self.screen = Screen(Console(file=self._file, force_terminal=True, color_system="standard", **console))
        self.terminal = Terminal(columns, rows)
        self.size = (columns, rows)

    def draw(self, lines: list[Text]) -> int:
        """Draw lines, and return how many bytes that took."""
        before = self.screen.bytes_written
        self.screen.draw(lines, self.size)
        written = self.screen.bytes_written - before
        self.terminal.feed(self._read(written).decode())
        return written

    def close(self) -> None:
        """Close the pipe."""
        self._file.close()
        os.close(self._reader)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += os.read(self._reader, count - len(data))
        return data


_TEXTS = st.lists(
    st.lists(
        st.tuples(st.text("ab 損失e\u0301█", max_size=9), st.sampled_from(["", "red", "bold", "dim"])), max_size=4
    ).map(lambda parts: Text.assemble(*parts, end="")),
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(frames=st.lists(_TEXTS, min_size=1, max_size=5))
def test_drawing_changes_alone_shows_the_same_as_drawing_everything(frames: list[list[Text]]) -> None:
    """Whatever frames follow each other, with wide and combined characters, the terminal shows the last one."""
    drawn = _Drawn(80, 6)
    try:
        for lines in frames:
            drawn.draw(lines)
            wanted = [line.plain.lstrip("\u0301").rstrip() for line in lines]  # it has nothing to be combined with
            assert drawn.terminal.lines == [*wanted, *[""] * (6 - len(wanted))]
        assert drawn.draw(frames[-1]) == 0
    finally:
        drawn.close()


def test_a_running_training_costs_a_slow_line_few_bytes() -> None:
    """A frame whose numbers and curves all move takes a fraction of a whole one; one that stands still takes none."""
    drawn = _Drawn(80, 24)
    try:
        page = Page(width=80, height=24)

        def draw(second: int) -> int:
            frame = make_frame(ranks=4, metrics=4, steps=1_234 + 12 * second)
            return drawn.draw(frame_lines(frame, page, NOW_UNIX_NANO + second * 1_000_000_000))

        whole = draw(0)
        changes = [draw(second) for second in range(1, 20)]
        assert sum(changes) / len(changes) < whole / 2
        still = frame_lines(make_frame(), page, NOW_UNIX_NANO)
        drawn.draw(still)
        assert drawn.draw(still) == 0
    finally:
        drawn.close()


def test_without_colours_nothing_is_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR only bold and dim are left."""
    monkeypatch.setenv("NO_COLOR", "1")
    drawn = _Drawn(80, 24)
    try:
        written: list[str] = []
        monkeypatch.setattr(drawn.terminal, "feed", written.append)
        drawn.draw(frame_lines(make_frame(), Page(width=80, height=24), NOW_UNIX_NANO))
    finally:
        drawn.close()
    assert "\x1b[1m" in written[0]
    assert not [code for code in range(30, 38) if f"\x1b[{code}m" in written[0] or f";{code}m" in written[0]]


def test_once_prints_one_frame(cli: Cli) -> None:
    """The page goes to a pipe whole and without codes; a run that succeeded is exit code 0."""
    make_run(cli.root, "r1", world_size=2)
    answer = cli("watch", "--once")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("mnist  success")
    assert "\x1b" not in answer.out
    assert "loss" in answer.out
    assert cli("watch", "r1", "--json").document["run"]["run_id"] == "r1"


@pytest.mark.parametrize(("end", "status"), [("failed", "failed"), ("cut", "interrupted")])
def test_a_run_that_did_not_succeed_is_exit_code_1(cli: Cli, end: str, status: str) -> None:
    """Its last frame is printed, and the command ends by itself."""
    failed = msgspec.structs.replace(make_terminal(), outcome="failed", status="failed")
    directory = make_run(cli.root, "r1", terminal=failed if end == "failed" else None)
    if end == "cut":
        cut_end(directory)
    answer = cli("watch", str(directory))
    assert answer.code == 1
    assert status in answer.out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no run 'nothing'"),
        ([], "no run 'latest'"),
        (["127.0.0.1:1", "--once"], "cannot reach a dashboard at 127.0.0.1:1"),
        (["127.0.0.1:99999", "--once"], "with a port from 1 to 65535"),
        (["x", "--run", "r1"], "go with HOST:PORT"),
        (["--interval", "0"], "0.1"),
    ],
)
def test_what_cannot_be_watched(cli: Cli, arguments: list[str], said: str) -> None:
    """One line says what is wrong, and the exit code is 2."""
    answer = cli("watch", *arguments)
    assert answer.code == 2
    assert said in answer.err
