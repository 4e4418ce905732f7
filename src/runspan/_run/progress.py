"""A progress bar for a loop of steps."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["step_progress"]


@contextmanager
def step_progress(total: int | None, *, shown: bool) -> Iterator[Callable[[], None]]:
    """Yield what to call after each step; on a terminal's stderr it moves a bar, where one is asked for."""
    if not shown or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415 - loaded by who asks for a bar alone
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("steps", total=total)
        yield lambda: bar.advance(task)
