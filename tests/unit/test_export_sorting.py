from __future__ import annotations

import random

import pytest

from runspan.export import _sorting
from runspan.export._sorting import PlacedSlice, sorted_slices


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 1_000])
def test_slices_are_sorted_whether_they_fit_in_memory_or_not(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Chunks on disk and the one in memory are merged into one order, enclosing slices first."""
    monkeypatch.setattr(_sorting, "_CHUNK", 10)
    monkeypatch.setattr(_sorting, "_READ_RECORDS", 3)
    chosen = random.Random(5)  # noqa: S311 - numbers to sort
    slices = [PlacedSlice(*(chosen.randint(-3, 3) for _ in range(5))) for _ in range(count)]
    assert list(sorted_slices(slices)) == sorted(slices)
