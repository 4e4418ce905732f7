"""What the commands print: tables for people, columns for pipes, one JSON document for machines."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import unicodedata
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runspan._plain import float_name
from runspan.tracefile.events import jsonable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from rich.console import Console
    from rich.table import Table

__all__ = [
    "LABEL_WIDTH",
    "STATUS_STYLES",
    "Column",
    "bar_means",
    "clean",
    "command_line",
    "counted",
    "format_age",
    "format_bytes",
    "format_duration",
    "format_number",
    "format_time",
    "note",
    "open_console",
    "plain",
    "print_field",
    "print_heading",
    "print_json",
    "print_rows",
    "say",
    "sparkline",
    "spinner",
]

STATUS_STYLES = {
    "pending": "dim",
    "running": "cyan",
    "success": "green",
    "failed": "red",
    "cancelled": "yellow",
    "interrupted": "magenta",
}
#: How wide the labels of a page's fields are.
LABEL_WIDTH = 11
_PROGRAM = "runspan"
_BARS = "▁▂▃▄▅▆▇█"
_NO_BAR = "·"
_GAP = "  "
_MIN_SHRUNK = 6
_NS_PER_S = 1_000_000_000
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_EXACT_INTEGER = 10**15
#: Wide enough that no line of a pipe or file is folded.
_UNFOLDED_WIDTH = 10_000


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Attributes:
        title: its heading.
        right: whether its values are numbers, which stand to the right.
        whole: whether its values are folded where nothing else helps, so that they can be copied; others are cut.
        shrinks: whether its values are cut first where a terminal is too narrow for all.
    """

    title: str
    right: bool = False
    whole: bool = False
    shrinks: bool = False


def open_console(*, stderr: bool = False) -> Console:
    """Return a console that takes text as it is: no markup, no emoji codes, colours only on a terminal."""
    from rich.console import Console  # noqa: PLC0415 - only who prints loads rich

    class QuietConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # main() knows what to do

    console = QuietConsole(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _UNFOLDED_WIDTH
    return console


def spinner(text: str) -> AbstractContextManager[Any]:
    """Return what shows on a terminal's stderr that something is going on."""
    console = open_console(stderr=True)
    return console.status(text) if console.is_terminal else nullcontext()


def say(text: str) -> None:
    """Print a line of the answer on stdout, as it is."""
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """Tell people something on stderr, which is no part of the answer."""
    sys.stderr.write(f"runspan: {clean(text)}\n")


def command_line(*arguments: str) -> str:
    """Return a command of this program that can be pasted into a shell.

    The program is called by its name where the shell finds it by that, else by the path that it was called by.
    """
    called = Path(sys.argv[0])
    program = _PROGRAM
    if called.name == _PROGRAM:
        found = shutil.which(_PROGRAM)
        if found is None or not called.exists() or not called.samefile(found):
            program = str(called)
    return shlex.join([program, *arguments])


def counted(count: int, noun: str) -> str:
    """Return a number of things: ``1 run``, ``2 runs``, ``2 processes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def print_json(document: Any) -> None:
    """Print one JSON document that a strict parser takes; a non-finite float is its name, as in a trace file."""
    text = json.dumps(plain(msgspec.to_builtins(document)), indent=2, ensure_ascii=False, allow_nan=False)
    # Line by line: of one large write to an unbuffered stdout Python does not tell that its reader has left.
    for line in text.split("\n"):
        say(line)


def plain(value: Any) -> Any:
    """Return a tree of values as JSON has them, non-finite floats by their names."""
    if isinstance(value, dict):
        return {str(jsonable(str(key))): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return float_name(value)
    return jsonable(value)


def print_heading(console: Console, title: str) -> None:
    """Print the heading of a part of a page."""
    console.print()
    console.print(title, style="bold")


def print_field(console: Console, label: str, text: str, *, style: str | None = None) -> None:
    """Print one labelled value of a page."""
    from rich.text import Text  # noqa: PLC0415 - the console has loaded it

    line = Text()
    line.append(f"  {label:<{LABEL_WIDTH}}", style="dim")
    line.append(clean(text), style=style)
    console.print(line, soft_wrap=True)


def print_rows(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, status_column: int | None = None
) -> None:
    """Print a table on a terminal, else columns that are padded with spaces.

    Args:
        console: where to.
        columns: the headings.
        rows: one string a column.
        status_column: the column whose values are coloured as statuses.
    """
    cleaned = [[clean(cell) for cell in row] for row in rows]
    if console.is_terminal:
        console.print(_table(*_shrunk(columns, cleaned, console.width), status_column))
        return
    widths = _widths(columns, cleaned)
    for row in ([column.title for column in columns], *cleaned):
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, column, width in zip(row, columns, widths, strict=True)
        ]
        say(_GAP.join(cells).rstrip())


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, (column.title, *(row[index] for row in rows)))) for index, column in enumerate(columns)]


def _shrunk(columns: Sequence[Column], rows: list[list[str]], width: int) -> tuple[Sequence[Column], list[list[str]]]:
    """Cut titles and values of the columns that may shrink, so that the table fits a width where it can."""
    widths = _widths(columns, rows)
    titles = [column.title for column in columns]
    excess = sum(widths) + len(_GAP) * (len(columns) - 1) - width
    for index, column in enumerate(columns):
        if column.shrinks and excess > 0:
            limit = max(_MIN_SHRUNK, widths[index] - excess)
            excess -= widths[index] - limit
            for cells in (titles, *rows):
                cells[index] = _cut(cells[index], limit)
    cut = [msgspec.structs.replace(column, title=title) for column, title in zip(columns, titles, strict=True)]
    return cut, rows


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], status_column: int | None) -> Table:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - see open_console
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            overflow="fold" if column.whole else "ellipsis",
            no_wrap=not column.whole,
        )
    for row in rows:
        cells = [Text(cell) for cell in row]
        if status_column is not None:
            cells[status_column].stylize(STATUS_STYLES.get(row[status_column], ""))
        table.add_row(*cells)
    return table


def clean(text: str) -> str:
    """Escape what would move a terminal's cursor or break a line; names and values are the user's."""
    if text.isprintable():
        return text
    # Format characters (joiners, marks of direction) are not printable for Python, but belong to some scripts.
    return "".join(
        character if character.isprintable() or unicodedata.category(character) == "Zs" else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Draw values as a line of bars at most ``width`` characters long, each bar the mean of its share of the values.

    A dot stands for values that are all NaN or infinite.
    """
    means = bar_means(values, width)
    finite = [mean for mean in means if mean is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    # Halved, so that the span of the largest floats is finite.
    span = high / 2 - low / 2
    return "".join(_NO_BAR if mean is None else _BARS[_level(mean / 2 - low / 2, span)] for mean in means)


def bar_means(values: Sequence[float], width: int) -> list[float | None]:
    """Return at most ``width`` means of equal shares of the values; None for a share without a finite one."""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    return [_finite_mean(values[start:end]) for start, end in pairwise(edges)]


def _level(above: float, span: float) -> int:
    return min(len(_BARS) - 1, int(above / span * len(_BARS))) if span > 0 else 0


def _finite_mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(value / len(finite) for value in finite) if finite else None


def format_number(value: float) -> str:
    """Show a number with four digits that matter; whole numbers whole."""
    if not math.isfinite(value):
        return str(plain(float(value)))
    if value == int(value) and abs(value) < _EXACT_INTEGER:
        return str(int(value))
    return f"{value:.4g}"


def format_duration(duration_ns: float) -> str:
    """Show a duration with its unit: ``850 µs``, ``12.3 ms``, ``4.5 s``, ``3m 20s``, ``2h 05m``, ``3d 4h``."""
    seconds = duration_ns / _NS_PER_S
    if seconds < _MINUTE_S:
        for factor, unit in ((1, "s"), (1e3, "ms")):
            if seconds * factor >= 1:
                return f"{_three_digits(seconds * factor)} {unit}"
        return f"{_three_digits(seconds * 1e6)} µs" if seconds else "0 s"
    whole = round(seconds)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S}m {whole % _MINUTE_S:02d}s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S}h {whole % _HOUR_S // _MINUTE_S:02d}m"
    return f"{whole // _DAY_S}d {whole % _DAY_S // _HOUR_S}h"


def format_age(time_unix_nano: int, now_unix_nano: int) -> str:
    """Show how long ago something was, in whole seconds: ``12 s``, ``3m 20s``."""
    age_s = max(0, now_unix_nano - time_unix_nano) // _NS_PER_S
    return f"{age_s} s" if age_s < _MINUTE_S else format_duration(age_s * _NS_PER_S)


def format_time(time_unix_nano: int) -> str:
    """Show a wall time in UTC, to the second."""
    return f"{datetime.fromtimestamp(time_unix_nano // _NS_PER_S, UTC):%Y-%m-%d %H:%M:%S}Z"


def format_bytes(size: int) -> str:
    """Show a size: ``512 B``, ``3.4 MiB``."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:  # noqa: PLR2004 - the units' own step
            return f"{_three_digits(amount)} {unit}" if unit != "B" else f"{size} B"
        amount /= 1024
    return f"{_three_digits(amount)} TiB"


def _three_digits(amount: float) -> str:
    decimals = 2 if amount < 10 else 1 if amount < 100 else 0  # noqa: PLR2004 - what leaves three digits
    return f"{amount:.{decimals}f}"
