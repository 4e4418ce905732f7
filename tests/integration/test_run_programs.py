from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from runspan import ids
from runspan.tracefile import Dropped, Metric, Terminal, read
from support.programs import Workplace, events_of, kinds_of, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    """Return an empty workplace."""
    return Workplace(tmp_path)


@contextmanager
def _small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system of a size."""
    folder.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "runspan-test", str(folder)],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("mount is not installed")
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("max_file_bytes", ["256MiB", "64KiB"])
def test_a_full_disk_costs_lines_and_no_training(work: Workplace, max_file_bytes: str) -> None:
    """Case 29: on a full disk nothing raises; freed again, later records are whole, none twice, the loss told."""
    with _small_disk(work.root, "512k"):
        done = work.run(
            """
            import os, runspan
            from pathlib import Path
            ballast = Path(os.environ["RUNSPAN_DIR"]) / "ballast"
            with runspan.start_run("full", run_id="r", storage=runspan.InMemoryStorage()) as run:
                ballast.write_bytes(b"x" * 150_000)
                for step in range(3000):
                    run.log_metric("loss", step)
                    with run.span("s"), run.phase("p"):
                        run.event("large", text=os.urandom(400).hex())
                accepted = run.current_step("loss")
                assert 0 < accepted < 3000, accepted
                ballast.unlink()
                for step in range(3000, 3100):
                    run.log_metric("loss", step)
                assert run.current_step("loss") == accepted + 100
                run.log_artifact("too large", b"x" * 1_000_000)
            print(accepted)
            """,
            RUNSPAN_MAX_FILE_BYTES=max_file_bytes,
        )
        assert done.returncode == 0, done.stderr
        accepted = int(done.stdout)
        events = list(read(work.only_run / "rank-00000.jsonl"))
    metrics = [event for event in events if isinstance(event, Metric)]
    assert [metric.step for metric in metrics] == list(range(accepted + 100))
    assert [metric.value for metric in metrics][-100:] == list(range(3000, 3100))
    values = [metric.value for metric in metrics]
    assert values == sorted(set(values))
    assert isinstance(events[-1], Terminal)
    assert events[-1].status == "success"
    told = sum(event.count for event in events if isinstance(event, Dropped) and event.signal == "file")
    assert told >= 3000 - accepted
    warnings = [line for line in done.stderr.splitlines() if "No space left" in line]
    assert len([line for line in warnings if "trace file" in line]) == 1


def test_what_a_program_is_called(work: Workplace) -> None:
    """Experiment and entrypoint are the script's stem, or the module of -m; RUNSPAN_EXPERIMENT beats the first."""
    program = "import runspan\nwith runspan.start_run() as run:\n    print(run.experiment_id)\n"
    assert work.run(program, name="digits").stdout == f"{ids.experiment_id('digits')}\n"
    (work.folder / "package").mkdir()
    (work.folder / "package" / "__init__.py").touch()
    (work.folder / "package" / "trainer.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "package.trainer"],
        cwd=work.folder,
        env={**work.environ(), "RUNSPAN_EXPERIMENT": "named"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{ids.experiment_id('named')}\n"
    entrypoints = [lines_of(path / "rank-00000.jsonl")[0]["entrypoint"] for path in work.runs]
    assert sorted(entrypoints) == ["digits:__main__", "package.trainer:__main__"]


@pytest.mark.parametrize("time_zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
def test_times_do_not_depend_on_the_time_zone(work: Workplace, time_zone: str) -> None:
    """Case 30: the same moment is written the same under every TZ: UTC with milliseconds and Z, and unix ns."""
    done = work.run("import runspan\nrunspan.start_run('zone').finish()", TZ=time_zone)
    assert done.returncode == 0, done.stderr
    meta = work.trace()[0]
    written = datetime.strptime(meta["timestamp"], "%Y-%m-%dT%H:%M:%S.%f%z")
    assert meta["timestamp"].endswith("Z")
    assert abs(written.timestamp() - meta["time_unix_nano"] / 1e9) < 0.002


def test_the_folder_is_found_from_the_git_root(work: Workplace) -> None:
    """Without RUNSPAN_DIR everything goes below .runspan at the git root, kept out of git."""
    _git(work, "init", "--quiet")
    deeper = work.folder / "a" / "b"
    deeper.mkdir(parents=True)
    program = f"import os, runspan\nos.chdir({str(deeper)!r})\nrunspan.start_run('where').finish()\n"
    for _ in range(2):
        assert work.run(program, RUNSPAN_DIR="").returncode == 0
    assert len(list((work.folder / ".runspan" / "runs").iterdir())) == 2
    assert (work.folder / ".runspan" / ".gitignore").read_text() == "*\n"
    assert ".runspan" not in _git(work, "status", "--porcelain")


def test_git_is_recorded_without_its_secrets(work: Workplace) -> None:
    """Sha, branch and the changes are in the environment event, the remote in the resource, credentials hidden."""
    _git(work, "init", "--quiet", "--initial-branch", "main")
    _git(work, "remote", "add", "origin", "https://me:hunter2hunter2@example.org/x.git")
    (work.folder / "settings.py").write_text("lr = 0.1\n")
    _git(work, "add", "settings.py")
    _git(work, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message", "one")
    (work.folder / "settings.py").write_text("lr = 0.2\napi_key = 'hunter2hunter2'\n")
    done = work.run("import runspan\nrunspan.start_run('git').finish()")
    assert done.returncode == 0, done.stderr
    lines = work.trace()
    (environment,) = events_of(lines, "environment")
    assert environment["git"]["sha"] == _git(work, "rev-parse", "HEAD").strip()
    assert environment["git"]["branch"] == "main"
    assert "+lr = 0.2" in environment["git"]["diff"]
    assert lines[0]["resource"]["vcs.repository.url.full"] == "https://***@example.org/x.git"
    (run_span,) = events_of(lines, "span_start", name="run")
    assert run_span["attributes"]["vcs.ref.head.revision"] == environment["git"]["sha"]
    for path in work.root.rglob("*"):
        if path.is_file():
            assert b"hunter2" not in path.read_bytes()


def test_a_working_directory_that_is_gone(work: Workplace) -> None:
    """A program whose working directory was removed trains on where it is told where to write."""
    done = work.run("""
        import os, pathlib, runspan
        folder = pathlib.Path("gone")
        folder.mkdir()
        os.chdir(folder)
        os.rmdir(os.getcwd())
        with runspan.start_run("gone") as run:
            run.log_metric("loss", 1.0)
    """)
    assert done.returncode == 0, done.stderr
    assert work.trace()[-1]["status"] == "success"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"RUNSPAN_SHUTDOWN_TIMEOUT_S": "soon"}, "RUNSPAN_SHUTDOWN_TIMEOUT_S"),
        ({"RUNSPAN_RANK": "4", "RUNSPAN_WORLD_SIZE": "4", "RUNSPAN_RUN_ID": "r"}, "RUNSPAN_RANK"),
        ({"RUNSPAN_RANK": "0", "RUNSPAN_WORLD_SIZE": "4"}, "RUNSPAN_RUN_ID"),
        ({"RUNSPAN_PARENT": "x"}, "RUNSPAN_PARENT"),
        ({"RUNSPAN_DIR": "/proc/nowhere"}, "RUNSPAN_DIR"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense://x"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_an_unreadable_variable_is_one_clear_error(work: Workplace, variables: dict[str, str], named: str) -> None:
    """What cannot be used fails at the start, naming the variable, and leaves no run behind."""
    done = work.run("import runspan\nrunspan.start_run('env')", name="train", **variables)
    assert done.returncode == 1
    assert named in done.stderr.splitlines()[-1]
    assert "ConfigError" in done.stderr.splitlines()[-1]
    assert not (work.root / "runs").exists()


def test_an_unusable_default_storage_does_not_stop_a_training(work: Workplace) -> None:
    """A database that is none costs one warning; strict raises it."""
    work.root.mkdir()
    (work.root / "experiments.db").write_text("this is no database, and long enough to be read as a header of one")
    program = """
        import runspan
        with runspan.start_run("broken") as run:
            run.log_metric("loss", 1.0)
    """
    done = work.run(program)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "experiments.db" in done.stderr
    assert work.trace()[-1]["status"] == "success"
    strict = work.run(program, RUNSPAN_STRICT="1")
    assert strict.returncode == 1
    assert "StorageError" in strict.stderr.splitlines()[-1]


def test_a_program_that_prints_nothing_of_ours(work: Workplace) -> None:
    """A run that goes well writes nothing to stdout or stderr."""
    done = work.run(
        """
        import runspan
        with runspan.start_run("quiet", params={"lr": 0.1}, tags={"a": "b"}) as run:
            for batch in run.steps(range(30)):
                with run.phase("forward"), run.span("s", a=1):
                    run.log_metric("loss", batch)
            run.log_artifact("a", b"x")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert kinds_of(work.trace())[0] == "meta"


def _git(work: Workplace, *arguments: str) -> str:
    environ = {**work.environ(), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(["git", *arguments], cwd=work.folder, env=environ, capture_output=True, text=True, check=True)
    return done.stdout
