"""Frames to draw, and a terminal to draw them on."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from rich.cells import cell_len

from runspan.frames import Frame, FrameAlert, FrameMetric, FramePoint, FrameRank, RunIdentity
from runspan.records import AlertLevel, ResourceSnapshot, Trend

__all__ = ["NOW_UNIX_NANO", "Terminal", "make_frame", "make_metric_of"]

NOW_UNIX_NANO = 1_700_000_100_000_000_000
_START_UNIX_NANO = NOW_UNIX_NANO - 100_000_000_000


def make_metric_of(key: str, values: list[float], rank: int = 0) -> FrameMetric:
    """Return a metric with these values."""
    points = tuple(FramePoint(step, _START_UNIX_NANO + step, value) for step, value in enumerate(values))
    return FrameMetric(key, rank, len(values), points, Trend.of(values))


def make_frame(*, ranks: int = 2, metrics: int = 3, alerts: int = 2, steps: int = 1_234, **changes: Any) -> Frame:
    """Return a frame of a running training whose last rank is the slow one."""
    frame = Frame(
        run=RunIdentity(run_id="01a2", experiment_id="exp-1", experiment="mnist", world_size=ranks),
        status="running",
        start_unix_nano=_START_UNIX_NANO,
        last_seen_unix_nano=NOW_UNIX_NANO,
        ranks=tuple(
            FrameRank(
                rank=rank,
                status="running",
                last_seen_unix_nano=NOW_UNIX_NANO,
                steps=steps,
                last_step=steps,
                loop_done=steps % 2_000,
                loop_total=2_000,
                step_rate_hz=12.5 + steps % 7 / 10,
                step_ns=80e6,
                own_step_ns=79e6 if rank == ranks - 1 else 20e6 + rank,
                usage=ResourceSnapshot(cpu_util=0.45, memory_used=3 << 30, memory_total=16 << 30, gpu_util=0.97),
            )
            for rank in range(ranks)
        ),
        slow_rank=ranks - 1 if ranks > 1 else None,
        metrics=tuple(
            make_metric_of(f"metric/{index}", [(steps + each * 7 + index) % 11 / 3 for each in range(64)])
            for index in range(metrics)
        ),
        alerts=tuple(
            FrameAlert(
                rank=0,
                time_unix_nano=NOW_UNIX_NANO,
                level=AlertLevel.ERROR,
                title=f"alert {index}",
                text="which has a text that is far too long for one line of eighty columns, and goes on and on",
            )
            for index in range(alerts)
        ),
    )
    return msgspec.structs.replace(frame, **changes)


class Terminal:
    """As much of a terminal as the view uses: it is cleared, its cursor is moved, and characters are written.

    Args:
        columns: its width.
        rows: its height.
    """

    _PIECES = re.compile(r"\x1b\[\??([0-9;]*)([A-Za-z])|([^\x1b])")

    def __init__(self, columns: int, rows: int) -> None:
        self.rows = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        """What stands on it, without spaces at the ends."""
        return ["".join(row).rstrip() for row in self.rows]

    def feed(self, text: str) -> None:
        """Take what a program writes.

        Raises:
            AssertionError: it writes beyond the edges, or what this terminal does not know.
        """
        position = 0
        for piece in self._PIECES.finditer(text):
            if piece.start() != position:
                raise AssertionError(f"unknown: {text[position : piece.start()]!r}")
            position = piece.end()
            arguments, command, character = piece.groups()
            if character is not None:
                self._put(character)
            elif command == "H":
                self._row, self._column = (int(number) - 1 for number in arguments.split(";"))
            elif command == "K":
                self.rows[self._row][self._column :] = [" "] * (len(self.rows[self._row]) - self._column)
            elif command == "J":
                self.rows = [[" "] * len(row) for row in self.rows]
            elif command not in "mhl":
                raise AssertionError(f"unknown command {piece.group()!r}")

    def _put(self, character: str) -> None:
        row, width = self.rows[self._row], cell_len(character)
        if width == 0:
            row[self._column - 1] += character
            return
        if not character.isprintable() or self._column + width > len(row):
            raise AssertionError(f"{character!r} in column {self._column} of {len(row)}")
        row[self._column] = character
        if width > 1:
            row[self._column + 1] = ""
        self._column += width
