"""A terminal that is drawn over: only the characters that changed are written, so that a slow line keeps up."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len
from rich.console import COLOR_SYSTEMS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console
    from rich.text import Text

__all__ = ["Screen"]

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # the alternate screen, without a cursor
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_CLEAR = "\x1b[0m\x1b[2J"
_CLEAR_REST = "\x1b[0m\x1b[K"
#: Unchanged characters up to so many between two changes are written again: moving over them would take as long.
_GAP = 4

#: A character with what is combined with it, and its style as the terminal's codes; a wide one is followed by "".
_Cell = tuple[str, str]
_BLANK: _Cell = (" ", "")


class Screen:
    """The terminal's alternate screen, from entering to leaving; what was there before comes back then.

    Args:
        console: says which colours there are; its file is the terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._descriptor = console.file.fileno()
        self._encoding = console.encoding
        self._color_system = None if console.color_system is None else COLOR_SYSTEMS[console.color_system]
        self._shown: list[list[_Cell]] = []
        self._size = (0, 0)
        self._is_entered = False
        self._modes: list[Any] | None = None
        #: How many bytes were written since the start.
        self.bytes_written = 0

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    def enter(self) -> None:
        """Take the terminal: nothing that is typed is shown until it is left."""
        self._is_entered = True
        self._shown = []
        self._size = (0, 0)
        if sys.stdin.isatty():
            modes = termios.tcgetattr(sys.stdin)
            self._modes = modes
            quiet = [*modes[:3], modes[3] & ~termios.ECHO, *modes[4:]]
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
        self._write(_ENTER)

    def leave(self) -> None:
        """Give the terminal back as it was; nothing when it is not taken."""
        if not self._is_entered:
            return
        self._is_entered = False
        try:
            # What a slow line has not taken yet is of a screen that vanishes: leaving must not wait for it.
            with contextlib.suppress(termios.error):
                termios.tcflush(self._descriptor, termios.TCOFLUSH)
            self._write(_LEAVE)
        finally:
            if self._modes is not None:
                with contextlib.suppress(termios.error):  # the terminal itself is gone
                    termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, self._modes)
                self._modes = None

    def size(self) -> tuple[int, int]:
        """Return columns and rows, as they are now; 80 and 24 where the terminal does not tell."""
        try:
            found = os.get_terminal_size(self._descriptor)
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def draw(self, lines: Sequence[Text], size: tuple[int, int]) -> None:
        """Show lines from the top; what is below them is empty.

        Args:
            lines: no wider than the terminal.
            size: columns and rows that they were made for.
        """
        columns, rows = size
        wanted = [self._cells(line)[:columns] for line in lines[:rows]]
        output = []
        if size != self._size:
            output.append(_CLEAR)
            self._shown, self._size = [], size
        for row in range(max(len(wanted), len(self._shown))):
            new = wanted[row] if row < len(wanted) else []
            old = self._shown[row] if row < len(self._shown) else []
            output.append(_changes(row, old, new))
        self._shown = wanted
        text = "".join(output)
        if text:
            self._write(text)

    def _cells(self, line: Text) -> list[_Cell]:
        cells: list[_Cell] = []
        for segment in line.render(self._console):
            style = segment.style
            code = ""
            if style is not None:
                shown = style.without_color if self._console.no_color else style
                code = shown.render("x", color_system=self._color_system).partition("x")[0]
            for character in segment.text:
                width = cell_len(character)
                if width > 0:
                    cells += [(character, code), *[("", code)] * (width - 1)]
                elif cells:  # it is combined with the one before, of which a wide one's second half is no part
                    base = -1 if cells[-1][0] else -2
                    cells[base] = (cells[base][0] + character, cells[base][1])
        while cells and cells[-1] == _BLANK:
            cells.pop()
        return cells

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, errors="replace")
        self.bytes_written += len(data)
        while data:
            data = data[os.write(self._descriptor, data) :]


def _changes(row: int, old: list[_Cell], new: list[_Cell]) -> str:
    """Return what turns one row into another."""
    output = []
    column, width = 0, len(new)
    while column < width:
        if column < len(old) and old[column] == new[column]:
            column += 1
            continue
        # A change in the right half of a wide character redraws it whole.
        while column > 0 and new[column][0] == "":
            column -= 1
        end = last = column + 1
        while end < width and end - last < _GAP:
            end += 1
            if not (end - 1 < len(old) and old[end - 1] == new[end - 1]):
                last = end
        while last < width and new[last][0] == "":
            last += 1
        output.append(f"\x1b[{row + 1};{column + 1}H{_styled(new[column:last])}")
        column = last
    if len(old) > width:
        output.append(f"\x1b[{row + 1};{width + 1}H{_CLEAR_REST}")
    return "".join(output)


def _styled(cells: Sequence[_Cell]) -> str:
    output, style = [], ""
    for character, code in cells:
        if code != style:
            if style:
                output.append("\x1b[0m")
            output.append(code)
            style = code
        output.append(character)
    if style:
        output.append("\x1b[0m")
    return "".join(output)
