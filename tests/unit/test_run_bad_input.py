"""What a Run refuses at its start, and what it leaves behind then."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from runspan import ConfigError, ExperimentNotFoundError, InMemoryStorage, Run, TracingConfig, start_run
from runspan.tracefile import Event, Terminal, read

if TYPE_CHECKING:
    from pathlib import Path


def _terminal_of(directory: Path) -> Terminal:
    (trace,) = directory.glob("*/rank-00000.jsonl")
    last = list(read(trace))[-1]
    assert isinstance(last, Terminal)
    return last


def test_an_unknown_experiment_id_raises_and_ends_the_file(tmp_path: Path) -> None:
    """A Run of an experiment that the storage does not know raises just that, and its file says failed."""
    with pytest.raises(ExperimentNotFoundError, match="exp-unknown"):
        Run("exp-unknown", InMemoryStorage(), TracingConfig(trace_dir=tmp_path))
    assert _terminal_of(tmp_path).status == "failed"


def test_an_unreadable_certificate_raises_and_the_run_has_failed(tmp_path: Path) -> None:
    """What stops the export from being built is raised as it is, and the run that was created is Failed."""
    storage = InMemoryStorage()
    config = TracingConfig(trace_dir=tmp_path, export_otlp=True, otlp_certificate=str(tmp_path / "missing.pem"))
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        start_run("digits", storage=storage, config=config, run_id="run-a")
    assert storage.get_run_status("run-a") == "failed"
    assert _terminal_of(tmp_path).status == "failed"


@pytest.mark.parametrize("storage", ["postgresql://user:hunter2@host/runs", 3])
def test_what_is_no_storage_is_refused_without_showing_it(tmp_path: Path, storage: Any) -> None:
    """A storage of another type is an error that says what it takes, and shows no password."""
    with pytest.raises(ConfigError, match=r"takes an ExperimentStorage, such as open_storage\(url\)") as caught:
        start_run("digits", storage=storage, config=TracingConfig(trace_dir=tmp_path))
    assert "hunter2" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_storage_variable_that_is_no_url_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RUNSPAN_STORAGE with a scheme that is not taken is named, since no wait would make it reachable."""
    monkeypatch.setenv("RUNSPAN_STORAGE", "mysql://host/runs")
    with pytest.raises(ConfigError, match=r"RUNSPAN_STORAGE cannot be used: .*'mysql'"):
        start_run("digits", config=TracingConfig(trace_dir=tmp_path))


def test_no_gitignore_is_written_beside_the_users_files(tmp_path: Path) -> None:
    """A trace_dir called ``runs`` in a folder of the user's leaves that folder alone; a root gets its .gitignore."""
    for folder in (tmp_path / "project", tmp_path / ".runspan"):
        start_run("digits", storage=InMemoryStorage(), config=TracingConfig(trace_dir=folder / "runs")).finish()
    assert not (tmp_path / "project" / ".gitignore").exists()
    assert (tmp_path / ".runspan" / ".gitignore").read_text() == "*\n"


class _Unprintable(Exception):  # noqa: N818 - what it is named is no matter here
    """An exception whose message cannot be made."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no text")


def test_an_exception_without_a_text_leaves_the_block_as_it_came(tmp_path: Path) -> None:
    """An exception whose ``__str__`` raises is the one that training sees, and the file says failed."""
    with (
        pytest.raises(_Unprintable),
        start_run("digits", storage=InMemoryStorage(), config=TracingConfig(trace_dir=tmp_path)),
    ):
        raise _Unprintable
    assert _terminal_of(tmp_path).reason == "_Unprintable: <unprintable _Unprintable>"


class _LazyFloat(float):
    """A number whose own methods fail, as one that is computed late may."""

    def __float__(self) -> float:
        """Fail."""
        raise _Unprintable

    def is_integer(self) -> bool:
        """Fail."""
        raise _Unprintable


class _LazyText(str):
    """A text whose own methods fail."""

    __slots__ = ()

    def __str__(self) -> str:
        """Fail."""
        raise _Unprintable

    def __bool__(self) -> bool:
        """Fail."""
        raise _Unprintable


def test_numbers_and_texts_are_read_without_their_own_methods(tmp_path: Path) -> None:
    """A float or str of another class is the number or text that it is, whatever its methods would raise."""
    storage = InMemoryStorage()
    with start_run("digits", storage=storage, config=TracingConfig(trace_dir=tmp_path)) as run:
        run.log_metric(_LazyText("loss"), _LazyFloat(0.5))
        run.log_metric_at("loss", _LazyFloat(7), 1)
        run.log_metrics({"loss": _LazyFloat(0.25)}, step=_LazyFloat(8))
    points = storage.get_metrics(run.id, "loss")
    assert [(point.step, point.value) for point in points] == [(0, 0.5), (7, 1.0), (8, 0.25)]


@pytest.mark.parametrize(
    "value", [None, 3, b"x", "a\0b", "a\ud800b", ["x"], {1: 2}, object(), pytest.param(10**5000, id="huge")]
)
def test_nothing_that_is_recorded_raises(tmp_path: Path, value: Any) -> None:
    """Any value at any place of a recording call is recorded or left out, and the run ends well."""
    storage = InMemoryStorage()
    with start_run("digits", storage=storage, config=TracingConfig(trace_dir=tmp_path)) as run:
        assert run.current_step(value) == 0
        run.log_param(value, value)
        run.set_tag(value, value)
        run.event(value, level=value, message=value, attribute=value)
        run.alert(value, value, value)
        run.log_artifact(value, value, step=value)
        run.log_artifact("by reference", value, by_reference=True)
        with run.checkpoint(value), run.step(value, samples=value, tokens=value):
            pass
    assert _terminal_of(tmp_path).status == "success"
    assert storage.get_run_status(run.id) == "success"


def test_a_reason_is_text(tmp_path: Path) -> None:
    """A reason of another type becomes its text, in the file and in storage."""
    storage = InMemoryStorage()
    run = start_run("digits", storage=storage, config=TracingConfig(trace_dir=tmp_path))
    run.finish("failed", ValueError("bad"))  # type: ignore[arg-type] # what this test is about
    assert (_terminal_of(tmp_path).reason, storage.get_run(run.id).reason) == ("bad", "bad")


def test_an_alert_out_of_a_logging_handler_ends(tmp_path: Path) -> None:
    """A logging handler that raises an alert for each record is not called for ever by its own alerts."""
    run = start_run("digits", storage=InMemoryStorage(), config=TracingConfig(trace_dir=tmp_path))

    class Alerting(logging.Handler):
        """Raises an alert for each record."""

        def emit(self, record: logging.LogRecord) -> None:
            """Raise it."""
            run.alert("logged", record.getMessage())

    handler = Alerting()
    logging.getLogger("runspan").addHandler(handler)
    try:
        run.alert("first")
    finally:
        logging.getLogger("runspan").removeHandler(handler)
        run.finish()
    (trace,) = tmp_path.glob("*/rank-00000.jsonl")
    assert sum(isinstance(event, Event) and event.name == "alert" for event in read(trace)) == 2


def test_many_parameters_are_stored_in_few_transactions(tmp_path: Path) -> None:
    """A thousand calls of log_param do not become a thousand transactions, and the last values hold."""
    calls: list[int] = []

    class Counting(InMemoryStorage):
        """Counts its transactions of parameters."""

        def log_params(self, run_id: str, params: Any, *, rank: int = 0) -> None:
            """Count and store."""
            calls.append(len(params))
            super().log_params(run_id, params, rank=rank)

    storage = Counting()
    with start_run("digits", storage=storage, config=TracingConfig(trace_dir=tmp_path)) as run:
        for index in range(1_000):
            run.log_param(f"p{index % 10}", index)
    assert len(calls) < 500
    assert storage.get_params(run.id) == {f"p{index}": 990 + index for index in range(10)}


def test_a_closed_descriptor_does_not_raise(tmp_path: Path) -> None:
    """A program that closes every descriptor loses lines, not its training."""
    run = start_run("digits", storage=InMemoryStorage(), config=TracingConfig(trace_dir=tmp_path))
    (trace,) = tmp_path.glob("*/rank-00000.jsonl")
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the names are all that is wanted
        if os.path.realpath(f"/proc/self/fd/{name}") == str(trace):
            os.close(int(name))
    run.log_metric("loss", 1.0)
    run.finish()
    assert run.status() == "success"


def test_an_overlong_directory_is_an_error(tmp_path: Path) -> None:
    """A trace directory whose name no file system takes is one ConfigError that says what to set."""
    with pytest.raises(ConfigError, match="set RUNSPAN_DIR or trace_dir"):
        start_run("digits", storage=InMemoryStorage(), config=TracingConfig(trace_dir=tmp_path / ("x" * 400)))
