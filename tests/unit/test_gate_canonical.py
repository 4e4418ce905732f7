"""The byte-exact JSON of gate files."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.errors import GateError
from runspan.gate.canonical import MAX_BYTES, SourceFloat, float_text, parse, render

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (-2.5, "-2.5"),
        (0.1, "0.1"),
        (1e-5, "0.00001"),
        (9.999e-6, "9.999e-6"),
        (1e-7, "1e-7"),
        (-3e-10, "-3e-10"),
        (9999999999999998.0, "9999999999999998.0"),
        (1e16, "1e+16"),
        (1.5e300, "1.5e+300"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)
def test_a_float_has_one_text(value: float, text: str) -> None:
    """Floats are plain between 1e-5 and 1e16 and have an unpadded exponent outside."""
    assert float_text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_floats_text_reads_back_as_the_float(value: float) -> None:
    """No float loses anything in its text, its sign included."""
    text = float_text(value)
    assert math.copysign(1, float(text)) == math.copysign(1, value)
    assert float(text) == value
    assert json.loads(text) == value


@given(_JSON)
def test_what_is_written_is_read_and_written_again_alike(value: Any) -> None:
    """Any JSON value survives writing and reading, and its second text is its first."""
    text = render(value)
    assert parse(text) == value
    assert render(parse(text)) == text
    assert json.loads(text) == value


@pytest.mark.parametrize("number", ["1.50", "1E5", "1e5", "0.10e-2", "-0", "-0.0", "100", "12345678901234567890123"])
def test_a_number_keeps_the_text_it_had(number: str) -> None:
    """A number that nobody changed is written as it was read, whatever its form."""
    assert render(parse(f"[{number}]".encode())) == f"[\n  {number}\n]\n".encode()


def test_text_is_not_escaped_more_than_it_must_be() -> None:
    """Only quotes, backslashes and control characters are escaped."""
    assert render({"é\U0001f600/": '"\\\n\x01\x7f'}) == '{\n  "é\U0001f600/": "\\"\\\\\\n\\u0001\x7f"\n}\n'.encode()


def test_empty_containers_stay_on_their_line() -> None:
    """An empty object or array has no line break in it."""
    assert render({"a": {}, "b": [], "c": [[]]}) == b'{\n  "a": {},\n  "b": [],\n  "c": [\n    []\n  ]\n}\n'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1, "a": 2}', "the key 'a' stands twice"),
        (b'{"x": [{"a": 1, "a": 1}]}', "the key 'a' stands twice"),
        (b"NaN", "NaN is no JSON"),
        (b"[-Infinity]", "-Infinity is no JSON"),
        (b"1e999", "1e999 is beyond the range of a float"),
        (b"1" * 5000, r"has too many digits"),
        (b"[" * 65 + b"]" * 65, "nested 65 levels deep: expected at most 64"),
        (b"[" * 1_000_000, "nested 1000000 levels deep"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b'"\xff"', "can't decode byte 0xff"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"", "Expecting value"),
        (b"{} {}", "Extra data"),
        (b" " * (MAX_BYTES + 1), "expected at most"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else value,
)
def test_what_is_no_sound_json_is_unreadable(data: bytes, message: str) -> None:
    """Duplicate keys, numbers without a value, deep nesting and broken text are errors that say what is wrong."""
    with pytest.raises(GateError, match=message):
        parse(data)


def test_brackets_in_strings_do_not_nest() -> None:
    """A string full of brackets is a string."""
    assert parse(b'"' + b"[" * 1000 + b'\\"["') == "[" * 1000 + '"['


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_float_that_is_not_finite_is_not_written(value: float) -> None:
    """JSON has no text for NaN and infinity, so writing them is an error."""
    with pytest.raises(ValueError, match="JSON has no"):
        render({"metric": value})


def test_other_types_are_not_written() -> None:
    """What JSON has no form for is an error, not its repr."""
    with pytest.raises(TypeError, match="no JSON for a set"):
        render({1, 2})


def test_a_number_that_was_read_is_a_float() -> None:
    """The number with its text behaves as the float that it is."""
    (number,) = parse(b"[2.50]")
    assert isinstance(number, SourceFloat)
    assert number == 2.5
    assert number * 2 == 5.0
