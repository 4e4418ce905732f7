"""What a Run refuses at its start, and what it leaves behind then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from runspan import ConfigError, ExperimentNotFoundError, InMemoryStorage, Run, TracingConfig, start_run
from runspan.tracefile import Terminal, read

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
