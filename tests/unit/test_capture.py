from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runspan.capture import CaptureSchedule
from runspan.errors import ConfigError

counts = st.integers(0, 10**6)


@given(
    st.builds(
        CaptureSchedule,
        counts,
        counts,
        counts,
        counts,
        st.just(0.0) | st.floats(1, 1e300, allow_nan=False),
        counts,
    )
)
def test_a_schedule_round_trips_through_its_text(schedule: CaptureSchedule) -> None:
    """parse(str(schedule)) is the schedule."""
    assert CaptureSchedule.parse(str(schedule)) == schedule


def test_what_the_text_leaves_out_keeps_its_default() -> None:
    """Any part may be given, with white space around it."""
    assert CaptureSchedule.parse(" wait = 3 , slow_factor=2.5") == CaptureSchedule(wait=3, slow_factor=2.5)
    assert str(CaptureSchedule()) == "wait=10,warmup=1,active=1,repeat=1,slow_factor=3,ranks=16"


@pytest.mark.parametrize(
    "text", ["", "wait", "wait=", "wait=1.5", "wait=-1", "often=3", "wait=1,wait=2", "slow_factor=nan"]
)
def test_an_unreadable_text_is_a_config_error(text: str) -> None:
    """Unknown, repeated, unreadable and out-of-range parts are refused."""
    with pytest.raises(ConfigError, match="capture"):
        CaptureSchedule.parse(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("wait", -1), ("active", 1.0), ("repeat", True), ("ranks", None), ("slow_factor", math.inf), ("slow_factor", 0.5)],
)
def test_a_wrong_argument_is_named(name: str, value: Any) -> None:
    """Construction checks every field."""
    with pytest.raises(ConfigError, match=name):
        CaptureSchedule(**{name: value})


@pytest.mark.parametrize("text", ["wait=1,http://u:hunter2@host=3", "x" * 100_000, "wait=" + "9x" * 100_000])
def test_a_long_or_secret_text_is_not_shown_whole(text: str) -> None:
    """The error shows 200 characters of a value, and no credentials."""
    with pytest.raises(ConfigError, match="capture") as caught:
        CaptureSchedule.parse(text)
    assert "hunter2" not in str(caught.value)
    assert len(str(caught.value)) < 800
