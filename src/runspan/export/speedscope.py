"""speedscope: a trace's spans as evented profiles, one a rank, for https://www.speedscope.app.

A rank's further attempts, child processes and captured steps are profiles of their own, and so are spans that do not
nest with the others (of other threads, or of tasks that outlive their parents): the format knows one stack a profile.

The format: https://github.com/jlfwong/speedscope/blob/main/src/lib/file-format-spec.ts
"""

from __future__ import annotations

from itertools import groupby
from typing import IO, TYPE_CHECKING, Any

import msgspec

from runspan._output_file import whole_file
from runspan._plain import scrub_text
from runspan._version import __version__
from runspan.errors import TraceFormatError
from runspan.export._lanes import NestedLanes
from runspan.export._sorting import PlacedSlice, sorted_slices
from runspan.export._sources import find_sources
from runspan.export._spans import read_spans
from runspan.tracefile.reader import read

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from runspan.export._sources import Source

__all__ = ["export_speedscope"]

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_encode = msgspec.json.Encoder().encode


def export_speedscope(traces: Sequence[Path], output: Path) -> None:
    """Write the spans of traces as one speedscope file; values are ns from the first trace's start.

    Memory grows with the spans that are open at a time and with the different names, not with the traces.

    Args:
        traces: the first part of each trace file.
        output: the file, replaced when all is written.

    Raises:
        TraceFormatError: no trace can be opened, one breaks the format, or there is no span in them.
        ConfigError: the output cannot be written.
    """
    sources = find_sources(traces)
    with whole_file(output) as file:
        file.write(b'{"$schema":' + _encode(_SCHEMA) + b',"profiles":[')
        profiles = _Profiles(file, sources.start_unix_nano)
        for source in sources.traces:
            profiles.add(source)
        if not profiles.count:
            raise TraceFormatError("there is no span to export", path=str(sources.traces[0].path))
        frames = [{"name": name} for name in profiles.frames]
        ending = {"name": scrub_text(sources.run_id), "activeProfileIndex": 0, "exporter": f"runspan {__version__}"}
        file.write(b'\n],"shared":' + _encode({"frames": frames}) + b"," + _encode(ending)[1:] + b"\n")


class _Profiles:
    """The profiles of a file.

    Args:
        file: where to.
        start_unix_nano: what the values count from, unix ns.

    Attributes:
        frames: the index of each span name.
        count: how many profiles there are.
    """

    def __init__(self, file: IO[bytes], start_unix_nano: int) -> None:
        self._file = file
        self._start_unix_nano = start_unix_nano
        self.frames: dict[str, int] = {}
        self.count = 0

    def add(self, source: Source) -> None:
        """Write the profiles of a trace: one for each lane that its spans need."""
        lanes = groupby(sorted_slices(self._placed(source)), key=lambda each: each.lane)
        title = f"rank {source.rank} · {source.label}" if source.label else f"rank {source.rank}"
        for number, (_, slices) in enumerate(lanes, start=1):
            self._write_profile(title if number == 1 else f"{title} · lane {number}", slices)

    def _placed(self, source: Source) -> Iterator[PlacedSlice]:
        offset_ns = source.meta.time_unix_nano - self._start_unix_nano
        lanes = NestedLanes()
        with read(source.path) as reader:
            for span in read_spans(reader, lambda start: lanes.begin(start.id, start.parent_id, start.start_ns)):
                lane, depth = lanes.finish(span.start.id, span.end_ns)
                frame = self.frames.setdefault(scrub_text(span.name), len(self.frames))
                yield PlacedSlice(lane, offset_ns + span.start.start_ns, -(offset_ns + span.end_ns), depth, frame)

    def _write_profile(self, name: str, slices: Iterator[PlacedSlice]) -> None:
        self._file.write(b",\n" if self.count else b"\n")
        head = {"type": "evented", "name": scrub_text(name), "unit": "nanoseconds"}
        self._file.write(_encode(head)[:-1] + b',"events":[')
        separator = b""
        start_ns = end_ns = 0
        for event in _events(slices):
            start_ns, end_ns = start_ns if separator else event["at"], event["at"]
            self._file.write(separator + _encode(event))
            separator = b","
        self._file.write(b'],"startValue":%d,"endValue":%d}' % (start_ns, end_ns))
        self.count += 1


def _events(slices: Iterator[PlacedSlice]) -> Iterator[dict[str, Any]]:
    """Yield what opens and closes the slices of one lane, in order."""
    opened: list[PlacedSlice] = []
    for each in slices:
        while opened and -opened[-1].negative_end_ns <= each.start_ns:
            yield _closing(opened.pop())
        opened.append(each)
        yield {"type": "O", "frame": each.frame, "at": each.start_ns}
    while opened:
        yield _closing(opened.pop())


def _closing(closed: PlacedSlice) -> dict[str, Any]:
    return {"type": "C", "frame": closed.frame, "at": -closed.negative_end_ns}
