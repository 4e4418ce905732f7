"""Lines and files that were made to harm their reader: each ends in a clear error or is read."""

from __future__ import annotations

import gzip
import json
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runspan.errors import TraceFormatError
from runspan.tracefile.events import Metric, Param, TraceEvent, Unknown, encode, jsonable
from runspan.tracefile.reader import TraceStatus, peek, read
from support.trace_strategies import UNTYPED
from support.traces import make_meta, make_metric

_META, _METRIC = encode(make_meta()), encode(make_metric(0))
_TAG = b'{"kind":"tag","key":"a","value":"b",'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "hostile.jsonl"


def _metric(step: bytes = b"0", value: bytes = b"0", time_unix_nano: bytes = b"1") -> bytes:
    return b'{"kind":"metric","key":"a","step":%s,"value":%s,"time_unix_nano":%s}' % (step, value, time_unix_nano)


_BAD_LINES = {
    "lists": b"[" * 1_000_000,
    "closed lists": b'{"kind":"param","key":"a","value":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "objects": b'{"kind":"later","x":' + b'{"a":' * 100_000 + b"0" + b"}" * 100_000 + b"}",
    "floats below lists": b'{"kind":"param","key":"a","value":' + b"[" * 900 + b'{"$float":"NaN"}' + b"]" * 900 + b"}",
    "lists in a field nobody knows": _TAG + b'"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "float too large": _metric(value=b"1e999"),
    "negative float too large": _metric(value=b"-1e999"),
    "exponent of 100,000 digits": _metric(value=b"1e" + b"9" * 100_000),
    "integer of 100,000 digits": _metric(step=b"9" * 100_000),
    "integer of 4,000 digits": _metric(time_unix_nano=b"9" * 4_000),
    "integer of 65 bits": _metric(value=b"18446744073709551616"),
    "negative integer of 65 bits": _metric(step=b"-9223372036854775809"),
    "integer of 65 bits in a map": b'{"kind":"metrics","values":{"a":18446744073709551616},"time_unix_nano":1}',
    "float for an integer": _metric(step=b"1e400"),
    "bare NaN": _metric(value=b"NaN"),
    "no UTF-8": b'{"kind":"tag","key":"\xff","value":"b"}',
    "a surrogate in UTF-8": b'{"kind":"tag","key":"\xed\xa0\x80","value":"b"}',
    "a lone surrogate": b'{"kind":"tag","key":"\\ud800","value":"b"}',
    "surrogates the wrong way round": b'{"kind":"tag","key":"\\udc00\\ud800","value":"b"}',
    "a NUL in a string": b'{"kind":"tag","key":"\0","value":"b"}',
    "UTF-16": '{"kind":"tag","key":"a","value":"b"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + _TAG[:-1] + b"}",
    "two objects": (_TAG[:-1] + b"}") * 2,
    "a kind that is no text": b'{"kind":["tag"],"key":"a","value":"b"}',
    "an end of a span with an id of a million letters": b'{"kind":"span_end","id":"%s","duration_ns":0}'
    % (b"x" * 1_000_000),
}


@pytest.mark.parametrize("line", _BAD_LINES.values(), ids=_BAD_LINES)
def test_a_hostile_line_is_one_error(path: Path, line: bytes) -> None:
    """In the middle it names file and line in a short message, and lenient reading skips it; at the end as well."""
    path.write_bytes(_META + _METRIC + line + b"\n" + _METRIC)
    with pytest.raises(TraceFormatError) as caught:
        list(read(path))
    assert (caught.value.path, caught.value.line) == (str(path), 3)
    assert len(str(caught.value)) < len(str(path)) + 300
    lenient = read(path, lenient=True)
    assert sum(isinstance(event, Metric) for event in lenient) == 2
    assert (lenient.skipped, lenient.torn) == (1, ())
    for data in (line, bytes(10) + line):
        path.write_bytes(_META + _METRIC + data)
        lenient = read(path, lenient=True)
        assert sum(1 for _ in lenient) == 2
        assert lenient.skipped + sum("NUL" not in torn.reason for torn in lenient.torn) == 1
    assert peek(path).state.status is TraceStatus.INTERRUPTED


@pytest.mark.parametrize("line", _BAD_LINES.values(), ids=_BAD_LINES)
def test_a_hostile_line_in_place_of_meta_is_refused(path: Path, line: bytes) -> None:
    """As the first line it is an error when the file is opened, whatever is done with it."""
    path.write_bytes(line + b"\n" + _META)
    for look in (read, peek, lambda file: read(file, lenient=True)):
        with pytest.raises(TraceFormatError, match="hostile") as caught:
            look(path)
        assert len(str(caught.value)) < len(str(path)) + 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time_unix_nano", 10**30),
        ("time_unix_nano", -(10**30)),
        ("capture_step", 2**64),
        ("heartbeat_s", [[]]),
        ("tags", {"a": {}}),
        ("schema", "x" * 1_000_000),
        ("kind", "x" * 1_000_000),
        ("phase", "x" * 1_000_000),
        ("timestamp", 0),
    ],
)
def test_a_hostile_meta_field_is_refused(path: Path, field: str, value: object) -> None:
    """A meta line that is none, or holds numbers without bounds, is an error in a short message."""
    path.write_text(json.dumps({**json.loads(_META), field: value}) + "\n")
    with pytest.raises(TraceFormatError, match=r"hostile\.jsonl:1: ") as caught:
        read(path)
    assert len(str(caught.value)) < len(str(path)) + 400


def test_the_largest_numbers_of_the_format_are_read(path: Path) -> None:
    """Every integer of 64 bits is exact, and a state can be told from any time; untyped integers have no bound."""
    numbers = (2**64 - 1, -(2**63), 2**63)
    untyped: list[TraceEvent] = [Param("seed", 2**70), Unknown("later", {"big": 10**300, "times": list(numbers)})]
    metrics: list[TraceEvent] = [Metric("a", number, number, number) for number in numbers]
    path.write_bytes(b"".join(map(encode, [make_meta(), *untyped, *metrics])))
    reader = read(path)
    assert list(reader)[1:] == [*untyped, *metrics]
    assert str(peek(path).state)
    assert str(reader.state)


def test_of_duplicate_keys_the_last_holds(path: Path) -> None:
    """A key that stands twice in a line, the kind too, is no error: the last one is read."""
    path.write_bytes(_META + b'{"kind":"tag","kind":"param","key":"a","key":"b","value":1,"value":2}\n')
    assert list(read(path))[1:] == [Param("b", 2)]


def test_commas_in_a_text_are_no_values(path: Path) -> None:
    """A long text with any number of commas, brackets and escaped quotes in it is one value."""
    text = 'a,"b",[{\\' * 200_000
    path.write_bytes(_META + encode(Param("table", text)) + _METRIC)
    assert list(read(path))[1] == Param("table", text)
    path.write_bytes(_META + encode(Unknown("later", {text: [text, text]})))
    assert list(read(path))[1] == Unknown("later", {text: [text, text]})


@pytest.mark.parametrize(
    "text", [b'"' * 2_000_000, b'"a" ' * 500_000, b"\\" * 2_000_000, b'"\\"' * 700_000 + b"," * 2_000_000]
)
def test_a_long_line_that_is_no_json_is_an_error(path: Path, text: bytes) -> None:
    """Counting the values of a long line ends, whatever stands there."""
    path.write_bytes(_META + text + b"," * 1_100_000 + b"\n" + _METRIC)
    with pytest.raises(TraceFormatError, match=":2: "):
        list(read(path))


def test_gzip_in_gzip_and_a_member_of_something_else_are_no_traces(path: Path) -> None:
    """Only one layer of compression is undone, and what it holds must be a trace."""
    for data in (gzip.compress(gzip.compress(_META)), gzip.compress(b""), gzip.compress(bytes(100_000)), b"\x1f\x8b"):
        path.write_bytes(data)
        with pytest.raises(TraceFormatError):
            read(path)


def test_devices_and_impossible_paths_are_refused_at_once(tmp_path: Path) -> None:
    """What is no regular file is not even opened, and a path that cannot be is an error that names it."""
    loop = tmp_path / "loop.jsonl"
    loop.symlink_to(loop)
    for file in (
        "/dev/zero",
        "/dev/null",
        loop,
        tmp_path / ("x" * 300),
        tmp_path / "a\0b",
        tmp_path / "rank-00000.jsonl\0",
    ):
        for look in (read, peek, lambda other: read(other, follow=True)):
            with pytest.raises(TraceFormatError):
                look(file)


_GOLDEN = Path(__file__).parent.parent / "golden"
_GOLDEN_LINES = [
    (lines[0], line)
    for name in ("run-trace", "candle-graph-6", "candle-graph-10")
    for lines in [(_GOLDEN / f"{name}.jsonl").read_bytes().splitlines(keepends=True)]
    for line in lines
]


def _read_in_every_way(path: Path) -> None:
    """Read a file whole, write its events again and tell its state; only the format's own error may stop that."""
    for lenient in (False, True):
        with suppress(TraceFormatError):
            reader = read(path, lenient=lenient)
            assert all(map(encode, reader))
            assert str(reader.state)
            assert str(peek(path).state)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(_GOLDEN_LINES), st.data())
def test_any_value_in_any_field_is_read_or_named(meta_and_line: tuple[bytes, bytes], data: st.DataObject) -> None:
    """Whatever stands in a field of any schema, reading gives events that can be written, or the format's error."""
    meta, line = meta_and_line
    fields = json.loads(line)
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(UNTYPED.map(jsonable))
    changed = json.dumps(fields).encode() + b"\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostile.jsonl"
        path.write_bytes(changed if line is meta else meta + changed)
        _read_in_every_way(path)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30) | st.sampled_from([line for _, line in _GOLDEN_LINES])), st.booleans())
def test_any_bytes_are_read_or_named(pieces: list[bytes], with_meta: bool) -> None:
    """No bytes at all lead to another error than the format's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostile.jsonl"
        path.write_bytes(_META * with_meta + b"".join(pieces))
        _read_in_every_way(path)
