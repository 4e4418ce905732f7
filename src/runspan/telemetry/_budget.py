"""How many spans of a trace one rank may export."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar

from runspan.semconv import SpanName

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["RESERVED_NAMES", "SpanBudget"]

#: One of each a rank and trace: they hold the trace together and end last.
_FRAME_NAMES = frozenset({SpanName.RUN, SpanName.RANK, SpanName.STEP})
#: What a part of each rank's share is kept free for.
RESERVED_NAMES = _FRAME_NAMES | {SpanName.EPOCH, SpanName.ALERT, SpanName.GATE, SpanName.STEP_CAPTURED}
#: Which part that is: one span in four.
_RESERVED_DIVISOR = 4
#: Traces whose use is remembered; a run has one, and one a captured step.
_REMEMBERED_TRACES = 4096


T = TypeVar("T")


class SpanBudget:
    """Bounds the spans of each trace over all ranks, without the ranks talking to each other.

    A rank other than 0 has max(1, limit // (2 · world size)) spans a trace, rank 0 the rest. Ordinary spans may use
    three quarters of a share; ``epoch``, ``alert``, ``gate`` and ``step captured`` the rest too, but for the last
    places, which are those of ``run``, ``rank`` and ``step``. So the limit holds whatever a run does.

    Args:
        limit: ``max_exported_spans``.
        rank: this process's rank.
        world_size: how many ranks there are.
    """

    def __init__(self, limit: int, rank: int = 0, world_size: int = 1) -> None:
        others = max(1, limit // (2 * world_size))
        frame = 2 if rank == 0 else 1
        #: Spans of one trace that this rank may export.
        self.share = max(frame, limit - (world_size - 1) * others) if rank == 0 else others
        self._reserved_until = self.share - frame
        self._ordinary_until = self.share - max(frame, self.share // _RESERVED_DIVISOR)
        #: Ordinary spans, and those with the reserved ones, by trace; the frame has places of its own.
        self._used: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._frames: OrderedDict[int, int] = OrderedDict()
        self._spent: frozenset[int] = frozenset()

    def is_spent(self, name: str, trace_id: int) -> bool:
        """Whether a span is known not to fit, from any thread; False promises nothing."""
        return trace_id in self._spent and name not in RESERVED_NAMES

    def admit(self, span: ReadableSpan) -> bool:
        """Take a place for a span if there is one; from one thread only.

        Which ordinary spans fit does not depend on when those of the frame come, nor, while these keep to their part,
        when the reserved ones do: so a replay of the file, in the order of the file, admits what the run did.
        """
        context = span.context
        trace_id = 0 if context is None else context.trace_id
        if span.name in _FRAME_NAMES:
            frames = self._frames.get(trace_id, 0)
            if frames < self.share - self._reserved_until:
                _remember(self._frames, trace_id, frames + 1)
                return True
        ordinary, used = self._used.get(trace_id, (0, 0))
        is_ordinary = span.name not in RESERVED_NAMES
        if is_ordinary and ordinary >= self._ordinary_until and trace_id not in self._spent:
            self._spent |= {trace_id}
        if used >= self._reserved_until or (is_ordinary and ordinary >= self._ordinary_until):
            return False
        self._spent -= {_remember(self._used, trace_id, (ordinary + is_ordinary, used + 1))}
        return True


def _remember(used: OrderedDict[int, T], trace_id: int, amount: T) -> int | None:
    """Note what a trace has used; return the trace that is forgotten for it."""
    used[trace_id] = amount
    used.move_to_end(trace_id)
    return used.popitem(last=False)[0] if len(used) > _REMEMBERED_TRACES else None
