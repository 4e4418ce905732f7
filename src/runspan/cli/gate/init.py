"""``runspan gate init``: the files that a repository starts to gate its benchmarks with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runspan._git import Git, GitError
from runspan.cli._output import clean, note, say
from runspan.cli.gate._common import GATE_EXIT_CODES, failing_closed
from runspan.errors import GateError
from runspan.gate._templates import starting_files
from runspan.gate.baseline import CONFIG_PATH

if TYPE_CHECKING:
    import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init", short_help="Write the files to start with.", epilog=GATE_EXIT_CODES)(_init)


def _init() -> None:
    """Write commented .benchmarks/config.toml and bounds.toml and a workflow for GitHub at the repository's top.

    A file that is there stays as it is.
    """
    with failing_closed():
        try:
            git = Git.around(Path.cwd())
        except GitError as error:
            raise GateError(f"{error}; run it in the git repository whose benchmarks it is for") from error
        perf_paths = _code_folders(git)
        for name, text in starting_files(perf_paths).items():
            path = git.top / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("x", encoding="utf-8", newline="\n") as file:
                    file.write(text)
            except FileExistsError:
                note(f"{path} is there; it stays as it is")
            except OSError as error:
                raise GateError(f"{path} cannot be written: {error.strerror or error}") from error
            else:
                say(f"wrote {clean(str(path))}")
        if not perf_paths:
            note(f"name the paths that a measurement depends on as perf_paths in {CONFIG_PATH}")
        say("next: declare a benchmark in bounds.toml, commit, and `runspan bench run <benchmark> --gate`")


def _code_folders(git: Git) -> list[str]:
    """Return ``src``, or else the top-level packages, of what git tracks; empty where neither is there."""
    tracked = {Path(name).parts for name in git.run("ls-files", "-z").decode("utf-8", "surrogateescape").split("\0")}
    if any(parts[:1] == ("src",) for parts in tracked if len(parts) > 1):
        return ["src"]
    return sorted({parts[0] for parts in tracked if parts[1:] == ("__init__.py",)})
