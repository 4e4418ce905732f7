from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from support.cli import clean_environ, make_run, make_step, read_terminal, run_program
from support.otlp_receiver import until

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = [sys.executable, "-m", "runspan.cli"]
_HEARTBEAT_S = 0.2
_TRAINING = """
import time, runspan
with runspan.start_run("mnist") as run:
    for step in run.steps(range(1_000_000)):
        run.log_metric("loss", 1 / (step + 1))
        time.sleep(0.001)
        if step == 20:
            print(run.run_id, flush=True)
"""


def _on_terminal(arguments: list[str], environ: dict[str, str]) -> str:
    """Run a command whose stdout is a terminal of 80 columns, and return what it printed there."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*_PROGRAM, *arguments], env={**environ, "COLUMNS": "80", "TERM": "xterm"}, stdout=follower
    )
    os.close(follower)
    printed = read_terminal(leader)
    assert process.wait(30) == 0
    return printed.decode()


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_killed_training_runs_then_is_interrupted(tmp_path: Path) -> None:
    """Case 23: while its heartbeat is young the run is running; after SIGKILL it is interrupted, never finished."""
    environ = clean_environ(tmp_path, RUNSPAN_HEARTBEAT_S=str(_HEARTBEAT_S))
    with subprocess.Popen(
        [sys.executable, "-c", _TRAINING], env=environ, stdout=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout is not None
        run_id = training.stdout.readline().strip()
        assert run_program(["runs", "--json"], environ).document[0]["status"] == "running"
        refused = run_program(["rm", run_id, "--yes"], environ)
        assert (refused.code, "still running" in refused.err) == (2, True)
        training.kill()
    time.sleep(4 * _HEARTBEAT_S)
    for storage in (str(tmp_path / "experiments.db"), "none"):
        shown = run_program(["show", run_id, "--json", "--storage", storage], environ).document
        assert (shown["status"], shown["end_time_unix_nano"]) == ("interrupted", None)
        assert shown["metrics"]["loss"] < 1 / 20
    assert run_program(["rm", run_id, "--yes"], environ).code == 0


def test_a_reader_that_closes_the_pipe_ends_the_program_quietly(tmp_path: Path) -> None:
    """`runspan runs | head -1` of a long list: exit 141, and not a word on stderr."""
    for number in range(2_000):
        make_run(tmp_path, f"run-{number:04d}-{'x' * 80}")
    for options, unbuffered in (([], ""), (["--json"], ""), (["--json"], "1")):
        environ = clean_environ(tmp_path, PYTHONUNBUFFERED=unbuffered)
        process = subprocess.Popen(
            [*_PROGRAM, "runs", *options], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        _, complaints = process.communicate(timeout=60)
        assert (process.returncode, complaints) == (141, b"")


@pytest.mark.parametrize("command", ["--help", "--version", "trace --help"])
def test_help_for_a_closed_pipe_is_no_negative_answer(tmp_path: Path, command: str) -> None:
    """What is printed before any command runs ends like an answer does: exit 141, quietly."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*_PROGRAM, *command.split()],
            env=clean_environ(tmp_path),
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("command", ["runs", "show latest --json", "trace summary latest", "--help", "runs --help"])
def test_a_full_disk_behind_stdout_is_told(tmp_path: Path, command: str) -> None:
    """An answer that nobody could keep is exit code 2 and one line; without any stdout nothing is wrong."""
    make_run(tmp_path, "run-a")
    for stdout, code, told in (
        ("/dev/full", 2, "runspan: No space left on device: the answer is not whole\n"),
        ("&-", 0, ""),
    ):
        done = subprocess.run(
            ["sh", "-c", f'exec "$0" -m runspan.cli {command} >{stdout}', sys.executable],
            env=clean_environ(tmp_path),
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (code, told)


@pytest.mark.parametrize("command", ["query run-a steps", "trace export run-a --to parquet -o out"])
@pytest.mark.parametrize("most_bytes", [1 << 10, 8 << 10, 20 << 10])
def test_a_database_without_room_is_told(tmp_path: Path, command: str, most_bytes: int) -> None:
    """Where SQL's files cannot grow, as on a full disk, the answer is one line and exit code 2, and nothing is left."""
    make_run(tmp_path / "root", "run-a", events=[make_step(number, forward=1) for number in range(200)])
    (tmp_path / "temporary").mkdir()
    limited = f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, {most_bytes}));"
    done = subprocess.run(
        [sys.executable, "-c", f"{limited} from runspan.cli import main; sys.exit(main())", *command.split()],
        env=clean_environ(tmp_path / "root", TMPDIR=str(tmp_path / "temporary"), RUNSPAN_STORAGE="none"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("runspan: ")
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "temporary").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "temporary"]


def test_ctrl_c_ends_the_program_quietly(tmp_path: Path) -> None:
    """SIGINT in the middle of a demo: exit 130, no traceback of the command, and no rank left behind."""
    process = subprocess.Popen(
        [*_PROGRAM, "demo", "--epochs", "500", "--storage", "none"],
        env=clean_environ(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert until(lambda: len(list(tmp_path.glob("runs/*/rank-*.jsonl"))) == 4, 60)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in complaints
    ranks = list(tmp_path.glob("runs/*/rank-*.jsonl"))
    sizes = [path.stat().st_size for path in ranks]
    time.sleep(0.3)
    assert [path.stat().st_size for path in ranks] == sizes


def test_ctrl_c_while_the_program_loads_ends_it_quietly(tmp_path: Path) -> None:
    """The interrupt may come while modules are imported: exit 130 too, without a traceback."""
    source = """
        import sys

        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name == "runspan.cli.demo":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupting())
        from runspan.cli import main
        sys.exit(main(["runs"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env=clean_environ(tmp_path),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_a_terminal_gets_a_table_in_colour_unless_told_not_to(tmp_path: Path) -> None:
    """In 80 columns the whole run id can be read; NO_COLOR takes the colours away."""
    run_id = "01a22ecb-82ed-767b-b255-482c86855ebd"
    make_run(tmp_path, run_id)
    environ = clean_environ(tmp_path)
    environ.pop("NO_COLOR", None)
    coloured = _on_terminal(["runs"], environ)
    assert "\x1b[32msuccess" in coloured
    lines = _without_colours(coloured).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(run_id in line and "mnist" in line and "success" in line for line in lines)
    assert "\x1b[32m" not in _on_terminal(["runs"], {**environ, "NO_COLOR": "1"})


@pytest.mark.parametrize("command", ["show", "diff", "doctor"])
def test_other_commands_fit_a_terminal(tmp_path: Path, command: str) -> None:
    """Tables and reports stay within 80 columns; only paths, which must be copied whole, may be longer."""
    make_run(tmp_path, "run-a")
    arguments = {"show": ["run-a"], "diff": ["run-a", "run-a"], "doctor": []}[command]
    lines = _without_colours(_on_terminal([command, *arguments], clean_environ(tmp_path))).splitlines()
    assert lines
    assert [line for line in lines if len(line) > 80 and str(tmp_path) not in line] == []


def test_a_terminal_without_unicode_gets_no_traceback(tmp_path: Path) -> None:
    """Where stdout is ASCII, bars become question marks."""
    make_run(tmp_path, "run-a")
    answer = run_program(["show", "run-a"], clean_environ(tmp_path, PYTHONIOENCODING="ascii"))
    assert answer.code == 0
    assert "???" in answer.out


def test_help_loads_no_heavy_library(tmp_path: Path) -> None:
    """`runspan --help` answers without SQLAlchemy, gRPC, rich, numpy, psutil and the OpenTelemetry SDK's metrics."""
    program = (
        "import sys; from runspan.cli import main; main(['--help']);"
        "heavy = {'sqlalchemy', 'grpc', 'rich', 'numpy', 'sklearn', 'psutil', 'opentelemetry.sdk.metrics'};"
        "sys.exit(repr(heavy & sys.modules.keys()) if heavy & sys.modules.keys() else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_environ(tmp_path), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def _bound_by_permissions() -> list[str]:
    """Return what starts a program whom permissions bind, root too."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root reads everything, and setpriv is missing")
    rights = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]


@pytest.mark.parametrize(
    "command",
    [
        "trace summary run-a",
        "trace health run-a",
        "trace recover run-a",
        "trace merge run-a -o out",
        "trace export run-a --to html -o out",
        "query run-a steps",
    ],
)
@pytest.mark.parametrize("hidden", [".", "captures", "captures/update-000000003"])
def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, command: str, hidden: str) -> None:
    """What another user's folder hides is not answered without: exit code 2, the folder named, nothing written."""
    directory = make_run(tmp_path / "root", "run-a")
    (directory / "captures" / "update-000000003").mkdir(parents=True)
    folder = directory / hidden
    folder.chmod(0)
    try:
        done = subprocess.run(
            [*_bound_by_permissions(), *_PROGRAM, *command.split()],
            env=clean_environ(tmp_path / "root"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        folder.chmod(0o755)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"runspan: {folder}: cannot be listed: Permission denied\n"
    assert not (tmp_path / "out").exists()
