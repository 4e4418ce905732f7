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
    Metric,
    Metrics,
    OtelContext,
    Param,
    SegmentEnd,
    SpanStart,
    Tag,
    TraceEvent,
    Unknown,
    decode,
    encode,
    encode_plain,
    jsonable,
)
from support.trace_strategies import ATTRIBUTES, EVENTS, TEXT, UNTYPED, same, strict_json, with_jsonable_values
from support.traces import make_meta


@given(st.lists(EVENTS, max_size=6))
def test_any_events_round_trip_and_every_line_is_strict_json(events: list[TraceEvent]) -> None:
    """Case 35: NaN and infinities anywhere, a strict parser takes every line, and reading gives the same events."""
    for event in events:
        line = encode(with_jsonable_values(event))
        assert next(iter(strict_json(line))) == "kind"
        assert same(decode(line), event)


@given(TEXT, ATTRIBUTES)
def test_unknown_kinds_are_kept_as_they_stand(kind: str, fields: dict[str, Any]) -> None:
    """A line of a kind that this version does not know is kept, and written as it was."""
    fields = {key: jsonable(value) for key, value in fields.items() if key != "kind"}
    unknown = decode(encode(Unknown(f"x-{kind}", fields)))
    assert unknown == Unknown(f"x-{kind}", fields)


def test_a_value_of_several_has_the_line_s_step_or_one_of_its_own() -> None:
    """A metrics line has one step for all keys, or one a key; of another writer's that has neither none is known."""
    assert Metrics(step=0, values={"a": 1}, time_unix_nano=7).step_of("a") == 0
    own_steps = Metrics(values={"a": 1, "b": 2}, steps={"a": 3}, time_unix_nano=7)
    assert (own_steps.step_of("a"), own_steps.step_of("b")) == (3, None)
    assert Metrics(values={"a": 1}, time_unix_nano=7).step_of("a") is None


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
    assert same(read.value, value)


def test_a_surrogate_next_to_a_non_finite_float_is_no_obstacle() -> None:
    """Both repairs at once: the key's surrogate is replaced, the value is named."""
    assert strict_json(encode(Metrics(values={"\udc00": math.nan}, time_unix_nano=1)))["values"] == {"\ufffd": "NaN"}


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
    assert same(jsonable(value), expected)


def test_jsonable_takes_what_raises_when_looked_at() -> None:
    """An integer too long for decimal digits becomes hexadecimal text; a proxy without a target does not raise."""
    assert jsonable([16**10_000]) == ["0x1" + "0" * 10_000]
    assert jsonable({16**10_000: 1}) == {"0x1" + "0" * 10_000: 1}
    for value in (_GoneProxy(), [_GoneProxy()]):
        strict_json(encode(Param("proxy", jsonable(value))))


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
    strict_json(line)
    assert isinstance(decode(line), Param)


@given(UNTYPED)
def test_unwrap_undoes_jsonable(value: object) -> None:
    """Floats and maps that look like wrapped floats come back as they were."""
    assert same(unwrap(jsonable(value)), value)


def test_every_public_name_of_events_exists() -> None:
    """The module's __all__ is what it says."""
    assert all(hasattr(events_module, name) for name in events_module.__all__)
