from __future__ import annotations

import json
import math
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.errors import SchemaVersionError, TraceFormatError
from runspan.tracefile import events as events_module
from runspan.tracefile._schemas import decode_meta
from runspan.tracefile._untyped import unwrap
from runspan.tracefile.events import (
    Artifact,
    Count,
    Dropped,
    Environment,
    Event,
    GitInfo,
    Metric,
    Metrics,
    Observe,
    OtelContext,
    Param,
    Scope,
    SegmentEnd,
    SpanEnd,
    SpanEvent,
    SpanLink,
    SpanStart,
    SpanStatus,
    Step,
    Tag,
    Terminal,
    TraceEvent,
    Unknown,
    Usage,
    decode,
    encode,
    encode_plain,
    jsonable,
)
from support.traces import make_meta

_UINT = st.integers(0, 2**64 - 1)
_TEXT = st.text(max_size=20)
_NUMBER = st.integers(-(2**63), 2**64 - 1) | st.floats()
#: Anything that JSON can hold, floats that it cannot included, and maps that look like the format's own.
_UNTYPED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | _TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(_TEXT | st.just("$float"), inner, max_size=4)
        | st.fixed_dictionaries({"$float": inner})
    ),
    max_leaves=12,
)
_ATTRIBUTES = st.dictionaries(_TEXT | st.just("$float"), _UNTYPED, max_size=4)


def _optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_OTEL = st.builds(
    OtelContext,
    trace_id=_TEXT,
    parent_span_id=_optional(_TEXT),
    kind=_optional(_TEXT),
    scope=_optional(st.builds(Scope, _TEXT, _optional(_TEXT))),
    trace_state=_optional(_TEXT),
    flags=_optional(st.integers(0, 255)),
)
_LINKS = st.lists(st.builds(SpanLink, _TEXT, _TEXT, _optional(_ATTRIBUTES)), min_size=1, max_size=2)
_SPAN_EVENTS = st.lists(st.builds(SpanEvent, _TEXT, _UINT, _optional(_ATTRIBUTES)), min_size=1, max_size=2)
_EVENTS: st.SearchStrategy[TraceEvent] = st.one_of(
    st.builds(make_meta, resource=_ATTRIBUTES, tags=st.dictionaries(_TEXT, _TEXT), part=_optional(_UINT)),
    st.builds(
        Environment,
        st.lists(_TEXT),
        _TEXT,
        _TEXT,
        st.dictionaries(_TEXT, _TEXT),
        _optional(st.builds(GitInfo, _TEXT, _optional(_TEXT), _optional(_TEXT))),
    ),
    st.builds(
        SpanStart,
        id=_TEXT,
        parent_id=_optional(_TEXT),
        name=_TEXT,
        start_ns=_UINT,
        time_unix_nano=_UINT,
        span_kind=_TEXT,
        measured=st.booleans(),
        step=_optional(_TEXT),
        attributes=_optional(_ATTRIBUTES),
        otel=_OTEL,
        links=_optional(_LINKS),
    ),
    st.builds(
        SpanEnd,
        id=_TEXT,
        duration_ns=_UINT,
        status=_optional(st.builds(SpanStatus, _TEXT, _optional(_TEXT))),
        attributes=_optional(_ATTRIBUTES),
        events=_optional(_SPAN_EVENTS),
        links=_optional(_LINKS),
        dropped=_optional(st.dictionaries(_TEXT, _UINT)),
    ),
    st.builds(Metric, _TEXT, _UINT, _NUMBER, _UINT, st.booleans()),
    st.builds(
        Metrics,
        step=_optional(_UINT),
        values=st.dictionaries(_TEXT, _NUMBER),
        steps=_optional(st.dictionaries(_TEXT, _UINT)),
        time_unix_nano=_UINT,
    ),
    st.builds(Count, key=_TEXT, value=_NUMBER, unit=_optional(_TEXT), time_unix_nano=_UINT),
    st.builds(Observe, key=_TEXT, value=_NUMBER, unit=_optional(_TEXT), time_unix_nano=_UINT),
    st.builds(Param, _TEXT, _UNTYPED),
    st.builds(Tag, _TEXT, _TEXT),
    st.builds(Artifact, _TEXT, _TEXT, _UINT, _optional(_UINT), _optional(_TEXT)),
    st.builds(
        Step,
        step=_UINT,
        duration_ns=_UINT,
        data_ns=_optional(_UINT),
        phases=_optional(st.dictionaries(_TEXT, _UINT)),
        samples=_optional(_UINT),
        tokens=_optional(_UINT),
        total=_optional(_UINT),
        time_unix_nano=_UINT,
    ),
    st.builds(Event, name=_TEXT, level=_TEXT, message=_TEXT, attributes=_optional(_ATTRIBUTES), time_unix_nano=_UINT),
    st.builds(
        Usage,
        gpu_util=_optional(st.floats()),
        cpu_util=_optional(st.floats()),
        memory_used=_optional(_UINT),
        timestamp_ns=_UINT,
        time_unix_nano=_UINT,
    ),
    st.builds(Dropped, _TEXT, _TEXT, _UINT),
    st.builds(SegmentEnd, _TEXT),
    st.builds(Terminal, _TEXT, _UINT, _TEXT, _optional(_TEXT)),
)


def _refuse_constant(name: str) -> NoReturn:
    raise AssertionError(f"bare {name} in JSON")


def _strict(line: bytes) -> dict[str, Any]:
    """Parse a line as the strictest of readers would."""
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    fields = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    assert isinstance(fields, dict)
    return fields


def _with_jsonable_values(event: TraceEvent) -> TraceEvent:
    """Return the event as recording code hands it to encode: untyped values made jsonable."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    for name in ("attributes", "resource", *(("value",) if isinstance(event, Param) else ())):
        if fields.get(name) is not None:
            untyped = fields[name]
            fields[name] = (
                {key: jsonable(value) for key, value in untyped.items()} if name != "value" else jsonable(untyped)
            )
    for name in ("events", "links"):
        if fields.get(name) is not None:
            fields[name] = [_with_jsonable_values(item) for item in fields[name]]
    return type(event)(**fields)


def _same(one: Any, other: Any) -> bool:
    """Compare by value and type, NaN equal to itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if hasattr(one, "__struct_fields__"):
        return all(_same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    return bool(one == other)


@given(st.lists(_EVENTS, max_size=6))
def test_any_events_round_trip_and_every_line_is_strict_json(events: list[TraceEvent]) -> None:
    """Case 35: NaN and infinities anywhere, a strict parser takes every line, and reading gives the same events."""
    for event in events:
        line = encode(_with_jsonable_values(event))
        assert next(iter(_strict(line))) == "kind"
        assert _same(decode(line), event)


@given(_TEXT, _ATTRIBUTES)
def test_unknown_kinds_are_kept_as_they_stand(kind: str, fields: dict[str, Any]) -> None:
    """A line of a kind that this version does not know is kept, and written as it was."""
    fields = {key: jsonable(value) for key, value in fields.items() if key != "kind"}
    unknown = decode(encode(Unknown(f"x-{kind}", fields)))
    assert unknown == Unknown(f"x-{kind}", fields)


def test_unknown_fields_are_skipped() -> None:
    """A field that this version does not know changes nothing of a known kind."""
    assert decode(b'{"kind":"tag","key":"a","value":"b","later":{"x":[1]}}') == Tag("a", "b")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Metric("loss/x", 0, 0.5, 7), b'{"kind":"metric","key":"loss/x","step":0,"value":0.5,"time_unix_nano":7}'),
        (
            Metric("a", 3, 1, 7, explicit=True),
            b'{"kind":"metric","key":"a","step":3,"value":1,"time_unix_nano":7,"explicit":true}',
        ),
        (Metric("a", 0, -math.inf, 7), b'{"kind":"metric","key":"a","step":0,"value":"-Infinity","time_unix_nano":7}'),
        (
            Metrics(values={"a": math.nan, "b": 2**64 - 1}, steps={"a": 0}, time_unix_nano=7),
            b'{"kind":"metrics","values":{"a":"NaN","b":18446744073709551615},"steps":{"a":0},"time_unix_nano":7}',
        ),
        (Param("lr", jsonable(math.inf)), b'{"kind":"param","key":"lr","value":{"$float":"Infinity"}}'),
        (Tag("k", "\ud800é"), '{"kind":"tag","key":"k","value":"\ufffdé"}'.encode()),
        (SegmentEnd("rank-00000.part-0001.jsonl"), b'{"kind":"segment_end","next":"rank-00000.part-0001.jsonl"}'),
        (
            SpanStart(id="a", name="run", start_ns=0, time_unix_nano=7, span_kind="function", otel=OtelContext("b")),
            (
                b'{"kind":"span_start","id":"a","name":"run","start_ns":0,"time_unix_nano":7,"span_kind":"function",'
                b'"measured":false,"otel":{"trace_id":"b"}}'
            ),
        ),
    ],
)
def test_lines_are_compact_with_kind_first_and_absent_fields_left_out(event: TraceEvent, line: bytes) -> None:
    """The exact bytes of a line: no spaces, kind first, fields in the format's order, what is None left out."""
    assert encode(event) == line + b"\n"


@pytest.mark.parametrize("value", [2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**63)])
def test_integers_are_exact(value: int) -> None:
    """Case 10: integers up to 2^64-1 come back exactly, as values, parameters and attributes."""
    for event in (
        Metric("seed", 0, value, 1),
        Param("seed", jsonable(value)),
        Param("all", jsonable({"seed": [value]})),
    ):
        assert decode(encode(event)) == event


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf, -math.inf, -0.0, 5e-324])
def test_floats_are_exact(value: float) -> None:
    """Case 17: 1.0, NaN and both infinities come back as they were logged, floats as floats."""
    read = decode(encode(Metric("loss", 0, value, 1)))
    assert isinstance(read, Metric)
    assert _same(read.value, value)


def test_a_surrogate_next_to_a_non_finite_float_is_no_obstacle() -> None:
    """Both repairs at once: the key's surrogate is replaced, the value is named."""
    assert _strict(encode(Metrics(values={"\udc00": math.nan}, time_unix_nano=1)))["values"] == {"\ufffd": "NaN"}


def test_encode_plain_is_encode_for_finite_values() -> None:
    """The hot path writes the same bytes, and leaves surrogates to its caller."""
    metric = Metric("loss", 1, 0.25, 7)
    assert encode_plain(metric) == encode(metric)
    with pytest.raises(UnicodeEncodeError):
        encode_plain(Metric("\ud800", 1, 0.25, 7))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "not a JSON line"),
        (b'{"kind":"tag","key":"a"', "not a JSON line"),
        (b'{"kind":"tag","key":"a","value":"\xff"}', "not a JSON line"),
        (b'{"kind":"metric","value":NaN}', "not a JSON line"),
        (b"[" * 100_000, "not a JSON line"),
        (b'{"$float":1}' + b"[", "not a JSON line"),
        (b"[]", "string 'kind'"),
        (b"3", "string 'kind'"),
        (b'{"key":"a"}', "string 'kind'"),
        (b'{"kind":3}', "string 'kind'"),
        (b'{"kind":"tag","key":"a"}', "missing required field `value`"),
        (b'{"kind":"tag","key":"a","value":1}', r"Expected `str`, got `int` - at `\$.value`"),
        (b'{"kind":"metric","key":"a","step":0,"value":"nan","time_unix_nano":1}', r"\$.value"),
        (b'{"kind":"metric","key":"a","step":1.5,"value":0,"time_unix_nano":1}', r"\$.step"),
        (b'{"kind":"metrics","values":[1],"time_unix_nano":1}', r"\$.values"),
        (b'{"kind":"span_end","id":"a","duration_ns":1,"events":3,"x":{"$float":"NaN"}}', "span_end"),
        (b'{"kind":"span_end","id":"a","duration_ns":1,"events":["attributes"],"x":{"$float":"NaN"}}', "span_end"),
    ],
)
def test_bad_lines_are_named_errors(line: bytes, message: str) -> None:
    """A line that is no JSON, no event, or lacks a field is a TraceFormatError that says what is wrong."""
    with pytest.raises(TraceFormatError, match=message):
        decode(line)


def test_the_first_line_must_be_meta_of_this_schema() -> None:
    """Meta of this schema is taken; anything else is an error that says what it is and what to do."""
    assert decode_meta(encode(make_meta())) == make_meta()
    with pytest.raises(TraceFormatError, match="first line must be the meta event, found 'tag'"):
        decode_meta(encode(Tag("a", "b")))
    with pytest.raises(SchemaVersionError, match=r"newer runspan.*pip install -U runspan"):
        decode_meta(encode(make_meta(schema="runspan/trace/2")))
    for foreign in ("candle-graph/trace/5", "runspan/trace/x", ""):
        with pytest.raises(SchemaVersionError, match=r"does not read: it reads 'runspan/trace/1'"):
            decode_meta(encode(make_meta(schema=foreign)))
    with pytest.raises(SchemaVersionError, match="has no schema"):
        decode_meta(b'{"kind":"meta","run_id":"a"}')


@pytest.mark.parametrize("field", ["tags", "time_unix_nano", "process", "heartbeat_s", "run_id"])
def test_a_meta_line_without_a_field_names_it(field: str) -> None:
    """The error for an incomplete meta line names the field."""
    fields = json.loads(encode(make_meta()))
    del fields[field]
    with pytest.raises(TraceFormatError, match=f"missing required field `{field}`"):
        decode_meta(json.dumps(fields).encode())


def test_a_meta_line_holds_the_run_meta() -> None:
    """TraceRunMeta's fields follow the schema in their order, are checked like its own, and can be taken out."""
    fields = json.loads(encode(make_meta(tags={"b": "1", "a": "2"})))
    expected = (
        "kind schema run_id correlation_id entrypoint phase timestamp capture_step warmup_steps device timing_mode"
    )
    assert list(fields)[:12] == [*expected.split(), "tags"]
    assert list(fields["tags"]) == ["a", "b"]
    assert decode_meta(encode(make_meta())).run_meta.entrypoint == "train:main"
    with pytest.raises(TraceFormatError, match="capture_step counts from 1"):
        decode_meta(json.dumps({**fields, "capture_step": 0}).encode())


class _Hostile:
    """An object whose every method raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def tolist(self) -> NoReturn:
        raise RuntimeError("no list")


class _GoneProxy:
    """A proxy whose target is gone: even isinstance() raises."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError("working outside of context")


class _TextSubclass(str):
    """A string whose text claims to be another."""

    __slots__ = ()

    def __str__(self) -> str:
        return "claimed"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (np.array([1, 2]), [1, 2]),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32("nan"), {"$float": "NaN"}),
        (2**64, str(2**64)),
        (-(2**63) - 1, str(-(2**63) - 1)),
        (b"a\xff", "a\ufffd"),
        ((1, "a"), [1, "a"]),
        (frozenset({1}), [1]),
        ({1: 2, None: 3}, {"1": 2, "None": 3}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ({"$float": "NaN"}, {"$float": {"$float": "NaN"}}),
        (_TextSubclass("real"), "real"),
        (1 + 2j, "(1+2j)"),
        (int, "<class 'int'>"),
        (_Hostile(), "<unprintable _Hostile>"),
        ([_Hostile()], ["<unprintable _Hostile>"]),
    ],
)
def test_jsonable_keeps_what_it_can(value: object, expected: object) -> None:
    """Cases 9 and 10: numpy scalars become exact Python numbers, big integers text, anything else its text."""
    assert _same(jsonable(value), expected)


def test_jsonable_takes_what_raises_when_looked_at() -> None:
    """An integer too long for decimal digits becomes hexadecimal text; a proxy without a target does not raise."""
    assert jsonable([16**10_000]) == ["0x1" + "0" * 10_000]
    assert jsonable({16**10_000: 1}) == {"0x1" + "0" * 10_000: 1}
    for value in (_GoneProxy(), [_GoneProxy()]):
        _strict(encode(Param("proxy", jsonable(value))))


def test_jsonable_cuts_what_has_no_end() -> None:
    """A list that holds itself, a chain deeper than any reader's stack, and lists that unfold without end are cut."""
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert jsonable(cycle) == [1, "…"]
    chain: Any = 0
    for _ in range(10_000):
        chain = [chain]
    doubling: Any = 0
    for _ in range(60):
        doubling = [doubling, doubling]
    for endless in (chain, doubling):
        assert isinstance(decode(encode(Param("endless", jsonable(endless)))), Param)


_ANY_VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(st.characters()) | st.integers() | st.none(), inner)
        | st.builds(lambda item: {"$float": item}, inner)
    ),
    max_leaves=15,
)


@given(_ANY_VALUE)
def test_jsonable_takes_anything(value: object) -> None:
    """Whatever a user hands over, surrogates and huge integers included, becomes a strict line that can be read."""
    line = encode(Param("any", jsonable(value)))
    _strict(line)
    assert isinstance(decode(line), Param)


@given(_UNTYPED)
def test_unwrap_undoes_jsonable(value: object) -> None:
    """Floats and maps that look like wrapped floats come back as they were."""
    assert _same(unwrap(jsonable(value)), value)


def test_every_public_name_of_events_exists() -> None:
    """The module's __all__ is what it says."""
    assert all(hasattr(events_module, name) for name in events_module.__all__)
