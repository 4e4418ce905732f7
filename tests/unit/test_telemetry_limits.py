from __future__ import annotations

import enum
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from runspan._otel_env import SpanLimitSettings
from runspan._plain import plain_value
from runspan.telemetry.limits import cut_text, exportable, trim_span
from support.otlp_receiver import ReceivedSpan, spans_in

_NO_LIMITS = SpanLimitSettings()
_CONTEXT = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))


def _span(name: str = "s", attributes: dict[str, Any] | None = None, **more: Any) -> ReadableSpan:
    times = {"start_time": 10, "end_time": 20}
    return ReadableSpan(name, context=_CONTEXT, attributes=attributes, resource=Resource({}), **{**times, **more})


def _exported(span: ReadableSpan, limits: SpanLimitSettings = _NO_LIMITS) -> ReceivedSpan:
    (received,) = spans_in(encode_spans([trim_span(span, limits)]))
    return received


class _Colour(enum.StrEnum):
    RED = "red"


class _Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (np.array([1, 2]), (1, 2)),
        (True, True),
        (0, 0),
        (_Colour.RED, "red"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (np.float32("nan"), "NaN"),
        (2**53 + 1, 2**53 + 1),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (2**63, "9223372036854775808"),
        (2**64 - 1, "18446744073709551615"),
        ("a\ud800b", "a\ufffdb"),
        (None, "None"),
        (b"caf\xc3\xa9", "café"),
        (b"\xff", "\ufffd"),
        ([1, 2.5], (1.0, 2.5)),
        (["a", "b\udfff"], ("a", "b\ufffd")),
        ([], ()),
        ([1, "a", None], '[1,"a",null]'),
        ([[1], [2]], "[[1],[2]]"),
        ([1.0, math.nan], '[1.0,"NaN"]'),
        ({"a": {"b": math.inf}, 3: 2**70}, f'{{"a":{{"b":"Infinity"}},"3":"{2**70}"}}'),
        (_Hostile(), "<unprintable _Hostile>"),
    ],
)
def test_values_have_one_exported_form(value: Any, expected: Any) -> None:
    """Cases 9 and 10: each kind of value becomes one that OTLP holds exactly, or text that says it."""
    exported = exportable(value)
    assert exported == expected
    assert type(exported) is type(expected)


def test_integers_too_long_for_decimal_are_hexadecimal() -> None:
    """An integer that Python refuses to write in decimal still has text."""
    assert str(exportable(2**20000)).startswith("0x1000")


def test_a_cycle_ends() -> None:
    """A list that contains itself becomes finite text."""
    cycle: list[Any] = []
    cycle.append(cycle)
    assert "…" in str(exportable(cycle))


@pytest.mark.parametrize(("text", "size"), [("x" * 6_000_000, 6_000_000), ("é" * 3000, 6000), ("漢" * 1400, 4200)])
def test_long_text_is_cut_and_says_so(text: str, size: int) -> None:
    """Case 6: text over 4 KiB is cut to that, at a character, and ends in how long it was."""
    cut = cut_text(text)
    assert cut.endswith(f"…[cut from {size} bytes]")
    assert 4090 <= len(cut.encode()) <= 4096
    assert text.startswith(cut[: cut.index("…")])


def test_text_of_4_kib_stays() -> None:
    """Text of exactly 4 KiB is not cut."""
    assert cut_text("x" * 4096) == "x" * 4096


def test_long_lists_and_mappings_are_cut_as_json() -> None:
    """A list or mapping whose text is over 4 KiB is cut like text."""
    for value in (list(range(100_000)), {"layers": ["x" * 50] * 1000}):
        exported = exportable(value)
        assert isinstance(exported, str)
        assert len(exported.encode()) <= 4096
        assert exported.endswith("bytes]")


@pytest.mark.parametrize(
    ("limit", "expected"), [(40, "a" * 19 + "…[cut from 100 bytes]"), (5, "aaaaa"), (100, "a" * 100)]
)
def test_the_otel_length_limit_is_honoured(limit: int, expected: str) -> None:
    """OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT bounds characters; the mark is in it where it fits."""
    assert exportable("a" * 100, max_characters=limit) == expected


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(min_size=1), _VALUES, max_size=5), st.text(), st.integers(0, 60))
def test_any_span_can_be_encoded(attributes: dict[str, Any], name: str, length: int) -> None:
    """One bad value never costs another span: whatever a user gave, the copy is encoded with every key."""
    limits = SpanLimitSettings(attribute_value_length=length)
    prepared = {key: value for key, value in plain_value(attributes).items() if key}
    received = _exported(_span(name, prepared), limits)
    assert len(received.attributes) == len({cut_text(key) for key in prepared})
    assert json.dumps(received.attributes, allow_nan=False)


def test_prepared_values_lose_nothing() -> None:
    """What goes onto an SDK span is plain Python, exact: only the export copy is bounded."""
    big = "x" * 10_000
    prepared = plain_value({"a": np.float32(0.5), "b": 2**70, "c": math.inf, "d": big, "e": {1: (np.int8(2),)}})
    assert prepared == {"a": 0.5, "b": 2**70, "c": math.inf, "d": big, "e": {"1": [2]}}
    assert type(prepared["a"]) is float


def test_identity_survives_the_attribute_limit() -> None:
    """Of 200 attributes the newest go, what identifies the span stays wherever it stood, and the loss is counted."""
    attributes: dict[str, Any] = {f"user.{index}": index for index in range(200)}
    attributes |= {"runspan.run.id": "r", "runspan.param.lr": 0.1, "vcs.ref.head.revision": "abc"}
    received = _exported(_span(attributes=attributes))
    assert len(received.attributes) == 128
    assert received.attributes["runspan.run.id"] == "r"
    assert received.attributes["vcs.ref.head.revision"] == "abc"
    assert received.attributes["user.0"] == 0
    assert "user.199" not in received.attributes
    assert "runspan.param.lr" not in received.attributes
    assert received.attributes["runspan.dropped.attributes"] == received.dropped_attributes == 203 - 127


def test_identity_alone_may_exceed_the_limit() -> None:
    """A limit below the number of identifying attributes cuts none of them."""
    attributes = {f"runspan.trace.field{index}": index for index in range(6)} | {"mine": 1}
    received = _exported(_span(attributes=attributes), SpanLimitSettings(attribute_count=2))
    assert set(received.attributes) == {
        *(f"runspan.trace.field{index}" for index in range(6)),
        "runspan.dropped.attributes",
    }


def test_events_and_links_are_bounded_and_counted() -> None:
    """The newest events go, an exception last of all; links likewise; both losses stand on the span."""
    events = [Event(f"e{index}", {}, index) for index in range(5)] + [Event("exception", {"exception.type": "E"}, 9)]
    links = [Link(_CONTEXT, {}) for _ in range(4)]
    limits = SpanLimitSettings(event_count=3, link_count=1)
    received = _exported(_span(attributes={"a": 1}, events=events, links=links), limits)
    assert [name for name, _ in received.events] == ["e0", "e1", "exception"]
    assert len(received.links) == 1
    assert received.attributes == {"a": 1, "runspan.dropped.events": 3, "runspan.dropped.links": 3}


def test_event_attributes_are_bounded() -> None:
    """An event keeps its first attributes, each converted as a span's."""
    event = Event("e", {"a": math.nan, "b": "x" * 5000, "c": 3}, 5)
    received = _exported(_span(events=[event]), SpanLimitSettings(event_attribute_count=2))
    ((_, attributes),) = received.events
    assert attributes["a"] == "NaN"
    assert attributes["b"].endswith("[cut from 5000 bytes]")
    assert set(attributes) == {"a", "b"}


def test_name_and_status_are_made_encodable() -> None:
    """A surrogate in a name, which costs the SDK's encoder the whole batch, becomes U+FFFD; status text is bounded."""
    status = Status(StatusCode.ERROR, "bad \ud800 " + "x" * 5000)
    received = _exported(_span("na\ud800me", status=status))
    assert received.name == "na\ufffdme"
    assert received.status == StatusCode.ERROR.value


def test_a_span_never_ends_before_it_starts() -> None:
    """Case 14: an end before the start is moved to the start."""
    received = _exported(_span(start_time=100, end_time=50))
    assert received.end_time_unix_nano == received.start_time_unix_nano == 100


def test_trimming_leaves_the_span_alone() -> None:
    """The function is pure: the same span trims to the same copy again."""
    span = _span(attributes={"a": "x" * 9000, "b": math.nan})
    first = encode_spans([trim_span(span, _NO_LIMITS)])
    assert encode_spans([trim_span(span, _NO_LIMITS)]) == first
    assert span.attributes is not None
    assert span.attributes["a"] == "x" * 9000


def test_every_span_says_of_which_run_rank_and_attempt_it_is() -> None:
    """A user's span, too, has the run's id, rank and attempt of its Resource, which no limit takes away."""
    common: dict[str, Any] = {"runspan.run.id": "run-a", "runspan.rank": 3, "runspan.attempt": 1}
    resource = Resource({**common, "service.name": "digits"})
    span = ReadableSpan(
        "s", context=_CONTEXT, attributes={"a": 1, "b": 2}, resource=resource, start_time=10, end_time=20
    )
    assert _exported(span).attributes == {**common, "a": 1, "b": 2}
    assert common.items() <= _exported(span, SpanLimitSettings(attribute_count=1)).attributes.items()
