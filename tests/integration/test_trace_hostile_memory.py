"""Files that would fill the memory of their reader: a process of its own reads each, and its peak is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runspan.tracefile.events import Tag, encode
from support.traces import make_meta, make_metric, make_span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_META, _METRIC = encode(make_meta()), encode(make_metric(0))
_MIB = 1 << 20
#: An interpreter with this package takes some 25 MB, and the longest line that is kept at all 64 MB.
_MOST_BYTES = 128 * _MIB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "hostile.jsonl"


def _read_elsewhere(path: Path) -> dict[str, Any]:
    """Read the file in a process of its own; return what came of it, and the peak of that process's memory."""
    done = subprocess.run(
        [sys.executable, "-m", "support.hostile_reader", str(path)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _write_gzip(path: Path, pieces: Iterable[bytes]) -> None:
    compressor = zlib.compressobj(6, wbits=31)
    with path.open("wb") as file:
        for piece in pieces:
            file.write(compressor.compress(piece))
        file.write(compressor.flush())


def _write_long_line(path: Path) -> None:
    """Write a line of 1 GB, most of it a hole in the file."""
    with path.open("wb") as file:
        file.write(_META + b'{"kind":"tag","key":"a')
        file.seek(1 << 30, os.SEEK_CUR)
        file.write(b'"}\n' + _METRIC)


def _write_hole(path: Path) -> None:
    """Write 256 MB that never reached the disk behind two whole lines."""
    path.write_bytes(_META + _METRIC)
    os.truncate(path, 256 * _MIB)


def _write_cut_record_and_hole(path: Path) -> None:
    """Write the half of a record, behind two whole lines, and 256 MB that never reached the disk."""
    path.write_bytes(_META + _METRIC + _METRIC[:-20])
    os.truncate(path, 256 * _MIB)


def _write_bomb_of_zeros(path: Path) -> None:
    _write_gzip(path, [_META, _METRIC, *repeat(bytes(_MIB), 160)])


def _write_bomb_of_one_line(path: Path) -> None:
    _write_gzip(path, [_META, _METRIC, b'{"kind":"tag","key":"', *repeat(b"x" * _MIB, 160)])


def _write_bomb_of_a_meta_line(path: Path) -> None:
    _write_gzip(path, [b'{"kind":"meta","schema":"', *repeat(b"x" * _MIB, 160)])


def _write_many_values(path: Path) -> None:
    """Write a line of 12 MB that would take half a gigabyte as Python objects."""
    path.write_bytes(_META + b'{"kind":"later","x":[' + b"[]," * (4 * _MIB) + b"0]}\n" + _METRIC)


_STRICT_ERROR = [
    (_write_long_line, ":2: a line longer than 67108864 bytes", 2, 1),
    (_write_bomb_of_one_line, ":3: a line longer than 67108864 bytes", 2, 1),
    (_write_many_values, ":2: a line of more than 1048576 values", 2, 1),
    (_write_bomb_of_a_meta_line, ":1: the first line must be the meta event, but it is a line longer than", None, None),
]
_TORN = [(_write_hole, 2, 1), (_write_bomb_of_zeros, 2, 1), (_write_cut_record_and_hole, 2, 1)]


@pytest.mark.parametrize(
    ("write", "message", "events", "skipped"), _STRICT_ERROR, ids=["line", "bomb", "values", "meta"]
)
def test_what_fills_the_memory_is_refused(
    path: Path, write: Callable[[Path], None], message: str, events: int | None, skipped: int | None
) -> None:
    """A line of 1 GB, gzip bombs of one line, and a line of millions of values are errors in little memory."""
    write(path)
    answer = _read_elsewhere(path)
    assert message in answer["strict"]["error"]
    if events is None:
        assert message in answer["lenient"]["error"]
        assert message in answer["peek"]["error"]
    else:
        assert answer["lenient"] == {"events": events, "torn": 0, "skipped": skipped}
        assert answer["peek"].startswith("interrupted")
    assert answer["peak_bytes"] < _MOST_BYTES


@pytest.mark.parametrize(("write", "events", "torn"), _TORN, ids=["hole", "zeros", "record"])
def test_an_endless_end_is_torn(path: Path, write: Callable[[Path], None], events: int, torn: int) -> None:
    """A hole of 256 MB, behind a cut record too, and a gzip bomb of zeros cost only the end, and little memory."""
    write(path)
    answer = _read_elsewhere(path)
    assert answer["strict"] == answer["lenient"] == {"events": events, "torn": torn, "skipped": 0}
    assert answer["peek"].startswith("interrupted")
    assert answer["peak_bytes"] < _MOST_BYTES


def test_a_bomb_of_valid_lines_is_streamed(path: Path) -> None:
    """100 MB of events out of 100 KB are read one after the other, in the memory of a few."""
    line = encode(Tag("a", "b" * 10_000))
    _write_gzip(path, [_META, *repeat(line * 100, 100)])
    answer = _read_elsewhere(path)
    assert answer["strict"] == {"events": 10_001, "torn": 0, "skipped": 0}
    assert answer["peak_bytes"] < _MOST_BYTES


def test_a_million_keys_are_read(path: Path) -> None:
    """The most values that a line may hold take what they need, and no more."""
    keys = b",".join(b'"k%d":1' % number for number in range(1_000_000))
    path.write_bytes(_META + b'{"kind":"metrics","values":{' + keys + b'},"time_unix_nano":1}\n' + _METRIC)
    answer = _read_elsewhere(path)
    assert answer["strict"]["events"] == 3
    assert answer["peak_bytes"] < 2 * _MOST_BYTES


def test_open_spans_take_their_ids_and_no_more(path: Path) -> None:
    """A span that never ends costs some 150 bytes, not its line: 100,000 of them 15 MB."""
    start, _ = make_span("a1")
    line = encode(start)
    with path.open("wb") as file:
        file.write(_META)
        file.writelines(line.replace(b'"a1"', b'"%016x"' % number) for number in range(100_000))
    answer = _read_elsewhere(path)
    assert answer["strict"]["events"] == 100_001
    assert answer["peak_bytes"] < 60 * _MIB
