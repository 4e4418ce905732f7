"""Runs inside the test's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import runspan
from runspan.storage.memory import InMemoryStorage
from support.programs import lines_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from runspan._clock import Clock

__all__ = ["LiveRuns"]


class LiveRuns:
    """Starts runs that write below a folder and into a storage in memory, and ends those that are left open.

    Args:
        folder: an empty folder.
        monkeypatch: the test's.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trace_dir = folder / "runs"
        self.storage = InMemoryStorage()
        self._monkeypatch = monkeypatch
        self._started: list[runspan.Run] = []

    def config(self, **changes: Any) -> runspan.TracingConfig:
        """Return the configuration of the runs, with these fields changed."""
        return runspan.TracingConfig(**{"trace_dir": self.trace_dir, **changes})

    def start(self, experiment: str = "exp", *, clock: Clock | None = None, **options: Any) -> runspan.Run:
        """Start a run.

        Args:
            experiment: the experiment's name.
            clock: the run's clocks.
            options: ``start_run``'s arguments; those that are a TracingConfig's go there.
        """
        fields = runspan.TracingConfig.__dataclass_fields__
        config = self.config(**{name: options.pop(name) for name in list(options) if name in fields})
        with self._monkeypatch.context() as patched:
            if clock is not None:
                patched.setattr("runspan._run.session.SystemClock", lambda: clock)
            run = runspan.start_run(experiment, **{"storage": self.storage, "config": config, **options})
        self._started.append(run)
        return run

    def lines(self, run: runspan.Run) -> list[dict[str, Any]]:
        """Return the lines of a run's trace file."""
        path = run._session.writer.path
        if path is None:
            raise AssertionError("the run has no file")
        return lines_of(path)

    def close(self) -> None:
        """End what is open."""
        for run in self._started:
            run.finish(run.status() if run.is_finished() else runspan.RunStatus.SUCCESS)
