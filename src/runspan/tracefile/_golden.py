"""Golden traces: how alike the spans of a run are to those of a run that was found good."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from runspan.errors import RunspanError
from runspan.tracefile._parts import open_first, open_part
from runspan.tracefile.events import SpanEnd, SpanStart, decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from runspan.tracefile._parts import Part
    from runspan.tracefile.events import TraceEvent

__all__ = ["EQUIVALENT_FROM", "MAX_SPANS", "GoldenScore", "SpanSequence", "SpanTimeoutError", "score_spans"]

#: Two runs whose score is at least this did the same.
EQUIVALENT_FROM = 0.85
#: Spans of a trace that are compared: the first ones.
MAX_SPANS = 16_384
_SEQUENCE_WEIGHT, _TIMING_WEIGHT, _MATCH_WEIGHT = 0.4, 0.2, 0.4
#: How a line begins that is of interest; of a trace with many metrics it is few.
_SPAN_LINE = b'{"kind":"span_'


class SpanTimeoutError(RunspanError):
    """Reading a trace's spans took longer than it may."""


class GoldenScore(msgspec.Struct, frozen=True, kw_only=True):
    """How alike two traces are; each share is from 0 to 1.

    Attributes:
        score: 0.4 · ``sequence_similarity`` + 0.2 · (1 - ``timing_variation``) + 0.4 · ``matching_share``.
        sequence_similarity: length of the longest common subsequence of the two sequences of span names, in the order
            in which the spans began, divided by the length of the longer sequence; 1 where both are empty.
        timing_variation: for each span name that both have with a duration, the difference of the two median durations;
            their sum divided by the sum of the larger medians. So a name counts as much as it takes time, and the noise
            of a span of microseconds counts as nothing. 0 where all medians are 0 or neither side has a span, 1 where
            no name is on both sides.
        matching_share: how many spans have a partner of the same path (the names from the root span down) on the other
            side, each partner used once, divided by the number of spans of the longer side; 1 where both are empty.
    """

    score: float
    sequence_similarity: float
    timing_variation: float
    matching_share: float

    @property
    def is_equivalent(self) -> bool:
        """Whether the two did the same: a score of 0.85 or more."""
        return self.score >= EQUIVALENT_FROM


class SpanSequence(msgspec.Struct, frozen=True):
    """The first 16,384 spans of a trace, in the order in which they began.

    Attributes:
        names: their names.
        paths: for each, a digest of the names from its root down, however deep it is.
        durations_ns: the durations of each name's spans, ns.
    """

    names: list[str]
    paths: list[bytes]
    durations_ns: dict[str, list[int]]

    @classmethod
    def read(cls, path: Path, deadline_ns: int, *, open_until_ns: int | None = None) -> SpanSequence:
        """Read the spans of a trace file, all its parts; no other line of it is decoded.

        Args:
            path: any file of the trace.
            deadline_ns: when to give up, on the monotonic clock.
            open_until_ns: until when spans without an end are counted, ns since the trace's start: the trace is still
                being written. None: they have no duration.

        Raises:
            TraceFormatError: there is no such trace, or a span's line is none.
            SpanTimeoutError: it is not read at the deadline.
        """
        starts: dict[str, SpanStart] = {}
        paths: dict[str, bytes] = {}
        durations_ns: dict[str, int] = {}
        for event in _span_events(path, deadline_ns):
            if isinstance(event, SpanStart):
                if len(starts) < MAX_SPANS:
                    starts[event.id] = event
                    paths[event.id] = _below(paths.get(event.parent_id or "", b""), event.name)
            elif isinstance(event, SpanEnd) and event.id in starts:
                durations_ns[event.id] = event.duration_ns
        by_name: dict[str, list[int]] = {}
        for span_id, start in starts.items():
            duration_ns = durations_ns.get(span_id)
            if duration_ns is None and open_until_ns is not None:
                duration_ns = max(0, open_until_ns - start.start_ns)
            if duration_ns is not None:
                by_name.setdefault(start.name, []).append(duration_ns)
        return cls([start.name for start in starts.values()], list(paths.values()), by_name)


def score_spans(golden: SpanSequence, candidate: SpanSequence) -> GoldenScore:
    """Tell how alike a candidate is to the golden trace.

    The cost is bounded, whatever the traces: at most 16,384 spans of each, and for the longest common subsequence one
    addition on integers of as many bits a span, which takes some tens of milliseconds.
    """
    longer = max(len(golden.names), len(candidate.names))
    common_paths = Counter(golden.paths) & Counter(candidate.paths)
    sequence = common_subsequence_length(golden.names, candidate.names) / longer if longer else 1.0
    matching = common_paths.total() / longer if longer else 1.0
    timing = _timing_variation(golden.durations_ns, candidate.durations_ns)
    return GoldenScore(
        score=_SEQUENCE_WEIGHT * sequence + _TIMING_WEIGHT * (1 - timing) + _MATCH_WEIGHT * matching,
        sequence_similarity=sequence,
        timing_variation=timing,
        matching_share=matching,
    )


def common_subsequence_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, which need not be contiguous.

    The columns of the classic table are bits of one integer, after Hyyrö 2004, "Bit-Parallel LCS-length Computation
    Revisited": a bit that turns 0 is a step of the length.
    """
    places: dict[str, int] = {}
    for position, name in enumerate(first):
        places[name] = places.get(name, 0) | 1 << position
    everything = (1 << len(first)) - 1
    row = everything
    for name in second:
        matched = row & places.get(name, 0)
        row = (row + matched | row - matched) & everything
    return len(first) - row.bit_count()


def _timing_variation(golden_ns: dict[str, list[int]], candidate_ns: dict[str, list[int]]) -> float:
    medians = [(median(golden_ns[name]), median(candidate_ns[name])) for name in golden_ns.keys() & candidate_ns.keys()]
    if not medians:
        return 1.0 if golden_ns or candidate_ns else 0.0
    larger_ns = sum(map(max, medians))
    return sum(abs(before - after) for before, after in medians) / larger_ns if larger_ns else 0.0


def _below(parent: bytes, name: str) -> bytes:
    """Return the digest of the path of a span below a parent."""
    return hashlib.blake2b(parent + name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _span_events(path: Path, deadline_ns: int) -> Iterator[TraceEvent]:
    part: Part | None = open_first(path)
    while part is not None:
        with part:
            while lines := part.read_lines():
                if time.monotonic_ns() > deadline_ns:
                    raise SpanTimeoutError(f"{path} is too long to be compared at the end of a run")
                for line in lines:
                    if line.startswith(_SPAN_LINE):
                        yield decode(line)
        name = part.name
        part = None if name is None else open_part(path.parent, name.next_part())
