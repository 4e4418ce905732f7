"""Slices of a trace in the order in which a profile lists them, sorted through a temporary file where they are many."""

from __future__ import annotations

import heapq
import struct
import tempfile
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["PlacedSlice", "sorted_slices"]

#: Slices that are sorted in memory; of more, so many at a time.
_CHUNK = 1 << 16
_RECORD = struct.Struct("<5q")
#: Records that a chunk's reader takes from the file at once.
_READ_RECORDS = 1024


class PlacedSlice(NamedTuple):
    """A slice on a lane; slices compare as a profile lists them: by lane and start, the enclosing one first.

    Attributes:
        lane: the lane.
        start_ns: where it begins.
        negative_end_ns: minus where it ends: of two that begin together the longer one comes first.
        depth: how many others it lies within.
        frame: what it is.
    """

    lane: int
    start_ns: int
    negative_end_ns: int
    depth: int
    frame: int


def sorted_slices(slices: Iterable[PlacedSlice]) -> Iterator[PlacedSlice]:
    """Yield slices in order; memory holds a chunk of them, the others are on disk."""
    with tempfile.TemporaryFile(prefix="runspan-sort-") as file:
        chunk: list[PlacedSlice] = []
        lengths: list[int] = []
        for each in slices:
            chunk.append(each)
            if len(chunk) == _CHUNK:
                lengths.append(_spill(chunk, file))
                chunk.clear()
        chunk.sort()
        begins = [sum(lengths[:position]) for position in range(len(lengths))]
        chunks = [_spilled(file, begin, length) for begin, length in zip(begins, lengths, strict=True)]
        yield from heapq.merge(*chunks, chunk)


def _spill(chunk: list[PlacedSlice], file: IO[bytes]) -> int:
    chunk.sort()
    return file.write(b"".join(_RECORD.pack(*each) for each in chunk))


def _spilled(file: IO[bytes], begin: int, length: int) -> Iterator[PlacedSlice]:
    position, end = begin, begin + length
    while position < end:
        file.seek(position)
        data = file.read(min(_READ_RECORDS * _RECORD.size, end - position))
        position += len(data)
        yield from map(PlacedSlice._make, _RECORD.iter_unpack(data))
