from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import runspan
from runspan.tracefile import health, read_run
from runspan.tracefile._health import Severity

if TYPE_CHECKING:
    from support.live import LiveRuns


def _errors(run: runspan.Run) -> dict[str, list[str]]:
    """Return the codes of the errors in each trace of a run, by the capture's folder or the run itself."""
    directory = run.directory
    assert directory is not None
    return {
        entry.capture or "run": [each.code for each in health(entry.path) if each.severity is Severity.ERROR]
        for entry in read_run(directory).traces
    }


def _capturing() -> runspan.CaptureSchedule:
    return runspan.CaptureSchedule(wait=0, warmup=0, active=1)


def test_a_run_with_everything_in_it_is_healthy(live: LiveRuns) -> None:
    """Epochs, steps, phases, spans, evaluations, checkpoints and alerts leave no error, in the run and its capture."""
    run = live.start(capture=_capturing())
    for number in range(2):
        with run.epoch(number):
            for _ in run.steps(range(3)):
                with run.phase("forward"), run.span("attention", heads=8):
                    run.log_metric("loss", 0.5)
        with run.evaluate(), run.checkpoint():
            pass
    run.alert("title", "text", "error")
    run.finish()
    assert _errors(run) == {"run": [], "update-000000001": []}


def test_a_step_that_raises_is_healthy(live: LiveRuns) -> None:
    """Run and capture failed, and say so in sound files."""
    run = live.start(capture=_capturing())
    with pytest.raises(ValueError, match="boom"), run, run.step(), run.phase("forward"):
        raise ValueError("boom")
    assert _errors(run) == {"run": [], "update-000000001": []}


def test_a_run_that_ends_inside_a_step_is_healthy(live: LiveRuns) -> None:
    """What the end cuts off is explained by it."""
    run = live.start(capture=_capturing())
    with run.step(), run.phase("forward"), run.span("open"):
        run.finish(runspan.RunStatus.FAILED, "no memory left")
    assert _errors(run) == {"run": [], "update-000000001": []}
