"""NVTX ranges around the spans of captured steps, so that a profiler's timeline names them as the trace does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from runspan.tracefile.nvtx import SpanPaths, range_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from runspan._run.notices import Notices
    from runspan.tracefile.events import SpanStart

__all__ = ["ThreadRanges", "TraceRanges", "load_nvtx"]


def load_nvtx(notices: Notices) -> ThreadRanges | None:
    """Return what opens ranges; None where the ``nvtx`` package is not installed, or ``NVTX_DISABLE`` turns it off."""
    try:
        import nvtx  # noqa: PLC0415 - loads numpy where that is installed, and only who captures needs it
    except ImportError:
        return None
    return ThreadRanges(nvtx.push_range, nvtx.pop_range, notices) if nvtx.enabled() else None


class _Range:
    """A range that was opened, and whether its span has ended."""

    __slots__ = ("is_over", "stack")

    def __init__(self, stack: list[_Range]) -> None:
        self.stack = stack
        self.is_over = False


class _Stack(threading.local):
    """The calling thread's open ranges, outermost first."""

    def __init__(self) -> None:
        self.ranges: list[_Range] = []


class ThreadRanges:
    """Opens and closes ranges, which NVTX keeps as a stack a thread.

    Spans may end on another thread than they began on, or before the ones inside them: such a range is closed with
    those inside it, or when its own thread next opens or closes one, so that none is ever closed in another's place.

    Args:
        push: opens a range of a name on the calling thread.
        pop: closes the innermost one.
        notices: told when NVTX fails; no range is opened from then on.
    """

    def __init__(self, push: Callable[[str], object], pop: Callable[[], object], notices: Notices) -> None:
        self._push = push
        self._pop = pop
        self._notices = notices
        self._stack = _Stack()
        self._works = True

    def of_trace(self, correlation_id: str) -> TraceRanges:
        """Return what opens the ranges of one captured step.

        Args:
            correlation_id: the capture's.
        """
        return TraceRanges(self, correlation_id)

    def open(self, name: str) -> _Range | None:
        """Open a range on the calling thread; None when NVTX has failed."""
        stack = self._stack.ranges
        self._close_ended(stack)
        if not self._called(lambda: self._push(name)):
            return None
        opened = _Range(stack)
        stack.append(opened)
        return opened

    def close(self, opened: _Range) -> None:
        """Close a range, now or as soon as its thread can."""
        opened.is_over = True
        stack = self._stack.ranges
        if opened.stack is stack:
            self._close_ended(stack)

    def _close_ended(self, stack: list[_Range]) -> None:
        while stack and stack[-1].is_over:
            stack.pop()
            self._called(self._pop)

    def _called(self, call: Callable[[], object]) -> bool:
        """Call into NVTX; whatever it raises stops the ranges, and not the training."""
        if not self._works:
            return False
        try:
            call()
        except Exception as error:  # noqa: BLE001 - another package's code, called from the training's
            self._works = False
            self._notices.warn_once("nvtx", f"NVTX ranges are off from now on: {type(error).__name__}: {error}")
        return self._works


class TraceRanges:
    """Opens a range for each span of one captured step; what a span processor tells its spans to.

    Args:
        ranges: opens and closes them.
        correlation_id: the capture's.

    Attributes:
        is_live: whether a span that starts is about to run; one that is over already gets no range.
    """

    def __init__(self, ranges: ThreadRanges, correlation_id: str) -> None:
        self._ranges = ranges
        self._correlation_id = correlation_id
        self._paths = SpanPaths()
        self._open: dict[str, _Range] = {}
        self.is_live = True

    def started(self, start: SpanStart) -> None:
        """Open the range of a span."""
        path = self._paths.add(start)
        if not self.is_live:
            return
        opened = self._ranges.open(range_name(self._correlation_id, path))
        if opened is not None:
            self._open[start.id] = opened

    def ended(self, span_id: str) -> None:
        """Close the range of a span."""
        opened = self._open.pop(span_id, None)
        if opened is not None:
            self._ranges.close(opened)
