from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runspan.testing import FakeClock, SequentialIds

if TYPE_CHECKING:
    from runspan._clock import Clock


def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    """Both clocks advance together; a step moves the wall clock alone."""
    clock = FakeClock(5_000_000_000)
    as_clock: Clock = clock
    assert (as_clock.time_ns(), as_clock.monotonic_ns()) == (5_000_000_000, 0)
    clock.advance(1.5)
    clock.step_wall(-3)
    assert (clock.time_ns(), clock.monotonic_ns()) == (3_500_000_000, 1_500_000_000)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_sequential_ids_count_spans_and_traces_apart() -> None:
    """Ids can be predicted, and are never 0."""
    ids = SequentialIds()
    assert [ids.generate_span_id(), ids.generate_span_id(), ids.generate_trace_id()] == [1, 2, 1]
