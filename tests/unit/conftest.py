"""Fixtures of the unit tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from support.live import LiveRuns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FOREIGN = ("RUNSPAN_", "OTEL_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC", "TRACEPARENT", "TRACESTATE", "RANK", "WORLD")


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveRuns]:
    """Start runs in a folder of their own, with nothing of the caller's environment."""
    for name in os.environ:
        if name.startswith(_FOREIGN):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    runs = LiveRuns(tmp_path, monkeypatch)
    yield runs
    runs.close()
